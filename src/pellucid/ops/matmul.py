"""Matrix products: `a @ b` of any rank, and the linear map of a layer."""

from __future__ import annotations

from math import prod
from typing import Any

from ..base import shapes
from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..kernels.views import reshaped
from ..tape import Op, Tensor
from .common import check_residual, floats, linear_gradients, pair, unbroadcast


class MatMul(Op):
    """y = a b over the last two axes, the others broadcast.   da = dy b^T, db = a^T dy"""

    saves = ("a", "b")

    def forward(self, a: Array, b: Array, *, operand_dtype: DType | None) -> Array:
        self.operand_dtype = operand_dtype
        self.save(a=a, b=b)
        return self.kernels.matmul(a, b, operand_dtype=operand_dtype)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, a, b = self.kernels, self.a, self.b
        da = db = None
        if self.needs("a"):
            da = unbroadcast(k, k.matmul(dy, b.transpose(), operand_dtype=self.operand_dtype), a.shape)
        if self.needs("b"):
            db = unbroadcast(k, k.matmul(a.transpose(), dy, operand_dtype=self.operand_dtype), b.shape)
        return {"a": da, "b": db}


class Linear(Op):
    """y = x weight^T + bias + residual.   dx = dy weight, dweight = dy^T x, dbias = sum dy, dresidual = dy

    x is kept for dweight alone.
    """

    saves = ("x", "weight")

    def forward(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        residual: Array | None,
        *,
        operand_dtype: DType | None,
        result_dtype: DType | None,
    ) -> Array:
        k, self.shape, self.operand_dtype = self.kernels, x.shape, operand_dtype
        rows = _matrix(k, x)
        self.x_dtype = x.dtype
        self.save(x=rows if self.inputs[1].requires_grad else None, weight=weight)  # type: ignore[union-attr]
        added = bias
        if residual is not None:  # the product starts from it, which costs nothing beside a pass of its own
            added = reshaped(k, residual, (rows.shape[0], weight.shape[0]))
            if bias is not None:
                added = k.add(added, bias)
        y = k.matmul(rows, weight.transpose(), added, operand_dtype=operand_dtype, result_dtype=result_dtype)
        return y if rows is x else reshaped(k, y, (*x.shape[:-1], weight.shape[0]))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, (x, _, bias, _) = self.kernels, self.inputs
        assert x is not None
        dx, dweight, dbias = linear_gradients(
            k,
            _matrix(k, dy),
            self.x,
            self.x_dtype,
            self.weight,
            self.operand_dtype,
            x.requires_grad,
            bias is not None and bias.requires_grad,
        )
        dx = None if dx is None else reshaped(k, dx, self.shape)
        return {"x": dx, "weight": dweight, "bias": dbias, "residual": dy}


def _matrix(kernels: Any, x: Array) -> Array:
    """All axes but the last as one."""
    return x if len(x.shape) == 2 else reshaped(kernels, x, (prod(x.shape[:-1]), x.shape[-1]))


def matmul(a: Tensor, b: Tensor, *, operand_dtype: DType | None = None) -> Tensor:
    """y = a @ b as in NumPy: (..., M, K) @ (..., K, N), leading axes broadcast; a vector on either side loses its axis.

    operand_dtype: both are rounded to it first (bfloat16 for mixed precision); sums and result keep their own dtype.
    Raises ShapeError where the inner lengths differ.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.array.dtype is b.array.dtype):
        a, b = pair("matmul", a, b)
    if not a.array.dtype.is_float:
        a, b = floats("matmul", a), floats("matmul", b)
    rows, columns = a.array.shape, b.array.shape
    if len(rows) == len(columns) == 2 and rows[1] == columns[0]:
        return MatMul.apply(a, b, operand_dtype=operand_dtype)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            "matmul", "not a matrix or vector", got=f"{a.shape} @ {b.shape}", hint="multiply by a number with *"
        )
    if a.ndim == 1:
        return matmul(a.unsqueeze(0), b, operand_dtype=operand_dtype).squeeze(0 if b.ndim == 1 else -2)
    if b.ndim == 1:
        return matmul(a, b.unsqueeze(1), operand_dtype=operand_dtype).squeeze(-1)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError("matmul", "inner lengths differ", got=f"{a.shape} @ {b.shape}")
    if b.ndim == 2 and a.ndim > 2:
        rows = a.reshape(prod(a.shape[:-1]), a.shape[-1])
        return MatMul.apply(rows, b, operand_dtype=operand_dtype).reshape(*a.shape[:-1], b.shape[-1])
    shapes.broadcast(a.shape[:-2], b.shape[:-2], where="matmul")
    return MatMul.apply(a, b, operand_dtype=operand_dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    operand_dtype: DType | None = None,
    result_dtype: DType | None = None,
) -> Tensor:
    """y = x weight^T + bias + residual.   x: (..., K), weight: (N, K), bias: (N,) or None, residual: as y or None,
    y: (..., N). operand_dtype as in `matmul`; result_dtype: of y, None for the dtype of x and weight together.
    """
    shape, inner = weight.array.shape, x.array.shape[-1:]
    if len(shape) != 2 or inner != shape[1:]:
        raise ShapeError("linear", "weight does not fit the input", got=f"x {x.shape}, weight {shape}")
    if bias is not None and bias.array.shape != shape[:1]:
        raise ShapeError("linear", "bias does not fit the weight", got=bias.shape, expected=shape[:1])
    check_residual("linear", residual, (*x.shape[:-1], shape[0]))
    if operand_dtype is None and x.array.dtype is not weight.array.dtype:  # with it the product rounds both itself
        x, weight = pair("linear", x, weight)
    return Linear.apply(x, weight, bias, residual, operand_dtype=operand_dtype, result_dtype=result_dtype)
