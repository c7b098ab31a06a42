"""Attention forward: flash attention over blocks of queries, and a path of its own for decoding. Rotary positions and
the backward pass stand in the modules beside and are named here too.

An item of work is a block of queries of one head (`attention_tiles` says how it is laid out). It walks over the tiles
of keys that it can see with a running maximum and sum (Dao et al. 2022; Milakov & Gimelshein 2018), so the memory
besides the result is a few tiles a thread. Scores are kept in units of log 2: scale log2(e) goes into the queries.

One query a head (decoding) is bound by reading keys and values, so there the lanes run along the head, the query
heads that share a key read it together, and the keys are split into chunks that are merged afterwards.

Keys that a query does not see can reach its result only where they are infinite or not a number, and only within the
tile on the diagonal, through 0 * inf; the definition has the same in every tile.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...device import Array
from .attention_backward import attention_backward
from .attention_tiles import aligned, as_operand, fill_keep, hide, memory, product, queries, turn_in, turn_out
from .formats import load, store
from .functions import exp, inner, like
from .lanes import VECTOR, apart, operand, vbelow, vexp2, vhighest, vload, vmax, vsplat, vspread, vstore, vsum, width
from .launch import kernel
from .philox import philox
from .rope import rope

__all__ = ["attention", "attention_backward", "rope"]

_KEYS = 128  # of a tile
_CHUNK = 256  # keys of a decoding item
_GRAIN = 1 << 17  # keys times features of a chunk
_LOG2E = 1 / math.log(2)
_LN2 = math.log(2)
_LOWEST = -3.0e38  # above minus infinity and below every score


def attention(
    q: Array, k: Array, v: Array, *, causal: bool, scale: float, dropout: float, seed: int, counter: int
) -> tuple[Array, Array]:
    """o = dropout(softmax(scale q k^T)) v, and lse: the ln of each row's softmax sum. See the definition."""
    batch, tq, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    groups = heads // max(1, kv_heads)
    precise = dtypes.float64 if q.dtype is dtypes.float64 else dtypes.float32
    o, lse = q.device.empty(q.shape, q.dtype), q.device.empty((batch, heads, tq), precise)
    shape = (groups, kv_heads, tq, tk, d)
    strides = (*q.strides, *k.strides, *v.strides)
    random = (dropout, seed & 0xFFFFFFFF, seed >> 32, counter)
    if tq == 1:
        chunks = max(1, -(-tk // _CHUNK))
        parts = q.device.empty((batch * kv_heads * chunks, groups, d + 2), precise)
        _decode(batch * kv_heads * chunks, 1, memory(q), memory(k), memory(v), memory(parts), *shape, *strides, scale, *random)
        _merge(batch * heads, 16, memory(parts), memory(o), memory(lse), chunks, groups, kv_heads, d)
    else:
        blocks = -(-tq // (VECTOR // precise.itemsize * 2))
        grain = max(1, _GRAIN // max(1, min(tk, 2 * _KEYS) * d))
        _forward(
            batch * heads * blocks, grain, memory(q), memory(k), memory(v), memory(o), memory(lse), *shape, *strides,
            causal, scale, *random,
        )  # fmt: skip
    return o, lse


# --- blocks of queries ------------------------------------------------------------------------------------------------


@kernel
def _forward(
    lo, hi, q, k, v, o, lse, groups, kv_heads, tq, tk, d, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd, causal, scale,
    dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, block of queries from the last, query head of the group)."""
    heads, lanes = groups * kv_heads, queries(lse)
    blocks, size = (tq + lanes - 1) // lanes, max(1, min(tk, _KEYS))
    scratch = np.empty((2 * d + 3 + 2 * size) * lanes + 2 * size * d + 16, lse.dtype)
    turned = aligned(scratch)
    out, s = turned + d * lanes, turned + 2 * d * lanes
    keep = s + size * lanes
    numbers = keep + size * lanes
    top, total = numbers + lanes, numbers + 2 * lanes
    copy = total + lanes
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    for item in range(lo, hi):
        g, rest = item % groups, item // groups
        block, rest = blocks - 1 - rest % blocks, rest // blocks
        b, kv_head = rest // kv_heads, rest % kv_heads
        h, i0 = kv_head * groups + g, block * lanes
        rows = min(lanes, tq - i0)
        seen = max(0, min(tk, i0 + rows + tk - tq)) if causal else tk
        turn_in(scratch, turned, q, b * qb + i0 * qt + h * qh, qt, qd, rows, d, scale * _LOG2E)
        for l in range(lanes):  # noqa: E741
            scratch[top + l] = -np.inf
            scratch[total + l] = 0
        for first in range(0, seen, size):
            n = min(size, seen - first)
            # s = scale q k^T
            at, row, step = as_operand(k, b * kb + first * kt + kv_head * kh, kt, kd, n, d, scratch, copy)
            product(scratch, s, lanes, operand(k, scratch), at, row, step, scratch, turned, lanes, n, lanes, d, 0)
            if causal:
                hide(scratch, s, first - i0 - tk + tq, n, numbers, -np.inf)
            _soften(scratch, s, n, top, total, out, d if first > 0 else 0)
            if dropout > 0:
                word = counter + ((b * heads + h) * tq + i0) * tk
                fill_keep(scratch, keep, low, high, word, tk, rows, first, first + n, dropout)
                for i in range(0, n * lanes, width(lse, VECTOR)):
                    vstore(scratch, s + i, vload(scratch, s + i) * vload(scratch, keep + i))
            # o += p v
            at, row, step = as_operand(v, b * vb + first * vt + kv_head * vh, vt, vd, n, d, scratch, copy)
            product(scratch, out, lanes, operand(v, scratch), at, step, row, scratch, s, lanes, d, lanes, n, first)
        # o /= total
        _finish(scratch, out, top, total, lse, (b * heads + h) * tq + i0, rows, d if seen > 0 else 0)
        if seen == 0:
            for i in range(out, out + d * lanes):
                scratch[i] = 0
        turn_out(o, ((b * tq + i0) * heads + h) * d, heads * d, scratch, out, rows, d)


@inner
def _soften(x, s, n, top, total, out, d):
    """s = 2**(s - top) for n rows of scores, after `top` has taken them in; `total` and the d rows of `out` move to
    the new maximum, and `total` takes in the sum. A row of nothing but minus infinity has 0 for its maximum."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    for half in range(0, lanes, w):
        old = highest = vload(x, top + half)
        for at in range(s + half, s + half + n * lanes, lanes):
            highest = vmax(vload(x, at), highest)
        vstore(x, top + half, highest)
        highest = vbelow(highest, vsplat(x, _LOWEST), vsplat(x, 0), highest)
        shrink = vexp2(old - highest)
        total_now = vload(x, total + half) * shrink
        for at in range(s + half, s + half + n * lanes, lanes):
            p = vexp2(vload(x, at) - highest)
            vstore(x, at, p)
            total_now = total_now + p
        vstore(x, total + half, total_now)
        for at in range(out + half, out + half + d * lanes, lanes):
            vstore(x, at, vload(x, at) * shrink)


@inner
def _finish(x, out, top, total, lse, lse0, rows, d):
    """lse = ln 2 top + ln total; the d rows of `out` divided by `total`."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    for l in range(lanes):  # noqa: E741
        t = load(x, total + l)
        if l < rows:
            store(lse, lse0 + l, load(x, top + l) * _LN2 + math.log(t))
        store(x, total + l, like(1, t) / (like(1, t) if t == 0 else t))
    for half in range(0, lanes, w):
        factor = vload(x, total + half)
        for at in range(out + half, out + half + d * lanes, lanes):
            vstore(x, at, vload(x, at) * factor)


# --- one query --------------------------------------------------------------------------------------------------------


@kernel
def _decode(
    lo, hi, q, k, v, parts, groups, kv_heads, tq, tk, d, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd, scale, dropout,
    low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, chunk of keys). A part is the maximum, the sum and the output of one head."""
    w = width(parts, VECTOR)
    chunks = max(1, (tk + _CHUNK - 1) // _CHUNK)
    scratch = np.empty(groups * (d + _CHUNK) + 16, parts.dtype)
    s = aligned(scratch)
    scaled = s + groups * _CHUNK
    for item in range(lo, hi):
        chunk, rest = item % chunks, item // chunks
        b, kv_head = rest // kv_heads, rest % kv_heads
        first = chunk * _CHUNK
        n = min(_CHUNK, tk - first)
        padded = (n + w - 1) // w * w
        for g in range(groups):
            at = b * qb + (kv_head * groups + g) * qh
            for i in range(d):
                store(scratch, scaled + g * d + i, load(q, at + i * qd) * (scale * _LOG2E))
        # s = scale q k^T
        whole = d // w * w if kd == 1 else 0
        for j in range(n):
            at = b * kb + (first + j) * kt + kv_head * kh
            for g in range(groups):
                own = scaled + g * d
                sums = vsplat(parts, 0)
                for i in range(0, whole, w):
                    sums = sums + vload(scratch, own + i) * vload(k, at + i)
                score = vsum(sums)
                for i in range(whole, d):
                    score += load(scratch, own + i) * load(k, at + i * kd)
                store(scratch, s + g * _CHUNK + j, score)
        for g in range(groups):
            own, part = s + g * _CHUNK, (item * groups + g) * (d + 2)
            for j in range(n, padded):
                store(scratch, own + j, -np.inf)
            _soften_row(scratch, own, padded, parts, part)
            if dropout > 0:
                start = counter + (b * groups * kv_heads + kv_head * groups + g) * tk
                _drop_row(scratch, own, n, low, high, start + first, dropout)
        # o = p v
        whole = d // w * w if vd == 1 else 0
        start = b * vb + first * vt + kv_head * vh
        for g in range(groups):
            own, out = s + g * _CHUNK, (item * groups + g) * (d + 2) + 2
            _weigh(parts, out, scratch, own, v, start, vt, n, whole)
            for i in range(whole, d):
                total = like(0, load(parts, out))
                for j in range(n):
                    total += load(scratch, own + j) * load(v, start + j * vt + i * vd)
                store(parts, out + i, total)


@inner
def _soften_row(x, s, n, parts, part):
    """s = 2**(s - top), n a multiple of the lanes; writes the maximum and the sum, in float32 or float64."""
    apart()
    w = width(x, VECTOR)
    highest = vsplat(x, -np.inf)
    for at in range(s, s + n, w):
        highest = vmax(vload(x, at), highest)
    top = vhighest(highest)
    store(parts, part, top)
    highest, total = vsplat(x, like(0, top) if top == -np.inf else top), vsplat(x, 0)
    for at in range(s, s + n, w):
        p = vexp2(vload(x, at) - highest)
        vstore(x, at, p)
        total = total + p
    store(parts, part + 1, vsum(total))


@inner
def _drop_row(x, s, n, low, high, word, p):
    """Multiplies n numbers by the dropout mask from that word on."""
    apart()
    limit = np.float32(p)
    for block in range(word >> 2, (word + n + 3) >> 2):
        words = philox(low, high, block)
        for t in range(4):
            j = 4 * block + t - word
            if 0 <= j < n:
                u = np.float32(words[t] >> np.uint32(8)) * np.float32(2.0**-24)
                store(x, s + j, load(x, s + j) * (1 / (1 - p) if u >= limit else 0.0))


@inner
def _weigh(y, y0, p, p0, v, v0, row, n, d):
    """y = p v for n keys and the first d features, a multiple of the lanes that are contiguous."""
    apart()
    w = width(y, VECTOR)
    i = 0
    while i + 4 * w <= d:
        a = b = c = e = vsplat(y, 0)
        at = v0 + i
        for j in range(n):
            s = vspread(p, p0 + j)
            a, b = a + s * vload(v, at), b + s * vload(v, at + w)
            c, e = c + s * vload(v, at + 2 * w), e + s * vload(v, at + 3 * w)
            at += row
        vstore(y, y0 + i, a)
        vstore(y, y0 + i + w, b)
        vstore(y, y0 + i + 2 * w, c)
        vstore(y, y0 + i + 3 * w, e)
        i += 4 * w
    while i < d:
        a = vsplat(y, 0)
        for j in range(n):
            a = a + vspread(p, p0 + j) * vload(v, v0 + j * row + i)
        vstore(y, y0 + i, a)
        i += w


@kernel
def _merge(lo, hi, parts, o, lse, chunks, groups, kv_heads, d):
    """Items: (batch, head). o and lse from the parts of the chunks, in their order."""
    size = d + 2
    sums = np.empty(d, parts.dtype)
    for item in range(lo, hi):
        b, h = item // (groups * kv_heads), item % (groups * kv_heads)
        first = ((b * kv_heads + h // groups) * chunks * groups + h % groups) * size
        top = load(parts, first)
        for chunk in range(1, chunks):
            top = max(top, load(parts, first + chunk * groups * size))
        base = like(0, top) if top == -np.inf else top
        total = like(0, top)
        for i in range(d):
            sums[i] = 0
        for chunk in range(chunks):
            part = first + chunk * groups * size
            factor = exp((load(parts, part) - base) * like(_LN2, top))
            total += load(parts, part + 1) * factor
            for i in range(d):
                sums[i] += load(parts, part + 2 + i) * factor
        store(lse, item, top * _LN2 + math.log(total))
        factor = like(1, total) / (like(1, total) if total == 0 else total)
        for i in range(d):
            store(o, item * d + i, sums[i] * factor)
