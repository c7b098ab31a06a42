"""From text to words, and to distinct words with their counts: the corpus as a trainer sees it.

A word is a run of bytes without white space together with one space before it; what is left of white space is a word
of its own, and so is a run of line feeds. Words follow one another without gaps, and whether one begins depends on the
three bytes around it.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined
from .loops import loops

__all__ = ["count", "same", "split"]

_BASIS, _PRIME, _MIX = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3), np.uint64(29)
_LINE = 10


@inlined
def _is_space(byte):
    """White space of ASCII: tab, line feed, vertical tab, form feed, carriage return, space."""
    return byte == 32 or (byte >= 9 and byte <= 13)


@inlined
def _begins(data, i, begin, end):
    """Whether a word begins at byte i of the text in bytes begin to end-1."""
    if i == begin:
        return True
    here, before = _is_space(data[i]), _is_space(data[i - 1])
    if (data[i] == _LINE) != (data[i - 1] == _LINE):
        return True
    if not here:
        return before and data[i - 1] != 32
    # The last of several spaces belongs to the word behind it.
    return not before or (data[i] == 32 and i + 1 < end and not _is_space(data[i + 1]))


@loops
def split(lo, hi, chunks, data, texts, longest, starts, words, counts):
    """Where the words of the texts in chunks lo to hi-1 begin, written from the place of the chunk's first byte on.

    words: number of words of each text; counts: of each chunk. A word goes on as another one after `longest` bytes.
    """
    for chunk in range(lo, hi):
        at = home = np.int64(texts[chunks[chunk]])
        for text in range(chunks[chunk], chunks[chunk + 1]):
            begin, end = texts[text], texts[text + 1]
            before, last = at, begin
            for i in range(begin, end):
                if _begins(data, i, begin, end) or (i - last >= longest and data[i] & 0xC0 != 0x80):
                    starts[at] = i
                    at += 1
                    last = i
            words[text] = at - before
        counts[chunk] = at - home


@inlined
def same(data, a, b, n):
    """Whether n bytes from a and from b on are equal."""
    i = 0
    while i < n and data[a + i] == data[b + i]:
        i += 1
    return i == n


@loops
def count(lo, hi, chunks, data, starts, weights, firsts, counts, sizes):
    """The distinct words in chunks lo to hi-1, in the order of their first places, from the place of the chunk's first
    word on: the first place of each, and the sum of the weights of all.

    sizes: becomes the number of distinct words of each chunk.
    """
    for chunk in range(lo, hi):
        home, after, n = chunks[chunk], chunks[chunk + 1], np.int64(0)
        slots = np.int64(16)
        while slots < 2 * (after - home):
            slots *= 2
        table, mask = np.full(slots, np.int64(-1), np.int64), slots - 1
        for word in range(home, after):
            begin, end = starts[word], starts[word + 1]
            h = _BASIS
            for i in range(begin, end):
                h = (h ^ np.uint64(data[i])) * _PRIME
            slot = np.int64(h ^ (h >> _MIX)) & mask
            while True:
                found = np.int64(table[slot])
                if found < 0:
                    table[slot], firsts[home + n], counts[home + n] = home + n, word, weights[word]
                    n += 1
                    break
                other = firsts[found]
                if starts[other + 1] - starts[other] == end - begin and same(data, starts[other], begin, end - begin):
                    counts[found] += weights[word]
                    break
                slot = (slot + 1) & mask
        sizes[chunk] = n
