"""Matrix products of any rank; the only kernel family whose cost is arithmetic."""

from __future__ import annotations

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from .host import read, rounded, write
from .pointwise import cast
from .reduce import sum as sum_of


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    operand_dtype: DType | None = None,
    result_dtype: DType | None = None,
) -> Array:
    """y = a @ b + bias.   a: (..., M, K), b: (..., K, N), batch axes broadcast, any strides; bias: (N,), or
    (M, N) where that is the shape of y. b may be int8, which is whole numbers: weights that are held.

    One dtype for all else; narrow floats are accumulated in float32. operand_dtype: a and b are rounded to it first
    (bfloat16 for mixed precision), sums and result keep the dtype of `a`. result_dtype: of the result instead.
    """
    left, right = rounded(read(a), operand_dtype), rounded(read(b), operand_dtype)
    with np.errstate(all="ignore"):
        y = np.matmul(left, right)
        return write(a, y if bias is None else y + read(bias), result_dtype)


def linear_backward(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    operand_dtype: DType | None,
    for_x: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[Array | None, Array | None, Array | None]:
    """dx = dy weight, dweight = dy^T x, dbias = sum dy over rows: those wanted, None for the others. dx has the dtype
    of x, dweight and dbias that of weight.

    dy: (M, N), x: (M, K), weight: (N, K); operand_dtype as in `matmul`.
    """
    dx = dweight = dbias = None
    if for_x:
        dx = matmul(dy, weight, operand_dtype=operand_dtype, result_dtype=x.dtype)
    if for_weight:
        dweight = matmul(dy.transpose(), x, operand_dtype=operand_dtype, result_dtype=weight.dtype)
    if for_bias:
        wide = dy if dy.dtype is weight.dtype else cast(dy, dtype=weight.dtype)
        dbias = sum_of(wide, axes=(0,), keepdims=False)
    return dx, dweight, dbias
