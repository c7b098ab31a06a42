"""Numbers on a device: made once and kept, so that a steady loop makes none; and recognised without looking at them."""

from __future__ import annotations

from math import copysign
from typing import Any

from ..base.dtypes import DType
from ..device import Array, Device
from .tensor import Tensor

_numbers: dict[tuple[Any, ...], Tensor] = {}
_MOST_NUMBERS = 256


def number_tensor(device: Device, value: float, dtype: DType) -> Tensor:
    """A number as a Tensor of shape () on the device: the other operand of `x + 1.5`. Made once and kept, so a steady
    loop makes none; everybody has the same one, and nobody changes it."""
    key = (device, dtype, value.__class__, value or copysign(1.0, value), value)  # 0.0 == -0.0, and True == 1
    found = _numbers.get(key)
    if found is None:
        if len(_numbers) >= _MOST_NUMBERS:
            _numbers.clear()
        array = device.empty((), dtype)
        device.kernels.fill_(array, value=value)
        found = _numbers[key] = Tensor(array)
    return found


def constant(device: Device, value: float, dtype: DType) -> Array:
    """The Array of such a number."""
    return number_tensor(device, value, dtype).array


def is_one(x: Array) -> bool:
    """Whether `x` is the kept constant 1, by identity: False for any other array that holds a 1."""
    return x is constant(x.buffer.device, 1.0, x.dtype)
