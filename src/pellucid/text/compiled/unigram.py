"""The Unigram loops: the best segmentation of a word (Viterbi), and a random one.

Both work on UTF-8 bytes and walk the trie once from every character. Pieces begin where a character begins. Where no
piece is exactly one character long, the character alone is the unknown piece.

Words of one chunk share their scratch memory, so it stays in the cache, and put their ids behind one another; the
caller joins the chunks.
"""

from __future__ import annotations

import math

import numpy as np

from ...kernels.cpu.functions import inlined
from ...kernels.cpu.philox import philox
from .loops import loops
from .trie import step, value

__all__ = ["encode", "sample"]

_UNKNOWN = np.int32(-1)
_FAR = 1e5  # SentencePiece 0.2.3


@inlined
def character_length(byte):
    """Bytes of the UTF-8 character that `byte` begins; 1 for a byte that begins none."""
    if byte < 0xC0:
        return 1
    if byte < 0xE0:
        return 2
    return 3 if byte < 0xF0 else 4


@inlined
def _longest(starts, a, b):
    """Bytes of the longest of words a to b-1."""
    longest = np.int64(0)
    for word in range(a, b):
        longest = max(longest, starts[word + 1] - starts[word])
    return longest


@inlined
def _best(data, begin, end, nodes, scores, unknown, single, best, length, piece):
    """Fills, for every byte position of a word, the score of the best way there, and its last piece.

    `single`: every sum is rounded to float32, as SentencePiece does; and as there, sums begin anew from a place where
    they are beyond 1e5, so that a long text doesn't lose them in rounding.
    """
    for k in range(1, end - begin + 1):
        length[k] = 0
    best[0] = 0.0
    i, reach = begin, np.int64(0)
    while i < end:
        here = best[i - begin]
        if single and abs(here) > _FAR:
            for k in range(i - begin + 1, reach + 1):
                best[k] = np.float64(np.float32(best[k] - here))
            here = 0.0
        n = min(character_length(data[i]), end - i)
        s, j, alone = np.int64(0), i, False
        while j < end:
            s = step(nodes, s, data[j])
            if s < 0:
                break
            j += 1
            v = value(nodes, s)
            if v >= 0:
                alone |= j - i == n
                k, total = j - begin, here + scores[v]
                if single:
                    total = np.float64(np.float32(total))
                if length[k] == 0 or total > best[k]:
                    best[k], length[k], piece[k] = total, j - i, v
                reach = max(reach, k)
        if not alone:
            k, total = i + n - begin, here + unknown
            reach = max(reach, k)
            if single:
                total = np.float64(np.float32(total))
            if length[k] == 0 or total > best[k]:
                best[k], length[k], piece[k] = total, n, _UNKNOWN
        i += n


@inlined
def _count(length, piece, n, split):
    """Number of ids of the path that ends at byte n. `split`: unknown characters go byte by byte, else a run is one."""
    count, k, run = np.int64(0), n, False
    while k > 0:
        unknown = piece[k] == _UNKNOWN
        if unknown and split:
            count += length[k]
        elif not (unknown and run):
            count += 1
        run = unknown
        k -= length[k]
    return count


@inlined
def _write(data, begin, length, piece, n, split, byte_ids, unknown_id, ids, ends, places, at):
    """Writes the ids before place `at`, backwards, and where each ends (a byte of the word) with `places`."""
    k, run = n, False
    while k > 0:
        unknown = piece[k] == _UNKNOWN
        if unknown and split:
            for j in range(length[k]):
                at -= 1
                ids[at] = byte_ids[data[begin + k - 1 - j]]
                if places:
                    ends[at] = k - j
        elif not (unknown and run):
            at -= 1
            ids[at] = unknown_id if unknown else piece[k]
            if places:
                ends[at] = k
        run = unknown
        k -= length[k]


