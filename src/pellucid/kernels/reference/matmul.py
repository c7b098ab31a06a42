"""Matrix products of any rank; the only kernel family whose cost is arithmetic."""

from __future__ import annotations

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from .host import read, rounded, write


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    operand_dtype: DType | None = None,
    result_dtype: DType | None = None,
) -> Array:
    """y = a @ b + bias.   a: (..., M, K), b: (..., K, N), batch axes broadcast, any strides; bias: (N,), or
    (M, N) where that is the shape of y.

    One dtype for all; narrow floats are accumulated in float32. operand_dtype: a and b are rounded to it first
    (bfloat16 for mixed precision), sums and result keep the dtype of `a`. result_dtype: of the result instead.
    """
    left, right = rounded(read(a), operand_dtype), rounded(read(b), operand_dtype)
    with np.errstate(all="ignore"):
        y = np.matmul(left, right)
        return write(a, y if bias is None else y + read(bias), result_dtype)
