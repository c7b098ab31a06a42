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
from .attention_tiles import aligned, as_operand, fill, fill_keep, hide, keep_row, keep_size, memory, product, queries, turn_in, turn_out, widen
from .formats import load, store
from .functions import exp, inner, like
from .lanes import VECTOR, apart, operand, store_sums, vbelow, vexp2, vhighest, vload, vload_part, vmax, vsplat, vspread, vstore, vsum, width
from .launch import kernel
from .rope import rope

__all__ = ["attention", "attention_backward", "rope"]

_KEYS = 128  # of a tile
_TILE = 64  # keys of a tile in decoding
_SPAN = 512  # keys that an item of decoding takes at least
_ITEMS = 16  # of decoding wanted, for the threads to share
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
        span = max(_SPAN, -(-tk // -(-_ITEMS // max(1, batch * kv_heads))))
        chunks = max(1, -(-tk // span))
        arrays = memory(q), memory(k), memory(v), memory(o), memory(lse)
        parts = arrays[4] if chunks == 1 else memory(q.device.empty((batch * heads * chunks * (d + 2),), precise))
        _decode(batch * kv_heads * chunks, 1, *arrays, parts, span, *shape, *strides, scale, *random)
        if chunks > 1:
            _merge(batch * heads, 16, parts, *arrays[3:], chunks, groups, kv_heads, d)
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
    new = np.int64(0)  # for `product`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    scratch = np.empty((2 * d + 3 + size) * lanes + size * d + drawn + 16, lse.dtype)
    turned = aligned(scratch)
    out, s = turned + d * lanes, turned + 2 * d * lanes
    numbers = s + size * lanes
    top, total = numbers + lanes, numbers + 2 * lanes
    copy = total + lanes
    keep = copy + size * d
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
        fill(scratch, top, lanes, -np.inf)
        fill(scratch, total, lanes, 0)
        for first in range(0, seen, size):
            n = min(size, seen - first)
            # s = scale q k^T
            at, row, step = as_operand(k, b * kb + first * kt + kv_head * kh, kt, kd, n, d, scratch, copy)
            product(scratch, s, lanes, operand(k, scratch), at, row, step, scratch, turned, lanes, n, lanes, d, new)
            if causal:
                hide(scratch, s, first - i0 - tk + tq, n, numbers, -np.inf)
            _soften(scratch, s, n, top, total, out, d if first > 0 else 0)
            if dropout > 0:
                word = counter + ((b * heads + h) * tq + i0) * tk + first
                fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
                for i in range(0, n * lanes, width(lse, VECTOR)):
                    vstore(scratch, s + i, vload(scratch, s + i) * vload(scratch, keep + i))
            # o += p v
            at, row, step = as_operand(v, b * vb + first * vt + kv_head * vh, vt, vd, n, d, scratch, copy)
            product(scratch, out, lanes, operand(v, scratch), at, step, row, scratch, s, lanes, d, lanes, n, first)
        # o /= total
        _finish(scratch, out, top, total, lse, (b * heads + h) * tq + i0, rows, d if seen > 0 else 0)
        if seen == 0:
            fill(scratch, out, d * lanes, 0)
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
    lo, hi, q, k, v, o, lse, parts, span, groups, kv_heads, tq, tk, d, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd, scale,
    dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, chunk of `span` keys). Where one chunk holds all keys, o and lse; else, in a row
    of `parts` for each head of the group, maximum, sum and output."""
    w = width(lse, VECTOR)
    heads, chunks, padded = groups * kv_heads, max(1, (tk + span - 1) // span), (d + w - 1) // w * w
    scratch = np.empty(groups * (2 * padded + 2) + _TILE * (padded + 2) + 24, lse.dtype)
    scaled = aligned(scratch)
    out = scaled + groups * padded
    s = out + groups * padded
    copy = s + _TILE
    keep = copy + _TILE * padded + 4
    top = keep + _TILE + 4
    for item in range(lo, hi):
        chunk, rest = item % chunks, item // chunks
        b, kv_head = rest // kv_heads, rest % kv_heads
        h, end = kv_head * groups, min(tk, (chunk + 1) * span)
        widen(scratch, scaled, padded, q, b * qb + h * qh, qh, qd, groups, d)
        for i in range(scaled, scaled + groups * padded, w):
            vstore(scratch, i, vload(scratch, i) * vsplat(scratch, scale * _LOG2E))
        fill(scratch, out, groups * padded, 0)
        for g in range(groups):
            store(scratch, top + 2 * g, -np.inf)
            store(scratch, top + 2 * g + 1, 0)
        for first in range(chunk * span, end, _TILE):
            n = min(_TILE, end - first)
            k0, v0 = b * kb + first * kt + kv_head * kh, b * vb + first * vt + kv_head * vh
            for g in range(groups):
                # s = scale q k^T
                fill(scratch, s, _TILE, -np.inf)
                own = scaled + g * padded
                if kd == 1:
                    _scores(scratch, s, own, k, k0, kt, n, d)
                else:
                    widen(scratch, copy, padded, k, k0, kt, kd, n, d)
                    _scores(scratch, s, own, scratch, copy, padded, n, d)
                own = out + g * padded
                _soften_row(scratch, s, n, top + 2 * g, own, padded)
                if dropout > 0:
                    keep_row(scratch, keep, low, high, counter + (b * heads + h + g) * tk + first, n, dropout)
                    for j in range(0, n, w):
                        vstore(scratch, s + j, vload(scratch, s + j) * vload(scratch, keep + j))
                # o += p v
                if vd == 1:
                    _weigh(scratch, own, s, v, v0, vt, n, d)
                else:
                    widen(scratch, copy, padded, v, v0, vt, vd, n, d)
                    _weigh(scratch, own, s, scratch, copy, padded, n, d)
        for g in range(groups):
            total = load(scratch, top + 2 * g + 1)
            if chunks == 1:
                # o /= total
                store(lse, b * heads + h + g, load(scratch, top + 2 * g) * _LN2 + math.log(total))
                factor = like(1, total) / (like(1, total) if total == 0 else total)
                for i in range(d):
                    store(o, (b * heads + h + g) * d + i, load(scratch, out + g * padded + i) * factor)
            else:
                part = (item * groups + g) * (d + 2)
                store(parts, part, load(scratch, top + 2 * g))
                store(parts, part + 1, total)
                for i in range(d):
                    store(parts, part + 2 + i, load(scratch, out + g * padded + i))


@inner
def _scores(x, s, q, k, k0, row, n, d):
    """s[j] = sum(q k[j]) for n keys, four at a time, the last one again where they run out; minus infinity behind."""
    apart()
    w = width(x, VECTOR)
    whole = d // w * w
    for j in range(0, n, 4):
        at0 = k0 + j * row
        at1 = k0 + min(j + 1, n - 1) * row
        at2 = k0 + min(j + 2, n - 1) * row
        at3 = k0 + min(j + 3, n - 1) * row
        a = b = c = e = vsplat(x, 0)
        for i in range(0, whole, w):
            y = vload(x, q + i)
            a = a + y * vload(k, at0 + i)
            b = b + y * vload(k, at1 + i)
            c = c + y * vload(k, at2 + i)
            e = e + y * vload(k, at3 + i)
        if whole < d:
            y = vload(x, q + whole)
            a = a + y * vload_part(k, at0 + whole, d - whole)
            b = b + y * vload_part(k, at1 + whole, d - whole)
            c = c + y * vload_part(k, at2 + whole, d - whole)
            e = e + y * vload_part(k, at3 + whole, d - whole)
        store_sums(x, s + j, a, b, c, e)
    for j in range(n, (n + 3) // 4 * 4):
        store(x, s + j, -np.inf)


@inner
def _weigh(x, out, s, v, v0, row, n, d):
    """out += p v for n keys; `out` and the numbers behind its end are written in whole vectors."""
    apart()
    w = width(x, VECTOR)
    i = 0
    while i + 4 * w <= d:
        a = vload(x, out + i)
        b = vload(x, out + i + w)
        c = vload(x, out + i + 2 * w)
        e = vload(x, out + i + 3 * w)
        at = v0 + i
        for j in range(n):
            p = vspread(x, s + j)
            a = a + p * vload(v, at)
            b = b + p * vload(v, at + w)
            c = c + p * vload(v, at + 2 * w)
            e = e + p * vload(v, at + 3 * w)
            at += row
        vstore(x, out + i, a)
        vstore(x, out + i + w, b)
        vstore(x, out + i + 2 * w, c)
        vstore(x, out + i + 3 * w, e)
        i += 4 * w
    while i < d:
        a = vload(x, out + i)
        at = v0 + i
        if i + w <= d:
            for j in range(n):
                a = a + vspread(x, s + j) * vload(v, at)
                at += row
        else:
            for j in range(n):
                a = a + vspread(x, s + j) * vload_part(v, at, d - i)
                at += row
        vstore(x, out + i, a)
        i += w


@inner
def _soften_row(x, s, n, top, out, d):
    """s = 2**(s - top) for n numbers and those up to a whole vector, as `_soften` does; at `top` maximum and sum."""
    apart()
    w = width(x, VECTOR)
    old = load(x, top)
    highest = vsplat(x, old)
    for at in range(s, s + n, w):
        highest = vmax(vload(x, at), highest)
    now = vhighest(highest)
    store(x, top, now)
    highest, total = vsplat(x, like(0, now) if now == -np.inf else now), vsplat(x, 0)
    for at in range(s, s + n, w):
        p = vexp2(vload(x, at) - highest)
        vstore(x, at, p)
        total = total + p
    shrink = vexp2(vsplat(x, old) - highest)
    store(x, top + 1, vsum(vsplat(x, load(x, top + 1)) * shrink) / like(w, now) + vsum(total))
    for at in range(out, out + d, w):
        vstore(x, at, vload(x, at) * shrink)


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
