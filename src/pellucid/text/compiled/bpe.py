"""Byte-pair encoding of words: look the word up whole, else merge its symbols pair by pair, lowest rank first.

Of pairs of one rank the leftmost is merged first. A short word keeps the ranks of its pairs in an array and scans it
for the smallest; a long one (a line without spaces may have megabytes) keeps them in a heap over a linked list of
symbols, O(n log n). Both give the same ids.

Tables are open-addressed, with int64 entries. `pairs` holds 2 per slot: left << 32 | right, and rank << 32 | result;
`words` holds the upper half of a word's hash over its id + 1. An empty slot is -1 there and 0 here. Characters that
are symbols by themselves stand among the pairs under a left id that no token has.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined, inner
from ..bpe_tables import BYTES, CHARACTER, FUSE_UNKNOWN, LAST_CHARACTER, WHOLE
from .loops import loops
from .scan import width

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NONE = np.int64(0x7FFFFFFFFFFFFFFF)
_SHORT = 48  # symbols up to which scanning beats a heap
_HALF = np.uint64(32)
_LOW = 0xFFFFFFFF


@inlined
def mixed(key):
    """A hash of 64 bits whose upper bits are good."""
    x = np.uint64(key)
    x ^= x >> _HALF
    return x * _MULTIPLIER


@inner
def word_hash(data, begin, end):
    """A hash of bytes begin to end-1."""
    h = np.uint64(end - begin)
    for i in range(begin, end):
        h = (h ^ np.uint64(data[i])) * _MULTIPLIER
        h ^= h >> _HALF
    return h * _MULTIPLIER


@inner
def pair_value(pairs, shift, left, right):
    """rank << 32 | result of a pair of symbols, or _NONE."""
    key = left << 32 | right
    mask = (len(pairs) >> 1) - 1
    slot = np.int64(mixed(key) >> np.uint64(shift))
    while True:
        found = pairs[2 * slot]
        if found == key:
            return pairs[2 * slot + 1]
        if found == -1:
            return _NONE
        slot = (slot + 1) & mask


@inner
def whole_word(data, begin, end, words, word_shift, blob, offsets):
    """Id of the token with exactly these bytes, or -1."""
    h = word_hash(data, begin, end)
    tag, mask = np.int64(h & np.uint64(0x7FFFFFFF)), len(words) - 1
    slot = np.int64(h >> np.uint64(word_shift))
    n = end - begin
    while True:
        found = words[slot]
        if found == 0:
            return np.int64(-1)
        if found >> 32 == tag:
            token = (found & _LOW) - 1
            at = offsets[token]
            if offsets[token + 1] - at == n:
                k = 0
                while k < n and blob[at + k] == data[begin + k]:
                    k += 1
                if k == n:
                    return token
        slot = (slot + 1) & mask


@inner
def first_symbols(data, begin, end, symbols, pairs, shift, first, flags, unknown):
    """Fills `symbols` with those a word begins as; their number, or -1 where a character has none.

    first: ids of the 256 bytes, then of those that end a word; with characters as symbols, the tokens a character
    without a symbol falls back to.
    """
    n = 0
    if flags & BYTES:
        for i in range(begin, end):
            s = np.int64(first[np.int64(data[i]) + (256 if i == end - 1 else 0)])
            if s < 0:
                return -1
            symbols[n] = s
            n += 1
        return n
    i = begin
    fusing = False
    while i < end:
        w = width(data[i])
        code = np.int64(0)
        for k in range(w):
            code = code << 8 | np.int64(data[i + k])
        kind = LAST_CHARACTER if i + w >= end else CHARACTER
        value = pair_value(pairs, shift, np.int64(kind), code)
        if value != _NONE:
            symbols[n] = value & _LOW
            n += 1
            fusing = False
        elif first[np.int64(data[i])] >= 0:
            for k in range(w):
                symbols[n] = first[np.int64(data[i + k])]
                n += 1
        elif unknown < 0:
            return -1
        else:
            if not (fusing and flags & FUSE_UNKNOWN):
                symbols[n] = unknown
                n += 1
            fusing = True
        i += w
    return n


@inner
def merge_short(symbols, values, n, pairs, shift):
    """Merges n symbols in place; their number then."""
    for i in range(n - 1):
        values[i] = pair_value(pairs, shift, symbols[i], symbols[i + 1])
    while n > 1:
        best, at = _NONE, 0
        for i in range(n - 1):
            if values[i] < best:
                best, at = values[i], i
        if best == _NONE:
            break
        symbols[at] = best & _LOW
        n -= 1
        for i in range(at + 1, n):
            symbols[i] = symbols[i + 1]
            values[i - 1] = values[i]
        if at + 1 < n:
            values[at] = pair_value(pairs, shift, symbols[at], symbols[at + 1])
        if at:
            values[at - 1] = pair_value(pairs, shift, symbols[at - 1], symbols[at])
    return n


@inner
def sift_down(heap, size, at):
    """Restores the order of a binary heap below `at`."""
    item = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@inner
def push(heap, size, item):
    """Adds an item to a heap; its size then."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= item:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item
    return size + 1


