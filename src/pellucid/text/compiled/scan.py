"""The scanner that cuts UTF-8 text into pieces: the alternatives of `text/patterns.py`, tried in their order.

A regular expression of these patterns never needs more than one character of return, except o200k's
`upper* lower+` on letters without case, and white space that must leave its last character to the next word. So each
alternative is a run of characters of a class, and a text is read once or twice.

`marks[i]` becomes 1 where a piece begins, 2 where a gap begins that belongs to no piece.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined, inner
from ..patterns import (
    ANY_CASE,
    CASED,
    CONTRACTION_FIRST,
    CONTRACTION_LAST,
    DIGITS,
    DROP_SPACE,
    END_FIRST,
    METASPACE,
    NEWLINES,
    NEWLINES_LAST,
    PREFIX,
    SIGNS,
    SLASH_LAST,
    SPACE_BEFORE,
    SPACE_SYMBOLS,
    SPACES,
)
from ..unicode import BERT_SIGN, LETTER, LOWER, NEWLINE, NUMBER, PAGE, SPACE, UPPER
from .loops import loops

_WORD = LETTER | NUMBER
_NO_SYMBOL = SPACE | LETTER | NUMBER
_LOW = (1 << PAGE) - 1
_APOSTROPHE, _BLANK, _SLASH = 0x27, 0x20, 0x2F


@inlined
def width(byte):
    """Bytes of the character that begins with this one."""
    return 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


@inlined
def class_at(data, i, index, pages):
    """Class of the character that begins at byte i."""
    b = np.int64(data[i])
    if b < 0x80:
        return np.int64(pages[(np.int64(index[0]) << PAGE) | b])
    if b < 0xE0:
        c = (b & 0x1F) << 6 | (np.int64(data[i + 1]) & 0x3F)
    elif b < 0xF0:
        c = (b & 0x0F) << 12 | (np.int64(data[i + 1]) & 0x3F) << 6 | (np.int64(data[i + 2]) & 0x3F)
    else:
        c = (b & 0x07) << 18 | (np.int64(data[i + 1]) & 0x3F) << 12
        c |= (np.int64(data[i + 2]) & 0x3F) << 6 | (np.int64(data[i + 3]) & 0x3F)
    return np.int64(pages[(np.int64(index[c >> PAGE]) << PAGE) | (c & _LOW)])


@inner
def run_of(data, i, end, mask, index, pages):
    """End of the run of characters from i on that have a bit of the mask."""
    while i < end and class_at(data, i, index, pages) & mask:
        i += width(data[i])
    return i


@inner
def run_without(data, i, end, mask, index, pages):
    """End of the run of characters from i on that have no bit of the mask."""
    while i < end and not class_at(data, i, index, pages) & mask:
        i += width(data[i])
    return i


@inner
def contraction(data, i, end, flags):
    """Bytes of 's 't 're 've 'm 'll 'd at i, or 0."""
    if i + 1 >= end or data[i] != _APOSTROPHE:
        return 0
    fold = 0x20 if flags & ANY_CASE else 0
    a = np.int64(data[i + 1])
    # Small letters are the capitals with this bit; anything else with it added is no letter of a contraction.
    a = a | fold if 0x41 <= a <= 0x5A else a
    if a == 0x73 or a == 0x74 or a == 0x6D or a == 0x64:  # s t m d
        return 2
    if i + 2 >= end:
        return 0
    b = np.int64(data[i + 2])
    b = b | fold if 0x41 <= b <= 0x5A else b
    if (a == 0x72 and b == 0x65) or (a == 0x76 and b == 0x65) or (a == 0x6C and b == 0x6C):  # re ve ll
        return 3
    # The long s, U+017F, is an s in any case.
    return 3 if fold and a == 0xC5 and b == 0xBF else 0


@inner
def cased_word(data, i, end, index, pages):
    """End of `upper* lower+`, else of `upper+ lower*`, from i on; i itself where neither is there."""
    last, j = np.int64(-1), i
    while j < end:
        c = class_at(data, j, index, pages)
        if not c & UPPER:
            break
        if c & LOWER:
            last = j
        j += width(data[j])
    if j < end and class_at(data, j, index, pages) & LOWER:
        return run_of(data, j, end, LOWER, index, pages)
    # No small letter behind: the run gives back characters until one of them counts as small.
    return j if last < 0 else last + width(data[last])


@inner
def white_space(data, i, end, flags, index, pages):
    """End of the piece of white space at i."""
    j, last, newline = i, i, np.int64(-1)
    while j < end:
        c = class_at(data, j, index, pages)
        if not c & SPACE:
            break
        last = j
        j += width(data[j])
        if c & NEWLINE:
            newline = j
    if j == end and flags & END_FIRST:
        return j
    if flags & NEWLINES and newline >= 0:
        return newline
    # The last character belongs to what follows, unless it is alone or nothing follows.
    return j if j == end or last == i else last


