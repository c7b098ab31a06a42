"""Along axes: sums, extremes and running sums. `axes` are sorted, non-negative and distinct.

Every reduction is brought to the form (outer, reduced, inner): the last axis is summed row by row, with vectors along
the row; others column by column, with vectors across the columns. Axes that do not merge to that form are first
copied into it.
"""

from __future__ import annotations

import math
from builtins import max as _most
from builtins import min as _least
from functools import lru_cache

from ...base import dtypes, shapes
from ...base.dtypes import DType
from ...base.shapes import Shape
from ...device import Array
from ...device.blocks import new_array
from .elementwise import GRAIN, merged
from .formats import load, store
from .functions import smaller, summing
from .launch import Kernel, kernel
from .memory import contiguous, copy, fill_
from .rows import accumulator, add_row, fold, largest, row_grain, sum_piece, sum_row

_PART = 1 << 16  # elements of a row summed by one thread
_REMEMBERED = 4096  # reductions
_COLUMNS = 1024  # columns summed together, so that their sums stay in the first cache level


class _Form:
    """An array as (outer, reduced, inner) with a step for each."""

    __slots__ = ("n_inner", "n_outer", "n_reduced", "step_inner", "step_outer", "step_reduced", "x")

    def __init__(self, x: Array, axes: Shape) -> None:
        found = _three(x.shape, x.strides, axes)
        if found is None:
            kept = [a for a in range(x.rank) if a not in axes]
            x = copy(x.permute([*kept, *axes]))
            found = _three(x.shape, x.strides, tuple(range(len(kept), x.rank)))
            assert found is not None
        self.x = x
        self.n_outer, self.step_outer, self.n_reduced, self.step_reduced, self.n_inner, self.step_inner = found


@lru_cache(4096)
def _three(shape: Shape, strides: Shape, axes: Shape) -> tuple[int, ...] | None:
    """Lengths and steps of (outer, reduced, inner), or None where they do not merge to three axes."""
    groups: list[list[tuple[int, int]]] = [[], [], []]
    at = 0
    for a, (n, s) in enumerate(zip(shape, strides, strict=True)):
        if n == 1:
            continue
        if a in axes:
            if at == 2:
                return None
            at = 1
        elif at == 1:
            at = 2
        groups[at].append((n, s))
    found: list[int] = []
    for group in groups:
        axis = merged(tuple(n for n, _ in group), [tuple(s for _, s in group)])
        if len(axis) > 1:
            return None
        found += [axis[0][0], axis[0][1][0]]
    return tuple(found)


# --- sums -------------------------------------------------------------------------------------------------------------


@kernel
def _sum_rows(lo, hi, x, y, step, d, n, parts, length):
    """Items are (row, part): y[item] = sum of that part of the row, each part but the last `length` long."""
    for item in range(lo, hi):
        row = item // parts
        at = (item - row * parts) * length
        store(y, item, sum_row(x, row * step + at * d, d, _least(length, n - at)))


@kernel
def _sum_int_rows(lo, hi, x, y, step, d, n, parts, length):
    for item in range(lo, hi):
        row = item // parts
        at = (item - row * parts) * length
        store(y, item, sum_piece(x, row * step + at * d, d, _least(length, n - at), 0))


@kernel
def _sum_columns(lo, hi, x, y, rows, columns, step, d, s, blocks, length, strips):
    """Items are (outer, block of rows, strip of columns): y[outer, block] = sum of the rows of the block."""
    for item in range(lo, hi):
        strip = item % strips
        block = item // strips % blocks
        outer = item // strips // blocks
        left = strip * _COLUMNS
        width = _least(_COLUMNS, columns - left)
        to = (outer * blocks + block) * columns + left
        first, last = block * length, _least(block * length + length, rows)
        for c in range(width):
            store(y, to + c, 0)
        r = first
        at = outer * step + left * s
        if s == 1:
            while r + 4 <= last:
                _add_four(y, to, x, at + r * d, d, width)
                r += 4
            while r < last:
                add_row(y, to, x, at + r * d, width)
                r += 1
        else:
            while r < last:
                for c in range(width):
                    store(y, to + c, load(y, to + c) + load(x, at + r * d + c * s))
                r += 1


