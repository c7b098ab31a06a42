"""The loops of the Unigram trainer: substrings and their counts, expected counts of pieces, and what losing one costs.

Counts of substrings and of best segmentations are integers. Expected counts are float64, summed over the words of a
block in order and then over the blocks in order; the blocks depend on the words alone. So no result depends on the
number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from ...kernels.cpu.functions import inlined
from .loops import loops
from .trie import step, value

__all__ = ["best_counts", "expect", "losses", "seeds"]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HIGH = np.uint64(32)
_STEP, _SMALL = 2.0**200, 2.0**-200


@loops
def seeds(lo, hi, gram, single, weights, length, parents, table, keys, counts, places, kept, size):
    """Substrings of `length` characters, by the first character after the shorter substring that begins there.

    gram: for each character of the words, the number of the substring of length - 1 that begins there, or -1; replaced
    by that of the substring of `length`. single: the same for one character, with -1 behind each word. weights: of the
    word a character is in. parents: counts of the shorter substrings. table: filled with -1, a power of two.
    Out, for each substring: keys (two numbers packed), counts, places (where it is first), and kept: 0 for a shorter
    substring that is always followed by the same character, which adds nothing to the longer one.
    """
    for _ in range(lo, hi):
        mask, n = np.int64(table.shape[0] - 1), np.int64(0)
        for i in range(gram.shape[0]):
            a = np.int64(gram[i])
            j = i + length - 1
            if a < 0 or j >= gram.shape[0] or single[j] < 0:
                gram[i] = -1
                continue
            key = (a << 32) | np.int64(single[j])
            h = np.uint64(key) * _MIX
            slot = np.int64(h >> _HIGH) & mask
            while True:
                found = np.int64(table[slot])
                if found < 0:
                    found = n
                    table[slot], keys[n], counts[n], places[n] = n, key, 0, i
                    n += 1
                    break
                if keys[found] == key:
                    break
                slot = (slot + 1) & mask
            counts[found] += weights[i]
            gram[i] = found
        for found in range(n):
            if counts[found] == parents[keys[found] >> 32]:
                kept[keys[found] >> 32] = 0
        for i in range(gram.shape[0]):
            if gram[i] >= 0 and counts[gram[i]] < 2:
                gram[i] = -1
        size[0] = n


@inlined
def _longest(starts, a, b):
    """Bytes of the longest of words a to b-1."""
    longest = np.int64(0)
    for word in range(a, b):
        longest = max(longest, starts[word + 1] - starts[word])
    return longest


@inlined
def _rescale(values, k, last):
    """Multiplies values k to last by _STEP."""
    for i in range(k, last + 1):
        values[i] *= _STEP


@loops
def expect(lo, hi, blocks, data, starts, frequency, nodes, shares, longest, expected):
    """The E step over blocks lo to hi-1: expected[b, v] += frequency of a word x the probability that piece v is used
    at some place, summed over places. shares: the probability of each piece; longest: bytes of the longest one.

    With before[i], the summed probability of all ways to byte i, and rest[i] of those from it to the end,
    p(piece v from i to j) = before[i] shares[v] rest[j] / before[end].
    Both are kept as multiples of powers of _STEP, so that long words don't end in zeros: wherever a value gets small,
    it and all that are still needed are multiplied, and how often is counted.
    """
    for block in range(lo, hi):
        a, b = blocks[block], blocks[block + 1]
        room = _longest(starts, a, b) + 1
        before, rest, times = np.empty(room), np.empty(room), np.empty(room, np.int32)
        edges = room * min(room, longest)
        piece, left, right = np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges, np.int32)
        for word in range(a, b):
            begin, n = starts[word], starts[word + 1] - starts[word]
            for k in range(n + 1):
                before[k], rest[k] = 0.0, 0.0
            before[0], rest[n] = 1.0, 1.0
            m, scale, reach = 0, 0, np.int64(0)
            for i in range(n):
                # Nothing ends inside a character, so no piece is looked for there.
                if before[i] == 0.0:
                    continue
                if before[i] < _SMALL:
                    _rescale(before, i, reach)
                    scale += 1
                times[i] = scale
                s, j, here = np.int64(0), i, before[i]
                while j < n:
                    s = step(nodes, s, data[begin + j])
                    if s < 0:
                        break
                    j += 1
                    v = value(nodes, s)
                    if v >= 0:
                        piece[m], left[m], right[m] = v, i, j
                        m += 1
                        before[j] += here * shares[v]
                reach = max(reach, j)
            if before[n] == 0.0:
                continue
            weight, whole = np.float64(frequency[word]) / before[n], scale
            scale, last = 0, n
            for e in range(m - 1, -1, -1):
                v, i, far = np.int64(piece[e]), np.int64(left[e]), rest[right[e]]
                if i < last:
                    # rest[last] is complete now; what is above is needed as far as a piece reaches.
                    if 0.0 < rest[last] < _SMALL:
                        _rescale(rest, last, min(n, last + longest))
                        scale += 1
                        far = rest[right[e]]
                    last = i
                if far == 0.0:
                    continue
                here = shares[v] * far
                rest[i] += here
                here *= before[i] * weight
                for _ in range(whole - times[i] - scale):
                    here *= _STEP
                for _ in range(times[i] + scale - whole):
                    here *= _SMALL
                expected[block, v] += here


@inlined
def _best_path(data, begin, n, nodes, scores, whole, best, length, piece):
    """Viterbi over a word; `whole`: whether one piece may be all of it. Returns the number of pieces, 0 if no way."""
    for k in range(1, n + 1):
        length[k] = 0
    best[0], length[0] = 0.0, 1
    for i in range(n):
        if length[i] == 0:
            continue
        s, j = np.int64(0), i
        while j < n:
            s = step(nodes, s, data[begin + j])
            if s < 0:
                break
            j += 1
            v = value(nodes, s)
            if v >= 0 and (whole or j - i < n):
                total = best[i] + scores[v]
                if length[j] == 0 or total > best[j]:
                    best[j], length[j], piece[j] = total, j - i, v
    count, k = np.int64(0), n
    while k > 0 and length[n] > 0:
        count += 1
        k -= length[k]
    return count


@loops
def best_counts(lo, hi, blocks, data, starts, frequency, nodes, scores, counts):
    """counts[b, v] += frequency of each word whose best segmentation uses piece v, for every use."""
    for block in range(lo, hi):
        a, b = blocks[block], blocks[block + 1]
        room = _longest(starts, a, b) + 1
        best, length, piece = np.empty(room), np.empty(room, np.int32), np.empty(room, np.int32)
        for word in range(a, b):
            k = starts[word + 1] - starts[word]
            if _best_path(data, starts[word], k, nodes, scores, True, best, length, piece) == 0:
                continue
            while k > 0:
                counts[block, piece[k]] += frequency[word]
                k -= length[k]


@loops
def losses(lo, hi, data, starts, nodes, scores, counts, total, loss):
    """What the corpus loses, in nats, if piece v in lo to hi-1 goes and its next best segmentation takes its uses.

    +inf where there is none, -inf where the piece is never used. counts: uses of each piece, total: their sum.
    """
    room = _longest(starts, lo, hi) + 1
    best, length, piece = np.empty(room), np.empty(room, np.int32), np.empty(room, np.int32)
    for v in range(lo, hi):
        n = starts[v + 1] - starts[v]
        parts = _best_path(data, starts[v], n, nodes, scores, False, best, length, piece)
        if parts == 0:
            loss[v] = math.inf
        elif counts[v] == 0:
            loss[v] = -math.inf
        else:
            uses = np.float64(counts[v])
            after = math.log(total + uses * np.float64(parts - 1))
            change = math.log(uses) - math.log(total)
            k = n
            while k > 0:
                change -= math.log(np.float64(counts[piece[k]]) + uses) - after
                k -= length[k]
            loss[v] = uses * change
