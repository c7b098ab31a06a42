"""Matrix products too small for tiles: one launch of three plain loops, where planning and packing would cost more.

Every sum runs over k in order, one fused multiply and add a step where the host has it, and the bias comes last: the
arithmetic of a tile, and its very bits.
"""

from __future__ import annotations

from math import prod

from ...base import shapes
from ...base.dtypes import DType
from ...device import Array
from ...device.blocks import new_array
from .elementwise import words
from .formats import load, store
from .functions import like
from .launch import kernel

_REMEMBERED = 4096  # plans of gradients
_MOST = 1024  # multiplications: less work than the rest of a launch of tiles


@kernel
def _product(lo, hi, a, b, bias, y, table):
    """Items are rows of y. The table holds k, n, the steps of a's rows and k, of b's k and columns, of the bias, and
    whether there is one."""
    k, n, a_row, a_step = load(table, 0), load(table, 1), load(table, 2), load(table, 3)
    b_step, b_column, bias_step, biased = load(table, 4), load(table, 5), load(table, 6), load(table, 7)
    for i in range(lo, hi):
        for j in range(n):
            total = like(0, load(a, 0))
            for s in range(k):
                total += load(a, i * a_row + s * a_step) * load(b, s * b_step + j * b_column)
            store(y, i * n + j, total + load(bias, j * bias_step) if biased else total)


@kernel
def _gradients(lo, hi, dy, x, weight, dx, dweight, dbias, table):
    """Those of a linear map, the wanted ones: one item. The table holds rows, n, k, the steps of rows and columns of
    dy, x and weight, then which are wanted."""
    rows, n, k = load(table, 0), load(table, 1), load(table, 2)
    dy_row, dy_column, x_row, x_column = load(table, 3), load(table, 4), load(table, 5), load(table, 6)
    w_row, w_column = load(table, 7), load(table, 8)
    zero = like(0, load(dy, 0))
    for _ in range(lo, hi):
        if load(table, 9):
            for i in range(rows):
                for j in range(k):
                    total = zero
                    for s in range(n):
                        total += load(dy, i * dy_row + s * dy_column) * load(weight, s * w_row + j * w_column)
                    store(dx, i * k + j, total)
        if load(table, 10):
            for s in range(n):
                for j in range(k):
                    total = zero
                    for i in range(rows):
                        total += load(dy, i * dy_row + s * dy_column) * load(x, i * x_row + j * x_column)
                    store(dweight, s * k + j, total)
        if load(table, 11):
            for s in range(n):
                total = zero
                for i in range(rows):
                    total += load(dy, i * dy_row + s * dy_column)
                store(dbias, s, total)


class SmallPlan:
    """A small product: everything about it but its addresses."""

    __slots__ = ("dtype", "nbytes", "rows", "shape", "strides", "table")

    def __init__(self, a: Array, b: Array, bias: Array | None) -> None:
        self.rows, k = a.shape
        n = b.shape[1]
        self.shape, self.dtype = (self.rows, n), a.dtype
        self.strides = shapes.contiguous_strides(self.shape)
        self.nbytes = self.rows * n * a.dtype.itemsize
        self.table = words([k, n, *a.strides, *b.strides, *((0, 0) if bias is None else (bias.strides[0], 1))])

    def run(self, a: Array, b: Array, bias: Array | None) -> Array:
        y = new_array(a.buffer.device.allocate(self.nbytes), self.shape, self.dtype, self.strides, 0)
        # One chunk, and never a grain of 1: this is done before Python's lock could be handed over.
        rows = self.rows
        _product.launch(rows, rows + 1, a, b, a if bias is None else bias, y, self.table)
        return y

    def run_into(self, y: Array, a: Array, b: Array, bias: Array | None) -> None:
        """The same in memory that is there."""
        rows = self.rows
        _product.launch(rows, rows + 1, a, b, a if bias is None else bias, y, self.table)


def small_plan(a: Array, b: Array, bias: Array | None, operand: DType | None, result: DType | None) -> SmallPlan | None:
    """The plan of a product of two matrices of float32, or of float64, that is small; None for any other."""
    if operand is not None or result not in (None, a.dtype) or a.rank != 2 or b.rank != 2:
        return None
    if bias is not None and (bias.dtype is not a.dtype or bias.rank != 1):
        return None
    return SmallPlan(a, b, bias) if _plain(a, b) and 0 < prod(a.shape) * b.shape[1] <= _MOST else None


def _plain(a: Array, b: Array) -> bool:
    return a.dtype is b.dtype and a.dtype.itemsize >= 4


class GradientPlan:
    """The gradients of a small linear map: everything about them but their addresses. None: not wanted."""

    __slots__ = ("dbias", "dtype", "dweight", "dx", "table")

    def __init__(self, dy: Array, x: Array, weight: Array, wanted: tuple[bool, bool, bool]) -> None:
        (rows, n), k = dy.shape, x.shape[1]
        self.dtype = dy.dtype
        self.dx, self.dweight, self.dbias = (
            (prod(shape) * dy.dtype.itemsize, shape, shapes.contiguous_strides(shape)) if want else None
            for shape, want in zip(((rows, k), (n, k), (n,)), wanted, strict=True)
        )
        self.table = words([rows, n, k, *dy.strides, *x.strides, *weight.strides, *wanted])

    def run(self, dy: Array, x: Array, weight: Array) -> tuple[Array | None, Array | None, Array | None]:
        """dx, dweight, dbias in one launch."""
        allocate, dtype = dy.buffer.device.allocate, self.dtype
        dx = dweight = dbias = None
        if self.dx is not None:
            nbytes, shape, strides = self.dx
            dx = new_array(allocate(nbytes), shape, dtype, strides, 0)
        if self.dweight is not None:
            nbytes, shape, strides = self.dweight
            dweight = new_array(allocate(nbytes), shape, dtype, strides, 0)
        if self.dbias is not None:
            nbytes, shape, strides = self.dbias
            dbias = new_array(allocate(nbytes), shape, dtype, strides, 0)
        _gradients.launch(1, 2, dy, x, weight, dx or dy, dweight or dy, dbias or dy, self.table)
        return dx, dweight, dbias


_gradient_plans: dict[tuple[object, ...], GradientPlan | None] = {}


def gradient_plan(
    dy: Array, x: Array, weight: Array, for_x: bool, for_weight: bool, for_bias: bool
) -> GradientPlan | None:
    """The plan of the gradients of a linear map of float32, or of float64, that is small; None for any other."""
    kinds = dy.dtype, x.dtype, weight.dtype
    key = (dy.shape, dy.strides, x.shape, x.strides, weight.strides, kinds, for_x, for_weight, for_bias)
    try:
        return _gradient_plans[key]
    except KeyError:
        small = 0 < prod(dy.shape) * x.shape[1] <= _MOST and _plain(dy, x) and _plain(dy, weight)
        plan = GradientPlan(dy, x, weight, (for_x, for_weight, for_bias)) if small else None
        if len(_gradient_plans) >= _REMEMBERED:
            _gradient_plans.clear()
        _gradient_plans[key] = plan
        return plan
