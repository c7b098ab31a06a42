"""Matrices held for inference: int8 rows and back, and the linear map of one.

A few rows of x (a decode step, several texts, a short prompt) take the passes of `products_ir.py`, which read the
matrix as it lies. Many rows take the matrix product: int8 is a whole number in bfloat16 and in float32, so packing
makes operands of the weights without an error, and the scales go into the result.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...base.errors import DTypeError, ShapeError
from ...device import Array, pool
from . import digits_ir, ir, isa, products_ir
from .formats import load, store
from .launch import kernel
from .matmul import matmul
from .memory import cast, contiguous
from .products_ir import LINES, PREPARE, PRODUCT, SEGMENT, SEGMENTS
from .rows import row_grain
from .vectors_ir import Format

_FEW = 16  # rows of x at most for which the matrix is read as it lies, not packed
_FEW_WIDE = 32  # the same with vectors of a cache line, where products have no tile registers
_PREPARED = 4  # rows of x that one thread prepares: sharing them out would cost more
_ITEM_BYTES = 192 << 10  # of weights in an item of work, about: some microseconds
_NEVER = 1 << 62  # where a matrix that is not there would start


@dataclass(frozen=True)
class Passes:
    """Addresses of the native passes; `digits`: whether they can use x as digits."""

    prepare: int
    product: int
    gated: int
    digits: bool


@cache
def passes(weight: DType, operand: DType | None, path: isa.Isa) -> Passes:
    """The passes for weights of a dtype. Raises DTypeError for others than int8, bfloat16 and float32."""
    if weight not in (dtypes.int8, dtypes.bfloat16, dtypes.float32):
        raise DTypeError("held_linear", "can't be held", got=weight.name, expected="int8, bfloat16 or float32")
    if operand not in (None, dtypes.bfloat16):
        raise DTypeError("held_linear", "operands can't be rounded to this", got=operand, expected="bfloat16 or None")
    form = Format("float32" if operand is None else "rounded", path)
    engine = ir.compile_functions(products_ir.passes_text(form, weight.name), path)
    prepare, product, gated = map(engine.get_function_address, ("prepare", "product", "gated"))
    return Passes(prepare, product, gated, weight is dtypes.int8 and digits_ir.digits_of(path) is not None)


def prepare_words(k: int, *, eps: float | None = None) -> array[int]:
    """A block of `prepare` without its addresses, for rows of k numbers; eps: of the norm there will be."""
    words = array("q", bytes(8 * len(PREPARE)))
    words[PREPARE.index("x_row")] = words[PREPARE.index("out_row")] = 4 * k
    words[PREPARE.index("k")] = k
    words[PREPARE.index("digits_row")] = digits_ir.digits_bytes(k)
    (words[PREPARE.index("eps")],) = struct.unpack("<i", struct.pack("<f", eps or 0.0))
    return words


def product_words(
    k: int, lines: list[int], itemsize: int, *, rows: int = 1, gated: bool = False
) -> tuple[array[int], int]:
    """A block of `product` or `gated` without its addresses, for matrices of so many lines; and the items."""
    words = array("q", bytes(8 * (len(PRODUCT) + SEGMENTS * len(SEGMENT))))
    total = lines[0] if gated else sum(lines)  # lines that items share out
    size, threads = sum(lines) * k * itemsize, pool.threads()
    items = threads * max(1, round(size / (threads * _ITEM_BYTES)))
    per_task = min(LINES, -(-total // (16 * items)) * 16)
    facts = {"k": k, "rows": rows, "x_row": 4 * k, "digits_row": digits_ir.digits_bytes(k), "per_task": per_task}
    for name, value in {**facts, "y_row": 4 * lines[0]}.items():
        words[PRODUCT.index(name)] = value
    start = 0
    for i in range(SEGMENTS):
        count = lines[i] if i < len(lines) else 0
        words[segment_word(i, "start")] = start if count else _NEVER
        words[segment_word(i, "line_step")], words[segment_word(i, "lines")] = k * itemsize, count
        start += -(-count // per_task)
    return words, start // len(lines) if gated else start


@lru_cache(1024)
def _blank(k: int, n: int, itemsize: int, rows: int, threads: int) -> tuple[array[int], array[int], int]:
    """The blocks of `prepare` and `product` for one matrix, to be copied and filled in; and the items, which are for
    this many threads."""
    return prepare_words(k), *product_words(k, [n], itemsize, rows=rows)


def segment_word(i: int, name: str) -> int:
    """The number of a word about matrix i in the block of a product."""
    return len(PRODUCT) + i * len(SEGMENT) + SEGMENT.index(name)


_X, _OUT, _P_DIGITS = (PREPARE.index(name) for name in ("x", "out", "digits"))
_FROM, _DIGITS, _RESIDUAL = (PRODUCT.index(name) for name in ("x", "digits", "residual"))
_WEIGHT, _SCALE, _BIAS, _Y = (segment_word(0, name) for name in ("weight", "scale", "bias", "y"))


def held_linear(
    x: Array,
    weight: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    operand_dtype: DType | None,
) -> Array:
    """y = (x weight^T) scale + bias + residual.

    x: (M, K) float32 or of the operands' dtype, weight: (N, K) int8, bfloat16 or float32, scale, bias: (N,), residual
    and y: (M, N) float32. operand_dtype: x, and a weight that is no integer, are rounded to it first; sums are float32.
    """
    if x.rank != 2 or weight.rank != 2 or x.shape[1] != weight.shape[1]:
        got, expected = f"x {x.shape}, weight {weight.shape}", "(M, K) and (N, K)"
        raise ShapeError("held_linear", "the weight does not fit x", got=got, expected=expected)
    (m, k), n = x.shape, weight.shape[0]
    if residual is not None and residual.shape != (m, n):
        raise ShapeError("held_linear", "the residual does not fit the result", got=residual.shape, expected=(m, n))
    for a in (None if x.dtype is operand_dtype else x, scale, bias, residual):
        if a is not None and a.dtype is not dtypes.float32:
            raise DTypeError("held_linear", "not what it is computed in", got=a.dtype.name, expected="float32")
    path = isa.current()
    code = passes(weight.dtype, operand_dtype, path)
    few = _FEW_WIDE if path.vector == 64 and not path.tiles else _FEW
    if not 0 < m <= few or not k * n:
        return _many(x, weight, scale, bias, residual, operand_dtype)
    x = contiguous(x) if x.dtype is dtypes.float32 else cast(x, dtype=dtypes.float32)
    weight = contiguous(weight)
    scale, bias, residual = (None if a is None else contiguous(a) for a in (scale, bias, residual))
    device = x.device
    y = device.empty((m, n), dtypes.float32)
    scratch = device.allocate(m * (4 * k + digits_ir.digits_bytes(k)) + 64)
    blank, product, items = _blank(k, n, weight.dtype.itemsize, m, pool.threads())
    words, block = blank[:], product[:]
    alone = m < products_ir.rows_together(path)
    digits = scratch.address if alone and code.digits and digits_ir.fits_digits(k) else 0
    words[_X], words[_OUT], words[_P_DIGITS] = x.address, scratch.address + m * digits_ir.digits_bytes(k), digits
    pool.run(code.prepare, words.buffer_info()[0], m, _PREPARED)
    block[_FROM], block[_DIGITS], block[_WEIGHT], block[_Y] = words[_OUT], digits, weight.address, y.address
    for word, array_ in ((_SCALE, scale), (_BIAS, bias), (_RESIDUAL, residual)):
        block[word] = 0 if array_ is None else array_.address
    pool.run(code.product, block.buffer_info()[0], items, max(1, items // 64))
    return y


def held_linear_backward(dy: Array, weight: Array, scale: Array | None = None, *, operand_dtype: DType | None) -> Array:
    """dx = (dy scale) weight.   dy: (M, N), weight: (N, K) int8, bfloat16 or float32, scale: (N,), dx: (M, K)

    operand_dtype: dy scale, and a weight that is no integer, are rounded to it first; sums are float32.
    """
    if dy.rank != 2 or weight.rank != 2 or dy.shape[1] != weight.shape[0]:
        got, expected = f"dy {dy.shape}, weight {weight.shape}", "(M, N) and (N, K)"
        raise ShapeError("held_linear_backward", "the weight does not fit dy", got=got, expected=expected)
    scaled = dy
    if scale is not None:
        (m, n), dy, scale = dy.shape, contiguous(dy), contiguous(scale)
        scaled = dy.device.empty((m, n), dtypes.float32)
        _scaled_rows(m, row_grain(n), dy, scale, scaled, n)
    return matmul(scaled, weight, operand_dtype=operand_dtype, result_dtype=dtypes.float32)


@kernel
def _scaled_rows(lo, hi, x, scale, y, n):
    """y = x scale for rows lo to hi-1."""
    for row in range(lo, hi):
        for j in range(row * n, row * n + n):
            store(y, j, load(x, j) * load(scale, j - row * n))


def _many(
    x: Array,
    weight: Array,
    scale: Array | None,
    bias: Array | None,
    residual: Array | None,
    operand: DType | None,
) -> Array:
    starts, n = None, weight.shape[0]  # what the product starts from, which costs less than a pass behind it
    if weight.dtype.is_float and scale is None:
        starts, bias, residual = (bias, None, None) if residual is None else (residual, bias, None)
    y = matmul(x, weight.transpose(), starts, operand_dtype=operand, result_dtype=dtypes.float32)
    given = (scale, bias, residual)
    if any(a is not None for a in given):
        arrays = [y if a is None else contiguous(a) for a in given]
        _finish_rows(y.shape[0], row_grain(n), y, *arrays, n, *(a is not None for a in given))
    return y


@kernel
def _finish_rows(lo, hi, y, scale, bias, residual, n, scaled, biased, added):
    """y = y scale + bias + residual for rows lo to hi-1."""
    for row in range(lo, hi):
        i = row * n
        if scaled:
            for j in range(n):
                store(y, i + j, load(y, i + j) * load(scale, j))
        if biased:
            for j in range(n):
                store(y, i + j, load(y, i + j) + load(bias, j))
        if added:
            for j in range(n):
                store(y, i + j, load(y, i + j) + load(residual, i + j))


@kernel
def _quantize(lo, hi, x, values, scale, k):
    for row in range(lo, hi):
        i = row * k
        high, bad = np.float64(0), np.float64(0)
        for j in range(k):
            v = np.float64(load(x, i + j))
            high = max(high, abs(v))
            bad += v - v
        s = np.float32(high / 127)
        store(scale, row, s if bad == 0 else np.float32(np.nan))
        for j in range(k):
            q = np.rint(np.float64(load(x, i + j)) / np.float64(s)) if bad == 0 and s > 0 else 0.0
            store(values, i + j, np.int8(min(127.0, max(-127.0, q))))


@kernel
def _dequantize(lo, hi, values, scale, y, k):
    for row in range(lo, hi):
        i, s = row * k, load(scale, row)
        for j in range(k):
            store(y, i + j, np.float32(load(values, i + j)) * s)


def quantize(x: Array) -> tuple[Array, Array]:
    """Rows as int8: scale = max |row| / 127 in float32, values = round(row / scale), halves to even, within +-127.

    x: (N, K). Returns values (N, K) and scale (N,). The quotient is taken in float64, so that it rounds alike
    everywhere. A row of zeros has scale 0; one that is not finite has scale NaN and values 0.
    """
    x = contiguous(x)
    values, scale = x.device.empty(x.shape, dtypes.int8), x.device.empty(x.shape[:1], dtypes.float32)
    _quantize(x.shape[0], row_grain(x.shape[1]), x, values, scale, x.shape[1])
    return values, scale


def dequantize(values: Array, scale: Array, *, dtype: DType) -> Array:
    """y = values scale.   values: (N, K) int8, scale: (N,)"""
    values, scale = contiguous(values), contiguous(scale)
    y = values.device.empty(values.shape, dtype)
    n, k = values.shape
    _dequantize(n, row_grain(k), values, scale, y, k)
    return y
