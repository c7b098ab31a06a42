"""Number formats: the closed list of element types a tensor can have.

A `DType` knows its NumPy equivalent (bfloat16 comes from `ml_dtypes`), its width and its kind. Promotion is one
function: the wider kind wins (bool < integer < float); inside a kind the wider type wins, and bfloat16 with float16
gives float32. Python scalars never widen a tensor within its own kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from .errors import DTypeError


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. `itemsize` in bytes; `kind` is "bool", "int" or "float"."""

    name: str
    numpy: np.dtype[Any]
    kind: str
    rank: int
    # asked for by every operation, so they are values
    itemsize: int = field(init=False)
    is_float: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", self.numpy.itemsize)
        object.__setattr__(self, "is_float", self.kind == "float")

    def __repr__(self) -> str:
        return f"pellucid.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype, (self.name,))


bool_ = DType("bool", np.dtype(np.bool_), "bool", 0)
uint8 = DType("uint8", np.dtype(np.uint8), "int", 10)
int8 = DType("int8", np.dtype(np.int8), "int", 11)
int16 = DType("int16", np.dtype(np.int16), "int", 12)
int32 = DType("int32", np.dtype(np.int32), "int", 13)
int64 = DType("int64", np.dtype(np.int64), "int", 14)
float16 = DType("float16", np.dtype(np.float16), "float", 20)
bfloat16 = DType("bfloat16", np.dtype(ml_dtypes.bfloat16), "float", 21)
float32 = DType("float32", np.dtype(np.float32), "float", 22)
float64 = DType("float64", np.dtype(np.float64), "float", 23)

ALL = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
FLOATS = (float16, bfloat16, float32, float64)
_BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}


def dtype(value: object) -> DType:
    """The `DType` meant by a name ("float32"), a NumPy type or a `DType`. Raises DTypeError for any other."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        return _BY_NUMPY[np.dtype(value)]  # type: ignore[arg-type]
    except (KeyError, TypeError):
        names = ", ".join(_BY_NAME)
        raise DTypeError("dtype", "unknown element type", got=repr(value), expected=f"one of {names}") from None


def promote(a: DType, b: DType) -> DType:
    """The type in which `a` and `b` are computed together."""
    if a is b:
        return a
    if {a, b} == {float16, bfloat16}:
        return float32
    if {a, b} == {uint8, int8}:
        return int16
    return a if a.rank > b.rank else b


def of_scalar(value: bool | int | float, beside: DType) -> DType:
    """The type a Python scalar takes beside a tensor of type `beside`: it widens the kind only, never the width."""
    if isinstance(value, bool):
        return beside
    if isinstance(value, int):
        return int64 if beside.kind == "bool" else beside
    return beside if beside.is_float else float32
