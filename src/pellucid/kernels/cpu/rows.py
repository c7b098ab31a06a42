"""Along one row: sums and extremes that vectorise, shared by reductions, normalisation and losses.

A row is n elements from position i on, d steps apart. Sums run in the type of the elements (float32 for the 16-bit
formats) in an order that LLVM picks once for the width of a vector: the same n gives the same bits in every run and
on any number of threads. Long rows are summed in pieces, the pieces in float64, so that the error does not grow with
the length. Sums down the columns of a matrix go through partial sums of fixed blocks of rows, folded in order.
"""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .elementwise import GRAIN
from .formats import load, store
from .functions import inlined, larger, like, summing
from .launch import kernel

_PIECE = 256  # elements summed in the element's own precision, in many partial sums, one a lane
_STRIDED_PIECE = 128  # the same where the elements do not fill vectors, in few


def accumulator(dtype: DType) -> DType:
    """The type sums of a dtype are kept in."""
    if not dtype.is_float:
        return dtypes.int64
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def row_grain(width: int, *, cost: int = 1) -> int:
    """Rows a chunk, for rows of `width` elements that cost `cost` additions each."""
    return max(1, GRAIN // max(1, width * cost))


@summing
def sum_piece(x, i, d, n, zero):
    """Sum of a short row, from `zero` on, in the type of `zero`."""
    total = zero
    if d == 1:
        for k in range(n):
            total += load(x, i + k)
    else:
        for k in range(n):
            total += load(x, i + k * d)
    return total


@inlined
def sum_row(x, i, d, n):
    """Sum of a row of floats, in float64; what adding a piece rounds away is kept and added at the end (Knuth, TAOCP
    4.2.2)."""
    total, lost = 0.0, 0.0
    piece = _PIECE if d == 1 else _STRIDED_PIECE
    for k in range(0, n, piece):
        part = np.float64(sum_piece(x, i + k * d, d, min(piece, n - k), like(0, load(x, i))))
        after = total + part
        added = after - total
        lost += (total - (after - added)) + (part - added)
        total = after
    return total + lost if lost == lost else total  # infinity leaves no number behind


@inlined
def largest(x, i, d, n, floor):
    """The largest of a row and `floor`; NaN wins."""
    top = floor
    if d == 1:
        for k in range(n):
            top = larger(top, load(x, i + k))
    else:
        for k in range(n):
            top = larger(top, load(x, i + k * d))
    return top


@inlined
def add_row(total, t, x, i, n):
    """total += x for n elements side by side."""
    for k in range(n):
        store(total, t + k, load(total, t + k) + load(x, i + k))


# --- sums down the columns --------------------------------------------------------------------------------------------


@kernel
def _fold(lo, hi, parts, y, blocks, width):
    """y[c] = sum of parts[b, c] over the blocks in order, for columns lo to hi-1; uses up parts[0]."""
    for b in range(1, blocks):
        add_row(parts, lo, parts, b * width + lo, hi - lo)
    for c in range(lo, hi):
        store(y, c, load(parts, c))


def fold(parts: Array, y: Array) -> Array:
    """y = sum of parts over their first axis, in order; parts is used up. parts: (blocks, ...), y: (...)"""
    blocks = parts.shape[0]
    width = y.size
    _fold(width, max(64, GRAIN // max(1, blocks)), parts, y, blocks, width)
    return y


def row_blocks(rows: int) -> tuple[int, int]:
    """How many blocks, of how many rows, a sum over rows is split into: by the number of rows alone."""
    length = max(16, -(-rows // 64))
    return max(1, -(-rows // length)), length
