"""The backward pass of attention from bfloat16 operands; `attention_backward` calls it, `attention_pairs` explains it.

The walk is that of `attention_backward`: an item is a key/value head with a share of the blocks of queries that read
it. Of five products a tile, two sum over features, two over queries and one over keys, so the softmax weights and
their gradients are laid out beside one another (queries) and coupled (keys) as they are made.
"""

from __future__ import annotations

import math

import numpy as np

from ...device import Array
from .attention_bounds import Bounds, block_at, fill_lowest, first_key, hide_earlier
from .attention_pairs import couple_at, couples_of, operands, serves, turn_pairs
from .attention_tiles import aligned, ask_rows, dot, fill, fill_keep, hide, keep_size, memory, queries, turn_out
from .formats import hold, load, uncounted
from .functions import inner, like
from .lanes import VECTOR, apart, vload, vsplat, vstore, width
from .lanes_math import vexp2
from .lanes_pairs import couple_rows, product_pairs, vbeside, vcouple
from .lanes_tiles import begin_tiles, end_tiles
from .launch import kernel

__all__ = ["blocks", "serves"]

_KEYS = 64  # of a tile
_LOG2E = 1 / math.log(2)


def blocks(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    dq: Array,
    sums: tuple[Array, Array] | list[Array],
    shares: int,
    plan: Bounds,
    shape: tuple[int, ...],
    options: tuple[bool | int | float, ...],
) -> None:
    """dq, and into `sums` dk and dv of each share. shape: groups, kv_heads, queries, keys, features, features in
    `sums`; options: causal, scale, dropout, the halves of the seed, counter."""
    batch, kv_heads = q.shape[0], k.shape[2]
    k_by_row, k_coupled = operands(k, plan, q.shape[1], rows=True, couples=True)
    v_by_row, _ = operands(v, plan, q.shape[1], rows=True, couples=False)
    strides = (*do.strides, *q.strides, *o.strides, *lse.strides)
    arrays = [memory(do), memory(q), k_by_row, k_coupled, v_by_row, *(memory(x) for x in (o, lse, dq, *sums))]
    _blocks(shares * batch * kv_heads, 1, *arrays, *plan, shares, batch, *shape, *strides, *options)


