"""Walking over strided arrays: what every element-by-element kernel is made of.

A `Plan` describes, for one combination of shapes and strides, how the operands run: their common shape with adjacent
axes merged wherever no operand minds, the innermost axis being the loop that vectorises. Contiguous arrays of one
shape merge to a single axis, so the general case costs nothing there. Plans are remembered, and reach the compiled
code as a small array of integers; arrays do by a pointer to their first element (`pointer`), so that one compiled
kernel serves every rank.

`unary` and `binary` turn a function of numbers into such a kernel; `map1` and `map2` run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base import dtypes, shapes
from ...base.dtypes import DType
from ...base.shapes import Shape
from ...device import Array, cpu
from ...device.blocks import new_array
from .formats import load, store
from .functions import inlined
from .launch import Kernel, kernel
from .wide import VECTOR, step, through1, through1to2, through2

GRAIN = 8192  # elements a chunk: a few microseconds of work
_REMEMBERED = 4096
_ONE = (1,)


def words(values: list[int]) -> Array:
    """Integers as an argument of a kernel."""
    return cpu.upload(np.asarray(values, np.int64), dtypes.int64)


class Plan:
    """How k operands run through `size` elements of a common `shape`.

    `table` holds the length of the innermost axis, the number of the outer ones, k innermost steps, then for each
    outer axis, from the inside out, its length and k steps.
    """

    __slots__ = ("__weakref__", "axes", "shape", "size", "strides", "table")

    def __init__(self, shape: Shape, operands: list[Shape]) -> None:
        self.shape, self.strides = shape, shapes.contiguous_strides(shape)
        self.axes = merged(shape, operands)
        self.size = math.prod(shape)
        self.table = words(laid_out(self.axes))


def laid_out(axes: list[tuple[int, Shape]]) -> list[int]:
    """A plan's table for these axes."""
    n, steps = axes[-1]
    values = [n, len(axes) - 1, *steps]
    for n, steps in reversed(axes[:-1]):
        values += [n, *steps]
    return values


def merged(shape: Shape, operands: list[Shape]) -> list[tuple[int, Shape]]:
    """Axes as (length, a step for each operand): none of length 1, neighbours joined where all steps allow it."""
    axes: list[tuple[int, Shape]] = []
    for n, *steps in zip(shape, *operands, strict=True):
        if n == 1:
            continue
        if axes and all(outer == n * step for outer, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * n, tuple(steps))
        else:
            axes.append((n, tuple(steps)))
    return axes or [(1, (1,) * len(operands))]


_plans: dict[tuple[Shape, ...], Plan] = {}


def plan(*operands: Shape) -> Plan:
    """The plan for a fresh result of the operands given as shape, strides, shape, strides, ... that broadcast."""
    found = _plans.get(operands)
    if found is None:
        shape = operands[0] if len(operands) == 2 else shapes.broadcast(*operands[::2])
        steps = [_stretched(s, t, shape) for s, t in zip(operands[::2], operands[1::2], strict=True)]
        found = _keep(operands, Plan(shape, [shapes.contiguous_strides(shape), *steps]))
    return found


def plan_of(target: Array) -> Plan:
    """The plan for one strided array alone."""
    key = (target.shape, target.strides, ())
    found = _plans.get(key)
    return _keep(key, Plan(target.shape, [target.strides])) if found is None else found


def plan_into(target: Array, source: Array) -> Plan:
    """The plan for writing `source`, broadcast, into a strided target."""
    key = (target.shape, target.strides, source.shape, source.strides, ())
    found = _plans.get(key)
    if found is None:
        steps = [target.strides, _stretched(source.shape, source.strides, target.shape)]
        found = _keep(key, Plan(target.shape, steps))
    return found


def _keep(key: tuple[Shape, ...], made: Plan) -> Plan:
    if len(_plans) >= _REMEMBERED:
        _plans.clear()
    _plans[key] = made
    return made


def _stretched(shape: Shape, strides: Shape, to: Shape) -> Shape:
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


# --- inside the kernels -----------------------------------------------------------------------------------------------


@inlined
def start(table, k, operand, row):
    """Steps from the first element of an operand to its first element in a row of the innermost axis."""
    position, at = 0, 2 + k
    left = load(table, 1)
    while left > 1:
        n = load(table, at)
        above = row // n
        position += (row - above * n) * load(table, at + 1 + operand)
        row, at, left = above, at + k + 1, left - 1
    if left == 1:
        position += row * load(table, at + 1 + operand)
    return position


def unary(function: Callable[..., Any]) -> Kernel:
    """The kernel y = function(x); elements lo to hi-1 in the order of the result."""
    return _unary(function, inlined(_no_blocks))


def unary_of_blocks(function: Callable[..., Any]) -> Kernel:
    """The same for a function that takes `wide` blocks too."""
    scalar = inlined(function)

    def blocks(y, i, x, j, n):
        """y = function(x) for as many of n elements as fill blocks; returns how many."""
        done = 0
        if step(y, VECTOR) * step(x, VECTOR) > 0:
            done = n - n % step(x, VECTOR)
            for k in range(0, done, step(x, VECTOR)):
                through1(scalar, y, i + k, x, j + k)
        return done

    return _unary(function, inlined(blocks))


def _no_blocks(y, i, x, j, n):
    return 0