@loops
def encode(
    lo, hi, chunks, data, starts, nodes, scores, unknown, single, split, byte_ids, unknown_id, ids, ends, counts,
    places
):  # fmt: skip
    """Ids of the words of chunks lo to hi-1, from the place of the chunk's first byte on; counts: ids of each word.

    chunks: first word of each chunk, and the number of words; byte_ids: the ids of the 256 bytes.
    """
    for chunk in range(lo, hi):
        a, b = chunks[chunk], chunks[chunk + 1]
        room = _longest(starts, a, b) + 1
        best, length, piece = np.empty(room), np.empty(room, np.int32), np.empty(room, np.int32)
        at = starts[a]
        for word in range(a, b):
            begin, end = starts[word], starts[word + 1]
            _best(data, begin, end, nodes, scores, unknown, single, best, length, piece)
            n = _count(length, piece, end - begin, split)
            counts[word] = n
            at += n
            _write(data, begin, length, piece, end - begin, split, byte_ids, unknown_id, ids, ends, places, at)


@inlined
def _log_add(a, b):
    """ln(e**a + e**b)"""
    top = max(a, b)
    return top + math.log(math.exp(a - top) + math.exp(b - top)) if min(a, b) > -math.inf else top


@inlined
def _rest(data, begin, end, nodes, scores, unknown, power, rest):
    """rest[i] = ln of the sum over all segmentations from byte i to the end of the product of p(piece)**power."""
    n = end - begin
    for k in range(n):
        rest[k] = -math.inf
    rest[n] = 0.0
    for k in range(n - 1, -1, -1):
        i = begin + k
        if data[i] & 0xC0 == 0x80 and k > 0:  # inside a character: no piece begins here
            continue
        size = min(character_length(data[i]), end - i)
        s, j, alone = np.int64(0), i, False
        while j < end:
            s = step(nodes, s, data[j])
            if s < 0:
                break
            j += 1
            v = value(nodes, s)
            if v >= 0:
                alone |= j - i == size
                rest[k] = _log_add(rest[k], power * scores[v] + rest[j - begin])
        if not alone:
            rest[k] = _log_add(rest[k], power * unknown + rest[k + size])


@inlined
def _uniform(low, high, block):
    """A float64 in [0, 1) from the first two words of a block."""
    w0, w1, _, _ = philox(low, high, block)
    return (np.float64(np.int64(w0 >> np.uint32(5))) * 67108864.0 + np.float64(np.int64(w1 >> np.uint32(6)))) * 2.0**-53


@inlined
def _draw(data, begin, end, nodes, scores, unknown, power, rest, low, high, first, length, piece):
    """Fills length and piece at the ends of the pieces of a random path, from left to right."""
    i = begin
    while i < end:
        size = min(character_length(data[i]), end - i)
        left = _uniform(low, high, first + i)
        s, j, alone = np.int64(0), i, False
        found, kind = np.int64(0), _UNKNOWN
        while j < end and left >= 0.0:
            s = step(nodes, s, data[j])
            if s < 0:
                break
            j += 1
            v = value(nodes, s)
            if v >= 0:
                alone |= j - i == size
                share = math.exp(power * scores[v] + rest[j - begin] - rest[i - begin])
                if share > 0.0:
                    # The last possible piece also stands for what rounding leaves over.
                    found, kind = j - i, np.int32(v)
                    left -= share
        if found == 0 or (left >= 0.0 and not alone):
            found, kind = size, _UNKNOWN
        i += found
        length[i - begin], piece[i - begin] = found, kind


@loops
def sample(
    lo, hi, chunks, data, starts, nodes, scores, unknown, power, split, byte_ids, unknown_id, ids, ends, counts, places,
    low, high, first
):  # fmt: skip
    """As `encode`, but a random segmentation: one of probability proportional to the product of p(piece)**power.

    The piece that begins at byte i is drawn with block first + i of the stream whose seed is high 2**32 + low.
    """
    for chunk in range(lo, hi):
        a, b = chunks[chunk], chunks[chunk + 1]
        room = _longest(starts, a, b) + 1
        rest, length, piece = np.empty(room), np.empty(room, np.int32), np.empty(room, np.int32)
        at = starts[a]
        for word in range(a, b):
            begin, end = starts[word], starts[word + 1]
            _rest(data, begin, end, nodes, scores, unknown, power, rest)
            _draw(data, begin, end, nodes, scores, unknown, power, rest, low, high, first, length, piece)
            n = _count(length, piece, end - begin, split)
            counts[word] = n
            at += n
            _write(data, begin, length, piece, end - begin, split, byte_ids, unknown_id, ids, ends, places, at)
