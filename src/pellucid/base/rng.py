"""Random numbers by explicit generator: Philox 4x32-10 (Salmon et al. 2011), addressed by seed and counter.

The n-th number of a stream is a pure function of (seed, n), so a generator's whole state is two integers that go
into a checkpoint, and a kernel on any device can make its own numbers from `reserve`. There is no hidden global
generator anywhere in Pellucid.
"""

from __future__ import annotations

import os

import numpy as np

from .errors import ConfigError

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_FEW = 16  # blocks


def philox(seed: int, counter: int, n: int) -> np.ndarray:
    """`n` uint32 words of the stream `seed`, from word number `counter` on. Block b (words 4b to 4b+3) is
    Philox4x32-10 of the counter (b mod 2**32, b >> 32, 0, 0) under the key (seed mod 2**32, seed >> 32)."""
    first, last = counter // 4, (counter + n + 3) // 4
    if last - first <= _FEW:
        few = [word for b in range(first, last) for word in _block(seed, b)]
        return np.array(few[counter - 4 * first : counter - 4 * first + n], np.uint32)
    block = np.arange(first, last, dtype=np.uint64)
    c0, c1 = block & _LOW, block >> _SHIFT
    c2, c3 = np.zeros_like(block), np.zeros_like(block)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    words = np.stack([c0, c1, c2, c3], axis=1).reshape(-1).astype(np.uint32)
    return words[counter - 4 * first : counter - 4 * first + n]


def _block(seed: int, block: int) -> tuple[int, int, int, int]:
    """One block in Python's integers: for a few of them, faster than arrays."""
    c0, c1, c2, c3 = block & 0xFFFFFFFF, block >> 32, 0, 0
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform_from_words(words: np.ndarray) -> np.ndarray:
    """float32 in [0, 1): the top 24 bits of each word times 2**-24."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normals(seed: int, counter: int, n: int) -> np.ndarray:
    """`n` float64 standard normal numbers, number i from word `counter` + i and its neighbour; counter a multiple of 4.

    Box-Muller: of each pair of words, u = (w1 + 1) 2**-32 and v = w2 2**-32, the numbers (-2 ln u)**0.5 cos(2 pi v) and
    (-2 ln u)**0.5 sin(2 pi v).
    """
    w = philox(seed, counter, n + n % 2).astype(np.float64)
    radius, angle = np.sqrt(-2.0 * np.log((w[0::2] + 1.0) * 2.0**-32)), 2.0 * np.pi * 2.0**-32 * w[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:n]


class Generator:
    """A stream of random words. `Generator(None)` takes its seed from the operating system.

    `state()` and `Generator.from_state` carry it through a checkpoint exactly.
    """

    __slots__ = ("counter", "seed")

    def __init__(self, seed: int | None, counter: int = 0) -> None:
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        if not 0 <= seed < 2**64 or counter < 0:
            raise ConfigError("Generator", "seed out of range", got=seed, expected="0 to 2**64 - 1")
        self.seed, self.counter = int(seed), int(counter)

    def reserve(self, n: int) -> int:
        """Takes `n` words out of the stream for a kernel; returns the number of the first (a multiple of 4)."""
        first = (self.counter + 3) // 4 * 4
        self.counter = first + n
        return first

    def words(self, n: int) -> np.ndarray:
        """The next `n` uint32 words."""
        return philox(self.seed, self.reserve(n), n)

    def uniform(self, shape: tuple[int, ...] | int = ()) -> np.ndarray:
        """float32 uniform in [0, 1)."""
        shape = (shape,) if isinstance(shape, int) else shape
        return uniform_from_words(self.words(int(np.prod(shape, dtype=np.int64)))).reshape(shape)

    def normal(self, shape: tuple[int, ...] | int = ()) -> np.ndarray:
        """float32 standard normal: `normals` of the next words."""
        shape = (shape,) if isinstance(shape, int) else shape
        n = int(np.prod(shape, dtype=np.int64))
        return normals(self.seed, self.reserve(n), n).astype(np.float32).reshape(shape)

    def integers(self, high: int, n: int) -> np.ndarray:
        """`n` int64 uniform in 0..high-1, from 64-bit words (bias below high / 2**64)."""
        w = self.words(2 * n).astype(np.uint64)
        wide = (w[0::2] << _SHIFT) | w[1::2]
        return np.asarray([int(x) * high >> 64 for x in wide], dtype=np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """A permutation of 0..n-1: the stable order of `n` random 64-bit words."""
        w = self.words(2 * n).astype(np.uint64)
        return np.argsort((w[0::2] << _SHIFT) | w[1::2], kind="stable")

    def split(self, *labels: int) -> Generator:
        """An independent stream that depends on this seed and the labels only, not on what was drawn."""
        seed = self.seed
        for label in labels:
            a, b = philox(seed, 4 * (label % 2**61), 2)
            seed = int(a) << 32 | int(b)
        return Generator(seed)

    def state(self) -> dict[str, int]:
        return {"seed": self.seed, "counter": self.counter}

    @classmethod
    def from_state(cls, state: dict[str, int]) -> Generator:
        return cls(state["seed"], state["counter"])

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, counter={self.counter})"
