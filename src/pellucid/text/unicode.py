"""Classes of characters for the pre-tokenisers: a letter, a number, white space, ..., as bits in a two-level table.

The runs of `unicode_runs` are spread over pages of 128 characters; equal pages are kept once, which leaves about 30
KB that stay in the first level of the cache for the text of one script. The class of a code point c is
`pages[index[c >> 7] << 7 | c & 127]`.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from .unicode_runs import RUNS

LETTER, NUMBER, SPACE, NEWLINE, UPPER, LOWER, PUNCTUATION = 1, 2, 4, 8, 16, 32, 64
"""Bits of a class. UPPER and LOWER are o200k's two sets: upper or title case, and lower case, each with the letters
that have no case and the marks. NEWLINE is CR and LF alone."""

PAGE = 7  # bits of a code point inside its page

_CLASSES = {
    "u": LETTER | UPPER,
    "l": LETTER | LOWER,
    "o": LETTER | UPPER | LOWER,
    "m": UPPER | LOWER,
    "n": NUMBER,
    "p": PUNCTUATION,
    "s": SPACE,
    "-": 0,
}


@cache
def classes() -> tuple[np.ndarray, np.ndarray]:
    """The table: `index` (int16) and `pages` (uint8), read-only."""
    flat = np.zeros(0x110000, np.uint8)
    at = 0
    for letter, length in re.findall("([a-z-])([0-9]*)", RUNS):
        n = int(length or 1)
        flat[at : at + n] = _CLASSES[letter]
        at += n
    flat[[0x0A, 0x0D]] |= NEWLINE
    pages, index = np.unique(flat.reshape(-1, 1 << PAGE), axis=0, return_inverse=True)
    tables = np.ascontiguousarray(index.reshape(-1).astype(np.int16)), np.ascontiguousarray(pages.reshape(-1))
    for table in tables:
        table.flags.writeable = False
    return tables
