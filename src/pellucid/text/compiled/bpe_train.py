"""Learning merges: the most frequent pair of neighbours becomes a symbol, again and again (Sennrich et al. 2016).

All words are one row of symbols in memory, an edge between them. A symbol stands at the place of its first byte, so
the next one is as many places on as it has bytes; its last place says how many to go back. A table counts every pair,
weighted by how often its word occurs; a heap finds the most frequent one, and among equals the one with the smaller
ids. Counts are integers and nothing depends on the order of the words, so the same corpus gives the same merges.

A merge changes the pairs around its places and no other. What changes is added up by neighbour first: the table is
asked once for each neighbour, and all places of a new pair are known at once and lie in a row (a *run*). A pair has
more than one run only if one of its symbols has come about in two ways.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined, inner
from .bpe import mixed, word_hash
from .loops import loops

_EDGE = np.int32(-(1 << 31))  # between words
_NONE, _MERGED = np.int32(-1), np.int32(-2)  # ends the list of a pair's runs; the second: it was merged before
_LOW = 0xFFFFFFFF


@inlined
def _more(heap, a, count, key):
    """Whether entry a of the heap comes before this one."""
    return heap[2 * a] > count or (heap[2 * a] == count and heap[2 * a + 1] < key)


@inner
def _push(heap, size, count, key):
    """Adds a pair to the heap: the heap, which has moved if it was full."""
    if 2 * size == len(heap):
        larger = np.empty(4 * size, np.int64)
        larger[: 2 * size] = heap
        heap = larger
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if _more(heap, parent, count, key):
            break
        heap[2 * at], heap[2 * at + 1] = heap[2 * parent], heap[2 * parent + 1]
        at = parent
    heap[2 * at], heap[2 * at + 1] = count, key
    return heap


@inner
def _pop(heap, size):
    """Takes the first pair off a heap of `size`; the rest is a heap again."""
    size -= 1
    count, key = heap[2 * size], heap[2 * size + 1]
    at = np.int64(0)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _more(heap, child + 1, heap[2 * child], heap[2 * child + 1]):
            child += 1
        if not _more(heap, child, count, key):
            break
        heap[2 * at], heap[2 * at + 1] = heap[2 * child], heap[2 * child + 1]
        at = child
    heap[2 * at], heap[2 * at + 1] = count, key


@inlined
def _shift(slots):
    """How far a hash is shifted for the first slot of a table."""
    bits = 0
    while (1 << bits) < slots:
        bits += 1
    return 64 - bits


@inner
def _slot(pairs, shift, key):
    """Slot of a pair in the table, or of the hole where it belongs. pairs: key and count of each slot, -1 in a hole."""
    mask = (len(pairs) >> 1) - 1
    slot = np.int64(mixed(key) >> np.uint64(shift))
    while pairs[2 * slot] != key and pairs[2 * slot] != -1:
        slot = (slot + 1) & mask
    return slot


@inner
def _token_of(blob, begins, words, shift, left, right, n):
    """Id of the token with the bytes of two others. A new one gets id n, its bytes at the end of the blob, and its
    place in the table `words`."""
    mask, end = len(words) - 1, begins[n]
    for part in (left, right):
        for i in range(begins[part], begins[part + 1]):
            blob[end] = blob[i]
            end += 1
    size = end - begins[n]
    slot = np.int64(word_hash(blob, begins[n], end) >> np.uint64(shift))
    while words[slot] >= 0:
        token = np.int64(words[slot])
        if begins[token + 1] - begins[token] == size:
            k = 0
            while k < size and blob[begins[token] + k] == blob[begins[n] + k]:
                k += 1
            if k == size:
                return token
        slot = (slot + 1) & mask
    words[slot], begins[n + 1] = n, end
    return np.int64(n)


@inner
def _larger(pairs, runs_of):
    """The table of pairs with twice the slots."""
    more, more_runs = np.full(2 * len(pairs), np.int64(-1), np.int64), np.empty(2 * len(runs_of), np.int32)
    shift = _shift(len(more_runs))
    for old in range(len(runs_of)):
        if pairs[2 * old] != -1:
            slot = _slot(more, shift, pairs[2 * old])
            more[2 * slot], more[2 * slot + 1], more_runs[slot] = pairs[2 * old], pairs[2 * old + 1], runs_of[old]
    return more, more_runs


@inner
def _lay_out(data, starts, counts, alphabet):
    """The row: symbols, and at every place the count of its word. An edge before, between and behind the words."""
    n = len(data) + len(starts)
    symbols, weights, at = np.empty(n, np.int32), np.empty(n, np.int64), 0
    symbols[0] = _EDGE
    for w in range(len(starts) - 1):
        for i in range(starts[w], starts[w + 1]):
            at += 1
            symbols[at], weights[at] = alphabet[data[i]], counts[w]
        at += 1
        symbols[at] = _EDGE
    return symbols, weights


@inner
def _first_pairs(symbols, weights, places, pairs, runs_of, shift, runs):
    """The pairs of bytes, each with its count and one run of places; how many there are."""
    totals, ends = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for at in range(1, len(symbols) - 1):
        if symbols[at] >= 0 and symbols[at + 1] >= 0:
            pair = np.int64(symbols[at]) << 8 | symbols[at + 1]
            totals[pair] += weights[at]
            ends[pair] += 1
    n, end = 0, np.int64(0)
    for pair in range(1 << 16):
        if ends[pair]:
            key = np.int64(pair >> 8) << 32 | (pair & 255)
            slot = _slot(pairs, shift, key)
            pairs[2 * slot], pairs[2 * slot + 1], runs_of[slot] = key, totals[pair], n
            runs[3 * n], runs[3 * n + 1], runs[3 * n + 2] = end, end + ends[pair], _NONE
            ends[pair], end = end, end + ends[pair]
            n += 1
    for at in range(1, len(symbols) - 1):
        if symbols[at] >= 0 and symbols[at + 1] >= 0:
            pair = np.int64(symbols[at]) << 8 | symbols[at + 1]
            places[ends[pair]] = at
            ends[pair] += 1
    return n


@inner
def _places_of(first, runs, places, symbols, left, right, width, found):
    """Where a pair still stands, in ascending order: their array and number, and what ends the list of its runs.
    width: bytes of the left symbol."""
    n, run = 0, np.int64(first)
    while run >= 0:
        begin, end = runs[3 * run], runs[3 * run + 1]
        if n + end - begin > len(found):
            larger = np.empty(2 * (n + end - begin), np.int32)
            larger[:n] = found[:n]
            found = larger
        for i in range(begin, end):
            at = np.int64(places[i])
            if symbols[at] == left and symbols[at + width] == right:
                found[n] = at
                n += 1
        run = runs[3 * run + 2]
    if first >= 0 and runs[3 * first + 2] >= 0:
        found[:n].sort()
    return found, n, run


@loops
def learn(lo, hi, data, starts, counts, alphabet, words, begins, merges, result, total, fewest):
    """One item: learns merges until there are `total` tokens, 256 of them the bytes.

    data, starts, counts: distinct words and how often each occurs. alphabet: id of each byte. words: int32, filled with
    -1, a power of two of at least twice `total`. begins: int64 (total + 1). merges: int32 (total + 1, 3), left, right
    and result; result[0] becomes their number, result[1] that of the tokens.
    """
    for _ in range(lo, hi):
        symbols, weights = _lay_out(data, starts, counts, alphabet)
        # A merge takes one symbol away and makes two pairs at most. What isn't used is never touched.
        places = np.empty(3 * len(symbols), np.int32)
        pairs, runs_of = np.full(1 << 18, np.int64(-1), np.int64), np.empty(1 << 17, np.int32)
        runs, shift, word_shift = np.empty(3 << 17, np.int64), _shift(1 << 17), _shift(len(words))
        n_pairs = np.int64(_first_pairs(symbols, weights, places, pairs, runs_of, shift, runs))
        n_runs, end = n_pairs, runs[3 * n_pairs - 2] if n_pairs else np.int64(0)
        heap, size = np.empty(1 << 17, np.int64), np.int64(0)
        for slot in range(len(runs_of)):
            if pairs[2 * slot] != -1 and pairs[2 * slot + 1] >= fewest:
                heap = _push(heap, size, pairs[2 * slot + 1], pairs[2 * slot])
                size += 1
        blob = np.empty(1 << 16, np.uint8)
        for byte in range(256):
            blob[alphabet[byte]], begins[byte] = byte, byte
        begins[256] = 256
        # For each neighbour on one side 3 numbers: the sum of weights, how many places, where the next place goes.
        before, behind = np.zeros(3 * total, np.int64), np.zeros(3 * total, np.int64)
        lefts, rights, slots = np.empty(total, np.int32), np.empty(total, np.int32), np.empty(2 * total, np.int64)
        found, nexts = np.empty(1 << 12, np.int32), np.empty(1 << 12, np.int32)
        tokens, done = np.int64(256), 0
        while tokens < total and size and done < len(merges):
            count, key = heap[0], heap[1]
            _pop(heap, size)
            size -= 1
            slot = _slot(pairs, shift, key)
            if count != pairs[2 * slot + 1]:
                # The count fell since: it waits under the one it has now.
                if fewest <= pairs[2 * slot + 1] < count:
                    heap = _push(heap, size, pairs[2 * slot + 1], key)
                    size += 1
                continue
            left, right = key >> 32, key & _LOW
            width = begins[left + 1] - begins[left]
            both = width + begins[right + 1] - begins[right]
            found, n_found, last_run = _places_of(runs_of[slot], runs, places, symbols, left, right, width, found)
            if len(nexts) < len(found):
                nexts = np.empty(len(found), np.int32)
            if begins[tokens] + both > len(blob):
                longer = np.empty(2 * (begins[tokens] + both), np.uint8)
                longer[: begins[tokens]] = blob[: begins[tokens]]
                blob = longer
            token = _token_of(blob, begins, words, word_shift, left, right, tokens)
            if token == tokens:
                tokens += 1
            if last_run == _NONE:
                merges[done, 0], merges[done, 1], merges[done, 2] = left, right, token
                done += 1
            pairs[2 * slot + 1], runs_of[slot] = 0, _MERGED
            # The symbols, and what changes beside them.
            n_lefts, n_rights, n = 0, 0, 0
            for f in range(n_found):
                at = np.int64(found[f])
                # Of three in a row, the first two.
                if symbols[at] != left or symbols[at + width] != right:
                    continue
                weight, x, y = weights[at], np.int64(symbols[at - 1]), np.int64(symbols[at + both])
                symbols[at + width] = -1
                symbols[at], symbols[at + both - 1] = token, -both
                found[n], nexts[n] = at, y
                n += 1
                if x != _EDGE:
                    if x < 0:
                        x = np.int64(symbols[at + x])
                    if before[3 * x + 1] == 0:
                        lefts[n_lefts] = x
                        n_lefts += 1
                    before[3 * x] += weight
                    before[3 * x + 1] += 1
                if y >= 0:
                    if behind[3 * y + 1] == 0:
                        rights[n_rights] = y
                        n_rights += 1
                    behind[3 * y] += weight
                    behind[3 * y + 1] += 1
            # Room for what is new, so that slots stay where they are.
            while 2 * (n_pairs + n_lefts + n_rights) > len(runs_of):
                pairs, runs_of = _larger(pairs, runs_of)
                shift = _shift(len(runs_of))
            if 3 * (n_runs + n_lefts + n_rights) > len(runs):
                more = np.empty(6 * (n_runs + n_lefts + n_rights), np.int64)
                more[: 3 * n_runs] = runs[: 3 * n_runs]
                runs = more
            # The counts, and the runs of the new pairs: first on the right, for what was counted there may be gone
            # again once the next place is merged.
            for k in range(n_lefts + n_rights):
                if k < n_rights:
                    x = np.int64(rights[k])
                    weight, length, behind[3 * x + 2] = behind[3 * x], behind[3 * x + 1], end
                    behind[3 * x] = behind[3 * x + 1] = 0
                    old, new = right << 32 | x, token << 32 | x
                else:
                    x = np.int64(lefts[k - n_rights])
                    weight, length, before[3 * x + 2] = before[3 * x], before[3 * x + 1], end
                    before[3 * x] = before[3 * x + 1] = 0
                    old, new = x << 32 | left, x << 32 | token
                if old != key:
                    pairs[2 * _slot(pairs, shift, old) + 1] -= weight
                slot = _slot(pairs, shift, new)
                if pairs[2 * slot] == -1:
                    pairs[2 * slot], pairs[2 * slot + 1], runs_of[slot] = new, 0, _NONE
                    n_pairs += 1
                pairs[2 * slot + 1] += weight
                runs[3 * n_runs], runs[3 * n_runs + 1], runs[3 * n_runs + 2] = end, end + length, runs_of[slot]
                runs_of[slot], slots[k] = n_runs, slot
                n_runs, end = n_runs + 1, end + length
            for k in range(n_lefts + n_rights):
                slot = slots[k]
                if pairs[2 * slot + 1] >= fewest:
                    heap = _push(heap, size, pairs[2 * slot + 1], pairs[2 * slot])
                    size += 1
            # The places. What stands on the left of one was merged before it, if at all; what stands on the right
            # may have been merged after it, so it was kept.
            for f in range(n):
                at, y = np.int64(found[f]), np.int64(nexts[f])
                back = np.int64(symbols[at - 1])
                if back != _EDGE:
                    last = at - 1 if back >= 0 else at + back
                    x = np.int64(symbols[last])
                    places[before[3 * x + 2]] = last
                    before[3 * x + 2] += 1
                if y >= 0:
                    places[behind[3 * y + 2]] = at
                    behind[3 * y + 2] += 1
        result[0], result[1] = done, tokens
