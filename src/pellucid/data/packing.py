"""Packing: several short documents in each row of a batch, so that little of it is padding.

Rows are filled by best fit decreasing over groups of documents: the longest first, each into the row with the least
room that is enough   (Johnson 1974). The documents of an epoch are shuffled before they are grouped, and the rows
after, both from (seed, epoch) alone; which rows a step reads follows from its number. Nothing has to be remembered to
resume, and memory holds a few numbers a document, never their ids.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from ..base.errors import DataError
from ..base.rng import Generator
from .batch import TokenBatch
from .examples import Examples

# Keeps the order apart from whatever else a program draws from the same seed.
_ORDER, _ROWS = int.from_bytes(b"examples", "big"), int.from_bytes(b"rows", "big")
GROUP = 1024
"""Documents that are packed together."""


def pack(lengths: Sequence[int] | np.ndarray, capacity: int, *, group: int = GROUP) -> list[list[int]]:
    """Rows of numbers of documents, at most `capacity` tokens each, in the order the rows were begun.

    Raises:
        DataError: a document longer than a row.
    """
    rows: list[list[int]] = []
    for first in range(0, len(lengths), group):
        some = [int(n) for n in lengths[first : first + group]]
        order = sorted(range(len(some)), key=lambda i: (-some[i], i))
        room: list[tuple[int, int]] = []  # of open rows, the least first: (tokens, row)
        for i in order:
            if some[i] > capacity:
                raise DataError("pack", "a document is longer than a row", got=some[i], expected=f"at most {capacity}")
            at = bisect_left(room, (some[i], -1))
            if at == len(room):
                left, row = capacity, len(rows)
                rows.append([])
            else:
                left, row = room.pop(at)
            rows[row].append(first + i)
            if left - some[i] > 1:  # two tokens are the shortest document
                insort(room, (left - some[i], row))
    return rows


class PackedRows:
    """Examples in rows of `seq_len` + 1 tokens, `sequences` rows a step: to train on, and to be evaluated on.

    packing: several examples a row; otherwise one. Epochs follow one another: a batch may end one and begin the next.

    Raises:
        DataError: an example longer than a row.
    """

    def __init__(self, examples: Examples, *, seq_len: int, sequences: int, seed: int, packing: bool = True) -> None:
        self.examples, self.seq_len, self.sequences = examples, seq_len, sequences
        self.seed, self.packing = Generator(seed).seed, packing
        self._ends: list[int] = []  # rows up to and with each epoch
        self._epoch = lru_cache(2)(self._made)

    def rows(self, epoch: int) -> list[list[int]]:
        """The rows of an epoch, as numbers of examples."""
        return self._epoch(epoch)

    def steps(self, epochs: int) -> int:
        """Steps that read every example `epochs` times."""
        return -(-self._until(epochs) // self.sequences)

    def batch(self, step: int, /) -> TokenBatch:
        return self._batch([self._row(number) for number in range(step * self.sequences, (step + 1) * self.sequences)])

    def batches(self, most: int | None, /) -> Iterator[TokenBatch]:
        """All rows in the order of the file, or `most` batches spread evenly over them."""
        rows = self._packed(np.arange(len(self.examples)))
        count = -(-len(rows) // self.sequences)
        taken = count if most is None else min(most, count)
        for i in range(taken):
            first = i * count // taken * self.sequences
            yield self._batch(rows[first : first + self.sequences])

    def fingerprint(self) -> str:
        how = f"{self.examples.fingerprint()} {self.seq_len} {self.sequences} {self.seed} {self.packing} {GROUP}"
        return hashlib.sha256(how.encode()).hexdigest()

    def _batch(self, rows: list[list[int]]) -> TokenBatch:
        return TokenBatch.packed([[self.examples[i] for i in row] for row in rows])

    def _row(self, number: int) -> list[int]:
        epoch = 0
        while number >= self._until(epoch + 1):
            epoch += 1
        return self.rows(epoch)[number - self._until(epoch)]

    def _until(self, epoch: int) -> int:
        """Rows of all epochs before this one."""
        while len(self._ends) < epoch:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self.rows(len(self._ends))))
        return self._ends[epoch - 1] if epoch else 0

    def _made(self, epoch: int) -> list[list[int]]:
        rows = self._packed(Generator(self.seed).split(_ORDER, epoch).permutation(len(self.examples)))
        order = Generator(self.seed).split(_ROWS, epoch).permutation(len(rows))
        return [rows[i] for i in order.tolist()]

    def _packed(self, order: np.ndarray) -> list[list[int]]:
        lengths = self.examples.lengths[order]
        if not self.packing:
            lengths = np.where(lengths <= self.seq_len + 1, self.seq_len + 1, lengths)  # no second one has room
        return [[int(order[i]) for i in row] for row in pack(lengths, self.seq_len + 1)]