@summing
def _add_four(y, to, x, at, d, width):
    for c in range(width):
        four = (load(x, at + c) + load(x, at + d + c)) + (load(x, at + 2 * d + c) + load(x, at + 3 * d + c))
        store(y, to + c, load(y, to + c) + four)


class _Once:
    """A reduction that is one launch: everything about it but its addresses."""

    __slots__ = ("dtype", "grain", "items", "nbytes", "numbers", "run", "shape", "strides")

    def __init__(self, run: Kernel, shape: Shape, dtype: DType, items: int, grain: int, numbers: Shape) -> None:
        self.run, self.shape, self.dtype = run, shape, dtype
        self.items, self.grain, self.numbers = items, grain, numbers
        self.strides, self.nbytes = shapes.contiguous_strides(shape), math.prod(shape) * dtype.itemsize

    def again(self, x: Array) -> Array:
        """The result for another array of the same shape, strides and dtype."""
        y = new_array(x.buffer.device.allocate(self.nbytes), self.shape, self.dtype, self.strides, 0)
        self.run.launch(self.items, self.grain, x, y, *self.numbers)
        return y


_once: dict[tuple[object, ...], _Once] = {}  # by function, shape, strides, dtype, axes and whether they stay


def _remember(key: tuple[object, ...], once: _Once) -> None:
    if len(_once) >= _REMEMBERED:
        _once.clear()
    _once[key] = once


