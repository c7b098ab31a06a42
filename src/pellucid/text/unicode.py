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

BERT_SIGN = 128
"""Punctuation as `tokenizers` has it for BERT: that of Unicode 8, and all ASCII characters that are neither letters nor
numbers, white space or controls."""

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

# Punctuation that Unicode got after version 8, in hexadecimal, and what it no longer counts as such.
_LATER_SIGNS = (
    "61d 9fd a76 c77 c84 1b4e-1b4f 1b7d-1b7f 2e43-2e4f 2e52-2e5d 10d6e 10ead 10f55-10f59 10f86-10f89 113d4-113d5 "
    "113d7-113d8 1144b-1144f 1145a-1145b 1145d 11660-1166c 116b9 1183b 11944-11946 119e2 11a3f-11a46 11a9a-11a9c "
    "11a9e-11aa2 11b00-11b09 11be1 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff 12ff1-12ff2 16d6d-16d6f "
    "16e97-16e9a 16fe2 1e5ff 1e95e-1e95f"
)
_SIGNS_ONCE = (0x166D, 0x111C9)


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
    flat[0x21:0x7F] |= np.where(flat[0x21:0x7F] & (LETTER | NUMBER), 0, BERT_SIGN).astype(np.uint8)
    flat[flat & PUNCTUATION > 0] |= BERT_SIGN
    for first, _, last in (run.partition("-") for run in _LATER_SIGNS.split()):
        flat[int(first, 16) : int(last or first, 16) + 1] &= ~np.uint8(BERT_SIGN)
    flat[list(_SIGNS_ONCE)] |= BERT_SIGN
    pages, index = np.unique(flat.reshape(-1, 1 << PAGE), axis=0, return_inverse=True)
    tables = np.ascontiguousarray(index.reshape(-1).astype(np.int16)), np.ascontiguousarray(pages.reshape(-1))
    for table in tables:
        table.flags.writeable = False
    return tables
