"""Operators and methods of Tensor: the one table that binds them to operations.

The declarations under TYPE_CHECKING in `tape/tensor.py` say the same to type checkers; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.errors import ShapeError
from ..tape import Tensor, dlpack_device, to_dlpack
from . import activation, common, compare, index, pointwise, reduce, shape
from .matmul import matmul


def _iterate(x: Tensor) -> Iterator[Tensor]:
    if x.ndim == 0:
        raise ShapeError("iteration", "a tensor of shape () can't be iterated over")
    return (x[i] for i in range(x.shape[0]))


METHODS: dict[str, Any] = {
    "__add__": pointwise.add,
    "__radd__": lambda x, other: pointwise.add(other, x),
    "__sub__": pointwise.sub,
    "__rsub__": lambda x, other: pointwise.sub(other, x),
    "__mul__": pointwise.mul,
    "__rmul__": lambda x, other: pointwise.mul(other, x),
    "__truediv__": pointwise.div,
    "__rtruediv__": lambda x, other: pointwise.div(other, x),
    "__pow__": pointwise.pow,
    "__rpow__": lambda x, other: pointwise.pow(other, x),
    "__matmul__": matmul,
    "__neg__": pointwise.neg,
    "__abs__": pointwise.abs,
    "__eq__": compare.eq,
    "__ne__": compare.ne,
    "__lt__": compare.lt,
    "__le__": compare.le,
    "__gt__": compare.gt,
    "__ge__": compare.ge,
    "__and__": compare.logical_and,
    "__or__": compare.logical_or,
    "__invert__": compare.logical_not,
    "__getitem__": index.getitem,
    "__iter__": _iterate,
    "exp": pointwise.exp,
    "log": pointwise.log,
    "sqrt": pointwise.sqrt,
    "sin": pointwise.sin,
    "cos": pointwise.cos,
    "tanh": activation.tanh,
    "sigmoid": activation.sigmoid,
    "relu": activation.relu,
    "abs": pointwise.abs,
    "clip": pointwise.clip,
    "masked_fill": pointwise.masked_fill,
    "sum": reduce.sum,
    "mean": reduce.mean,
    "var": reduce.var,
    "max": reduce.max,
    "min": reduce.min,
    "argmax": reduce.argmax,
    "softmax": reduce.softmax,
    "log_softmax": reduce.log_softmax,
    "logsumexp": reduce.logsumexp,
    "cumsum": reduce.cumsum,
    "reshape": shape.reshape,
    "flatten": shape.flatten,
    "permute": shape.permute,
    "transpose": shape.transpose,
    "T": property(shape.matrix_transpose),
    "expand": shape.expand,
    "unsqueeze": shape.unsqueeze,
    "squeeze": shape.squeeze,
    "contiguous": shape.contiguous,
    "clone": shape.clone,
    "cast": common.cast,
    "__dlpack__": to_dlpack,
    "__dlpack_device__": dlpack_device,
}

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