def sum(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = sum over `axes`; narrow floats and float32 are accumulated in float32 or wider; integers give int64"""
    key = (sum, x.shape, x.strides, x.dtype, axes, keepdims)
    known = _once.get(key)
    if known is not None:
        return known.again(x)
    y = x.device.empty(shapes.reduced(x.shape, axes, keepdims), x.dtype if x.dtype.is_float else dtypes.int64)
    if not x.size:
        fill_(y, value=0)
        return y
    form = _Form(x, axes)
    once = _sum_into(form, y) if form.n_inner == 1 else _sum_down(form, y)
    if once is not None and form.x is x:
        _remember(key, once)
    return y


def _sum_into(form: _Form, y: Array) -> _Once | None:
    """Sums of whole rows; rows longer than _PART go through sums of their parts. Returns what a single launch was."""
    run = _sum_rows if y.dtype.is_float else _sum_int_rows
    n, d = form.n_reduced, form.step_reduced
    parts = -(-n // _PART)
    if parts == 1:
        once = _Once(run, y.shape, y.dtype, form.n_outer, row_grain(n), (form.step_outer, d, n, 1, n))
        run(once.items, once.grain, form.x, y, *once.numbers)
        return once
    kind = dtypes.float64 if y.dtype.is_float else dtypes.int64
    middle = y.device.empty((form.n_outer, parts), kind)
    run(form.n_outer * parts, 1, form.x, middle, form.step_outer, d, n, parts, _PART)
    run(form.n_outer, row_grain(parts), middle, y, parts, 1, parts, 1, parts)
    return None


def _sum_down(form: _Form, y: Array) -> _Once | None:
    """Sums down the columns, by blocks of rows where there are many. Returns what a single launch was."""
    strips = -(-form.n_inner // _COLUMNS)
    length = form.n_reduced
    if form.n_outer * strips < 32:
        length = _most(32, -(-form.n_reduced // 32))
    blocks = -(-form.n_reduced // length)
    kind = accumulator(form.x.dtype)
    parts = y
    if blocks > 1 or kind is not y.dtype:
        parts = y.device.empty((form.n_outer, blocks, form.n_inner), kind)
    items = form.n_outer * blocks * strips
    grain = _most(1, GRAIN // (length * _least(form.n_inner, _COLUMNS)))
    steps = (form.step_outer, form.step_reduced, form.step_inner)
    once = _Once(
        _sum_columns, y.shape, y.dtype, items, grain, (form.n_reduced, form.n_inner, *steps, blocks, length, strips)
    )
    _sum_columns(items, grain, form.x, parts, *once.numbers)
    if parts is y:
        return once
    for o in range(form.n_outer):
        target = Array(y.buffer, (form.n_inner,), y.dtype, (1,), y.offset + o * form.n_inner)
        fold(parts.select(0, o), target)
    return None


# --- extremes ---------------------------------------------------------------------------------------------------------


@kernel
def _max(lo, hi, x, y, n, columns, step, d, s):
    """Items are (outer, inner)."""
    for item in range(lo, hi):
        outer = item // columns
        at = outer * step + (item - outer * columns) * s
        store(y, item, largest(x, at, d, n, load(x, at)))


@kernel
def _min(lo, hi, x, y, n, columns, step, d, s):
    """Items are (outer, inner)."""
    for item in range(lo, hi):
        outer = item // columns
        at = outer * step + (item - outer * columns) * s
        least = load(x, at)
        if d == 1:
            for k in range(n):
                least = smaller(least, load(x, at + k))
        else:
            for k in range(n):
                least = smaller(least, load(x, at + k * d))
        store(y, item, least)


@kernel
def _argmax(lo, hi, x, y, n, columns, step, d, s):
    """Items are (outer, inner): first the largest value, then where it stands first."""
    for item in range(lo, hi):
        outer = item // columns
        at = outer * step + (item - outer * columns) * s
        top = largest(x, at, d, n, load(x, at))
        k = 0
        while k < n - 1 and load(x, at + k * d) != top and load(x, at + k * d) == load(x, at + k * d):
            k += 1
        store(y, item, k)


def max(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = the largest element over `axes`; NaN wins; no axis may be empty"""
    return _along(_max, x, axes, keepdims, x.dtype)


def min(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = the smallest element over `axes`; NaN wins; no axis may be empty"""
    return _along(_min, x, axes, keepdims, x.dtype)


def argmax(x: Array, *, axis: int) -> Array:
    """int64 position of the largest element along `axis`; the lowest position wins a tie, the first NaN wins all"""
    axes = (axis % x.rank,) if x.rank else ()
    return _along(_argmax, x, axes, False, dtypes.int64)


def _along(run: Kernel, x: Array, axes: Shape, keepdims: bool, dtype: DType) -> Array:
    key = (run, x.shape, x.strides, x.dtype, axes, keepdims)
    known = _once.get(key)
    if known is not None:
        return known.again(x)
    y = x.device.empty(shapes.reduced(x.shape, axes, keepdims), dtype)
    if y.size:
        form = _Form(x, axes)
        numbers = (form.n_reduced, form.n_inner, form.step_outer, form.step_reduced, form.step_inner)
        once = _Once(run, y.shape, dtype, y.size, row_grain(form.n_reduced), numbers)
        run(once.items, once.grain, form.x, y, *numbers)
        if form.x is x:
            _remember(key, once)
    return y


# --- running sums -----------------------------------------------------------------------------------------------------


@kernel
def _cumsum(lo, hi, x, y, zero, n, columns, first, d):
    """Items are (outer, inner) of two contiguous arrays; d is -columns from the last element on where reversed."""
    for item in range(lo, hi):
        outer = item // columns
        at = outer * n * columns + item - outer * columns + first
        total = zero
        for _ in range(n):
            total += load(x, at)
            store(y, at, total)
            at += d


def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    """y[i] = x[0] + ... + x[i] along `axis`, or x[i] + ... + x[n-1] with `reverse`"""
    x = contiguous(x)
    y = x.device.empty(x.shape, x.dtype)
    if not x.size:
        return y
    axis %= x.rank
    n, columns = x.shape[axis], math.prod(x.shape[axis + 1 :])
    first, d = ((n - 1) * columns, -columns) if reverse else (0, columns)
    zero = 0.0 if x.dtype.is_float else 0
    _cumsum(x.size // n, row_grain(n), x, y, zero, n, columns, first, d)
    return y