@inner
def merge_long(symbols, values, n, pairs, shift):
    """As `merge_short`, with a heap of rank << 32 | position, of which entries that no longer hold are skipped."""
    follows, before = np.empty(n, np.int32), np.empty(n, np.int32)
    heap = np.empty(2 * n, np.int64)
    size = 0
    for i in range(n):
        follows[i], before[i] = i + 1, i - 1
        values[i] = pair_value(pairs, shift, symbols[i], symbols[i + 1]) if i + 1 < n else _NONE
        if values[i] != _NONE:
            heap[size] = (values[i] >> 32) << 32 | i
            size += 1
    for i in range(size // 2 - 1, -1, -1):
        sift_down(heap, size, i)
    while size:
        top = heap[0]
        size -= 1
        heap[0] = heap[size]
        if size:
            sift_down(heap, size, 0)
        at = top & _LOW
        if values[at] == _NONE or values[at] >> 32 != top >> 32:
            continue
        gone = follows[at]
        symbols[at] = values[at] & _LOW
        after = follows[gone]
        follows[at] = after
        values[gone] = _NONE
        values[at] = _NONE
        if after < n:
            before[after] = at
            values[at] = pair_value(pairs, shift, symbols[at], symbols[after])
            if values[at] != _NONE:
                size = push(heap, size, (values[at] >> 32) << 32 | at)
        left = np.int64(before[at])
        if left >= 0:
            values[left] = pair_value(pairs, shift, symbols[left], symbols[at])
            if values[left] != _NONE:
                size = push(heap, size, (values[left] >> 32) << 32 | left)
    count, i = 0, np.int64(0)
    while i < n:
        symbols[count] = symbols[i]
        count += 1
        i = np.int64(follows[i])
    return count


@loops
def encode(lo, hi, data, starts, out, counts, pairs, shift, words, word_shift, blob, offsets, first, flags, unknown):
    """Ids of words lo to hi-1, in a row from out[starts[lo]] on, and how many each has; -1 for one that can't be."""
    longest = np.int64(0)
    for k in range(lo, hi):
        longest = max(longest, starts[k + 1] - starts[k])
    symbols, values = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    at = starts[lo]
    for k in range(lo, hi):
        begin, end = starts[k], starts[k + 1]
        counts[k] = 0
        if begin == end:
            continue
        if flags & WHOLE:
            token = whole_word(data, begin, end, words, word_shift, blob, offsets)
            if token >= 0:
                out[at] = token
                at += 1
                counts[k] = 1
                continue
        n = first_symbols(data, begin, end, symbols, pairs, shift, first, flags, unknown)
        if n < 0:
            counts[k] = -1
            continue
        if n <= _SHORT:
            n = merge_short(symbols, values, n, pairs, shift)
        else:
            n = merge_long(symbols, values, n, pairs, shift)
        for i in range(n):
            out[at + i] = symbols[i]
        at += n
        counts[k] = n


@loops
def gather(lo, hi, out, starts, id_starts, ids):
    """Moves what `encode` wrote for words lo to hi-1 (the same chunks) to its place in `ids`."""
    at, to = starts[lo], id_starts[lo]
    for i in range(id_starts[hi] - to):
        ids[to + i] = out[at + i]


@loops
def fill_words(lo, hi, tokens, words, word_shift, blob, offsets):
    """Puts the ids in `tokens` into the table of whole words, one after the other: one item."""
    for _ in range(lo, hi):
        mask = len(words) - 1
        for k in range(len(tokens)):
            token = np.int64(tokens[k])
            h = word_hash(blob, offsets[token], offsets[token + 1])
            slot = np.int64(h >> np.uint64(word_shift))
            while words[slot] != 0:
                slot = (slot + 1) & mask
            words[slot] = np.int64(h & np.uint64(0x7FFFFFFF)) << 32 | (token + 1)


@loops
def fill_pairs(lo, hi, keys, values, pairs, shift, twice):
    """Puts pairs into their table, one after the other: one item. `twice[0]` becomes the index + 1 of one that is
    there already."""
    for _ in range(lo, hi):
        mask = (len(pairs) >> 1) - 1
        for k in range(len(keys)):
            slot = np.int64(mixed(keys[k]) >> np.uint64(shift))
            while pairs[2 * slot] != -1 and pairs[2 * slot] != keys[k]:
                slot = (slot + 1) & mask
            if pairs[2 * slot] != -1:
                twice[0] = k + 1
            pairs[2 * slot] = keys[k]
            pairs[2 * slot + 1] = values[k]