@inner
def next_piece(data, i, end, flags, numbers, index, pages):
    """End of the piece that begins at i."""
    n = contraction(data, i, end, flags) if flags & CONTRACTION_FIRST else 0
    if n:
        return i + n
    c = class_at(data, i, index, pages)
    after = i + width(data[i])
    if flags & CASED:
        j = i
        # Lower first, with a prefix and without, is tried before upper first. After a character that can be a prefix
        # and is no mark, only the word behind it counts; a mark may be either.
        if not c & (_WORD | NEWLINE):
            j = prefixed(data, i, after, end, c, index, pages)
        elif c & LETTER:
            j = cased_word(data, i, end, index, pages)
        if j > i:
            return j + (contraction(data, j, end, flags) if flags & CONTRACTION_LAST else 0)
    else:
        if c & LETTER:
            return run_of(data, after, end, LETTER, index, pages)
        if flags & PREFIX and not c & (_WORD | NEWLINE):
            j = run_of(data, after, end, LETTER, index, pages)
            if j > after:
                return j
    if c & NUMBER:
        if numbers == 0:
            return run_of(data, after, end, NUMBER, index, pages)
        n = 1
        while n < numbers and after < end and class_at(data, after, index, pages) & NUMBER:
            after += width(data[after])
            n += 1
        return after
    if data[i] == _BLANK and after < end:
        d = class_at(data, after, index, pages)
        if flags & SPACE_BEFORE and d & _WORD:
            return run_of(data, after, end, d & _WORD, index, pages)
        if flags & SPACE_SYMBOLS and not d & _NO_SYMBOL:
            return symbols(data, after, end, flags, index, pages)
    if not c & SPACE:
        return symbols(data, i, end, flags, index, pages)
    if flags & DROP_SPACE:
        return run_of(data, after, end, SPACE, index, pages)
    return white_space(data, i, end, flags, index, pages)


@inner
def prefixed(data, i, after, end, c, index, pages):
    """End of a cased word with the character at i as its prefix, or as its first mark; i where there is none."""
    with_prefix = cased_word(data, after, end, index, pages)
    if not c & UPPER:
        return with_prefix if with_prefix > after else i
    # A mark. With it as the prefix, `upper* lower+` needs a small character behind it; that fails where the run has
    # capitals alone, and then the mark itself is the small one.
    if with_prefix > after and ends_small(data, after, with_prefix, index, pages):
        return with_prefix
    return cased_word(data, i, end, index, pages)


@inner
def ends_small(data, i, end, index, pages):
    """Whether the last character before `end` counts as small."""
    j = end - 1
    while (data[j] & 0xC0) == 0x80:
        j -= 1
    return (class_at(data, j, index, pages) & LOWER) != 0


@inner
def symbols(data, i, end, flags, index, pages):
    """End of the run of symbols at i, with the newlines behind it where the pattern wants them."""
    j = run_without(data, i, end, _NO_SYMBOL, index, pages)
    if flags & NEWLINES_LAST:
        slash = flags & SLASH_LAST
        while j < end and (data[j] == 0x0A or data[j] == 0x0D or (slash and data[j] == _SLASH)):
            j += 1
    return j


@inner
def simple_piece(data, i, end, flags, numbers, index, pages):
    """End of the piece at i for the cuts that look for one class of characters."""
    c = class_at(data, i, index, pages)
    after = i + width(data[i])
    if flags & METASPACE:
        while after < end and not (data[after] == 0xE2 and data[after + 1] == 0x96 and data[after + 2] == 0x81):
            after += width(data[after])
        return after
    mask = NUMBER if flags & DIGITS else BERT_SIGN if flags & SIGNS else SPACE
    if not c & mask:
        return run_without(data, after, end, mask, index, pages)
    return after if numbers == 1 else run_of(data, after, end, mask, index, pages)


@loops
def split(lo, hi, data, starts, marks, flags, numbers, index, pages):
    """Marks the pieces of texts lo to hi-1; text k is bytes starts[k] to starts[k+1]-1."""
    for k in range(lo, hi):
        i, end = starts[k], starts[k + 1]
        while i < end:
            dropped = flags & DROP_SPACE and class_at(data, i, index, pages) & SPACE
            marks[i] = 2 if dropped else 1
            if flags & (DIGITS | SPACES | METASPACE | SIGNS):
                i = simple_piece(data, i, end, flags, numbers, index, pages)
            else:
                i = next_piece(data, i, end, flags, numbers, index, pages)
