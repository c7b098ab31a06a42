"""Attention from bfloat16 operands: the forward and backward pass on the processor's products of pairs.

The same tiles as in `attention` and `attention_backward`, at twice the rate: what enters a product is rounded to
bfloat16 on the way, everything else (scores, softmax, sums, results) stays float32. A pair holds two neighbours of the
axis that a product sums over, so keys and values are laid out once before the blocks of queries that share them
(`attention_operands`); queries and gradients once a block; softmax weights where they are made.

A missing half of a last pair is zero on both sides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array, pool
from .attention_bounds import block_at, bounds, hide_earlier, span
from .attention_operands import (
    couple_at,
    couples_of,
    couples_size,
    lay_out_couples,
    lay_out_rows,
    pairs_of,
    rows_of,
    rows_size,
    turn_pairs,
)
from .attention_tiles import aligned, ask_rows, fill, fill_keep, finish, hide, keep_size, memory, queries, turn_out
from .formats import hold, uncounted
from .functions import inner
from .isa import current
from .lanes import VECTOR, apart, vload, vsplat, vstore, width
from .lanes_math import vbelow, vexp2, vmax
from .lanes_pairs import product_pairs, vcouple
from .lanes_tiles import begin_tiles, end_tiles
from .launch import kernel

_KEYS = 128  # of a tile of the forward pass
_GRAIN = 1 << 14  # keys times features of a chunk
_HEADS_A_THREAD = 4  # with as many, a head is one item
_LANES = VECTOR // 4
_LOG2E = 1 / math.log(2)
_LOWEST = -3.0e38  # above minus infinity and below every score


def serves(operand_dtype: DType | None, precise: DType) -> bool:
    """Whether this process multiplies pairs, and is asked to. Elsewhere operands stay as they are, which is finer."""
    return operand_dtype is dtypes.bfloat16 and precise is dtypes.float32 and current().pairs


def forward(
    q: Array, k: Array, v: Array, starts: Array | None, o: Array, lse: Array, causal: bool, scale: float, random: Any
) -> None:
    """o and lse of more than one query; `random`: dropout, the halves of the seed, and the counter."""
    batch, tq, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    plan = bounds(q, k, starts, 2 * _LANES)
    groups = heads // max(1, kv_heads)
    by_row = coupled = memory(lse)  # for nothing
    alone = batch * kv_heads >= _HEADS_A_THREAD * pool.threads()  # enough items for the threads to share
    if not alone:
        by_row, coupled = rows_of(k, plan, tq), couples_of(v, plan, tq)
    shares = 1 if alone else groups * plan.blocks
    grain = 1 if alone else max(1, 2 * _GRAIN // max(1, min(tk, 2 * _KEYS) * d))
    _forward(
        batch * kv_heads * shares, grain, memory(q), memory(k), memory(v), by_row, coupled, memory(o), memory(lse),
        *plan, alone, shares, groups, kv_heads, tq, tk, d, *q.strides, *k.strides, *v.strides, causal, scale,
        *random,
    )  # fmt: skip


@kernel
def _forward(
    lo, hi, q, k, v, by_row, coupled, o, lse, plan, blocks, bounded, alone, shares, groups, kv_heads, tq, tk, d, qb,
    qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd, causal, scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, share of its blocks of queries, which are counted from the last). Where a head is
    `alone` in its item, its keys and values are laid out there."""
    heads, lanes = groups * kv_heads, queries(lse)
    size, pairs, summed = max(1, min(tk, _KEYS)), pairs_of(d), (d + 1) // 2
    new, one = np.int64(0), np.int64(1)  # for `product_pairs`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    of_rows, of_couples = rows_size(tk, d), couples_size(tk, d, bounded)
    held = of_rows + of_couples + 16 if alone else 0
    room = np.empty((2 * pairs + d + size + 5) * lanes + drawn + held + 16, lse.dtype)
    scratch = uncounted(room)
    turned = aligned(scratch)
    beside = turned + pairs * lanes
    out = beside + pairs * lanes
    s = out + d * lanes
    numbers = s + (size + 1) * lanes
    top, total = numbers + lanes, numbers + 2 * lanes
    lowest = total + lanes
    own_couples = lowest + lanes
    own_rows = own_couples + (held - of_rows)
    keep = lowest + lanes + held
    keys, values = (scratch, scratch) if alone else (by_row, coupled)
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    begin_tiles()
    for item in range(lo, hi):
        share, head = item % shares, item // shares
        b, kv_head = head // kv_heads, head % kv_heads
        rows0, couples0 = (own_rows, own_couples) if alone else (head * of_rows, head * of_couples)
        if alone:
            k0, v0 = b * kb + kv_head * kh, b * vb + kv_head * vh
            lay_out_rows(scratch, rows0, k, k0, kt, kd, tk, d)
            lay_out_couples(scratch, couples0, scratch, v, v0, vt, vd, tk, d, plan, b, tq, bounded)
        for number in range(share, groups * blocks, shares):
            g, block = number % groups, blocks - 1 - number // groups
            h = kv_head * groups + g
            i0, rows = block_at(plan, b, block, lanes, tq, bounded)
            if rows == 0:
                continue
            begin, seen, last = span(scratch, lowest, plan, b, i0, rows, tq, tk, causal, bounded)
            turn_pairs(scratch, turned, beside, q, b * qb + i0 * qt + h * qh, qt, qd, rows, d, scale * _LOG2E)
            next_head = g + 1 < groups  # the head of the next item; else the next block
            ask_rows(q, b * qb + i0 * qt + h * qh + (qh if next_head else -lanes * qt - g * qh), qt, lanes, d)
            fill(scratch, top, lanes, -np.inf)
            fill(scratch, total, lanes, 0)
            for first in range(begin, seen, size):
                n = min(size, seen - first)
                # s = scale q k^T
                at = rows0 + first * pairs
                product_pairs(scratch, s, lanes, keys, at, pairs, one, scratch, turned, lanes, n, lanes, summed, new)
                if causal:
                    hide(scratch, s, first - i0 - tk + tq, n, numbers, -np.inf)
                if first - begin < last:
                    hide_earlier(scratch, s, first - begin, min(n, last - first + begin), lowest, -np.inf)
                if dropout > 0:
                    word = counter + ((b * heads + h) * tq + i0) * tk + first
                    fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
                _soften(scratch, s, n, top, total, out, d if first > begin else 0, keep, dropout > 0)
                # o += p v
                at, v_row, v_step = couple_at(begin, first, tk, d, bounded)
                product_pairs(
                    scratch, out, lanes, values, couples0 + at, v_row, v_step, scratch, s, lanes, d, lanes,
                    (n + 1) // 2, first - begin,
                )  # fmt: skip
            # o /= total
            finish(scratch, out, top, total, lse, (b * heads + h) * tq + i0, rows, d if seen > 0 else 0)
            if seen == 0:
                fill(scratch, out, d * lanes, 0)
            turn_out(o, ((b * tq + i0) * heads + h) * d, heads * d, scratch, out, rows, d)
    end_tiles()
    hold(room)


