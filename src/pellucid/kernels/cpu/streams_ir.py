"""Generator of the loop that reads a matrix once, for the passes of a decode step.

Several lines are summed at once, not neighbours but far from one another: each is a stream of memory of its own, which
goes on where the next line starts. A core waits for memory in parallel as far as it has different pages to read ahead
in; one stream of them keeps it busy by no more than two thirds.
"""

from __future__ import annotations

from collections.abc import Callable

from .floats_ir import Floats
from .ir import Function

STREAMS = 8  # lines summed at once; sums are written up to this many numbers behind the last
CACHE_LINE = 64
_AHEAD = 1024  # bytes from what is read to what is asked of memory


def line_sums(
    e: Floats,
    f: Function,
    streams: int,
    sums_of: Callable[[list[str]], list[list[str]]],
    unit: str = "",
    row_bytes: int = 0,
) -> None:
    """%sums[i] = the lanes of `sums_of` line i added up, times `unit`, for %count lines of %matrix, %line_step apart.

    `sums_of` emits the sums of `streams` lines, a multiple of four, for each row that lines are multiplied with; those
    of a row go `row_bytes` behind the row's before. Where no line is left for a stream, it reads the last.
    """
    last, apart = f.sub("%count", 1), f.div(f.add("%count", streams - 1), streams)
    with f.loop(0, apart) as j:
        places = [f.add(j, f.mul(apart, i)) for i in range(streams)]
        found = sums_of([f.at("%matrix", f.mul(f.least(place, last), "%line_step")) for place in places])
        for row, vectors in enumerate(found):
            to = f.at("%sums", row * row_bytes)
            for i in range(0, streams, 4):
                four = e.four_sums(f, vectors[i : i + 4])
                if unit:
                    four = f.let(f"fmul <4 x float> {four}, {unit}")
                for lane in range(4):
                    one = f.let(f"extractelement <4 x float> {four}, i64 {lane}")
                    f.store("float", one, f.at(to, f.mul(places[i + lane], 4)), 4)


def ask_ahead(e: Floats, f: Function, address: str) -> None:
    """Asks memory for what a stream reads some steps later: the processor alone stops at each page."""
    e.prefetch(f, f.at(address, _AHEAD))
