"""Attention backward: the softmax weights made again from lse, tile by tile, and five products a tile.

An item of work is one key/value head with a share of the query blocks that read it. It takes the blocks in order and
walks over their tiles of keys: dq of a block is complete when its walk ends, dk and dv grow in memory over all blocks
of the item. Where batch times heads is small, a head is split into several shares with sums of their own, which
`_fold` adds in their order. Shares depend on the shapes alone, so the result never depends on the number of threads.

Tiles are turned as in the forward pass: a row for each key, a lane for each query.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from . import attention_pairs_backward
from .attention_bounds import block_at, bounds, hide_earlier, span
from .attention_tiles import (
    aligned,
    as_columns,
    as_operand,
    dot,
    fill,
    fill_keep,
    hide,
    keep_size,
    product,
    queries,
    turn_in,
    turn_out,
)
from .formats import load, store
from .functions import inner, like
from .lanes import VECTOR, apart, narrow, operand, vload, vsplat, vstore, width
from .lanes_math import vexp2
from .launch import kernel

_KEYS = 64  # of a tile
_ITEMS = 8  # wanted, for the threads to share
_BLOCKS = 4  # of queries that an item takes at least
_LOG2E = 1 / math.log(2)


def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    starts: Array | None = None,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    seed: int,
    counter: int,
    operand_dtype: DType | None = None,
) -> tuple[Array, Array, Array]:
    """p = softmax weights, m = dropout mask / (1 - dropout):  dv = (p m)^T do,  dp = m (do v^T),
    ds = p (dp - sum(do o)),  dq = scale ds k,  dk = scale ds^T q. Returns dq, dk, dv."""
    batch, tq, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    groups = heads // max(1, kv_heads)
    empty, precise = q.device.empty, lse.dtype
    dq, dk, dv = empty(q.shape, q.dtype), empty(k.shape, k.dtype), empty(v.shape, v.dtype)
    width = VECTOR // precise.itemsize
    most = groups * -(-tq // (2 * width))
    shares = max(1, min(-(-_ITEMS // max(1, batch * kv_heads)), most // _BLOCKS))
    plan = bounds(q, k, starts, 2 * width)
    padded = -(-d // (2 * width)) * (2 * width)
    shape = (groups, kv_heads, tq, tk, d, padded)
    options = (causal, float(scale), float(dropout), seed & 0xFFFFFFFF, seed >> 32, counter)
    if attention_pairs_backward.serves(operand_dtype, precise):
        in_place = shares == 1
        sums = attention_pairs_backward.blocks(do, q, k, v, o, lse, dq, dk, dv, shares, plan, shape, options)
    else:
        in_place = shares == 1 and padded == d and precise is k.dtype
        sums = (dk, dv) if in_place else [empty((shares, batch, tk, kv_heads, padded), precise) for _ in range(2)]
        strides = (*do.strides, *q.strides, *k.strides, *v.strides, *o.strides, *lse.strides)
        arrays = (do, q, k, v, o, lse, dq, *sums)
        _blocks(shares * batch * kv_heads, 1, *arrays, *plan, shares, batch, *shape, *strides, *options)
    if not in_place:
        for total, part in ((dk, sums[0]), (dv, sums[1])):
            _fold(batch * tk * kv_heads, 64, part, total, shares, batch * tk * kv_heads, d, padded)
    return dq, dk, dv


@kernel
def _blocks(
    lo, hi, do, q, k, v, o, lse, dq, dk, dv, plan, blocks, bounded, shares, batch, groups, kv_heads, tq, tk, d, padded,
    gb, gt, gh, gd, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd, ob, ot, oh, od, sb, sh, st, causal, scale,
    dropout, low, high, counter,
):  # fmt: skip
    """Items: (share, batch, key/value head). dk, dv: (share, batch, key, key/value head, padded)."""
    heads, lanes = groups * kv_heads, queries(lse)
    size, ld = max(1, min(tk, _KEYS)), kv_heads * padded
    new, one = np.int64(0), np.int64(1)  # for `product`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    copied = size * d if narrow(k) else 0
    scratch = np.empty((3 * d + 2 * padded + 2 * size + 4) * lanes + 2 * copied + drawn + 16, lse.dtype)
    q_turned = aligned(scratch)
    g_turned, dq_turned = q_turned + d * lanes, q_turned + 2 * d * lanes
    q_copy = dq_turned + d * lanes
    g_copy = q_copy + padded * lanes
    p = g_copy + padded * lanes
    ds = p + size * lanes
    top = ds + size * lanes
    delta, numbers = top + lanes, top + 2 * lanes
    lowest = numbers + lanes
    k_copy = lowest + lanes
    v_copy = k_copy + copied
    keep = v_copy + copied
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    for item in range(lo, hi):
        share, b, kv_head = item // (batch * kv_heads), item // kv_heads % batch, item % kv_heads
        sums = ((share * batch + b) * tk * kv_heads + kv_head) * padded
        for j in range(tk):
            fill(dk, sums + j * ld, padded, 0)
            fill(dv, sums + j * ld, padded, 0)
        for number in range(share, groups * blocks, shares):
            block, h = number // groups, kv_head * groups + number % groups
            i0, rows = block_at(plan, b, block, lanes, tq, bounded)
            if rows == 0:
                continue
            begin, seen, last = span(scratch, lowest, plan, b, i0, rows, tq, tk, causal, bounded)
            q0, g0, o0 = b * qb + i0 * qt + h * qh, b * gb + i0 * gt + h * gh, b * ob + i0 * ot + h * oh
            turn_in(scratch, q_turned, q, q0, qt, qd, rows, d, scale * _LOG2E)
            turn_in(scratch, g_turned, do, g0, gt, gd, rows, d, 1.0)
            q_from, q_at, q_ld = as_columns(q, q0, qt, qd, rows, d, padded, scratch, q_copy)
            g_from, g_at, g_ld = as_columns(do, g0, gt, gd, rows, d, padded, scratch, g_copy)
            # delta = sum(do o)
            for l in range(lanes):  # noqa: E741
                total, factor = like(0, load(lse, 0)), 0.0
                if l < rows:
                    total = dot(do, g0 + l * gt, gd, o, o0 + l * ot, od, d, scratch)
                    factor = load(lse, b * sb + h * sh + (i0 + l) * st) * _LOG2E
                scratch[delta + l] = total
                scratch[top + l] = 0 if factor == -np.inf else factor
            for first in range(begin, seen, size):
                n = min(size, seen - first)
                into = sums + first * ld
                # p = exp(scale q k^T - lse)
                k_at, k_row, k_step = as_operand(k, b * kb + first * kt + kv_head * kh, kt, kd, n, d, scratch, k_copy)
                k_from = operand(k, scratch)
                product(scratch, p, lanes, k_from, k_at, k_row, k_step, scratch, q_turned, lanes, n, lanes, d, new)
                if causal:
                    hide(scratch, p, first - i0 - tk + tq, n, numbers, -np.inf)
                if first - begin < last:
                    hide_earlier(scratch, p, first - begin, min(n, last - first + begin), lowest, -np.inf)
                # dp = do v^T
                v_at, v_row, v_step = as_operand(v, b * vb + first * vt + kv_head * vh, vt, vd, n, d, scratch, v_copy)
                v_from = operand(v, scratch)
                product(scratch, ds, lanes, v_from, v_at, v_row, v_step, scratch, g_turned, lanes, n, lanes, d, new)
                # p m and ds = scale p (m dp - delta)
                if dropout > 0:
                    word = counter + ((b * heads + h) * tq + i0) * tk + first
                    fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
                _weights(scratch, p, ds, keep, top, delta, n, scale, dropout > 0)
                # dv += (p m)^T do,  dk += ds^T q,  dq += ds k
                product(dv, into, ld, scratch, p, lanes, one, g_from, g_at, g_ld, n, padded, rows, one)
                product(dk, into, ld, scratch, ds, lanes, one, q_from, q_at, q_ld, n, padded, rows, one)
                product(
                    scratch,
                    dq_turned,
                    lanes,
                    k_from,
                    k_at,
                    k_step,
                    k_row,
                    scratch,
                    ds,
                    lanes,
                    d,
                    lanes,
                    n,
                    first - begin,
                )
            if seen == 0:
                fill(scratch, dq_turned, d * lanes, 0)
            turn_out(dq, ((b * tq + i0) * heads + h) * d, heads * d, scratch, dq_turned, rows, d)


@inner
def _weights(x, p, ds, keep, top, delta, n, scale, drop):
    """p = 2**(p - top), ds = scale p (m ds - delta), p = m p, for n rows."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    factor = vsplat(x, scale)
    for half in range(0, lanes, w):
        highest, mean = vload(x, top + half), vload(x, delta + half)
        for at in range(half, half + n * lanes, lanes):
            weight, dp = vexp2(vload(x, p + at) - highest), vload(x, ds + at)
            if drop:
                m = vload(x, keep + at)
                vstore(x, p + at, weight * m)
                vstore(x, ds + at, weight * (dp * m - mean) * factor)
            else:
                vstore(x, p + at, weight)
                vstore(x, ds + at, weight * (dp - mean) * factor)


@kernel
def _fold(lo, hi, parts, total, shares, rows, d, padded):
    """total = the sum of the shares in their order; items: rows of `total`."""
    sums = np.empty(d, parts.dtype)
    for r in range(lo, hi):
        for i in range(d):
            sums[i] = load(parts, r * padded + i)
        for share in range(1, shares):
            for i in range(d):
                sums[i] += load(parts, (share * rows + r) * padded + i)
        for i in range(d):
            store(total, r * d + i, sums[i])
