"""How much of a text repeats itself, or stands in another: by a hash of every run of n ids.

Runs that stand for about `RUN_BYTES` bytes hardly ever occur twice by accident (Brown et al. 2020, appendix C, take 13
words). The hash of a run is put together from those of its halves, so all runs of a text cost log2(n) passes over it;
a text is looked through a block at a time, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from .examples import Examples

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
    return _share_again([hashes[(hashes >> np.uint64(32)) % every == 0] for hashes in _blocks(text, length)])


def overlap(training: np.ndarray, text: np.ndarray, length: int) -> float | None:
    """The share of the runs of `length` tokens of `text` that occur in `training`, both being ids; of a long text,
    100,000 runs spread evenly. None where the text is shorter than a run."""
    hashes = run_hashes(text, length)
    if not len(hashes):
        return None
    return float(seen(_blocks(training, length), _sample(hashes)).mean())


def asked(training: np.ndarray, questions: Sequence[np.ndarray], length: int) -> float | None:
    """The share of questions of which `training` holds a run of `length` tokens; of those that are long enough. None
    where none is."""
    hashes = [h for ids in questions if len(h := run_hashes(ids, length))]
    if not hashes:
        return None
    found = seen(_blocks(training, length), np.concatenate(hashes))
    begins = np.cumsum([0, *map(len, hashes[:-1])])
    return float(np.logical_or.reduceat(found, begins).mean())


def seen(training: Iterable[np.ndarray], hashes: np.ndarray) -> np.ndarray:
    """Of each hash of a run, whether the blocks of hashes of a training text hold it."""
    # Nearly every run of the training text is none of these, which a table of a few bits of each tells at once.
    table = np.zeros(1 << _BITS, np.bool_)
    table[_few(hashes)] = True
    wanted, which = np.unique(hashes, return_inverse=True)
    found = np.zeros(len(wanted), np.bool_)
    for block in training:
        candidates = block[table[_few(block)]]
        at = np.minimum(np.searchsorted(wanted, candidates), len(wanted) - 1)
        found[at[wanted[at] == candidates]] = True
    return found[which]


@dataclass(frozen=True)
class Copies:
    """Shares, 0 to 1. again: of the examples, those that are copies of earlier ones. held_out: of the examples held
    out, those that are copies of trained ones. answers: of the runs of tokens that count in them, those that occur in
    what counts of the trained ones. None where nothing is held out, or no answer is as long as a run."""

    again: float
    held_out: float | None
    answers: float | None


def copies(training: Examples, held_out: Examples | None, length: int) -> Copies:
    """How much of examples repeats itself, whole examples and runs of `length` tokens of their answers: words of a
    template, which all of them share, say nothing. Of many examples a sample is looked at, as in `repeated`."""
    every = np.uint64(max(1, -(-len(training) // _KEPT)))
    again = _share_again([h[(h >> np.uint64(32)) % every == 0] for h in _whole(training)])
    if held_out is None:
        return Copies(again, None, None)
    wanted = _sample(np.concatenate(list(_whole(held_out))))
    copied = float(seen(_whole(training), wanted).mean())
    runs = _sample(np.concatenate(list(_answers(held_out, length))))
    return Copies(again, copied, float(seen(_answers(training, length), runs).mean()) if len(runs) else None)


def _whole(examples: Examples) -> Iterator[np.ndarray]:
    """A hash of every example, a block of them at a time."""
    for ids, _, lengths in examples.blocks():
        at = np.cumsum(lengths) - lengths
        place = np.arange(len(ids)) - np.repeat(at, lengths)
        powers = np.full(int(lengths.max()), _FACTOR)
        powers[0] = 1
        with np.errstate(over="ignore"):
            powers = np.multiply.accumulate(powers)
            hashes = np.add.reduceat((ids.astype(np.uint64) + np.uint64(1)) * powers[place], at)
            # The highest bits have to depend on every id.
            yield (hashes ^ hashes >> np.uint64(32)) * _FACTOR


def _answers(examples: Examples, length: int) -> Iterator[np.ndarray]:
    """The hashes of all runs of what counts, a block of examples at a time."""
    for ids, counts, _ in examples.blocks():
        yield run_hashes(ids[counts], length)


def _sample(hashes: np.ndarray) -> np.ndarray:
    return hashes if len(hashes) <= _SAMPLES else hashes[np.linspace(0, len(hashes) - 1, _SAMPLES).astype(np.int64)]


def _share_again(kept: list[np.ndarray]) -> float:
    count = sum(map(len, kept))
    return 1 - len(np.unique(np.concatenate(kept))) / count if count else 0.0


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
