"""What operations share: bringing operands to one dtype and device, constants on a device, shapes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import dtypes, shapes
from ..base.dtypes import DType
from ..base.errors import DTypeError, ShapeError
from ..device import Array
from ..kernels.views import reshaped
from ..tape import Tensor, number_tensor

Operand = Tensor | bool | int | float
Axes = int | Sequence[int] | None


def scalar(value: Any) -> bool | int | float | None:
    """A Python number from a Python or NumPy number; None for anything else."""
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):  # np.float64 is a float
        return value
    if isinstance(value, np.generic):
        return scalar(value.item())
    return None


def pair(where: str, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one dtype on one device. Raises DTypeError for what is neither tensor nor number."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.array.dtype is b.array.dtype:
            return a, b
        dtype = dtypes.promote(a.dtype, b.dtype)
        return cast(a, dtype), cast(b, dtype)
    if isinstance(a, Tensor):
        return _beside(where, a, b)
    if isinstance(b, Tensor):
        second, first = _beside(where, b, a)
        return first, second
    raise DTypeError(where, "no tensor among the operands", got=f"{type(a).__name__} and {type(b).__name__}")


def _beside(where: str, x: Tensor, value: Any) -> tuple[Tensor, Tensor]:
    kind = value.__class__
    number = value if kind is float or kind is int else scalar(value)
    if number is None:
        if isinstance(value, np.ndarray):
            other = Tensor(x.device.upload(value, dtypes.dtype(value.dtype)))
            return pair(where, x, other)
        raise DTypeError(where, "not a tensor or a number", got=type(value).__name__, hint="make it one with tensor()")
    array = x.array
    dtype = array.dtype
    if not dtype.is_float:
        dtype = dtypes.of_scalar(number, dtype)
    return x if array.dtype is dtype else cast(x, dtype), number_tensor(array.buffer.device, number, dtype)


def floats(where: str, x: Tensor) -> Tensor:
    """`x`, integers and bools as float32: for functions that have no integer result."""
    if not isinstance(x, Tensor):
        raise DTypeError(where, "not a tensor", got=type(x).__name__, hint="make it one with tensor()")
    return x if x.array.dtype.is_float else cast(x, dtypes.float32)


def cast(x: Tensor, dtype: DType | str) -> Tensor:
    """The elements in another dtype, rounded to nearest even; the same tensor if it has it already.
    dx = dy, cast back."""
    wanted = dtypes.dtype(dtype)
    return x if x.dtype is wanted else _cast(x, wanted)


_cast: Any = None  # the operation Cast, set by pointwise.py


def narrow(x: Array, operand_dtype: DType | None) -> DType | None:
    """The dtype in which one product hands its result to the next: that of operands, which the next one would round it
    to; None, for its own, where precision is not mixed."""
    return None if x.dtype is dtypes.float64 else operand_dtype


def linear_gradients(
    kernels: Any,
    dy: Array,
    x: Array | None,
    x_dtype: DType,
    weight: Array,
    operand_dtype: DType | None,
    for_x: bool,
    for_bias: bool,
) -> tuple[Array | None, Array | None, Array | None]:
    """dx, dweight and dbias of y = x weight^T + bias, those wanted. x None: the weight is frozen, x was not kept, and
    no gradient of the weight is made."""
    if x is not None:
        return kernels.linear_backward(
            dy, x, weight, operand_dtype=operand_dtype, for_x=for_x, for_weight=True, for_bias=for_bias
        )
    dx = kernels.matmul(dy, weight, operand_dtype=operand_dtype, result_dtype=x_dtype) if for_x else None
    db = None
    if for_bias:
        wide = dy if dy.dtype is weight.dtype else kernels.cast(dy, dtype=weight.dtype)
        db = kernels.sum(wide, axes=(0,), keepdims=False)
    return dx, None, db


def unbroadcast(kernels: Any, dy: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of broadcasting `shape` to dy.shape: dy summed over every axis along which it was repeated."""
    if dy.shape == shape:
        return dy
    total = kernels.sum(dy, axes=shapes.broadcast_axes(shape, dy.shape), keepdims=True)
    return reshaped(kernels, total, shape)


def check_residual(where: str, residual: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raises ShapeError for what can't be added to a result of that shape without being repeated."""
    if residual is not None and residual.shape != shape:
        raise ShapeError(where, "residual does not fit the result", got=residual.shape, expected=shape)


def zeros_like(kernels: Any, like: Array, shape: tuple[int, ...] | None = None) -> Array:
    """A fresh array of zeros of the dtype and device of `like`."""
    out = like.device.empty(like.shape if shape is None else shape, like.dtype)
    kernels.fill_(out, value=0)
    return out
