"""A few operations of the tests' own, so that the tape is tested without the operations of the library."""

from __future__ import annotations

from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import Array, Device, reference
from pellucid.tape import Op, Tensor


class Product(Op):
    """y = a b, one shape"""

    saves = ("a", "b")

    def forward(self, a: Array, b: Array) -> Array:
        self.save(a=a, b=b)
        return self.kernels.mul(a, b)

    def backward(self, dy: Array) -> dict[str, Any]:
        da = self.kernels.mul(dy, self.b) if self.needs("a") else None  # type: ignore[attr-defined]
        db = self.kernels.mul(dy, self.a) if self.needs("b") else None  # type: ignore[attr-defined]
        return {"a": da, "b": db}


class Sum(Op):
    """y = a + b, one shape"""

    def forward(self, a: Array, b: Array) -> Array:
        return self.kernels.add(a, b)

    def backward(self, dy: Array) -> dict[str, Any]:
        return {"a": dy, "b": dy}


class Exponential(Op):
    """y = e**x"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.exp(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Any]:
        return {"x": self.kernels.mul(dy, self.y)}  # type: ignore[attr-defined]


class Total(Op):
    """y = sum x, shape (); its gradient is one number stretched over the shape of x"""

    def forward(self, x: Array) -> Array:
        return self.kernels.sum(x, axes=tuple(range(x.rank)), keepdims=False)

    def backward(self, dy: Array) -> dict[str, Any]:
        return {"x": dy.expand(self.input_shapes()[0])}  # type: ignore[arg-type]


class Stack(Op):
    """The inputs one behind the other along axis 0"""

    def forward(self, *parts: Array) -> Array:
        return self.kernels.concatenate(list(parts), axis=0)

    def backward(self, dy: Array) -> dict[str, Any]:
        found, start = [], 0
        for shape in self.input_shapes():
            assert shape is not None
            found.append(dy.slice(0, start, start + shape[0]))
            start += shape[0]
        return {"parts": found}


class Wrong(Op):
    """y = -x with the gradient of y = x"""

    def forward(self, x: Array) -> Array:
        return self.kernels.neg(x)

    def backward(self, dy: Array) -> dict[str, Any]:
        return {"x": dy}


class Explode(Op):
    """y = x, whose gradient is e**1000"""

    def forward(self, x: Array) -> Array:
        return self.kernels.copy(x)

    def backward(self, dy: Array) -> dict[str, Any]:
        huge = self.kernels.copy(dy)
        self.kernels.fill_(huge, value=1000.0)
        return {"x": self.kernels.exp(huge)}


def leaf(value: object, *, dtype: DType = dtypes.float64, device: Device = reference, grad: bool = True) -> Tensor:
    """A tensor of the tests' own making."""
    return Tensor(device.upload(np.asarray(value), dtype), grad)


def numbers(x: Tensor | None) -> np.ndarray[Any, Any]:
    """The elements on the host."""
    assert x is not None
    return x.device.download(x.array)
