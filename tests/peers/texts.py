"""Texts that tokenizers disagree about, for the comparisons with foreign ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain

import numpy as np

from pellucid.text.batch import IdBatch

SCALARS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
_PIECES = [
    *"aAbBsStTmMdDlLvVeErR''''’  \t\n\r//.,!-_$€123９٣۴½²Ⅷ",
    *"ſßﬀΣςéÉǅʰªıİאبیيكک中文한ไทย\u0301\u064b\u0345\u200c\u200d\ufeff\u00a0\u3000\u2028\u0085\u1680",
    *"🙂👩‍👩‍👧🇮🇷𝔘𐐀\u0000\u001c\u10ffff",
    "\r\n",
    "  ",
    "'ll",
    "'RE",
    "می‌خواهم",
    "مُحَمَّد",
    "hello",
    " World",
    "don't",
]
HARD = [
    "",
    " ",
    "\n",
    "trailing   ",
    "  leading",
    "a\n\n \n b\r\n\r\n",
    "می‌خواهم ي ی ك ک 123 ۱۲۳ ١٢٣ مُحَمَّد\r\né e\u0301 𝔘𝕟𝕚 👩‍👩‍👧‍👦 🏳️‍🌈 🇮🇷",
    "def f(x):\n\tif x >= 1_000:\n\t\treturn f'{x!r}'  # nothing\n\n\n",
    "שלום עולם, hello مرحبا 123",
    "I'M can't WE'LL they've 'ſ'S O'Reilly'd",
    "https://example.org/a/b?c=d&e=%20#f //\n//\n",
    "3.14159e-10 1,000,000 ½²Ⅷ 0x1F",
    "a" * 5000,
    " " * 3000 + "x",
    "ab" * 3000,
    "\n" * 500,
    "é" * 2000,
    "کتاب" * 500,
    "don't" * 300,
    "word " * 20_000,
]


def random_texts(seed: int, count: int) -> list[str]:
    """Texts of pieces at which words may end, and of any characters at all."""
    stream = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        n = int(stream.integers(1, 16))
        picks = stream.integers(len(_PIECES), size=n)
        wild = stream.random(n) < 0.15
        codes = stream.integers(len(SCALARS), size=n)
        found.append("".join(chr(SCALARS[c]) if w else _PIECES[p] for p, w, c in zip(picks, wild, codes, strict=True)))
    return found


def scalar_texts(step: int = 1) -> list[str]:
    """Every `step`th scalar value alone, between letters, and where it could be part of a contraction or a number; 200
    of them a text, each on its own line."""
    codes = SCALARS[::step]
    lines = [f"{c}\na{c}b\n {c}{c} 1{c}'{c}S\n" for c in map(chr, codes)]
    return ["".join(lines[i : i + 200]) for i in range(0, len(lines), 200)] + list(map(chr, codes[:: 1 + 2000 // step]))


@cache
def every_scalar() -> list[str]:
    """Every scalar value alone, a text each, and between letters, 200 of them a text."""
    alone = list(map(chr, SCALARS))
    between = [f"a{c}b\n" for c in alone]
    return alone + ["".join(between[i : i + 200]) for i in range(0, len(between), 200)]


def same_ids(ours: IdBatch, theirs: Sequence[Sequence[int]], texts: Sequence[str]) -> None:
    """Compares whole arrays, and where they differ, shows the first text they differ in."""
    starts = np.zeros(len(theirs) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, theirs), np.int64, len(theirs)), out=starts[1:])
    flat = np.fromiter(chain.from_iterable(theirs), np.uint32, int(starts[-1]))
    if np.array_equal(ours.starts, starts) and np.array_equal(ours.ids, flat):
        return
    assert len(ours) == len(theirs) == len(texts)
    at = next(i for i, ids in enumerate(theirs) if ours[i].tolist() != list(ids))
    assert ours[at].tolist() == list(theirs[at]), repr(texts[at][:200])
