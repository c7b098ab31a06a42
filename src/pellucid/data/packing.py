"""Packing: several short documents in each row of a batch, so that little of it is padding.

Rows are filled by best fit decreasing over groups of documents: the longest first, each into the row with the least
room that is enough   (Johnson 1974). The documents of an epoch are shuffled before they are grouped, and the rows of a
group after, both from (seed, epoch) alone; which rows a step reads follows from its number. Nothing has to be
remembered to resume. An order is computed where it is asked for, and a group is packed when its turn comes, so memory
holds one number a group, however many documents there are.
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
from .shuffle import Shuffled

# Keeps the order apart from whatever else a program draws from the same seed.
_ORDER, _ROWS = int.from_bytes(b"examples", "big"), int.from_bytes(b"rows", "big")
GROUP = 1024
"""Documents that are packed together."""
_KEPT = 4  # groups whose rows are in memory


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
        self._ends: dict[int | None, np.ndarray] = {}
        self._kept = lru_cache(_KEPT)(self._made)

    def rows(self, epoch: int | None) -> Iterator[list[int]]:
        """The rows of an epoch, as numbers of examples; None: in the order of the file."""
        for group in range(self._groups):
            yield from self._kept(epoch, group)

    def count(self, epoch: int | None) -> int:
        """How many rows an epoch has."""
        return int(self._ends_of(epoch)[-1])

    def tokens(self) -> int:
        """Of all examples."""
        return sum(int(self.examples.lengths(self._numbers(None, group)).sum()) for group in range(self._groups))

    def steps(self, epochs: int) -> int:
        """Steps that read every example `epochs` times."""
        return -(-sum(map(self.count, range(epochs))) // self.sequences)

    def batch(self, step: int, /) -> TokenBatch:
        epoch, first, rows = 0, step * self.sequences, []
        while first >= (count := self.count(epoch)):
            first, epoch = first - count, epoch + 1
        while len(rows) < self.sequences:
            if first == self.count(epoch):
                first, epoch = 0, epoch + 1
            rows.append(self._row(epoch, first))
            first += 1
        return self._batch(rows)

    def batches(self, most: int | None, /) -> Iterator[TokenBatch]:
        """All rows in the order of the file, or `most` batches spread evenly over them."""
        rows = self.count(None)
        count = -(-rows // self.sequences)
        taken = count if most is None else min(most, count)
        for i in range(taken):
            first = i * count // taken * self.sequences
            yield self._batch([self._row(None, n) for n in range(first, min(first + self.sequences, rows))])

    def fingerprint(self) -> str:
        how = f"{self.examples.fingerprint()} {self.seq_len} {self.sequences} {self.seed} {self.packing} groups {GROUP}"
        return hashlib.sha256(how.encode()).hexdigest()

    def _batch(self, rows: list[list[int]]) -> TokenBatch:
        return TokenBatch.packed([[self.examples[i] for i in row] for row in rows])

    def _row(self, epoch: int | None, number: int) -> list[int]:
        ends = self._ends_of(epoch)
        group = int(np.searchsorted(ends, number, "right"))
        return self._kept(epoch, group)[number - (int(ends[group - 1]) if group else 0)]

    @property
    def _groups(self) -> int:
        return -(-len(self.examples) // GROUP)

    def _ends_of(self, epoch: int | None) -> np.ndarray:
        """Rows up to and with each group of an epoch."""
        if epoch not in self._ends:
            self._ends[epoch] = np.cumsum([len(self._packed(self._numbers(epoch, g))) for g in range(self._groups)])
        return self._ends[epoch]

    def _made(self, epoch: int | None, group: int) -> list[list[int]]:
        numbers = self._numbers(epoch, group)
        rows = [numbers[row].tolist() for row in self._packed(numbers)]
        if epoch is None:
            return rows
        return [rows[i] for i in Generator(self.seed).split(_ROWS, epoch, group).permutation(len(rows)).tolist()]

    def _numbers(self, epoch: int | None, group: int) -> np.ndarray:
        """The examples of a group."""
        places = np.arange(group * GROUP, min((group + 1) * GROUP, len(self.examples)))
        if epoch is None:
            return places
        return Shuffled(len(self.examples), Generator(self.seed).split(_ORDER, epoch)).at(places)

    def _packed(self, numbers: np.ndarray) -> list[list[int]]:
        lengths = self.examples.lengths(numbers)
        if not self.packing:
            lengths = np.where(lengths <= self.seq_len + 1, self.seq_len + 1, lengths)  # no second one has room
        return pack(lengths, self.seq_len + 1)
