"""Inference with matrices that are only held to be multiplied: int8 with a scale a row, bfloat16, or float32.

`decode_token` is a whole Llama for one new token; it is defined by the kernels it stands for (`read_tokens`).
"""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from ..llama import Llama, read_tokens
from .host import compute_dtype, read, rounded, write


def quantize(x: Array) -> tuple[Array, Array]:
    """Rows as int8: scale = max |row| / 127 in float32, values = round(row / scale), halves to even, within +-127.

    x: (N, K). Returns values (N, K) and scale (N,). The quotient is taken in float64, so that it rounds alike
    everywhere. A row of zeros has scale 0; one that is not finite has scale NaN and values 0.
    """
    rows = read(x).astype(np.float64)
    with np.errstate(all="ignore"):
        scale = (np.abs(rows).max(axis=1, initial=0) / 127).astype(np.float32)
        scale = np.where(np.isfinite(rows).all(axis=1), scale, np.float32(np.nan))
        values = np.rint(rows / scale.astype(np.float64)[:, None])
        values = np.where(scale[:, None] > 0, np.clip(values, -127, 127), 0)
    return write(x, values, dtypes.int8), write(x, scale, dtypes.float32)


def dequantize(values: Array, scale: Array, *, dtype: DType) -> Array:
    """y = values scale.   values: (N, K) int8, scale: (N,)"""
    return write(values, read(values) * read(scale)[:, None], dtype)


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
    with np.errstate(all="ignore"):
        y = rounded(read(x), operand_dtype) @ _weight(weight, operand_dtype, read(x).dtype).T
        y = y if scale is None else y * read(scale)
        for added in (bias, residual):
            y = y if added is None else y + read(added)
        return write(x, y, compute_dtype(x))


def held_linear_backward(dy: Array, weight: Array, scale: Array | None = None, *, operand_dtype: DType | None) -> Array:
    """dx = (dy scale) weight.   dy: (M, N), weight: (N, K) int8, bfloat16 or float32, scale: (N,), dx: (M, K)

    operand_dtype: dy scale, and a weight that is no integer, are rounded to it first; sums are float32.
    """
    with np.errstate(all="ignore"):
        scaled = read(dy) if scale is None else read(dy) * read(scale)
        return write(dy, rounded(scaled, operand_dtype) @ _weight(weight, operand_dtype, read(dy).dtype))


def _weight(weight: Array, operand_dtype: DType | None, like: np.dtype) -> np.ndarray:
    return (rounded(read(weight), operand_dtype) if weight.dtype.is_float else read(weight)).astype(like)


def decode_token(llama: Llama, *, token: int, position: int) -> Array:
    """Logits behind a token: x = table[token]; for each layer x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x));
    y = rmsnorm(x) head^T   (Touvron et al. 2023).   y: (V,)

    The caches are filled up to the position, whose rows are written.
    """
    ids = write(llama.table, [token], dtypes.int64)
    return read_tokens(llama, ids, position=position, last_only=True).select(0, 0)
