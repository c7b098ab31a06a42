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


def small_plan(a: Array, b: Array, bias: Array | None, operand: DType | None) -> SmallPlan | None:
    """The plan of a product of two matrices of float32, or of float64, that is small; None for any other."""
    plain = a.dtype is b.dtype and a.dtype.itemsize >= 4 and operand is None
    if not plain or a.rank != 2 or b.rank != 2 or (bias is not None and bias.dtype is not a.dtype):
        return None
    return SmallPlan(a, b, bias) if 0 < prod(a.shape) * b.shape[1] <= _MOST else None
