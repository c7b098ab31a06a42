"""Attention forward: flash attention over blocks of queries. A single query (decoding) has a path of its own in
`attention_decode`; the backward pass and rotary positions stand in the modules beside and are named here too.

An item of work is a block of queries of one head (`attention_tiles` says how it is laid out). It walks over the tiles
of keys that it can see with a running maximum and sum (Dao et al. 2022; Milakov & Gimelshein 2018), so the memory
besides the result is a few tiles a thread. Scores are kept in units of log 2: scale log2(e) goes into the queries.

Keys that a query does not see can reach its result only where they are infinite or not a number, and only within the
tile on the diagonal, through 0 * inf; the definition has the same in every tile.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from ...device.cpu import DRAWN, tell
from ..indices import check_starts
from . import attention_pairs
from .attention_backward import attention_backward
from .attention_bounds import block_at, bounds, hide_earlier, span
from .attention_decode import decode
from .attention_tiles import (
    aligned,
    as_operand,
    fill,
    fill_keep,
    finish,
    hide,
    keep_size,
    product,
    queries,
    turn_in,
    turn_out,
)
from .functions import inner
from .lanes import VECTOR, apart, narrow, operand, vload, vsplat, vstore, width
from .lanes_math import vbelow, vexp2, vmax
from .launch import kernel
from .rope import rope

__all__ = ["attention", "attention_backward", "rope"]

_KEYS = 128  # of a tile
_GRAIN = 1 << 14  # keys times features of a chunk
_LOG2E = 1 / math.log(2)
_LOWEST = -3.0e38  # above minus infinity and below every score


def attention(
    q: Array,
    k: Array,
    v: Array,
    starts: Array | None = None,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    seed: int,
    counter: int,
    operand_dtype: DType | None = None,
) -> tuple[Array, Array]:
    """o = dropout(softmax(scale q k^T)) v, and lse: the ln of each row's softmax sum. See the definition."""
    batch, tq, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    groups = heads // max(1, kv_heads)
    precise = dtypes.float64 if q.dtype is dtypes.float64 else dtypes.float32
    if dropout > 0:
        tell(DRAWN)
    if starts is not None:
        check_starts("attention", starts, tk - tq)
    o, lse = q.device.empty(q.shape, q.dtype), q.device.empty((batch, heads, tq), precise)
    shape = (groups, kv_heads, tq, tk, d)
    strides = (*q.strides, *k.strides, *v.strides)
    scale, random = float(scale), (float(dropout), seed & 0xFFFFFFFF, seed >> 32, counter)
    if tq == 1:
        decode(q, k, v, starts, o, lse, scale, random)
    elif attention_pairs.serves(operand_dtype, precise):
        attention_pairs.forward(q, k, v, starts, o, lse, causal, scale, random)
    else:
        plan, blocks, bounded = bounds(q, k, starts, VECTOR // precise.itemsize * 2)
        grain = max(1, _GRAIN // max(1, min(tk, 2 * _KEYS) * d))
        _forward(
            batch * heads * blocks, grain, q, k, v, o, lse, plan, blocks, bounded, *shape,
            *strides, causal, scale, *random,
        )  # fmt: skip
    return o, lse


@kernel
def _forward(
    lo, hi, q, k, v, o, lse, plan, blocks, bounded, groups, kv_heads, tq, tk, d, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt,
    vh, vd, causal, scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, block of queries from the last, query head of the group)."""
    heads, lanes = groups * kv_heads, queries(lse)
    size = max(1, min(tk, _KEYS))
    new = np.int64(0)  # for `product`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    copied = size * d if narrow(k) else 0
    scratch = np.empty((2 * d + 4 + size) * lanes + copied + drawn + 16, lse.dtype)
    turned = aligned(scratch)
    out, s = turned + d * lanes, turned + 2 * d * lanes
    numbers = s + size * lanes
    top, total = numbers + lanes, numbers + 2 * lanes
    lowest = total + lanes
    copy = lowest + lanes
    keep = copy + copied
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    for item in range(lo, hi):
        g, rest = item % groups, item // groups
        block, rest = blocks - 1 - rest % blocks, rest // blocks
        b, kv_head = rest // kv_heads, rest % kv_heads
        h = kv_head * groups + g
        i0, rows = block_at(plan, b, block, lanes, tq, bounded)
        if rows == 0:
            continue
        begin, seen, last = span(scratch, lowest, plan, b, i0, rows, tq, tk, causal, bounded)
        turn_in(scratch, turned, q, b * qb + i0 * qt + h * qh, qt, qd, rows, d, scale * _LOG2E)
        fill(scratch, top, lanes, -np.inf)
        fill(scratch, total, lanes, 0)
        for first in range(begin, seen, size):
            n = min(size, seen - first)
            # s = scale q k^T
            at, row, step = as_operand(k, b * kb + first * kt + kv_head * kh, kt, kd, n, d, scratch, copy)
            product(scratch, s, lanes, operand(k, scratch), at, row, step, scratch, turned, lanes, n, lanes, d, new)
            if causal:
                hide(scratch, s, first - i0 - tk + tq, n, numbers, -np.inf)
            if first - begin < last:
                hide_earlier(scratch, s, first - begin, min(n, last - first + begin), lowest, -np.inf)
            _soften(scratch, s, n, top, total, out, d if first > begin else 0)
            if dropout > 0:
                word = counter + ((b * heads + h) * tq + i0) * tk + first
                fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
                for i in range(0, n * lanes, width(lse, VECTOR)):
                    vstore(scratch, s + i, vload(scratch, s + i) * vload(scratch, keep + i))
            # o += p v
            at, row, step = as_operand(v, b * vb + first * vt + kv_head * vh, vt, vd, n, d, scratch, copy)
            product(
                scratch, out, lanes, operand(v, scratch), at, step, row, scratch, s, lanes, d, lanes, n, first - begin
            )
        # o /= total
        finish(scratch, out, top, total, lse, (b * heads + h) * tq + i0, rows, d if seen > 0 else 0)
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
