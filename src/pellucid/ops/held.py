"""Matrices held for inference, as functions of tensors. Nothing here is recorded: there are no gradients to make.

A held matrix is int8 with a float32 scale for each row, or bfloat16 or float32 without one.
"""

from __future__ import annotations

from math import prod

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import GradientError, ShapeError
from ..device import Array
from ..tape import Tensor
from ..tape.state import state
from .common import reshaped


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 and their scales: x = values * scale within half a scale, scale = max |row| / 127.

    x: (N, K) -> values (N, K) int8, scale (N,) float32. A row that is not finite has scale NaN.
    Raises ShapeError for what is no matrix.
    """
    if x.ndim != 2:
        raise ShapeError("quantize", "not a matrix", got=x.shape, expected="(N, K)")
    values, scale = x.device.kernels.quantize(x.array)
    return Tensor(values), Tensor(scale)


def dequantize(values: Tensor, scale: Tensor, *, dtype: DType = dtypes.float32) -> Tensor:
    """x = values * scale, row by row. Raises ShapeError where the scales do not fit."""
    if values.ndim != 2 or scale.shape != values.shape[:1]:
        raise ShapeError("dequantize", "scales do not fit", got=f"values {values.shape}, scale {scale.shape}")
    return Tensor(values.device.kernels.dequantize(values.array, scale.array, dtype=dtype))


def held_linear(
    x: Tensor, weight: Array, scale: Array | None, bias: Tensor | None, *, operand_dtype: DType | None = None
) -> Tensor:
    """y = (x weight^T) scale + bias.   x: (..., K), weight: (N, K), y: (..., N)

    operand_dtype: x, and a weight that is no integer, are rounded to it first; sums are float32.
    Raises GradientError where the result would need a gradient.
    """
    if x.requires_grad and state.recording:
        hint = "call it inside no_grad, or train the float32 model"
        raise GradientError("held_linear", "weights held for inference have no gradients", hint=hint)
    kernels = x.device.kernels
    rows = reshaped(kernels, x.array, (prod(x.shape[:-1]), x.shape[-1]))
    y = kernels.held_linear(rows, weight, scale, None if bias is None else bias.array, operand_dtype=operand_dtype)
    return Tensor(reshaped(kernels, y, (*x.shape[:-1], weight.shape[0])))


def held_rows(weight: Array, scale: Array | None, ids: Tensor) -> Tensor:
    """y[...] = weight[ids[...]] scale[ids[...]] in float32."""
    kernels = ids.device.kernels
    found = kernels.embedding(weight, ids.array)
    if scale is None:
        return Tensor(found if found.dtype is dtypes.float32 else kernels.cast(found, dtype=dtypes.float32))
    rows = reshaped(kernels, found, (prod(ids.shape), weight.shape[1]))
    scales = reshaped(kernels, kernels.embedding(scale, ids.array), (prod(ids.shape),))
    return Tensor(reshaped(kernels, kernels.dequantize(rows, scales, dtype=dtypes.float32), found.shape))
