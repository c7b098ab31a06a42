"""Attention from bfloat16 operands: the forward and backward pass on the processor's products of pairs.

The same tiles as in `attention` and `attention_backward`, at twice the rate: what enters a product is rounded to
bfloat16 on the way, everything else (scores, softmax, sums, results) stays float32. A pair holds two neighbours of the
axis that a product sums over, so an operand is laid out for the product it serves: by row where features are summed,
coupled with the next row where keys or queries are. Keys and values are laid out once, before the blocks of queries
share them (`_lay_out`); queries and gradients once a block; softmax weights where they are made.

A missing half of a last pair is zero on both sides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .attention_bounds import Bounds, begins_document, block_at, bounds, fill_lowest, first_key, hide_earlier
from .attention_tiles import aligned, ask_rows, fill, fill_keep, finish, hide, keep_size, memory, queries, turn_out
from .formats import hold, uncounted
from .functions import inner
from .isa import current
from .lanes import VECTOR, apart, vload, vsplat, vstore, width
from .lanes_math import vbelow, vexp2, vmax, vtranspose
from .lanes_pairs import couple_rows, pair_row, product_pairs, vcouple
from .lanes_tiles import TILES, begin_tiles, end_tiles
from .launch import kernel

_KEYS = 128  # of a tile of the forward pass
_GRAIN = 1 << 14  # keys times features of a chunk
_GRAIN_OUT = 64  # pairs of rows
_AHEAD = 16  # rows from the one that is laid out to the one asked of memory
_LANES = VECTOR // 4
_LOG2E = 1 / math.log(2)
_LOWEST = -3.0e38  # above minus infinity and below every score


def serves(operand_dtype: DType | None, precise: DType) -> bool:
    """Whether this process multiplies pairs, and is asked to. Elsewhere operands stay as they are, which is finer."""
    return operand_dtype is dtypes.bfloat16 and precise is dtypes.float32 and current().bf16


def forward(
    q: Array, k: Array, v: Array, starts: Array | None, o: Array, lse: Array, causal: bool, scale: float, random: Any
) -> None:
    """o and lse of more than one query; `random`: dropout, the halves of the seed, and the counter."""
    batch, tq, heads, d = q.shape
    tk, kv_heads = k.shape[1], k.shape[2]
    plan = bounds(q, k, starts, 2 * _LANES)
    by_row, _ = operands(k, plan, tq, rows=True, couples=False)
    _, couples = operands(v, plan, tq, rows=False, couples=True)
    grain = max(1, 2 * _GRAIN // max(1, min(tk, 2 * _KEYS) * d))
    shape = (heads // max(1, kv_heads), kv_heads, tq, tk, d)
    _forward(
        batch * heads * plan.blocks, grain, memory(q), by_row, couples, memory(o), memory(lse), *plan, batch, *shape,
        *q.strides, causal, scale, *random,
    )  # fmt: skip


def operands(x: Array, plan: Bounds, tq: int, *, rows: bool, couples: bool) -> tuple[Array, Array]:
    """x: (batch, time, heads, features) as pairs by row, (batch, heads, time, padded / 2), and as couples of rows,
    (batch, heads, time / 2, padded); only those asked for, the same array twice otherwise.

    With bounds there are two sets of couples, for documents that begin with an even and with an odd key, in which no
    couple joins two documents: the one that begins beside is zero there."""
    batch, time, heads, d = x.shape
    half = -(-time // 2)
    pairs, padded = _padded(d)
    apart = couples and plan.bounded
    empty, found = x.device.empty, []
    if rows:
        found.append(empty((batch * heads * time * pairs,), dtypes.float32))
    if couples:
        held = 2 * (time // 2 + 1) if apart else half
        found.append(empty((batch * heads * held * padded,), dtypes.float32))
    by_row, coupled = memory(found[0]), memory(found[-1])
    if apart:
        _couple(
            2 * batch * heads * (time // 2 + 1), _GRAIN_OUT, memory(x), coupled, plan.plan, batch, heads, time, tq, d,
            *x.strides,
        )  # fmt: skip
    if rows or not apart:
        there = couples and not apart
        _lay_out(batch * heads * half, _GRAIN_OUT, memory(x), by_row, coupled, heads, time, d, *x.strides, rows, there)
    if couples and TILES:
        sets, half = (2 * batch * heads, time // 2 + 1) if apart else (batch * heads, half)
        coupled = _turned(coupled, sets, half, padded)
    return by_row, coupled


def _turned(coupled: Array, sets: int, half: int, padded: int) -> Array:
    """(sets, half, padded) couples to (sets, padded, row): those of a feature side by side, for tile registers."""
    row = _row_of_couples.py_func(half)
    turned = memory(coupled.device.empty((sets * padded * row,), dtypes.float32))
    _turn(sets * -(-half // _LANES), max(1, _GRAIN_OUT // _LANES), coupled, turned, half, padded, row)
    return turned


@kernel
def _turn(lo, hi, coupled, turned, half, padded, row):
    """Items: (set, 16 couples)."""
    w = width(coupled, VECTOR)
    blocks = (half + w - 1) // w
    for item in range(lo, hi):
        number, first = item // blocks, item % blocks * w
        from_, to = (number * half + first) * padded, number * padded * row + first
        whole = first + w <= half
        for i in range(0, padded, w):
            if whole:
                vtranspose(turned, to + i * row, row, coupled, from_ + i, padded)
            else:
                for j in range(half - first):
                    for e in range(i, i + w):
                        turned[to + e * row + j] = coupled[from_ + j * padded + e]


def _padded(d: int) -> tuple[int, int]:
    """Pairs of a row, and numbers of a coupled row, both in whole vectors."""
    return -(-d // (2 * _LANES)) * _LANES, -(-d // _LANES) * _LANES


@kernel
def _lay_out(lo, hi, x, by_row, coupled, heads, time, d, xb, xt, xh, xd, rows, couples):
    """Items: (batch, head, two rows)."""
    half, w = (time + 1) // 2, width(by_row, VECTOR)
    pairs, padded = (d + 2 * w - 1) // (2 * w) * w, (d + w - 1) // w * w
    for item in range(lo, hi):
        b, h, t = item // (half * heads), item // half % heads, item % half * 2
        at = b * xb + h * xh + t * xt
        both = t + 1 < time
        ask_rows(x, at + _AHEAD * xt, xt, 2, d)
        if rows:
            to = ((b * heads + h) * time + t) * pairs
            pair_row(by_row, to, x, at, xd, d, 1.0)
            if both:
                pair_row(by_row, to + pairs, x, at + xt, xd, d, 1.0)
        if couples:
            couple_rows(coupled, item * padded, x, at, at + xt if both else at, xd, d, both)


@kernel
def _couple(lo, hi, x, coupled, plan, batch, heads, time, tq, d, xb, xt, xh, xd):
    """Items: (parity of the first key, batch, head, couple)."""
    w, half = width(coupled, VECTOR), time // 2 + 1
    padded = (d + w - 1) // w * w
    for item in range(lo, hi):
        parity, rest = item // (batch * heads * half), item // half % (batch * heads)
        b, h, t = rest // heads, rest % heads, item % half * 2 - parity
        if 0 <= t < time:
            at = b * xb + h * xh + t * xt
            both = t + 1 < time and not begins_document(plan, b, t + 1, tq, time - tq)
            couple_rows(coupled, item * padded, x, at, at + xt if both else at, xd, d, both)


@inner
def couples_of(tk, bounded):
    """Couples of the keys of a head."""
    return tk // 2 + 1 if bounded else (tk + 1) // 2


@inner
def _row_of_couples(half):
    """Numbers from a feature to the next where couples are turned: whole lines of the cache, an odd number of them, so
    that 16 features don't compete for one place in it."""
    lines = (half + 15) // 16
    return 16 * (lines + 1 - lines % 2)


