"""SentencePiece's BPE: neighbours are joined as long as what they spell is a piece, the piece of the best score first,
of equal scores the leftmost.

Unlike BPE with a list of merges, any two neighbours may form a piece, so what two symbols spell is looked up in the
trie. The candidates wait in a heap; one is stale if its two symbols changed since, which its length shows.

Most words of a text have been there before: a table remembers where, and their ids are copied.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined
from .loops import loops
from .trie import step, value
from .unigram import character_length
from .words import same

__all__ = ["encode"]

_PLACE, _SPAN = (
    30,
    12,
)  # bits of a place in a word and of a number of bytes in the key of a candidate; the tokenizer checks them
_SLOTS, _REMEMBERED = 1 << 14, 64  # words in the table; bytes of the longest
_PRIME, _MIX = np.uint64(0x100000001B3), np.uint64(29)


@inlined
def _walk(nodes, s, data, begin, end):
    """The node that bytes begin to end-1 lead to from node `s`, or -1; also from -1."""
    for i in range(begin, end):
        if s < 0:
            break
        s = step(nodes, s, data[i])
    return s


@inlined
def _piece(nodes, s):
    """The piece that ends at node `s`, or -1."""
    return value(nodes, s) if s >= 0 else np.int64(-1)


@inlined
def _prefix(nodes, data, begin, end):
    """Bytes of the longest piece that the text begins with at `begin`, or 0."""
    s, found, i = np.int64(0), np.int64(0), begin
    while i < end:
        s = step(nodes, s, data[i])
        if s < 0:
            break
        i += 1
        if value(nodes, s) >= 0:
            found = i - begin
    return found


@inlined
def _push(heap, n, key):
    """Puts a candidate into the heap of n: the children of place k are places 4 k + 1 to 4 k + 4, in one cache line."""
    k = n
    while k > 0:
        up = (k - 1) >> 2
        if heap[up] <= key:
            break
        heap[k] = heap[up]
        k = up
    heap[k] = key
    return n + 1


@inlined
def _drop(heap, n):
    """Takes the first candidate, heap[0], out of the heap of n."""
    n -= 1
    key, k = heap[n], np.int64(0)
    while True:
        down = 4 * k + 1
        if down >= n:
            break
        for other in range(down + 1, min(down + 4, n)):
            if heap[other] < heap[down]:
                down = other
        if heap[down] >= key:
            break
        heap[k] = heap[down]
        k = down
    heap[k] = key
    return n


@inlined
def _offer(data, begin, i, span, length, state, nodes, ranks, unused, parts, heap, n):
    """Puts the symbol at byte i and the next one, `span` bytes together, into the heap if they spell a piece.

    The key of a candidate is its rank, its place and its span, so that the smallest one is the best score, of equal
    ones the leftmost.
    """
    found = _piece(nodes, _walk(nodes, np.int64(state[i]), data, begin + i + length[i], begin + i + span))
    if found < 0:
        return n
    if unused[found]:
        parts[found] = length[i]
    return _push(heap, n, ((np.int64(ranks[found]) << _PLACE | i) << _SPAN) | span)


@inlined
def _put(ids, at, data, begin, end, piece, before, split, byte_ids, unknown_id):
    """Writes the ids of one symbol; `before`: the piece of the one before it. Returns the next place."""
    if piece >= 0:
        ids[at] = piece
        return at + 1
    if split:
        for i in range(begin, end):
            ids[at] = byte_ids[data[i]]
            at += 1
    elif before >= 0:
        ids[at] = unknown_id
        at += 1
    return at


@inlined
def _write(data, begin, left, right, nodes, unused, parts, stack, at, ids, before, split, byte_ids, unknown_id):
    """Writes a symbol; an unused piece as the two it was made of, and so on. Returns the place and its last piece."""
    stack[0], stack[1], n = left, right, 1
    while n > 0:
        n -= 1
        a, b = stack[2 * n], stack[2 * n + 1]
        found = _piece(nodes, _walk(nodes, np.int64(0), data, begin + a, begin + b))
        if found >= 0 and unused[found] and parts[found] > 0:
            middle = a + parts[found]
            stack[2 * n], stack[2 * n + 1], stack[2 * n + 2], stack[2 * n + 3] = middle, b, a, middle
            n += 2
            continue
        at = _put(ids, at, data, begin + a, begin + b, found, before, split, byte_ids, unknown_id)
        before = found
    return at, before


@inlined
def _slot(data, begin, n):
    """The place of a word in the table of words, or -1 for one that is not worth it."""
    if n < 2 or n > _REMEMBERED:
        return np.int64(-1)
    h = np.uint64(n)
    for i in range(begin, begin + n):
        h = (h ^ np.uint64(data[i])) * _PRIME
    return np.int64((h ^ (h >> _MIX)) & np.uint64(_SLOTS - 1))


@loops
def encode(
    lo, hi, chunks, data, starts, nodes, ranks, user, unused, split, byte_ids, unknown_id, ids, counts
):  # fmt: skip
    """Ids of the words of chunks lo to hi-1, from the place of the chunk's first byte on; counts: ids of each word.

    ranks: of each piece, how many better scores there are. user: a trie of the pieces that text is cut at first and
    that join nothing. unused: of each piece, whether it may only be on the way to a longer one.
    """
    for chunk in range(lo, hi):
        a, b = chunks[chunk], chunks[chunk + 1]
        room = np.int64(0)
        for word in range(a, b):
            room = max(room, starts[word + 1] - starts[word])
        room += 1
        # Symbols by the byte they begin at: length (0: joined to the one before), that before, whether it is fixed, and
        # the node of the trie that they lead to, or -1.
        state = np.empty(room, np.int32)
        length, previous, fixed = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.bool_)
        # A join takes a candidate and adds two at most.
        heap, stack = np.empty(3 * room, np.int64), np.empty(2 * room + 4, np.int64)
        parts = np.zeros(ranks.shape[0], np.int32)
        # The last word of each hash: where its bytes begin, how many, where its ids begin, how many.
        seen, sizes = np.zeros(_SLOTS, np.int64), np.zeros(_SLOTS, np.int32)
        places, many = np.zeros(_SLOTS, np.int64), np.zeros(_SLOTS, np.int32)
        at = starts[a]
        for word in range(a, b):
            begin, n = starts[word], starts[word + 1] - starts[word]
            slot = _slot(data, begin, n)
            if slot >= 0 and sizes[slot] == n and same(data, seen[slot], begin, n):
                for k in range(many[slot]):
                    ids[at + k] = ids[places[slot] + k]
                counts[word] = many[slot]
                at += many[slot]
                continue
            i, last, waiting, home = np.int64(0), np.int64(-1), np.int64(0), at
            while i < n:
                whole = _prefix(user, data, begin + i, begin + n)
                fixed[i] = whole > 0
                length[i] = whole if whole > 0 else min(character_length(data[begin + i]), n - i)
                state[i] = _walk(nodes, np.int64(0), data, begin + i, begin + i + length[i])
                previous[i] = last
                last = i
                i += length[i]
            previous[n], fixed[n], length[n] = last, True, 1
            i = np.int64(0)
            while i < n:
                j = i + length[i]
                if not fixed[i] and not fixed[j]:
                    span = j + length[j] - i
                    waiting = _offer(data, begin, i, span, length, state, nodes, ranks, unused, parts, heap, waiting)
                i = j
            while waiting > 0:
                key = heap[0]
                waiting = _drop(heap, waiting)
                i, span = (key >> _SPAN) & ((1 << _PLACE) - 1), key & ((1 << _SPAN) - 1)
                j = i + length[i]
                if length[i] == 0 or j >= n or j + length[j] - i != span:
                    continue
                state[i] = _walk(nodes, np.int64(state[i]), data, begin + j, begin + i + span)
                length[i], length[j] = span, 0
                k = i + span
                previous[k] = i
                h = np.int64(previous[i])
                if h >= 0 and not fixed[h]:
                    waiting = _offer(data, begin, h, k - h, length, state, nodes, ranks, unused, parts, heap, waiting)
                if not fixed[k]:
                    span = k + length[k] - i
                    waiting = _offer(data, begin, i, span, length, state, nodes, ranks, unused, parts, heap, waiting)
            i, before = np.int64(0), np.int64(0)
            while i < n:
                j, found = i + length[i], _piece(nodes, np.int64(state[i]))
                if found >= 0 and not unused[found]:
                    ids[at], before = found, found
                    at += 1
                    i = j
                    continue
                at, before = _write(
                    data, begin, i, j, nodes, unused, parts, stack, at, ids, before, split, byte_ids, unknown_id
                )
                i = j
            counts[word] = at - home
            if slot >= 0:
                seen[slot], sizes[slot], places[slot], many[slot] = begin, n, home, at - home
