"""Attention of one query a head: decoding with a cache of keys and values, read once and where they lie.

Reading keys and values is the whole cost, so the lanes run along the features of a head, and the query heads that
share a key/value head take a tile of keys one after another while it is in the nearest cache. Long caches are split
into chunks for the threads to share, each with its own maximum and sum, which `_merge` joins in their order; the
chunks depend on the shapes alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base import dtypes
from ...device import Array
from .attention_tiles import aligned, fill, keep_row, memory, widen
from .formats import load, store
from .functions import exp, inner, like
from .lanes import VECTOR, apart, vload, vload_part, vsplat, vspread, vstore, width
from .lanes_math import store_sums, vexp2, vhighest, vmax, vsum
from .launch import kernel

_TILE = 64  # keys of a tile, a multiple of four and of every number of lanes
_SPAN = 512  # keys of a chunk, at least
_ITEMS = 16  # wanted, for the threads to share
_LOG2E = 1 / math.log(2)
_LN2 = math.log(2)


def decode(
    q: Array,
    k: Array,
    v: Array,
    starts: Array | None,
    o: Array,
    lse: Array,
    scale: float,
    random: tuple[Any, ...],
) -> None:
    """Writes o and lse for q: (B, 1, H, D). `random`: dropout, both halves of the seed, counter."""
    batch, _, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    groups = heads // max(1, kv_heads)
    span = max(_SPAN, -(-tk // -(-_ITEMS // max(1, batch * kv_heads))))
    chunks = max(1, -(-tk // span))
    arrays = memory(q), memory(k), memory(v), memory(o), memory(lse)
    parts = arrays[4] if chunks == 1 else memory(q.device.empty((batch * heads * chunks * (d + 2),), lse.dtype))
    begins = q.device.empty((1,), dtypes.int32) if starts is None else starts
    step = 0 if starts is None else starts.strides[0]
    _chunks(
        batch * kv_heads * chunks, 1, *arrays, parts, memory(begins), starts is not None, step, span, groups,
        kv_heads, tk, d, *q.strides, *k.strides, *v.strides, scale, *random,
    )  # fmt: skip
    if chunks > 1:
        _merge(batch * heads, 16, parts, *arrays[3:], chunks, groups, kv_heads, d)


@kernel
def _chunks(
    lo, hi, q, k, v, o, lse, parts, begins, bounded, begins_step, span, groups, kv_heads, tk, d, qb, _qt, qh, qd, kb,
    kt, kh, kd, vb, vt, vh, vd, scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, chunk of `span` keys). Where one chunk holds all keys, o and lse; else, in a row
    of `parts` for each head of the group, maximum, sum and output."""
    w = width(lse, VECTOR)
    heads, chunks, padded = groups * kv_heads, max(1, (tk + span - 1) // span), (d + w - 1) // w * w
    k_copied, v_copied = kd != 1, vd != 1  # only where the features of a head do not lie together
    scratch = np.empty(groups * (2 * padded + 2) + _TILE * (2 * padded + 2) + 24, lse.dtype)
    scaled = aligned(scratch)
    out = scaled + groups * padded
    s = out + groups * padded
    k_copy = s + _TILE
    v_copy = k_copy + _TILE * padded
    keep = v_copy + _TILE * padded + 4
    top = keep + _TILE + 4
    for item in range(lo, hi):
        chunk, rest = item % chunks, item // chunks
        b, kv_head = rest // kv_heads, rest % kv_heads
        h, begin, end = kv_head * groups, chunk * span, min(tk, (chunk + 1) * span)
        if bounded:
            begin = max(begin, np.int64(load(begins, b * begins_step)))
        widen(scratch, scaled, padded, q, b * qb + h * qh, qh, qd, groups, d)
        for i in range(scaled, scaled + groups * padded, w):
            vstore(scratch, i, vload(scratch, i) * vsplat(scratch, scale * _LOG2E))
        fill(scratch, out, groups * padded, 0)
        for g in range(groups):
            store(scratch, top + 2 * g, -np.inf)
            store(scratch, top + 2 * g + 1, 0)
        for first in range(begin, end, _TILE):
            n = min(_TILE, end - first)
            k0, v0 = b * kb + first * kt + kv_head * kh, b * vb + first * vt + kv_head * vh
            if k_copied:
                widen(scratch, k_copy, padded, k, k0, kt, kd, n, d)
            if v_copied:
                widen(scratch, v_copy, padded, v, v0, vt, vd, n, d)
            for g in range(groups):
                # s = scale q k^T
                fill(scratch, s, _TILE, -np.inf)
                own = scaled + g * padded
                if k_copied:
                    _scores(scratch, s, own, scratch, k_copy, padded, n, d)
                else:
                    _scores(scratch, s, own, k, k0, kt, n, d)
                own = out + g * padded
                _soften_row(scratch, s, n, top + 2 * g, own, padded)
                if dropout > 0:
                    keep_row(scratch, keep, low, high, counter + (b * heads + h + g) * tk + first, n, dropout)
                    for j in range(0, n, w):
                        vstore(scratch, s + j, vload(scratch, s + j) * vload(scratch, keep + j))
                # o += p v
                if v_copied:
                    _weigh(scratch, own, s, scratch, v_copy, padded, n, d)
                else:
                    _weigh(scratch, own, s, v, v0, vt, n, d)
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