@inner
def _soften(x, s, n, top, total, out, d, keep, drop):
    """As in `attention`, after which the n rows of s hold (n + 1) // 2 rows of pairs of m 2**(s - top) instead."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    fill(x, s + n * lanes, lanes, -np.inf)  # beside the last row of an odd number
    for half in range(0, lanes, w):
        old = highest = vload(x, top + half)
        for at in range(s + half, s + half + n * lanes, lanes):
            highest = vmax(vload(x, at), highest)
        vstore(x, top + half, highest)
        highest = vbelow(highest, vsplat(x, _LOWEST), vsplat(x, 0), highest)
        shrink = vexp2(old - highest)
        total_now = vload(x, total + half) * shrink
        for r in range(0, n, 2):
            at = s + r * lanes + half
            first, second = vexp2(vload(x, at) - highest), vexp2(vload(x, at + lanes) - highest)
            total_now = total_now + first + second
            if drop:
                first = first * vload(x, keep + r * lanes + half)
                if r + 1 < n:
                    second = second * vload(x, keep + (r + 1) * lanes + half)
            vstore(x, s + r // 2 * lanes + half, vcouple(first, second))
        vstore(x, total + half, total_now)
        for at in range(out + half, out + half + d * lanes, lanes):
            vstore(x, at, vload(x, at) * shrink)
