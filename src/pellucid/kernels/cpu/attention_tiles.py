"""The pieces of attention's tiles: small matrix products from registers, packing, the diagonal, the dropout mask.

A tile of scores is kept *turned*: a row for each key, a lane for each of the `queries(...)` = two vectors of queries.
Softmax then runs down the rows without a sum across lanes, and keys and values enter every product as single
numbers spread over the lanes, so they are read where they lie, with any strides, and never packed. Only the queries
of a block are turned on the way in and the outputs on the way out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...device import Array
from .formats import load, store
from .functions import inlined, inner, like
from .lanes import FLAGS, VECTOR, apart, ask_run, narrow, operand, still, vload, vsplat, vstore, width
from .lanes_math import vbelow, vsum, vtranspose
from .lanes_products import register_tile
from .philox import philox

_LN2 = math.log(2)


def memory(x: Array) -> Array:
    """The memory from the first element of `x` on, as an array of length 1 whatever the shape of `x`, so that a launch
    finds what it prepared for other shapes; indices into it are sums of strides."""
    return Array(x.buffer, (1,), x.dtype, None, x.offset)


@inner
def queries(x):
    """Queries of a block: the lanes of two vectors."""
    return 2 * width(x, VECTOR)


@inner
def aligned(scratch):
    """Index of the first element of a fresh array on a cache line."""
    return (-np.int64(scratch.ctypes.data) % 64) // scratch.itemsize


@inner
def fill(x, x0, n, value):
    """n elements, a multiple of the lanes."""
    vector = vsplat(x, value)
    for i in range(x0, x0 + n, width(x, VECTOR)):
        vstore(x, i, vector)


@inlined
def ask_rows(x, x0, row, rows, d):
    """Asks memory for rows of d elements that will be read, `row` apart and contiguous."""
    for r in range(rows):
        ask_run(x, x0 + r * row, d)


def _multiply_add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return builder.fadd(total, builder.fmul(a, b, FLAGS), FLAGS)


_ROWS = 8 if VECTOR == 64 else 4  # as many as registers hold: paths with vectors of 64 bytes have 32 of them
_tile = register_tile(_ROWS, _multiply_add)


@inner
def product(c, c0, ldc, a, a0, row, step, b, b0, ldb, m, n, k, accumulate):
    """c = a b, or c += a b where `accumulate` is not 0. c: (m, n) from c0 on, rows ldc apart, n a multiple of two
    vectors; a: (m, k) from a0 on, elements of a row `step` apart, rows `row` apart; b: (k, n), rows ldb apart."""
    apart()
    w = width(c, VECTOR)
    for r in range(0, m, _ROWS):
        for column in range(0, n, 2 * w):
            into = c0 + r * ldc + column
            _tile(c, into, ldc, m - 1 - r, a, a0 + r * row, row, step, b, b0 + column, ldb, k, accumulate)


@inner
def turn_in(to, to0, x, x0, row, step, rows, d, factor):
    """to[i, l] = factor x[l, i] for a block of queries, 0 in the lanes from `rows` on; to: (d, queries)."""
    apart()
    w, lanes = width(to, VECTOR), queries(to)
    whole = d // w * w if step == 1 else 0
    if rows < lanes:
        fill(to, to0, d * lanes, 0)
    for half in range(0, lanes, w):
        done = 0
        if half + w <= rows:
            for i in range(0, whole, w):
                vtranspose(to, to0 + i * lanes + half, lanes, x, x0 + half * row + i, row)
            done = whole
        for l in range(half, min(half + w, rows)):  # noqa: E741
            for i in range(done, d):
                still()
                store(to, to0 + i * lanes + l, load(x, x0 + l * row + i * step))
    spread = vsplat(to, factor)
    for i in range(to0, to0 + d * lanes, w):
        vstore(to, i, vload(to, i) * spread)


@inner
def turn_out(y, y0, row, x, x0, rows, d):
    """y[l, i] = x[i, l] for the first `rows` lanes; x: (d, queries), rows of y contiguous and `row` apart."""
    apart()
    w, lanes = width(x, VECTOR), queries(x)
    whole = d // w * w
    for half in range(0, lanes, w):
        done = 0
        if half + w <= rows:
            for i in range(0, whole, w):
                vtranspose(y, y0 + half * row + i, row, x, x0 + i * lanes + half, lanes)
            done = whole
        for l in range(half, min(half + w, rows)):  # noqa: E741
            for i in range(done, d):
                still()
                store(y, y0 + l * row + i, load(x, x0 + i * lanes + l))


@inner
def widen(to, to0, ld, x, x0, row, step, rows, d):
    """to[r, i] = x[r, i] in the type of `to`; rows of `to` ld >= d apart, the elements between set to 0."""
    apart()
    w = width(to, VECTOR)
    whole = d // w * w if step == 1 else 0
    for r in range(rows):
        for i in range(0, whole, w):
            vstore(to, to0 + r * ld + i, vload(x, x0 + r * row + i))
        for i in range(whole, d):
            still()
            store(to, to0 + r * ld + i, load(x, x0 + r * row + i * step))
        for i in range(d, ld):
            still()
            store(to, to0 + r * ld + i, 0)


@inner
def hand_over(to, to0, to_row, x, x0, row, rows, d):
    """to[r, i] = x[r, i] in the type of `to`; both contiguous along a row."""
    apart()
    w = width(x, VECTOR)
    for r in range(rows):
        for i in range(0, d // w * w, w):
            vstore(to, to0 + r * to_row + i, vload(x, x0 + r * row + i))
        for i in range(d // w * w, d):
            still()
            store(to, to0 + r * to_row + i, load(x, x0 + r * row + i))


@inner
def as_operand(x, x0, row, step, rows, d, copy, copy0):
    """Rows of keys or values for `product`: where they lie, or a widened copy. Returns start, row and step."""
    if narrow(x):
        widen(copy, copy0, d, x, x0, row, step, rows, d)
        return copy0, d, 1
    return x0, row, step


@inner
def as_columns(x, x0, row, step, rows, d, padded, copy, copy0):
    """Rows for `product` as its right operand: where they lie, or a widened copy with `padded` columns. Returns the
    array, start and row."""
    if narrow(x) or step != 1 or padded != d:
        widen(copy, copy0, padded, x, x0, row, step, rows, d)
        return copy, copy0, padded
    return operand(x, copy), x0, row


@inner
def hide(s, s0, first, rows, lane_numbers, value):
    """Writes `value` into the lanes whose query does not see the key: lane < first + r in row r."""
    apart()
    w, lanes = width(s, VECTOR), queries(s)
    hidden = vsplat(s, value)
    for r in range(max(0, -first), rows):
        bound = vsplat(s, first + r)
        for half in range(0, lanes, w):
            at = s0 + r * lanes + half
            vstore(s, at, vbelow(vload(s, lane_numbers + half), bound, hidden, vload(s, at)))


@inner
def keep_row(x, x0, low, high, word, n, p):
    """1 / (1 - p) or 0 for the n numbers of a row whose first has that word; writes up to three more on both sides."""
    apart()
    limit = np.uint32(math.ceil(np.float32(p) * 2**24))  # of the top 24 bits, so that they need not become a float
    on, off = like(1 / (1 - p), load(x, x0)), like(0, load(x, x0))
    at, block = x0 - (word & 3), word >> 2
    for i in range((n + (word & 3) + 3) >> 2):
        a, b, c, e = philox(low, high, block + i)
        store(x, at + 4 * i, on if a >> np.uint32(8) >= limit else off)
        store(x, at + 4 * i + 1, on if b >> np.uint32(8) >= limit else off)
        store(x, at + 4 * i + 2, on if c >> np.uint32(8) >= limit else off)
        store(x, at + 4 * i + 3, on if e >> np.uint32(8) >= limit else off)


@inner
def keep_size(x, keys):
    """Elements of the scratch of `fill_keep`: the mask as it is made, a row for each query, and turned."""
    return queries(x) * (2 * (keys + width(x, VECTOR)) + 8)


@inner
def fill_keep(x, keep, low, high, word, tk, rows, n, p):
    """x[keep + j queries + l] = 1 / (1 - p) or 0 for n keys; the mask of (l, j) is word `word` + l tk + j."""
    w, lanes = width(x, VECTOR), queries(x)
    padded = (n + w - 1) // w * w
    ld = padded + 8
    made = keep + padded * lanes + 4
    for l in range(rows):  # noqa: E741
        keep_row(x, made + l * ld, low, high, word + l * tk, n, p)
    for j in range(0, n, w):
        for half in range(0, lanes, w):
            vtranspose(x, keep + j * lanes + half, lanes, x, made + half * ld + j, ld)


@inner
def finish(x, out, top, total, lse, lse0, rows, d):
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


@inner
def dot(x, x0, x_step, y, y0, y_step, n, like_array):
    """sum(x y)"""
    apart()
    w = width(like_array, VECTOR)
    whole = n // w * w if x_step == 1 and y_step == 1 else 0
    sums = vsplat(like_array, 0)
    for i in range(0, whole, w):
        sums = sums + vload(x, x0 + i) * vload(y, y0 + i)
    total = vsum(sums)
    for i in range(whole, n):
        still()
        total += load(x, x0 + i * x_step) * load(y, y0 + i * y_step)
    return total
