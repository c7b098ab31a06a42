"""Learning merges: the most frequent pair of neighbours becomes a symbol, again and again (Sennrich et al. 2016).

All words are kept as one row of symbols with links to the next and the previous one inside the word. A table counts
every pair, weighted by how often its word occurs, and lists the places it was seen at; a heap finds the most frequent
one, and among equals the one with the smaller ids. Counts are integers and nothing depends on the order of the words,
so the same corpus gives the same merges, however it was read.

A merge changes the counts of the pairs around each of its places and no other, so the whole costs about as much as the
symbols that disappear.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined, inner
from .bpe import mixed, word_hash
from .loops import loops

_NO_PAIR = np.int64(-1)


@inlined
def _more(counts_a, key_a, counts_b, key_b):
    """Whether pair a comes before pair b."""
    return counts_a > counts_b or (counts_a == counts_b and key_a < key_b)


@inner
def _grown(array, size):
    """The array, or a copy of twice the length where it is full."""
    if size < len(array):
        return array
    larger = np.empty(2 * len(array), array.dtype)
    larger[:size] = array[:size]
    return larger


@inner
def _place(table, keys, key, shift):
    """Slot of a pair in the table, or of the hole where it belongs."""
    mask = len(table) - 1
    slot = np.int64(mixed(key) >> np.uint64(shift))
    while table[slot] >= 0 and keys[table[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@inner
def _rehashed(table, keys, n):
    """A table of twice the size with the same n pairs."""
    larger = np.full(2 * len(table), np.int32(-1), np.int32)
    shift = _shift(larger)
    for pair in range(n):
        larger[_place(larger, keys, keys[pair], shift)] = pair
    return larger


@inlined
def _shift(table):
    """How far a hash is shifted for the first slot of a table."""
    bits = 0
    while (1 << bits) < len(table):
        bits += 1
    return 64 - bits


@inner
def _push(heap_counts, heap_pairs, size, count, pair, keys):
    """Adds a pair to the heap, which has room for it."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not _more(count, keys[pair], heap_counts[parent], keys[heap_pairs[parent]]):
            break
        heap_counts[at], heap_pairs[at] = heap_counts[parent], heap_pairs[parent]
        at = parent
    heap_counts[at], heap_pairs[at] = count, pair


@inner
def _pop(heap_counts, heap_pairs, size, keys):
    """Takes the first pair off a heap of `size`; the rest is a heap again."""
    count, pair = heap_counts[size - 1], heap_pairs[size - 1]
    size -= 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _more(
            heap_counts[child + 1], keys[heap_pairs[child + 1]], heap_counts[child], keys[heap_pairs[child]]
        ):
            child += 1
        if not _more(heap_counts[child], keys[heap_pairs[child]], count, keys[pair]):
            break
        heap_counts[at], heap_pairs[at] = heap_counts[child], heap_pairs[child]
        at = child
    if size:
        heap_counts[at], heap_pairs[at] = count, pair


@inner
def _token_of(data, begin, end, words, begins, ends, n):
    """Id of the token with these bytes. A new one gets id n, and its place in the table."""
    mask = len(words) - 1
    slot = np.int64(word_hash(data, begin, end) >> np.uint64(_shift(words)))
    while words[slot] >= 0:
        token = words[slot]
        size = ends[token] - begins[token]
        if size == end - begin:
            k = 0
            while k < size and data[begins[token] + k] == data[begin + k]:
                k += 1
            if k == size:
                return np.int64(token)
        slot = (slot + 1) & mask
    words[slot] = n
    begins[n], ends[n] = begin, end
    return np.int64(n)


