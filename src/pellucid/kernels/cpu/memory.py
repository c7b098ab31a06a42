"""Moving elements: copies, casts, choices, filling, joining; and the test for non-finite numbers.

Wherever the type does not change, elements move bit for bit, so a NaN keeps its payload and nothing is converted.
`assign_` and `fill_` write into strided views; the other kernels of this backend call `contiguous` where they need rows
without gaps.
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .elementwise import GRAIN, Plan, fresh, laid_out, map1, plan, plan_into, plan_of, start, unary, words
from .formats import element, load, put, store
from .functions import odd
from .launch import Kernel, kernel

_TILE = 16  # rows and columns copied together where an array is transposed
_turns: WeakKeyDictionary[Plan, tuple[int, Array, tuple[int, ...]] | None] = WeakKeyDictionary()


@kernel
def _move(lo, hi, y, x, table):
    """y = x, bit for bit, both strided; elements lo to hi-1."""
    width = load(table, 0)
    dy, dx = load(table, 2), load(table, 3)
    i = lo
    while i < hi:
        row = i // width
        column = i - row * width
        n = min(hi - i, width - column)
        to, at = start(table, 2, 0, row) + column * dy, start(table, 2, 1, row) + column * dx
        if dy == 1 and dx == 1:
            for k in range(n):
                put(y, to + k, element(x, at + k))
        else:
            for k in range(n):
                put(y, to + k * dy, element(x, at + k * dx))
        i += n


@kernel
def _turn(lo, hi, y, x, table, rows, columns, row_y, row_x, column_y, column_x):
    """As `_move` where x runs along the rows and y along the columns: items are square tiles, so that the lines of
    memory they touch stay in the first cache level. The table holds the other axes."""
    down, across = (rows + _TILE - 1) // _TILE, (columns + _TILE - 1) // _TILE
    for item in range(lo, hi):
        rest = item // across
        c0, r0 = (item - rest * across) * _TILE, rest % down * _TILE
        to, at = start(table, 2, 0, rest // down), start(table, 2, 1, rest // down)
        for r in range(r0, min(r0 + _TILE, rows)):
            i, j = to + r * row_y, at + r * row_x
            for c in range(c0, min(c0 + _TILE, columns)):
                put(y, i + c * column_y, element(x, j + c * column_x))


@unary
def _convert(x):
    return x


@unary
def _convert_once(x):  # float64 to float16 by way of float32, as `store` does, without rounding twice
    return odd(x)


@unary
def _truncate(x):
    return np.int64(x)


@unary
def _nonzero(x):
    return x != 0


@kernel
def _fill(lo, hi, y, value, table):
    """y = value, y strided; elements lo to hi-1."""
    width = load(table, 0)
    step = load(table, 2)
    i = lo
    while i < hi:
        row = i // width
        column = i - row * width
        n = min(hi - i, width - column)
        to = start(table, 1, 0, row) + column * step
        if step == 1:
            for k in range(n):
                store(y, to + k, value)
        else:
            for k in range(n):
                store(y, to + k * step, value)
        i += n


def _conversion(source: DType, target: DType) -> Kernel:
    if source is target:
        return _move
    if target.kind == "bool":
        return _nonzero
    if source is dtypes.float64 and target is dtypes.float16:
        return _convert_once
    return _truncate if source.is_float and not target.is_float else _convert


def copy(x: Array) -> Array:
    """The elements of any strided view as a fresh contiguous array."""
    p = plan(x.shape, x.strides)
    y = fresh(p, x, x.dtype)
    _run_move(p, y, x)
    return y


def _run_move(p: Plan, y: Array, x: Array) -> None:
    turned = _turned(p) if len(p.axes) > 1 else None
    if turned is None:
        _move(p.size, GRAIN, y, x, p.table)
    else:
        items, table, numbers = turned
        _turn(items, GRAIN // _TILE**2, y, x, table, *numbers)


def _turned(p: Plan) -> tuple[int, Array, tuple[int, ...]] | None:
    """Items, table and numbers for `_turn`; None where x's elements do not lie along another axis than y's."""
    if p not in _turns:
        _turns[p] = None
        *outer, (columns, (column_y, column_x)) = p.axes
        along = [k for k, (n, (_, step)) in enumerate(outer) if abs(step) == 1 and n >= _TILE]
        if not along or abs(column_x) == 1 or columns < _TILE:
            return None
        rows, (row_y, row_x) = outer.pop(along[0])
        tiles = -(-rows // _TILE) * -(-columns // _TILE)
        table = words(laid_out([*outer, (1, (0, 0))]))
        numbers = (rows, columns, row_y, row_x, column_y, column_x)
        _turns[p] = (tiles * math.prod(n for n, _ in outer), table, numbers)
    return _turns[p]


def contiguous(x: Array) -> Array:
    """`x` itself where its elements lie row-major without gaps, else a copy."""
    return x if x.is_contiguous else copy(x)


def cast(x: Array, *, dtype: DType) -> Array:
    """Elements in another dtype: round to nearest even; float to integer truncates; to bool is x != 0."""
    return map1(_conversion(x.dtype, dtype), x, dtype)


def assign_(target: Array, source: Array) -> None:
    """target[...] = source, broadcast to the target's shape and cast to its dtype."""
    p = plan_into(target, source)
    if source.dtype is target.dtype:
        _run_move(p, target, source)
    else:
        _conversion(source.dtype, target.dtype)(p.size, GRAIN, target, source, p.table)


