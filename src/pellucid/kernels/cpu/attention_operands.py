"""How attention from bfloat16 operands lays out what enters its products; `attention_pairs` says why.

A pair holds two neighbours of the axis that a product sums over, so an operand is laid out for the product it serves:
by row where features are summed, coupled with the next row where keys or queries are. Where a head is one item of work
its keys and values are laid out by the item, beside what it computes; else, since many items share them, beforehand.

With bounds there are two sets of couples, for documents that begin with an even and with an odd key, in which no couple
joins two documents: the one that begins beside is zero there. Where there are tile registers, couples are kept turned,
those of a feature side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...base import dtypes
from ...device import Array
from .attention_bounds import Bounds, begins_document
from .attention_tiles import ask_rows, fill, memory, queries
from .formats import hold, uncounted
from .functions import inner
from .lanes import VECTOR, apart, width
from .lanes_math import vtranspose
from .lanes_pairs import couple_rows, pair_rows
from .lanes_tiles import TILES
from .launch import kernel

_LANES = VECTOR // 4
_BLOCK = 2 * _LANES  # of keys, laid out at once
_anywhere: Any = register_jitable  # for functions that Python calls too


# --- beforehand -------------------------------------------------------------------------------------------------------


def rows_of(x: Array, plan: Bounds, tq: int) -> Array:
    """x: (batch, time, heads, features) as pairs by row, (batch, heads, time, padded / 2)."""
    return _laid_out(x, plan, tq, rows_size(x.shape[1], x.shape[3]), rows=True)


def couples_of(x: Array, plan: Bounds, tq: int) -> Array:
    """x: (batch, time, heads, features) as couples of rows: (batch, heads), each of `couples_size`."""
    return _laid_out(x, plan, tq, couples_size(x.shape[1], x.shape[3], plan.bounded), rows=False)


def _laid_out(x: Array, plan: Bounds, tq: int, size: int, *, rows: bool) -> Array:
    batch, time, heads, d = x.shape
    to = memory(x.device.empty((batch * heads * size,), dtypes.float32))
    blocks = time // _BLOCK + 1
    _lay_out(batch * heads * blocks, 2, memory(x), to, *plan, blocks, size, heads, time, tq, d, *x.strides, rows)
    return to


@kernel
def _lay_out(lo, hi, x, to, plan, _, bounded, blocks, size, heads, time, tq, d, xb, xt, xh, xd, rows):
    """Items: (batch, head, block of keys)."""
    room = np.empty(padded(d) * width(to, VECTOR), to.dtype)
    scratch = uncounted(room)
    for item in range(lo, hi):
        number, first = item // blocks, item % blocks * _BLOCK
        b, h = number // heads, number % heads
        x0 = b * xb + h * xh
        if rows:
            _block_by_row(to, number * size, x, x0, xt, xd, first, time, d)
        else:
            _block_of_couples(to, number * size, scratch, x, x0, xt, xd, first, time, d, plan, b, tq, bounded)
    hold(room)


# --- in an item -------------------------------------------------------------------------------------------------------


@_anywhere
def pairs_of(d):
    """Pairs of a row, in whole vectors."""
    return (d + 2 * _LANES - 1) // (2 * _LANES) * _LANES


@_anywhere
def padded(d):
    """Numbers of a coupled row, in whole vectors."""
    return (d + _LANES - 1) // _LANES * _LANES


@_anywhere
def rows_size(time, d):
    """Lanes of the keys of a head by row."""
    return time * pairs_of(d)


@_anywhere
def couples_size(time, d, bounded):
    """Lanes of the couples of a head."""
    return (2 if bounded else 1) * _along(_couples(time, bounded)) * padded(d)


@inner
def lay_out_rows(to, to0, x, x0, xt, xd, time, d):
    """The keys of a head as pairs by row."""
    for first in range(0, time, _BLOCK):
        ask_rows(x, x0 + (first + _BLOCK) * xt, xt, _BLOCK, d)
        _block_by_row(to, to0, x, x0, xt, xd, first, time, d)


@inner
def lay_out_couples(to, to0, room, x, x0, xt, xd, time, d, plan, b, tq, bounded):
    """The keys of a head as couples; `room`: for a vector of coupled rows, from 0 on."""
    for first in range(0, time + 1, _BLOCK):
        ask_rows(x, x0 + (first + _BLOCK) * xt, xt, _BLOCK, d)
        _block_of_couples(to, to0, room, x, x0, xt, xd, first, time, d, plan, b, tq, bounded)


@inner
def _block_by_row(to, to0, x, x0, xt, xd, first, time, d):
    pair_rows(to, to0 + first * pairs_of(d), x, x0 + first * xt, xt, xd, min(_BLOCK, time - first), d, 1.0)


@inner
def _block_of_couples(to, to0, room, x, x0, xt, xd, first, time, d, plan, b, tq, bounded):
    apart()
    w, wide = width(to, VECTOR), padded(d)
    for parity in range(2 if bounded else 1):
        for couple in range(first // 2, min((first + _BLOCK) // 2, _couples(time, bounded)), w):
            count = min(w, _couples(time, bounded) - couple)
            into, row, step = couple_at(parity, 2 * couple - parity, time, d, bounded)
            first_row = 2 * couple - parity
            for i in range(0, count, 1 if bounded else count):
                t = first_row + 2 * i
                rows = min(2 if bounded else 2 * count, time - t)
                if bounded and rows == 2 and begins_document(plan, b, t + 1, tq, time - tq):
                    rows = 1
                if t >= 0:
                    if TILES:
                        couple_rows(room, i * wide, wide, x, x0 + t * xt, xt, xd, rows, d)
                    else:
                        couple_rows(to, to0 + into + i * step, step, x, x0 + t * xt, xt, xd, rows, d)
            if TILES:
                for i in range(0, wide, w):
                    if count == w:
                        vtranspose(to, to0 + into + i * row, row, room, i, wide)
                    else:
                        for j in range(count):
                            for e in range(i, i + w):
                                to[to0 + into + e * row + j] = room[j * wide + e]


@_anywhere
def _couples(time, bounded):
    """Couples of a set."""
    return time // 2 + 1 if bounded else (time + 1) // 2


@_anywhere
def _along(couples):
    """Numbers from a feature to the next where couples are turned: whole lines of the cache, an odd number of them, so
    that 16 features don't compete for one place in it."""
    if not TILES:
        return couples
    lines = (couples + 15) // 16
    return 16 * (lines + 1 - lines % 2)


@inner
def couple_at(begin, first, time, d, bounded):
    """Where the couple of key `first` and the next lies in the set for the parity of `begin`, and from there the
    distances to the next feature and to the next couple."""
    row, couple = _along(_couples(time, bounded)), (first + begin % 2) // 2
    set0 = begin % 2 * row * padded(d)
    if TILES:
        return set0 + couple, row, np.int64(1)
    return set0 + couple * padded(d), np.int64(1), padded(d)


@inner
def turn_pairs(x, turned, rows_at, y, y0, row, step, rows, d, factor):
    """x[turned + i lanes + l] = the pair (factor y[l, 2 i], factor y[l, 2 i + 1]) of a block of queries, 0 in the lanes
    from `rows` on; `rows_at`: room for the pairs by row."""
    apart()
    w, lanes, pairs = width(x, VECTOR), queries(x), pairs_of(d)
    pair_rows(x, rows_at, y, y0, row, step, rows, d, factor)
    fill(x, rows_at + rows * pairs, (lanes - rows) * pairs, 0)
    for half in range(0, lanes, w):
        for i in range(0, pairs, w):
            vtranspose(x, turned + i * lanes + half, lanes, x, rows_at + half * pairs + i, pairs)
