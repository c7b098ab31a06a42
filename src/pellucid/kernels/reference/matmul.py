"""Matrix products of any rank; the only kernel family whose cost is arithmetic."""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .host import Host, read, write
from .reduce import sum as sum_of


def matmul(a: Array, b: Array, bias: Array | None = None, *, operand_dtype: DType | None = None) -> Array:
    """y = a @ b + bias.   a: (..., M, K), b: (..., K, N), bias: (N,), batch axes broadcast, any strides.

    One dtype for all; narrow floats are accumulated in float32. operand_dtype: a and b are rounded to it first
    (bfloat16 for mixed precision), sums and result keep the dtype of `a`.
    """
    left, right = _operand(a, operand_dtype), _operand(b, operand_dtype)
    with np.errstate(all="ignore"):
        y = np.matmul(left, right)
        return write(a, y if bias is None else y + read(bias))


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
    """dx = dy weight, dweight = dy^T x, dbias = sum dy over rows: those wanted, None for the others.

    dy: (M, N), x: (M, K), weight: (N, K); operand_dtype as in `matmul`.
    """
    return (
        matmul(dy, weight, operand_dtype=operand_dtype) if for_x else None,
        matmul(dy.transpose(), x, operand_dtype=operand_dtype) if for_weight else None,
        sum_of(dy, axes=(0,), keepdims=False) if for_bias else None,
    )


def _operand(x: Array, dtype: DType | None) -> Host:
    value = read(x)
    if dtype is None or dtype in (dtypes.float32, dtypes.float64):
        return value
    with np.errstate(all="ignore"):
        return value.astype(dtype.numpy).astype(value.dtype)