def fill_(target: Array, *, value: float) -> None:
    """Every element of target = value."""
    p = plan_of(target)
    _fill(p.size, GRAIN, target, float(value) if target.dtype.is_float else int(value), p.table)


@kernel
def _where(lo, hi, y, condition, a, b, table):
    """y = a where condition, else b, bit for bit; elements lo to hi-1."""
    width = load(table, 0)
    dc, da, db = load(table, 3), load(table, 4), load(table, 5)
    i = lo
    while i < hi:
        row = i // width
        column = i - row * width
        n = min(hi - i, width - column)
        ic = start(table, 4, 1, row) + column * dc
        ia = start(table, 4, 2, row) + column * da
        ib = start(table, 4, 3, row) + column * db
        if dc == 1 and da == 1 and db == 1:
            for k in range(n):
                put(y, i + k, element(a, ia + k) if load(condition, ic + k) else element(b, ib + k))
        else:
            for k in range(n):
                put(y, i + k, element(a, ia + k * da) if load(condition, ic + k * dc) else element(b, ib + k * db))
        i += n


def where(condition: Array, a: Array, b: Array) -> Array:
    """y = a where condition, else b; all three broadcast"""
    p = plan(condition.shape, condition.strides, a.shape, a.strides, b.shape, b.strides)
    y = fresh(p, a, a.dtype)
    _where(p.size, GRAIN, y, condition, a, b, p.table)
    return y


@kernel
def _find_non_finite(lo, hi, x, found):
    """Where an element of lo to hi-1 is infinite or NaN: found = False."""
    bad = 0
    for i in range(lo, hi):
        v = load(x, i)
        bad += v - v != 0
    if bad:
        store(found, 0, False)


def all_finite(x: Array) -> Array:
    """bool, shape (): no element is infinite or NaN"""
    y = x.device.empty((), dtypes.bool_)
    fill_(y, value=1)
    if x.dtype.is_float:
        x = contiguous(x)
        _find_non_finite(x.size, 4 * GRAIN, x, y)
    return y


def concatenate(parts: list[Array], *, axis: int) -> Array:
    """The arrays one behind the other along `axis`; other axes equal, one dtype."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    y = parts[0].device.empty(tuple(shape), parts[0].dtype)
    at = 0
    for part in parts:
        assign_(y.slice(axis, at, at + part.shape[axis]), part)
        at += part.shape[axis]
    return y
