"""Matrices that are held, as functions of tensors: gradients flow through them, never to them.

A held matrix is int8 with a float32 scale for each row, or bfloat16 or float32 without one.
"""

from __future__ import annotations

from math import prod

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..kernels.views import reshaped
from ..tape import Op, Tensor
from .common import check_residual


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


class HeldLinear(Op):
    """y = (x weight^T) scale + bias + residual.   dx = (dy scale) weight, dbias = sum dy, dresidual = dy; the weight is
    held and has no gradient.

    x is not kept: nothing but the weight itself is needed for dx   (Dettmers et al. 2023, section 3).
    """

    saves = ("weight", "scale")

    def forward(
        self,
        x: Array,
        bias: Array | None,
        residual: Array | None,
        *,
        weight: Array,
        scale: Array | None,
        operand_dtype: DType | None,
    ) -> Array:
        k, self.shape, self.operand_dtype, self.x_dtype = self.kernels, x.shape, operand_dtype, x.dtype
        self.save(weight=weight, scale=scale)
        rows, added = reshaped(k, x, (prod(x.shape[:-1]), x.shape[-1])), None
        if residual is not None:
            added = reshaped(k, residual, (rows.shape[0], weight.shape[0]))
        y = k.held_linear(rows, weight, scale, bias, added, operand_dtype=operand_dtype)
        return reshaped(k, y, (*x.shape[:-1], weight.shape[0]))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, dx, db = self.kernels, None, None
        rows = reshaped(k, dy, (prod(dy.shape[:-1]), dy.shape[-1]))
        if self.needs("x"):
            dx = k.held_linear_backward(rows, self.weight, self.scale, operand_dtype=self.operand_dtype)
            dx = reshaped(k, dx if dx.dtype is self.x_dtype else k.cast(dx, dtype=self.x_dtype), self.shape)
        if self.needs("bias"):
            db = k.sum(rows, axes=(0,), keepdims=False)
        return {"x": dx, "bias": db, "residual": dy}


def held_linear(
    x: Tensor,
    weight: Array,
    scale: Array | None,
    bias: Tensor | None,
    residual: Tensor | None = None,
    *,
    operand_dtype: DType | None = None,
) -> Tensor:
    """y = (x weight^T) scale + bias + residual.   x: (..., K) float32 or of the operands' dtype, weight: (N, K), y and
    residual: (..., N) float32

    operand_dtype: x, and a weight that is no integer, are rounded to it first; sums are float32. Gradients flow to x,
    bias and residual, through the weight. Raises ShapeError for a residual of another shape than y.
    """
    check_residual("held_linear", residual, (*x.shape[:-1], weight.shape[0]))
    return HeldLinear.apply(x, bias, residual, weight=weight, scale=scale, operand_dtype=operand_dtype)