@inner
def couple_at(begin, first, head, heads, half, padded):
    """Where the couple of key `first` and the next lies in the set for the parity of `begin`, and from there the
    distances to the next feature and to the next couple."""
    number, couple = begin % 2 * heads + head, (first + begin % 2) // 2
    if TILES:
        row = _row_of_couples(half)
        return number * padded * row + couple, row, np.int64(1)
    return (number * half + couple) * padded, np.int64(1), padded


@inner
def turn_pairs(x, turned, rows_at, y, y0, row, step, rows, d, factor):
    """x[turned + i lanes + l] = the pair (factor y[l, 2 i], factor y[l, 2 i + 1]) of a block of queries, 0 in the lanes
    from `rows` on; `rows_at`: room for the pairs by row."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    pairs = (d + 2 * w - 1) // (2 * w) * w
    for l in range(rows):  # noqa: E741
        pair_row(x, rows_at + l * pairs, y, y0 + l * row, step, d, factor)
    fill(x, rows_at + rows * pairs, (lanes - rows) * pairs, 0)
    for half in range(0, lanes, w):
        for i in range(0, pairs, w):
            vtranspose(x, turned + i * lanes + half, lanes, x, rows_at + half * pairs + i, pairs)


@kernel
def _forward(
    lo, hi, q, k, v, o, lse, plan, blocks, bounded, batch, groups, kv_heads, tq, tk, d, qb, qt, qh, qd, causal,
    scale, dropout, low, high, counter,
):  # fmt: skip
    """Items: (batch, key/value head, block of queries from the last, query head of the group). k by row, v coupled."""
    heads, lanes, w = groups * kv_heads, queries(lse), width(lse, VECTOR)
    size, half = max(1, min(tk, _KEYS)), couples_of(tk, bounded)
    pairs, padded, summed = (d + 2 * w - 1) // (2 * w) * w, (d + w - 1) // w * w, (d + 1) // 2
    new, one = np.int64(0), np.int64(1)  # for `product_pairs`: a literal would compile another one
    drawn = keep_size(lse, size) if dropout > 0 else 0
    room = np.empty((2 * pairs + d + size + 5) * lanes + drawn + 16, lse.dtype)
    scratch = uncounted(room)
    turned = aligned(scratch)
    by_row = turned + pairs * lanes
    out = by_row + pairs * lanes
    s = out + d * lanes
    numbers = s + (size + 1) * lanes
    top, total = numbers + lanes, numbers + 2 * lanes
    lowest = total + lanes
    keep = lowest + lanes
    for l in range(lanes):  # noqa: E741
        scratch[numbers + l] = l
    begin_tiles()
    for item in range(lo, hi):
        g, rest = item % groups, item // groups
        block, rest = blocks - 1 - rest % blocks, rest // blocks
        b, kv_head = rest // kv_heads, rest % kv_heads
        h = kv_head * groups + g
        i0, rows = block_at(plan, b, block, lanes, tq, bounded)
        if rows == 0:
            continue
        seen = max(0, min(tk, i0 + rows + tk - tq)) if causal else tk
        begin = first_key(plan, b, i0, tq, bounded)
        last = first_key(plan, b, i0 + rows - 1, tq, bounded) - begin
        if last > 0:
            fill_lowest(scratch, lowest, plan, b, i0, rows, tq, begin)
        turn_pairs(scratch, turned, by_row, q, b * qb + i0 * qt + h * qh, qt, qd, rows, d, scale * _LOG2E)
        beside = g + 1 < groups  # the head of the next item; else the next block
        ask_rows(q, b * qb + i0 * qt + h * qh + (qh if beside else -lanes * qt - g * qh), qt, lanes, d)
        fill(scratch, top, lanes, -np.inf)
        fill(scratch, total, lanes, 0)
        for first in range(begin, seen, size):
            n = min(size, seen - first)
            # s = scale q k^T
            at = (rest * tk + first) * pairs
            product_pairs(scratch, s, lanes, k, at, pairs, one, scratch, turned, lanes, n, lanes, summed, new)
            if causal:
                hide(scratch, s, first - i0 - tk + tq, n, numbers, -np.inf)
            if first - begin < last:
                hide_earlier(scratch, s, first - begin, min(n, last - first + begin), lowest, -np.inf)
            if dropout > 0:
                word = counter + ((b * heads + h) * tq + i0) * tk + first
                fill_keep(scratch, keep, low, high, word, tk, rows, n, dropout)
            _soften(scratch, s, n, top, total, out, d if first > begin else 0, keep, dropout > 0)
            # o += p v
            at, v_row, v_step = couple_at(begin, first, rest, batch * kv_heads, half, padded)
            product_pairs(
                scratch, out, lanes, v, at, v_row, v_step, scratch, s, lanes, d, lanes, (n + 1) // 2, first - begin
            )
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
