"""Cutting texts into the words that a model encodes one by one: pre-tokenisation, on UTF-8 bytes, in compiled code.

A cut maps (data, starts) to finer starts: piece k is bytes starts[k] to starts[k+1]-1. Cuts are applied one after
the other, each inside the pieces of the one before, as a sequence of pre-tokenisers in a file asks for.
"""

from __future__ import annotations

import numpy as np

from .native import compiled, shared
from .patterns import Pattern
from .unicode import classes

_CHUNK = 1 << 15  # bytes a worker takes at once


def grain(items: int, size: int, chunk: int = _CHUNK) -> int:
    """Items in a chunk of work, so that a chunk has about `chunk` of the `size` bytes of all."""
    return max(1, items * chunk // max(1, size))


def split(data: np.ndarray, starts: np.ndarray, pattern: Pattern) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Cuts pieces by a pattern.

    data: uint8, valid UTF-8; starts: int64 (n + 1). Returns the words' data and starts, and None, or, where the
    pattern drops some of it, the positions in `data` of the bytes that are left.
    """
    marks = np.zeros(len(data), np.uint8)
    if len(data):
        n = len(starts) - 1
        arrays = [shared(data), shared(starts), shared(marks)]
        if pattern.text:
            text = np.frombuffer(pattern.text.encode("utf-8"), np.uint8)
            compiled("literal").split(n, grain(n, len(data)), *arrays, shared(text), pattern.flags)
        else:
            tables = map(shared, classes())
            compiled("scan").split(n, grain(n, len(data)), *arrays, pattern.flags, pattern.numbers, *tables)
    if not pattern.drops:
        return data, np.append(np.flatnonzero(marks), len(data)), None
    # A byte is kept where the last mark at or before it began a piece.
    at = np.flatnonzero(marks)
    kinds = marks[at] == 1
    lengths = np.diff(np.append(at, len(data)))
    kept = np.flatnonzero(np.repeat(kinds, lengths))
    cuts = np.zeros(int(kinds.sum()) + 1, np.int64)
    np.cumsum(lengths[kinds], out=cuts[1:])
    return np.ascontiguousarray(data[kept]), cuts, kept
