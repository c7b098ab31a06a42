"""The backward pass of attention from bfloat16 operands; `attention_backward` calls it, `attention_pairs` explains it.

The walk is that of `attention_backward`: an item is a key/value head with a share of the blocks of queries that read
it. Of five products a tile, two sum over features, two over queries and one over keys, so the softmax weights and
their gradients are laid out beside one another (queries) and coupled (keys) as they are made.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...device import Array
from .attention_bounds import Bounds, block_at, hide_earlier, span
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
from .attention_pairs import serves
from .attention_tiles import (
    aligned,
    ask_rows,
    dot,
    fill,
    fill_keep,
    hand_over,
    hide,
    keep_size,
    memory,
    queries,
    turn_out,
)
from .formats import hold, load, uncounted
from .functions import inner, like
from .lanes import VECTOR, apart, vload, vsplat, vstore, width
from .lanes_math import vexp2
from .lanes_pairs import couple_rows, product_pairs, vbeside, vcouple
from .lanes_tiles import begin_tiles, end_tiles
from .launch import kernel

__all__ = ["blocks", "serves"]

_KEYS = 128  # of a tile
_JOINED = 4  # blocks of queries whose part of dk and dv is one product
_LOG2E = 1 / math.log(2)


def blocks(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    shares: int,
    plan: Bounds,
    shape: tuple[int, ...],
    options: tuple[bool | int | float, ...],
) -> list[Array]:
    """dq; dk and dv too, or their sums over each share. shape: groups, kv_heads, queries, keys, features, features in
    the sums; options: causal, scale, dropout, the halves of the seed, counter."""
    batch, tq, tk, kv_heads, wide = q.shape[0], q.shape[1], k.shape[1], k.shape[2], shape[-1]
    alone = shares == 1
    by_row = coupled = values = memory(lse)  # for nothing
    sums = [] if alone else [q.device.empty((shares, batch, tk, kv_heads, wide), dtypes.float32) for _ in range(2)]
    if not alone:
        by_row, coupled, values = rows_of(k, plan, tq), couples_of(k, plan, tq), rows_of(v, plan, tq)
    strides = (*do.strides, *q.strides, *k.strides, *v.strides, *o.strides, *lse.strides)
    to = (memory(dk), memory(dv), *(memory(x) for x in sums or (lse, lse)))
    arrays = (memory(do), memory(q), memory(k), memory(v), by_row, coupled, values, memory(o), memory(lse), memory(dq))
    _blocks(shares * batch * kv_heads, 1, *arrays, *to, *plan, shares, batch, *shape, *strides, *options)
    return sums


@kernel
def _blocks(
    lo, hi, do, q, k, v, by_row, coupled, values_by_row, o, lse, dq, dk, dv, dk_sums, dv_sums, plan, blocks, bounded,
    shares, batch, groups, kv_heads, tq, tk, d, wide, gb, gt, gh, gd, qb, qt, qh, qd, kb, kt, kh, kd, vb, vt, vh, vd,
    ob, ot, oh, od, sb, sh, st, causal, scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (share, batch, key/value head). Where a head is one item, keys and values are laid out there and dk and dv
    complete; else sums are (share, batch, key, key/value head, wide)."""
    heads, lanes, w, alone = groups * kv_heads, queries(lse), width(lse, VECTOR), shares == 1
    size, pairs, summed = max(1, min(tk, _KEYS)), pairs_of(d), (d + 1) // 2
    new, one = np.int64(0), np.int64(1)  # for `product_pairs`: a literal would compile another one
    joined = 1 if bounded else max(1, min(_JOINED, -(-groups * blocks // shares)))
    along = joined * w  # pairs of a row of softmax weights
    drawn = keep_size(lse, size) if dropout > 0 else 0
    of_rows, of_couples, of_sums = rows_size(tk, d), couples_size(tk, d, bounded), tk * wide
    held = 2 * of_rows + of_couples + 2 * of_sums if alone else 0
    of_block = (2 * pairs + d + wide + size + 2) * joined + pairs + 3 * size + 6
    room = np.empty(of_block * lanes + held + drawn + 16, lse.dtype)
    scratch = uncounted(room)
    q_turned = aligned(scratch)
    g_turned = q_turned + joined * pairs * lanes
    dq_turned = g_turned + joined * pairs * lanes
    q_coupled = dq_turned + joined * d * lanes
    g_coupled = q_coupled + joined * wide * w
    tops = g_coupled + joined * wide * w
    deltas = tops + joined * lanes
    weights = deltas + joined * lanes
    gradients = weights + size * along
    beside = gradients + size * along
    p = beside + pairs * lanes
    ds = p + (size + 1) * lanes
    ds_coupled = ds + (size + 1) * lanes
    numbers = ds_coupled + (size // 2 + 1) * lanes
    lowest = numbers + lanes
    own = lowest + lanes
    keep = own + held
    sum_k, sum_v, ld = (scratch, scratch, wide) if alone else (dk_sums, dv_sums, kv_heads * wide)
    kr, kc, vr = (scratch, scratch, scratch) if alone else (by_row, coupled, values_by_row)
    places = np.empty(4 * joined, np.int64)  # head, first query, number of queries, keys seen of each block
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    # The lane beside the last query of an odd number meets a zero: it must hold a number.
    fill(scratch, keep, drawn, 0)
    begin_tiles()
    for item in range(lo, hi):
        share, b, kv_head = item // (batch * kv_heads), item // kv_heads % batch, item % kv_heads
        rows0 = vr0 = (b * kv_heads + kv_head) * of_rows
        couples0 = (b * kv_heads + kv_head) * of_couples
        dk0 = dv0 = ((share * batch + b) * tk * kv_heads + kv_head) * wide
        if alone:
            rows0, vr0, couples0 = own, own + of_rows, own + 2 * of_rows
            dk0 = couples0 + of_couples
            dv0 = dk0 + of_sums
            k0, v0 = b * kb + kv_head * kh, b * vb + kv_head * vh
            lay_out_rows(scratch, rows0, k, k0, kt, kd, tk, d)
            lay_out_couples(scratch, couples0, scratch, k, k0, kt, kd, tk, d, plan, b, tq, bounded)
            lay_out_rows(scratch, vr0, v, v0, vt, vd, tk, d)
        for j in range(tk):
            fill(sum_k, dk0 + j * ld, wide, 0)
            fill(sum_v, dv0 + j * ld, wide, 0)
        for start in range(share, groups * blocks, shares * joined):
            begin, last, until, count = np.int64(0), np.int64(0), np.int64(0), 0
            for number in range(start, min(start + shares * joined, groups * blocks), shares):
                block, h = number // groups, kv_head * groups + number % groups
                i0, rows = block_at(plan, b, block, lanes, tq, bounded)
                if rows == 0:
                    continue
                begin, until, last = span(scratch, lowest, plan, b, i0, rows, tq, tk, causal, bounded)
                at = 4 * count
                places[at], places[at + 1], places[at + 2], places[at + 3] = h, i0, rows, until
                q0, g0, o0 = b * qb + i0 * qt + h * qh, b * gb + i0 * gt + h * gh, b * ob + i0 * ot + h * oh
                turned, to = count * pairs * lanes, count * wide * w
                turn_pairs(scratch, q_turned + turned, beside, q, q0, qt, qd, rows, d, scale * _LOG2E)
                turn_pairs(scratch, g_turned + turned, beside, do, g0, gt, gd, rows, d, 1.0)
                if rows < lanes:
                    fill(scratch, q_coupled + to, wide * w, 0)
                    fill(scratch, g_coupled + to, wide * w, 0)
                couple_rows(scratch, q_coupled + to, wide, q, q0, qt, qd, rows, d)
                couple_rows(scratch, g_coupled + to, wide, do, g0, gt, gd, rows, d)
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
                    scratch[deltas + count * lanes + l] = total
                    scratch[tops + count * lanes + l] = 0 if factor == -np.inf else factor
                count += 1
            for first in range(begin, until, size):
                n, before = min(size, until - first), 0  # blocks that see none of these keys
                at = first * pairs
                for m in range(count):
                    h, i0, rows = places[4 * m], places[4 * m + 1], places[4 * m + 2]
                    see = min(n, places[4 * m + 3] - first)
                    if see <= 0:
                        before = m + 1
                        continue
                    turned = m * pairs * lanes
                    # p = exp(scale q k^T - lse)
                    product_pairs(
                        scratch, p, lanes, kr, rows0 + at, pairs, one, scratch, q_turned + turned, lanes, see, lanes,
                        summed, new,
                    )  # fmt: skip
                    if causal:
                        hide(scratch, p, first - i0 - tk + tq, see, numbers, -np.inf)
                    if first - begin < last:
                        hide_earlier(scratch, p, first - begin, min(see, last - first + begin), lowest, -np.inf)
                    # dp = do v^T
                    product_pairs(
                        scratch, ds, lanes, vr, vr0 + at, pairs, one, scratch, g_turned + turned, lanes, see, lanes,
                        summed, new,
                    )  # fmt: skip
                    # p m and ds = scale p (m dp - delta)
                    if dropout > 0:
                        word = counter + ((b * heads + h) * tq + i0) * tk + first
                        fill_keep(scratch, keep, low, high, word, tk, rows, see, dropout)
                    top, delta = tops + m * lanes, deltas + m * lanes
                    w0, g0 = weights + m * w, gradients + m * w
                    _weights(scratch, p, ds, w0, g0, along, ds_coupled, keep, top, delta, see, scale, dropout > 0)
                    for j in range(see, n):
                        fill(scratch, w0 + j * along, w, 0)
                        fill(scratch, g0 + j * along, w, 0)
                    # dq += ds k
                    couple, k_row, k_step = couple_at(begin, first, tk, d, bounded)
                    product_pairs(
                        scratch, dq_turned + m * d * lanes, lanes, kc, couples0 + couple, k_row, k_step, scratch,
                        ds_coupled, lanes, d, lanes, (see + 1) // 2, first - begin,
                    )  # fmt: skip
                # dv += (p m)^T do,  dk += ds^T q
                of_queries, skipped = (count - before) * w, before * wide * w
                product_pairs(
                    sum_v, dv0 + first * ld, ld, scratch, weights + before * w, along, one, scratch,
                    g_coupled + skipped, wide, n, wide, of_queries, one,
                )  # fmt: skip
                product_pairs(
                    sum_k, dk0 + first * ld, ld, scratch, gradients + before * w, along, one, scratch,
                    q_coupled + skipped, wide, n, wide, of_queries, one,
                )  # fmt: skip
            for m in range(count):
                h, i0, rows = places[4 * m], places[4 * m + 1], places[4 * m + 2]
                from_ = dq_turned + m * d * lanes
                if places[4 * m + 3] == 0:
                    fill(scratch, from_, d * lanes, 0)
                turn_out(dq, ((b * tq + i0) * heads + h) * d, heads * d, scratch, from_, rows, d)
        if alone:
            to = (b * tk * kv_heads + kv_head) * d
            hand_over(dk, to, kv_heads * d, scratch, dk0, ld, tk, d)
            hand_over(dv, to, kv_heads * d, scratch, dv0, ld, tk, d)
    end_tiles()
    hold(room)


@inner
def _weights(x, p, ds, weights, gradients, row, coupled, keep, top, delta, n, scale, drop):
    """p = 2**(p - top), ds = scale p (m ds - delta), p = m p, for n rows: p and ds as pairs along the queries from
    `weights` and `gradients` on, rows `row` apart, ds as couples of rows from `coupled` on."""
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
                vstore(x, weights + (r + i) * row, vbeside(m0, m1))
                vstore(x, gradients + (r + i) * row, vbeside(ds0, ds1))
            if i == 0:
                above0, above1 = ds0, ds1
            else:
                vstore(x, coupled + r // 2 * lanes, vcouple(above0, ds0))
                vstore(x, coupled + r // 2 * lanes + w, vcouple(above1, ds1))
