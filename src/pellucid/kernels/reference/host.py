"""Between Arrays and NumPy: how every reference kernel reads its arguments and returns its results.

Narrow floats (bfloat16, float16) are widened to float32 for the arithmetic and rounded once on the way out;
float32 and float64 are computed as they are, so the same definition serves as the float64 oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from ...device.cpu import HostDevice, view

Host = np.ndarray[Any, Any]


def read(x: Array) -> Host:
    """The numbers of `x`, narrow floats widened to float32."""
    shown = view(x)
    return shown.astype(np.float32) if x.dtype in (dtypes.bfloat16, dtypes.float16) else shown


def write(like: Array, value: Any, dtype: DType | None = None) -> Array:
    """`value` as a new Array on the device of `like`, in its dtype unless another is given."""
    device = like.device
    assert isinstance(device, HostDevice)
    with np.errstate(all="ignore"):
        return device.upload(np.asarray(value), dtype or like.dtype)


def compute_dtype(x: Array) -> DType:
    """The dtype `read` gives: where statistics (lse, rstd, ...) are kept."""
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def rounded(value: Host, operand_dtype: DType | None) -> Host:
    """An operand of a product as mixed precision sees it: rounded to `operand_dtype`, in its own dtype again."""
    if operand_dtype in (None, dtypes.float32, dtypes.float64):
        return value
    with np.errstate(all="ignore"):
        return value.astype(operand_dtype.numpy).astype(value.dtype)
