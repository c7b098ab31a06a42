"""Random numbers: the published vectors of Philox 4x32-10, and that a stream is a function of seed and counter alone.

`block` is the definition, one block at a time in Python integers; it is held to the known answers that come with the
paper (Salmon et al. 2011, Random123 1.14, kat_vectors), and the library's vectorised stream is held to it.
"""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import ConfigError
from pellucid.base.rng import Generator, philox, uniform_from_words

KNOWN = [
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def block(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of one counter (four words) under one key (two words)."""
    c, k = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize(("given", "expected"), KNOWN)
def test_definition_gives_the_published_vectors(given: str, expected: str) -> None:
    words = [int(word, 16) for word in given.split()]
    assert " ".join(f"{word:08x}" for word in block(words[:4], words[4:])) == expected


def test_first_words_of_stream_zero() -> None:
    assert " ".join(f"{word:08x}" for word in philox(0, 0, 4)) == KNOWN[0][1]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 0x299F31D0A4093822, 2**64 - 1])
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, 2**32, 2**61 - 1])
def test_stream_is_the_definition(seed: int, number: int) -> None:
    words = philox(seed, 4 * number, 8)
    for i in range(2):
        counter = [(number + i) % 2**32, (number + i) >> 32, 0, 0]
        assert words[4 * i : 4 * i + 4].tolist() == block(counter, [seed % 2**32, seed >> 32])


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 63])
def test_any_part_of_a_stream(start: int, n: int) -> None:
    words = philox(42, start, n)
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words, philox(42, 0, 80)[start : start + n])


def test_uniform_stays_below_one() -> None:
    ends = uniform_from_words(np.array([0, 255, 256, 2**32 - 1], dtype=np.uint32))
    assert ends.dtype == np.float32
    assert ends.tolist() == [0.0, 0.0, 2.0**-24, 1.0 - 2.0**-24]


def test_state_carries_the_stream_on() -> None:
    generator = Generator(7)
    generator.normal((3, 5))
    generator.integers(10, 3)
    again = Generator.from_state(generator.state())
    for draw in (lambda g: g.words(9), lambda g: g.uniform((2, 3)), lambda g: g.normal(4), lambda g: g.permutation(11)):
        np.testing.assert_array_equal(draw(generator), draw(again))
    assert generator.state() == again.state()


def test_reserved_words_are_nobody_elses() -> None:
    generator = Generator(7)
    spans = [(generator.reserve(n), n) for n in (1, 4, 5, 0, 3)]
    taken = [word for first, n in spans for word in range(first, first + n)]
    assert len(set(taken)) == len(taken)
    assert all(first % 4 == 0 for first, _ in spans)


def test_shapes_of_draws() -> None:
    generator = Generator(1)
    assert generator.uniform().shape == ()
    assert generator.uniform(3).shape == (3,)
    assert generator.normal((2, 0)).shape == (2, 0)
    assert generator.permutation(0).shape == (0,)
    assert generator.normal(2).dtype == np.float32


def test_distributions() -> None:
    """Means and deviations within five standard errors of a fixed seed's 100,000 numbers."""
    n = 100_000
    generator = Generator(2024)
    uniform, normal = generator.uniform(n).astype(np.float64), generator.normal(n).astype(np.float64)
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    assert abs(normal.mean()) < 5 * np.sqrt(1 / n)
    assert abs(normal.std() - 1) < 5 * np.sqrt(1 / (2 * n))
    assert abs((normal**4).mean() - 3) < 5 * np.sqrt(96 / n)
    counts = np.bincount(generator.integers(7, n), minlength=7)
    assert counts.size == 7
    assert np.abs(counts - n / 7).max() < 5 * np.sqrt(n / 7)


def test_integers_reach_both_ends_of_a_wide_range() -> None:
    drawn = Generator(3).integers(2**62, 1000)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() > 2**61
    assert Generator(3).integers(1, 5).tolist() == [0] * 5


def test_permutation_is_one() -> None:
    assert sorted(Generator(5).permutation(1000).tolist()) == list(range(1000))
    assert Generator(5).permutation(1000).tolist() != list(range(1000))


def test_split_depends_on_seed_and_labels_alone() -> None:
    generator = Generator(9)
    before = generator.split(1, 2).state()
    generator.words(100)
    assert generator.split(1, 2).state() == before
    streams = [generator, *(generator.split(*labels) for labels in [(0,), (1,), (2,), (1, 2), (2, 1), (1, 2, 0)])]
    assert len({g.seed for g in streams}) == len(streams)


def test_seed_from_the_operating_system() -> None:
    assert Generator(None).seed != Generator(None).seed


@pytest.mark.parametrize(("seed", "counter"), [(-1, 0), (2**64, 0), (0, -1)])
def test_out_of_range(seed: int, counter: int) -> None:
    with pytest.raises(ConfigError):
        Generator(seed, counter)


def test_repr() -> None:
    assert repr(Generator(3, 8)) == "Generator(seed=3, counter=8)"
