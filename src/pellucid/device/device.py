"""What a device must offer, and the registry of devices.

A device hands out buffers and moves bytes to and from the host; everything else is done by its kernels, a package
with the functions of `kernels/spec.py`. Kernels may complete late: only `download` and `synchronize` wait.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from functools import cached_property
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..base.dtypes import DType
from ..base.errors import DeviceError
from .array import Array


class Buffer:
    """A block of memory on a device. `address` is meaningful to kernels of that device only; `memory` is whatever keeps
    the block alive, and takes it back when it dies."""

    __slots__ = ("__weakref__", "address", "device", "memory", "nbytes")

    def __init__(self, device: Device, address: int, nbytes: int, memory: object) -> None:
        self.device, self.address, self.nbytes, self.memory = device, address, nbytes, memory

    def __reduce__(self) -> NoReturn:
        raise DeviceError("Buffer", "memory can't be copied without a type", hint="copy the Array or the Tensor")


def load(module: str) -> Any:
    """A part of a device that loads late, by its full name: compilers have no place in `import pellucid`."""
    return importlib.import_module(module)


class Device(ABC):
    """A place where arrays live and kernels run."""

    name: str
    backend: str  # import name of the kernel package

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised memory. Raises DeviceError naming the size when there is not enough."""

    @abstractmethod
    def upload(self, host: np.ndarray[Any, Any], dtype: DType) -> Array:
        """A copy of a host array on this device. The host array may be reused as soon as this returns."""

    @abstractmethod
    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """A copy on the host, after every kernel that writes it has completed."""

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        """The elements on the host: the very memory where this device is the host's, else a download."""
        return self.download(array)

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until every kernel launched so far has completed."""

    def trim(self) -> None:  # noqa: B027 - a device that keeps nothing has nothing to do
        """Gives memory that is kept for later requests back to the system; nothing where none is kept."""

    @cached_property
    def kernels(self) -> Any:
        """The kernel functions of this device, loaded at the first use."""
        return load(self.backend)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A fresh uninitialised contiguous array."""
        return Array(self.allocate(prod(shape) * dtype.itemsize), shape, dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Device:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (self.name,)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


_devices: dict[str, Device] = {}
_Kind = TypeVar("_Kind", bound=Device)


def register(device: _Kind) -> _Kind:
    """Makes a device known by its name. Raises DeviceError if the name is taken."""
    if device.name in _devices:
        raise DeviceError("register", "a device of this name exists", got=repr(device.name))
    _devices[device.name] = device
    return device


def unregister(name: str) -> None:
    """Forgets a device; arrays on it stay usable."""
    _devices.pop(name, None)


def device(which: str | Device) -> Device:
    """The device of that name. Raises DeviceError for one that is not there; never another in its place."""
    if isinstance(which, Device):
        return which
    if which not in _devices:
        known = ", ".join(sorted(_devices))
        raise DeviceError(
            "device",
            "no such device",
            got=repr(which),
            expected=f"one of {known}",
            hint="`pellucid doctor` shows what this machine offers",
        )
    return _devices[which]
