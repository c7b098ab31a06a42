"""How much of a text repeats itself, or stands in another: by a hash of every run of n ids.

Runs that stand for about `RUN_BYTES` bytes hardly ever occur twice by accident (Brown et al. 2020, appendix C, take 13
words). The hash of a run is put together from those of its halves, so all runs of a text cost log2(n) passes over it;
a text is looked through a block at a time, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np

RUN_BYTES = 50
_SHORTEST = 8  # tokens of a run
_SAMPLES = 100_000  # runs looked for
_KEPT = 2_000_000  # hashes of a text kept, to find what it repeats
_BLOCK = 1 << 20  # tokens looked through at a time
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 22


def run_length(bytes_per_token: float) -> int:
    """Tokens that stand for `RUN_BYTES` bytes."""
    return max(_SHORTEST, ceil(RUN_BYTES / bytes_per_token))


def repeated(text: np.ndarray, length: int) -> float:
    """The share of the runs of `length` ids that stood in the text before: 0 to 1.

    Of a long text, only hashes that are multiples of a number count, so that the same runs do wherever they stand, and
    a paragraph that was moved by a token is found as well   (Manber 1994, "Finding similar files").
    """
    every = np.uint64(max(1, -(-len(text) // _KEPT)))
    kept = [hashes[(hashes >> np.uint64(32)) % every == 0] for hashes in _blocks(text, length)]
    count = sum(map(len, kept))
    return 1 - len(np.unique(np.concatenate(kept))) / count if count else 0.0


def overlap(training: np.ndarray, text: np.ndarray, length: int) -> float | None:
    """The share of the runs of `length` tokens of `text` that occur in `training`, both being ids; of a long text,
    100,000 runs spread evenly. None where the text is shorter than a run."""
    hashes = run_hashes(text, length)
    if not len(hashes):
        return None
    if len(hashes) > _SAMPLES:
        hashes = hashes[np.linspace(0, len(hashes) - 1, _SAMPLES).astype(np.int64)]
    return float(seen(training, hashes, length).mean())


def asked(training: np.ndarray, questions: Sequence[np.ndarray], length: int) -> float | None:
    """The share of questions of which `training` holds a run of `length` tokens; of those that are long enough. None
    where none is."""
    hashes = [h for ids in questions if len(h := run_hashes(ids, length))]
    if not hashes:
        return None
    found = seen(training, np.concatenate(hashes), length)
    begins = np.cumsum([0, *map(len, hashes[:-1])])
    return float(np.logical_or.reduceat(found, begins).mean())


def seen(training: np.ndarray, hashes: np.ndarray, length: int) -> np.ndarray:
    """Of each hash of a run, whether `training` holds it."""
    # Nearly every run of the training text is none of these, which a table of a few bits of each tells at once.
    table = np.zeros(1 << _BITS, np.bool_)
    table[_few(hashes)] = True
    found = np.zeros(len(hashes), np.bool_)
    for block in _blocks(training, length):
        candidates = block[table[_few(block)]]
        if len(candidates):
            found |= np.isin(hashes, candidates)
    return found


def run_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """A 64-bit hash of every run of `length` ids: sum of (id + 1) * factor**(length - 1 - i), modulo 2**64."""
    count = len(ids) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    power = ids.astype(np.uint64) + np.uint64(1)  # hashes of runs of `size`
    size, factor = 1, _FACTOR
    total, done = np.zeros(len(ids), np.uint64), 0  # hashes of runs of `done`
    with np.errstate(over="ignore"):
        while True:
            if length & size:
                # behind what there is: total[i] covers i to i + done, power the next `size`
                shifted = power[done:]
                total = total[: len(shifted)] * factor + shifted if done else power.copy()
                done += size
            if size * 2 > length:
                break
            n = len(power) - size
            power = power[:n] * factor + power[size : size + n]
            factor = factor * factor
            size *= 2
    return total[:count]


def _blocks(ids: np.ndarray, length: int) -> Iterator[np.ndarray]:
    """The hashes of all runs, a block of the text at a time."""
    for begin in range(0, len(ids), _BLOCK):
        yield run_hashes(ids[begin : begin + _BLOCK + length - 1], length)


def _few(hashes: np.ndarray) -> np.ndarray:
    """The highest bits, which depend on every id."""
    return (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