def _unary(function: Callable[..., Any], blocks: Any) -> Kernel:
    scalar = inlined(function)

    def body(lo, hi, y, x, table):
        width = load(table, 0)
        i = lo
        while i < hi:
            row = i // width
            column = i - row * width
            n = min(hi - i, width - column)
            dy, dx = load(table, 2), load(table, 3)
            iy, ix = start(table, 2, 0, row) + column * dy, start(table, 2, 1, row) + column * dx
            if dy == 1 and dx == 1:
                for k in range(blocks(y, iy, x, ix, n), n):
                    store(y, iy + k, scalar(load(x, ix + k)))
            else:
                for k in range(n):
                    store(y, iy + k * dy, scalar(load(x, ix + k * dx)))
            i += n

    body.__name__ = function.__name__
    return kernel(body)


def unary_to_two(function: Callable[..., Any]) -> Kernel:
    """The kernel y, z = function(x), for a function that takes `wide` blocks too."""
    scalar = inlined(function)

    def body(lo, hi, y, z, x, table):
        width, dx = load(table, 0), load(table, 3)
        i = lo
        while i < hi:
            row = i // width
            column = i - row * width
            n, done = min(hi - i, width - column), 0
            ix = start(table, 2, 1, row) + column * dx
            if step(y, VECTOR) * step(z, VECTOR) * step(x, VECTOR) > 0 and dx == 1:
                done = n - n % step(x, VECTOR)
                for k in range(0, done, step(x, VECTOR)):
                    through1to2(scalar, y, i + k, z, i + k, x, ix + k)
            for k in range(done, n):
                a, b = scalar(load(x, ix + k * dx))
                store(y, i + k, a)
                store(z, i + k, b)
            i += n

    body.__name__ = function.__name__
    return kernel(body)


def binary(function: Callable[..., Any]) -> Kernel:
    """The kernel y = function(a, b); elements lo to hi-1 in the order of the result."""
    return _binary(function, inlined(_no_pairs))


def binary_of_blocks(function: Callable[..., Any]) -> Kernel:
    """The same for a function that takes `wide` blocks too."""
    scalar = inlined(function)

    def blocks(y, i, a, j, b, k, n):
        """y = function(a, b) for as many of n elements as fill blocks; returns how many."""
        done = 0
        if step(y, VECTOR) * step(a, VECTOR) * step(b, VECTOR) > 0:
            done = n - n % step(a, VECTOR)
            for m in range(0, done, step(a, VECTOR)):
                through2(scalar, y, i + m, a, j + m, b, k + m)
        return done

    return _binary(function, inlined(blocks))


def _no_pairs(y, i, a, j, b, k, n):
    return 0


def _binary(function: Callable[..., Any], blocks: Any) -> Kernel:
    scalar = inlined(function)

    def body(lo, hi, y, a, b, table):
        width = load(table, 0)
        i = lo
        while i < hi:
            row = i // width
            column = i - row * width
            n = min(hi - i, width - column)
            da, db = load(table, 3), load(table, 4)
            ia, ib = start(table, 3, 1, row) + column * da, start(table, 3, 2, row) + column * db
            if da == 1 and db == 1:
                for k in range(blocks(y, i, a, ia, b, ib, n), n):
                    store(y, i + k, scalar(load(a, ia + k), load(b, ib + k)))
            elif da == 1 and db == 0:
                right = load(b, ib)
                for k in range(n):
                    store(y, i + k, scalar(load(a, ia + k), right))
            else:
                for k in range(n):
                    store(y, i + k, scalar(load(a, ia + k * da), load(b, ib + k * db)))
            i += n

    body.__name__ = function.__name__
    return kernel(body)


# --- running them -----------------------------------------------------------------------------------------------------


def fresh(p: Plan, like: Array, dtype: DType) -> Array:
    """The result of a plan, uninitialised."""
    return new_array(like.buffer.device.allocate(p.size * dtype.itemsize), p.shape, dtype, p.strides, 0)


def map1(function: Kernel, x: Array, dtype: DType | None = None) -> Array:
    """A fresh array of function(x)."""
    p = _plans.get((x.shape, x.strides)) or plan(x.shape, x.strides)
    dtype = dtype or x.dtype
    y = new_array(x.buffer.device.allocate(p.size * dtype.itemsize), p.shape, dtype, p.strides, 0)
    function.launch(p.size, GRAIN, y, x, p.table)
    return y


def map1to2(function: Kernel, x: Array) -> tuple[Array, Array]:
    """Two fresh arrays, y and z of function(x)."""
    p = plan(x.shape, x.strides)
    y, z = fresh(p, x, x.dtype), fresh(p, x, x.dtype)
    function.launch(p.size, GRAIN, y, z, x, p.table)
    return y, z


def map2(function: Kernel, a: Array, b: Array, dtype: DType | None = None) -> Array:
    """A fresh array of function(a, b), broadcast."""
    p = _plans.get((a.shape, a.strides, b.shape, b.strides)) or plan(a.shape, a.strides, b.shape, b.strides)
    dtype = dtype or a.dtype
    y = new_array(a.buffer.device.allocate(p.size * dtype.itemsize), p.shape, dtype, p.strides, 0)
    function.launch(p.size, GRAIN, y, a, b, p.table)
    return y
