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
def _before(score, left, k, j):
    """Whether candidate k comes out of the heap before j."""
    return score[k] > score[j] or (score[k] == score[j] and left[k] < left[j])


@inlined
def _swap(array, k, j):
    array[k], array[j] = array[j], array[k]


@inlined
def _push(score, left, size, n, new_score, new_left, new_size):
    k = n
    score[k], left[k], size[k] = new_score, new_left, new_size
    while k > 0:
        up = (k - 1) >> 1
        if not _before(score, left, k, up):
            break
        _swap(score, k, up)
        _swap(left, k, up)
        _swap(size, k, up)
        k = up
    return n + 1


@inlined
def _offer(data, begin, i, span, length, state, nodes, scores, unused, parts, score, left, size, n):
    """Puts the symbol at byte i and the next one, `span` bytes together, into the heap if they spell a piece."""
    found = _piece(nodes, _walk(nodes, np.int64(state[i]), data, begin + i + length[i], begin + i + span))
    if found < 0:
        return n
    if unused[found]:
        parts[found] = length[i]
    return _push(score, left, size, n, scores[found], i, span)


@inlined
def _pop(score, left, size, n):
    """Takes out the first candidate: it stands at place n-1 then."""
    n -= 1
    _swap(score, 0, n)
    _swap(left, 0, n)
    _swap(size, 0, n)
    k = 0
    while True:
        down = 2 * k + 1
        if down >= n:
            break
        if down + 1 < n and _before(score, left, down + 1, down):
            down += 1
        if not _before(score, left, down, k):
            break
        _swap(score, k, down)
        _swap(left, k, down)
        _swap(size, k, down)
        k = down
    return n


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
    lo, hi, chunks, data, starts, nodes, scores, user, unused, split, byte_ids, unknown_id, ids, counts
):  # fmt: skip
    """Ids of the words of chunks lo to hi-1, from the place of the chunk's first byte on; counts: ids of each word.

    user: a trie of the pieces that text is cut at first and that join nothing. unused: of each piece, whether it may
    only be on the way to a longer one.
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
        score, left = np.empty(3 * room), np.empty(3 * room, np.int32)
        size, stack = np.empty(3 * room, np.int32), np.empty(2 * room + 4, np.int64)
        parts = np.zeros(scores.shape[0], np.int32)
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
            i, last, heap, home = np.int64(0), np.int64(-1), 0, at
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
                    heap = _offer(
                        data, begin, i, span, length, state, nodes, scores, unused, parts, score, left, size, heap
                    )
                i = j
            while heap > 0:
                heap = _pop(score, left, size, heap)
                i, span = np.int64(left[heap]), np.int64(size[heap])
                j = i + length[i]
                if length[i] == 0 or j >= n or j + length[j] - i != span:
                    continue
                state[i] = _walk(nodes, np.int64(state[i]), data, begin + j, begin + i + span)
                length[i], length[j] = span, 0
                k = i + span
                previous[k] = i
                if not fixed[k]:
                    span = k + length[k] - i
                    heap = _offer(
                        data, begin, i, span, length, state, nodes, scores, unused, parts, score, left, size, heap
                    )
                h = np.int64(previous[i])
                if h >= 0 and not fixed[h]:
                    heap = _offer(
                        data, begin, h, k - h, length, state, nodes, scores, unused, parts, score, left, size, heap
                    )
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