@loops
def learn(lo, hi, data, starts, counts, alphabet, words, begins, ends, merges, result, total, fewest):
    """One item: learns merges until there are `total` tokens, 256 of them the bytes.

    data, starts, counts: distinct words and how often each occurs. alphabet: id of each byte. words: int32, filled with
    -1, a power of two of at least twice `total`; begins, ends: int64 (total), for the bytes of tokens in `data`.
    merges: int32 (total + 1, 3), left, right and result; result[0] becomes their number, result[1] that of the tokens.
    """
    for _ in range(lo, hi):
        n = len(data)
        symbols, sizes = np.empty(n, np.int32), np.ones(n, np.int32)
        following, before = np.empty(n, np.int32), np.empty(n, np.int32)
        owner = np.empty(n, np.int32)
        table = np.full(1 << 16, np.int32(-1), np.int32)
        shift = _shift(table)
        keys, total_of = np.empty(1 << 12, np.int64), np.empty(1 << 12, np.int64)
        head, tail = np.empty(1 << 12, np.int32), np.empty(1 << 12, np.int32)
        stamp = np.empty(1 << 12, np.int32)
        node_at, node_next = np.empty(n + 16, np.int32), np.empty(n + 16, np.int32)
        pairs, nodes = 0, 0
        touched = np.empty(1 << 12, np.int32)
        for w in range(len(starts) - 1):
            for i in range(starts[w], starts[w + 1]):
                symbols[i] = alphabet[data[i]]
                owner[i] = w
                before[i] = i - 1 if i > starts[w] else -1
                following[i] = i + 1 if i + 1 < starts[w + 1] else -1
        step, n_touched = 0, 0
        for i in range(n):
            if following[i] < 0:
                continue
            key = np.int64(symbols[i]) << 32 | np.int64(symbols[i + 1])
            slot = _place(table, keys, key, shift)
            if table[slot] < 0:
                keys, total_of = _grown(keys, pairs), _grown(total_of, pairs)
                head, tail, stamp = _grown(head, pairs), _grown(tail, pairs), _grown(stamp, pairs)
                table[slot] = pairs
                keys[pairs], total_of[pairs], head[pairs], tail[pairs], stamp[pairs] = key, 0, -1, -1, -1
                pairs += 1
                # At most 65,536 pairs of bytes exist: the table has to grow before the next one.
                if 2 * pairs > len(table):
                    table = _rehashed(table, keys, pairs)
                    shift = _shift(table)
                    slot = _place(table, keys, key, shift)
            pair = table[slot]
            total_of[pair] += counts[owner[i]]
            node_at[nodes], node_next[nodes] = i, -1
            if head[pair] < 0:
                head[pair] = nodes
            else:
                node_next[tail[pair]] = nodes
            tail[pair] = nodes
            nodes += 1
        heap_counts, heap_pairs = np.empty(max(pairs, 1), np.int64), np.empty(max(pairs, 1), np.int32)
        size = 0
        for pair in range(pairs):
            _push(heap_counts, heap_pairs, size, total_of[pair], pair, keys)
            size += 1
        tokens, done = 256, 0
        places = np.empty(64, np.int64)
        merged = np.zeros(len(keys), np.uint8)
        while tokens < total and size:
            count, pair = heap_counts[0], np.int64(heap_pairs[0])
            _pop(heap_counts, heap_pairs, size, keys)
            size -= 1
            if count != total_of[pair]:
                # The count fell since: it waits under the one it has now.
                if 0 < total_of[pair] < count:
                    _push(heap_counts, heap_pairs, size, total_of[pair], pair, keys)
                    size += 1
                continue
            if count < fewest or count < 1:
                break
            left, right = keys[pair] >> 32, keys[pair] & 0xFFFFFFFF
            found, node = 0, np.int64(head[pair])
            while node >= 0:
                at = np.int64(node_at[node])
                if symbols[at] == left and following[at] >= 0 and symbols[following[at]] == right:
                    places = _grown(places, found)
                    places[found] = at
                    found += 1
                node = np.int64(node_next[node])
            if left == right:
                places[:found].sort()  # of three in a row, the first two
            total_of[pair], head[pair], tail[pair] = 0, -1, -1
            if found == 0:
                continue
            at = places[0]
            token = _token_of(data, at, at + sizes[at] + sizes[following[at]], words, begins, ends, tokens)
            if token == tokens:
                tokens += 1
            if not merged[pair]:
                merged[pair] = 1
                merges[done, 0], merges[done, 1], merges[done, 2] = left, right, token
                done += 1
                if done == len(merges):
                    break
            step += 1
            n_touched = 0
            for f in range(found):
                at = places[f]
                gone = np.int64(following[at])
                if symbols[at] != left or gone < 0 or symbols[gone] != right:
                    continue
                after, last = np.int64(following[gone]), np.int64(before[at])
                weight = counts[owner[at]]
                if last >= 0:
                    old = table[_place(table, keys, np.int64(symbols[last]) << 32 | left, shift)]
                    total_of[old] -= weight
                if after >= 0:
                    old = table[_place(table, keys, right << 32 | np.int64(symbols[after]), shift)]
                    total_of[old] -= weight
                    before[after] = at
                symbols[at], symbols[gone] = token, -1
                sizes[at] += sizes[gone]
                following[at] = after
                for side in range(2):
                    first = last if side == 0 else at
                    second = at if side == 0 else after
                    if first < 0 or second < 0:
                        continue
                    key = np.int64(symbols[first]) << 32 | np.int64(symbols[second])
                    slot = _place(table, keys, key, shift)
                    if table[slot] < 0:
                        keys, total_of = _grown(keys, pairs), _grown(total_of, pairs)
                        head, tail, stamp = _grown(head, pairs), _grown(tail, pairs), _grown(stamp, pairs)
                        merged = _grown(merged, pairs)
                        table[slot] = pairs
                        keys[pairs], total_of[pairs], head[pairs], tail[pairs], stamp[pairs] = key, 0, -1, -1, -1
                        merged[pairs] = 0
                        pairs += 1
                        if 2 * pairs > len(table):
                            table = _rehashed(table, keys, pairs)
                            shift = _shift(table)
                            slot = _place(table, keys, key, shift)
                    new = table[slot]
                    total_of[new] += weight
                    node_at, node_next = _grown(node_at, nodes), _grown(node_next, nodes)
                    node_at[nodes], node_next[nodes] = first, -1
                    if head[new] < 0:
                        head[new] = nodes
                    else:
                        node_next[tail[new]] = nodes
                    tail[new] = nodes
                    nodes += 1
                    if stamp[new] != step:
                        stamp[new] = step
                        touched = _grown(touched, n_touched)
                        touched[n_touched] = new
                        n_touched += 1
            for k in range(n_touched):
                new = touched[k]
                if total_of[new] > 0:
                    heap_counts, heap_pairs = _grown(heap_counts, size), _grown(heap_pairs, size)
                    _push(heap_counts, heap_pairs, size, total_of[new], new, keys)
                    size += 1
        result[0], result[1] = done, tokens