@kernel
def _blocks(
    lo, hi, do, q, k, kc, v, o, lse, dq, dk, dv, plan, blocks, bounded, shares, batch, groups, kv_heads, tq, tk, d,
    padded, gb, gt, gh, gd, qb, qt, qh, qd, ob, ot, oh, od, sb, sh, st, causal, scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (share, batch, key/value head). k, v by row, kc: k coupled; dk, dv: (share, batch, key, key/value head,
    padded)."""
    heads, lanes, w = groups * kv_heads, queries(lse), width(lse, VECTOR)
    size, ld, half = max(1, min(tk, _KEYS)), kv_heads * padded, couples_of(tk, bounded)
    pairs, coupled, summed = (d + 2 * w - 1) // (2 * w) * w, (d + w - 1) // w * w, (d + 1) // 2
    new, one = np.int64(0), np.int64(1)  # for `product_pairs`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    room = np.empty((3 * pairs + d + padded + 4 * size + 9) * lanes + drawn + 16, lse.dtype)
    scratch = uncounted(room)
    q_turned = aligned(scratch)
    g_turned = q_turned + pairs * lanes
    by_row = g_turned + pairs * lanes
    dq_turned = by_row + pairs * lanes
    q_coupled = dq_turned + d * lanes
    g_coupled = q_coupled + padded * w
    p = g_coupled + padded * w
    ds = p + (size + 1) * lanes
    beside = ds + (size + 1) * lanes
    ds_coupled = beside + (size + 1) * lanes
    top = ds_coupled + (size // 2 + 1) * lanes
    delta, numbers = top + lanes, top + 2 * lanes
    lowest = numbers + lanes
    keep = lowest + lanes
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    fill(scratch, q_coupled, 2 * padded * w, 0)
    # The lane beside the last query of an odd number meets a zero: it must hold a number.
    fill(scratch, keep, drawn, 0)
    begin_tiles()
    for item in range(lo, hi):
        share, b, kv_head = item // (batch * kv_heads), item // kv_heads % batch, item % kv_heads
        head = b * kv_heads + kv_head
        sums = ((share * batch + b) * tk * kv_heads + kv_head) * padded
        for j in range(tk):
            fill(dk, sums + j * ld, padded, 0)
            fill(dv, sums + j * ld, padded, 0)
        for number in range(share, groups * blocks, shares):
            block, h = number // groups, kv_head * groups + number % groups
            i0, rows = block_at(plan, b, block, lanes, tq, bounded)
            if rows == 0:
                continue
            seen = max(0, min(tk, i0 + rows + tk - tq)) if causal else tk
            begin = first_key(plan, b, i0, tq, bounded)
            last = first_key(plan, b, i0 + rows - 1, tq, bounded) - begin
            if last > 0:
                fill_lowest(scratch, lowest, plan, b, i0, rows, tq, begin)
            q0, g0, o0 = b * qb + i0 * qt + h * qh, b * gb + i0 * gt + h * gh, b * ob + i0 * ot + h * oh
            turn_pairs(scratch, q_turned, by_row, q, q0, qt, qd, rows, d, scale * _LOG2E)
            turn_pairs(scratch, g_turned, by_row, do, g0, gt, gd, rows, d, 1.0)
            for r in range(0, rows, 2):
                both = r + 1 < rows
                second = r + 1 if both else r
                couple_rows(scratch, q_coupled + r // 2 * padded, q, q0 + r * qt, q0 + second * qt, qd, d, both)
                couple_rows(scratch, g_coupled + r // 2 * padded, do, g0 + r * gt, g0 + second * gt, gd, d, both)
            # what the next block reads
            there = number + shares
            ahead, h_ahead = (there // groups) * lanes, kv_head * groups + there % groups
            ask_rows(q, b * qb + ahead * qt + h_ahead * qh, qt, lanes, d)
            ask_rows(do, b * gb + ahead * gt + h_ahead * gh, gt, lanes, d)
            ask_rows(o, b * ob + ahead * ot + h_ahead * oh, ot, lanes, d)
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
                into, at = sums + first * ld, (head * tk + first) * pairs
                # p = exp(scale q k^T - lse)
                product_pairs(scratch, p, lanes, k, at, pairs, one, scratch, q_turned, lanes, n, lanes, summed, new)
                if causal:
                    hide(scratch, p, first - i0 - tk + tq, n, numbers, -np.inf)
                if first - begin < last:
                    hide_earlier(scratch, p, first - begin, min(n, last - first + begin), lowest, -np.inf)
                # dp = do v^T
                product_pairs(scratch, ds, lanes, v, at, pairs, one, scratch, g_turned, lanes, n, lanes, summed, new)
                # p m and ds = scale p (m dp - delta)
                if dropout > 0:
                    word = counter + ((b * heads + h) * tq + i0) * tk + first
                    fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
                _weights(scratch, p, ds, beside, ds_coupled, keep, top, delta, n, scale, dropout > 0)
                # dv += (p m)^T do,  dk += ds^T q,  dq += ds k
                of_queries = (rows + 1) // 2
                product_pairs(dv, into, ld, scratch, p, w, one, scratch, g_coupled, padded, n, padded, of_queries, one)
                product_pairs(
                    dk, into, ld, scratch, beside, w, one, scratch, q_coupled, padded, n, padded, of_queries, one
                )
                at, k_row, k_step = couple_at(begin, first, head, batch * kv_heads, half, coupled)
                product_pairs(
                    scratch, dq_turned, lanes, kc, at, k_row, k_step, scratch, ds_coupled, lanes, d, lanes,
                    (n + 1) // 2, first - begin,
                )  # fmt: skip
            if seen == 0:
                fill(scratch, dq_turned, d * lanes, 0)
            turn_out(dq, ((b * tq + i0) * heads + h) * d, heads * d, scratch, dq_turned, rows, d)
    end_tiles()
    hold(room)


@inner
def _weights(x, p, ds, beside, coupled, keep, top, delta, n, scale, drop):
    """p = 2**(p - top), ds = scale p (m ds - delta), p = m p, for n rows: p and ds as pairs along the queries, in the
    place of p and from `beside` on, ds as couples of rows from `coupled` on."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    factor, zero = vsplat(x, scale), vsplat(x, 0)
    fill(x, p + n * lanes, lanes, -np.inf)  # beside the last row of an odd number
    fill(x, ds + n * lanes, lanes, 0)
    top0, top1, delta0, delta1 = vload(x, top), vload(x, top + w), vload(x, delta), vload(x, delta + w)
    for r in range(0, n, 2):
        above0 = above1 = zero
        for i in range(2):
            at = (r + i) * lanes
            p0, p1 = vexp2(vload(x, p + at) - top0), vexp2(vload(x, p + at + w) - top1)
            dp0, dp1 = vload(x, ds + at), vload(x, ds + at + w)
            m0, m1 = p0, p1
            if drop and r + i < n:
                keep0, keep1 = vload(x, keep + at), vload(x, keep + at + w)
                m0, m1, dp0, dp1 = p0 * keep0, p1 * keep1, dp0 * keep0, dp1 * keep1
            ds0, ds1 = p0 * (dp0 - delta0) * factor, p1 * (dp1 - delta1) * factor
            if r + i < n:
                vstore(x, p + (r + i) * w, vbeside(m0, m1))
                vstore(x, beside + (r + i) * w, vbeside(ds0, ds1))
            if i == 0:
                above0, above1 = ds0, ds1
            else:
                vstore(x, coupled + r // 2 * lanes, vcouple(above0, ds0))
                vstore(x, coupled + r // 2 * lanes + w, vcouple(above1, ds1))
