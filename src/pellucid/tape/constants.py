"""Numbers on a device: made once and kept, so that a steady loop makes none; and recognised without looking at them."""

from __future__ import annotations

from math import copysign
from typing import Any

from ..base.dtypes import DType
from ..device import Array, Device
from .tensor import Tensor

_constants: dict[tuple[Any, ...], Array] = {}
_tensors: dict[tuple[Any, ...], Tensor] = {}  # the same, as operands
_MOST_CONSTANTS = 256


def constant(device: Device, value: float, dtype: DType) -> Array:
    """A number as an Array of shape () on the device; made once and kept, so a steady loop makes none."""
    key = _key(device, value, dtype)
    found = _constants.get(key)
    if found is None:
        if len(_constants) >= _MOST_CONSTANTS:
            _constants.clear()
            _tensors.clear()
        found = device.empty((), dtype)
        device.kernels.fill_(found, value=value)
        _constants[key] = found
    return found


def number_tensor(device: Device, value: float, dtype: DType) -> Tensor:
    """The same as a Tensor: the other operand of `x + 1.5`. Everybody has the same one, and nobody changes it."""
    key = (device, dtype, value.__class__, value or copysign(1.0, value), value)  # _key, without the call
    found = _tensors.get(key)
    if found is None:
        found = _tensors[key] = Tensor(constant(device, value, dtype))
    return found


def is_one(x: Array) -> bool:
    """Whether `x` is the kept constant 1, by identity: False for any other array that holds a 1."""
    return x is _constants.get(_key(x.device, 1.0, x.dtype))


def _key(device: Device, value: float, dtype: DType) -> tuple[Any, ...]:
    return (device, dtype, value.__class__, value or copysign(1.0, value), value)
