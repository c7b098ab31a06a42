"""An order of n numbers that is computed a number at a time: what stands at a place follows from (seed, place) alone.

A random order of a hundred million examples as an array is most of a gigabyte. A Feistel network over the next power of
four, walked until it lands below n, is a permutation without any   (Black & Rogaway 2002, "Ciphers with arbitrary
finite domains", sections 4 and 5).
"""

from __future__ import annotations

import numpy as np

from ..base.rng import Generator

_ROUNDS = 6
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Shuffled:
    """The numbers 0 to n - 1 in an order that follows from the generator's seed."""

    def __init__(self, n: int, generator: Generator) -> None:
        self.n = n
        self._half = np.uint64(max(1, (max(n - 1, 1).bit_length() + 1) // 2))  # bits of each side
        self._mask = np.uint64((1 << int(self._half)) - 1)
        words = generator.words(2 * _ROUNDS).astype(np.uint64)
        self._keys = words[0::2] << np.uint64(32) | words[1::2]

    def __len__(self) -> int:
        return self.n

    def at(self, places: np.ndarray) -> np.ndarray:
        """The numbers at these places, int64; every place has another one."""
        found = self._round_trip(places.astype(np.uint64))
        while (outside := np.flatnonzero(found >= self.n)).size:
            found[outside] = self._round_trip(found[outside])
        return found.astype(np.int64)

    def _round_trip(self, x: np.ndarray) -> np.ndarray:
        """x = (left, right) -> (right, left ^ hash(right)), `_ROUNDS` times: one to one, whatever the hash."""
        left, right = x >> self._half, x & self._mask
        with np.errstate(over="ignore"):
            for key in self._keys:
                mixed = (right + key) * _MIX
                mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX
                left, right = right, left ^ (mixed >> np.uint64(32) & self._mask)
        return left << self._half | right
