"""Making tensors: from Python numbers, NumPy arrays and constants, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import dtypes, shapes
from ..base.dtypes import DType
from ..base.errors import DTypeError, ShapeError
from ..base.rng import Generator
from ..device import Device, HostDevice
from ..device import device as find_device
from ..tape import Tensor

Shape = Sequence[int] | int


def tensor(
    data: Any, *, dtype: DType | str | None = None, device: str | Device = "cpu", requires_grad: bool = False
) -> Tensor:
    """A copy of numbers, nested lists, a NumPy array or a tensor.

    dtype None: that of an array, else bool, int64 or float32 by the kind of the numbers. Raises DTypeError for what
    is not numbers, ShapeError for ragged lists.
    """
    where = find_device(device)
    if isinstance(data, Tensor):
        data = data.device.download(data.array)
    if isinstance(data, (np.ndarray, np.generic)):
        host = np.asarray(data)
        wanted = dtypes.dtype(host.dtype) if dtype is None else dtypes.dtype(dtype)
    else:
        try:
            host = np.array(data)
        except ValueError:
            raise ShapeError("tensor", "the lists are ragged", hint="rows of one length each, or pad them") from None
        if host.size == 0:
            host = host.astype(np.float32)
        kinds = {"b": dtypes.bool_, "i": dtypes.int64, "u": dtypes.int64, "f": dtypes.float32}
        if host.dtype.kind not in kinds:
            raise DTypeError("tensor", "not numbers", got=type(data).__name__)
        wanted = kinds[host.dtype.kind] if dtype is None else dtypes.dtype(dtype)
    return _leaf(Tensor(where.upload(host, wanted)), requires_grad)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the CPU that shares the array's memory: each sees the other's changes."""
    cpu = find_device("cpu")
    assert isinstance(cpu, HostDevice)
    return Tensor(cpu.adopt(array, dtypes.dtype(array.dtype)))


def full(
    shape: Shape,
    value: float,
    *,
    dtype: DType | str = dtypes.float32,
    device: str | Device = "cpu",
    requires_grad: bool = False,
) -> Tensor:
    """Every element = value."""
    where = find_device(device)
    array = where.empty(_shape(shape), dtypes.dtype(dtype))
    where.kernels.fill_(array, value=value)
    return _leaf(Tensor(array), requires_grad)


def zeros(
    shape: Shape, *, dtype: DType | str = dtypes.float32, device: str | Device = "cpu", requires_grad: bool = False
) -> Tensor:
    """Every element = 0."""
    return full(shape, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones(
    shape: Shape, *, dtype: DType | str = dtypes.float32, device: str | Device = "cpu", requires_grad: bool = False
) -> Tensor:
    """Every element = 1."""
    return full(shape, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | str | None = None,
    device: str | Device = "cpu",
) -> Tensor:
    """start, start + step, ... before stop; `arange(n)` is 0 .. n-1. int64 for integers, else float32."""
    first, last = (0, start) if stop is None else (start, stop)
    host = np.arange(first, last, step)
    default = dtypes.int64 if host.dtype.kind == "i" else dtypes.float32
    return tensor(host, dtype=default if dtype is None else dtype, device=device)


def rand(
    shape: Shape,
    *,
    generator: Generator,
    dtype: DType | str = dtypes.float32,
    device: str | Device = "cpu",
    requires_grad: bool = False,
) -> Tensor:
    """Uniform in [0, 1), the next numbers of `generator`."""
    host = generator.uniform(_shape(shape))
    return tensor(host, dtype=dtype, device=device, requires_grad=requires_grad)


def randn(
    shape: Shape,
    *,
    generator: Generator,
    std: float = 1.0,
    dtype: DType | str = dtypes.float32,
    device: str | Device = "cpu",
    requires_grad: bool = False,
) -> Tensor:
    """Normal with mean 0 and standard deviation `std`, made on the device from the next numbers of `generator`."""
    where, wanted = find_device(device), dtypes.dtype(dtype)
    if not wanted.is_float:
        raise DTypeError("randn", "not a float type", got=wanted.name)
    array = where.empty(_shape(shape), wanted)
    where.kernels.normal_(array, std=std, seed=generator.seed, counter=generator.reserve(array.size))
    return _leaf(Tensor(array), requires_grad)


def _shape(shape: Shape) -> tuple[int, ...]:
    found = shapes.lengths((shape,) if isinstance(shape, int) else shape, where="shape")
    if any(n < 0 for n in found):
        raise ShapeError("shape", "negative length", got=found)
    return found


def _leaf(x: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad and not x.dtype.is_float:
        raise DTypeError("requires_grad", "only floats have gradients", got=x.dtype.name)
    x.requires_grad = requires_grad
    return x
