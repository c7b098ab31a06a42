"""Doubts about an evaluation: whether the text was in the training text, and whether a score is too good to be true.

A measure of what was learned by heart says nothing about new text. Two rules look for that. The first compares texts:
runs of tokens that stand for about `RUN_BYTES` bytes hardly ever occur twice by accident, and from `OVERLAP` of them on
the training text is said to hold the evaluation text (Brown et al. 2020, appendix C, take 13 words). The second one
compares the score with what is possible: the best models known need more than half a bit for a byte of English that is
new to them, so less than `LEAST_BITS` is memory; and a suite of `ENOUGH` questions or more of which a share of
`TOO_GOOD` is answered rightly was seen before, or too easy to tell models apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from .choices import ChoiceResult

RUN_BYTES = 50
OVERLAP = 0.05
LEAST_BITS = 0.2  # bits/byte
ENOUGH, TOO_GOOD = 20, 0.95
_SHORTEST = 8  # tokens of a run
_SAMPLES = 100_000  # runs looked for
_BLOCK = 1 << 20  # tokens looked through at a time
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 22


def run_length(bytes_per_token: float) -> int:
    """Tokens that stand for `RUN_BYTES` bytes."""
    return max(_SHORTEST, ceil(RUN_BYTES / bytes_per_token))


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
    for begin in range(0, len(training), _BLOCK):
        block = run_hashes(training[begin : begin + _BLOCK + length - 1], length)
        candidates = block[table[_few(block)]]
        if len(candidates):
            found |= np.isin(hashes, candidates)
    return found


def run_hashes(ids: np.ndarray, length: int) -> np.ndarray:
    """A 64-bit hash of every run of `length` ids: sum of (id + 1) * factor**(length - 1 - i), modulo 2**64.

    The hash of a run is put together from those of its halves, so that it costs log2(length) passes."""
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


def _few(hashes: np.ndarray) -> np.ndarray:
    """The highest bits, which depend on every id."""
    return (hashes >> np.uint64(64 - _BITS)).astype(np.int64)


def doubts(
    *,
    bits_per_byte: float | None = None,
    overlap: float | None = None,
    choices: ChoiceResult | None = None,
    asked: float | None = None,
) -> list[str]:
    """What speaks against an evaluation, a sentence each. overlap, asked: what the functions of that name found."""
    found = []
    if overlap is not None and overlap >= OVERLAP:
        found.append(
            f"{overlap:.0%} of the evaluation text is in the training text: the score says what was learned by heart"
        )
    if bits_per_byte is not None and bits_per_byte < LEAST_BITS:
        found.append(
            f"{bits_per_byte:.3f} bits per byte is less than any model needs for text it has not seen "
            f"({LEAST_BITS}): the text looks memorised"
        )
    if asked is not None and asked >= OVERLAP:
        found.append(f"{asked:.0%} of the questions are in the training text: their answers were learned by heart")
    if choices is not None and choices.questions >= ENOUGH and choices.accuracy >= TOO_GOOD:
        found.append(
            f"{choices.accuracy:.0%} of {choices.questions:,} questions answered rightly: they were seen in training, "
            "or are too easy to tell models apart"
        )
    return found
