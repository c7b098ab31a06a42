"""An opaque device: memory that the host cannot read, kernels that complete late. What a GPU looks like from above.

A buffer has no address and shows no memory; asking is an error. A kernel call returns at once with arrays that still
hold poison; it waits in one in-order queue, reads its inputs when its turn comes, and its results exist only once
`download` or `synchronize` has drained the queue. The kernels are those of `kernels.reference`, so whatever runs here
must give the very bits it gives there.

Only the shapes and dtypes of results are known at once. They come from a second, hidden copy of the memory on which
every kernel runs immediately; nothing else is ever taken from that copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pellucid.base.dtypes import DType
from pellucid.base.errors import DeviceError
from pellucid.device import Array, Buffer, Device, reference, register, unregister
from pellucid.device.cpu import view
from pellucid.kernels import reference as definitions
from pellucid.kernels.llama import Llama


class OpaqueBuffer(Buffer):
    """Memory of the opaque device. `_early` serves the hidden run that finds shapes, `_late` is the real one."""

    __slots__ = ("_early", "_late")

    def __init__(self, device: Device, nbytes: int, early: Buffer, late: Buffer) -> None:
        self.device, self.nbytes = device, nbytes
        self._early, self._late = early, late

    @property
    def address(self) -> int:  # type: ignore[override]
        raise DeviceError("opaque", "the host asked for an address", hint="compute through the device's kernels")

    @property
    def memory(self) -> object:  # type: ignore[override]
        raise DeviceError("opaque", "the host asked for memory", hint="compute through the device's kernels")


class OpaqueDevice(Device):
    """The reference kernels behind a wall and a queue."""

    def __init__(self, name: str = "opaque") -> None:
        self.name, self.backend = name, "pellucid.kernels.reference"
        self.queue: list[Callable[[], None]] = []
        self.launches = 0
        self.downloads = 0
        self._kernels = Kernels(self)

    @property
    def kernels(self) -> Any:  # type: ignore[override]
        return self._kernels

    def allocate(self, nbytes: int) -> Buffer:
        return OpaqueBuffer(self, nbytes, _poisoned(nbytes), _poisoned(nbytes))

    def upload(self, host: np.ndarray[Any, Any], dtype: DType) -> Array:
        taken = np.array(host, copy=True)  # the host may change its array before the queue gets here
        array = self.empty(taken.shape, dtype)
        view(early(array))[...] = taken
        self.queue.append(lambda: _fill(late(array), taken))
        return array

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        self.downloads += 1
        self.synchronize()
        return view(late(array)).copy()

    def synchronize(self) -> None:
        waiting, self.queue = self.queue, []
        for launch in waiting:
            launch()


class Kernels:
    """Every function of the reference backend, queued."""

    def __init__(self, device: OpaqueDevice) -> None:
        for name in definitions.__all__:
            setattr(self, name, _queued(device, name, getattr(definitions, name)))


def early(array: Array) -> Array:
    """The same view of the hidden memory."""
    return Array(_own(array)._early, array.shape, array.dtype, array.strides, array.offset)


def late(array: Array) -> Array:
    """The same view of the real memory."""
    return Array(_own(array)._late, array.shape, array.dtype, array.strides, array.offset)


def _own(array: Array) -> OpaqueBuffer:
    if not isinstance(array.buffer, OpaqueBuffer):
        raise DeviceError("opaque", "a kernel was handed an array of another device", got=array.device.name)
    return array.buffer


def _mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """`value` with every Array in it changed; lists and tuples are copied, so that later changes of them don't show."""
    if isinstance(value, Array):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(v, change) for v in value)
    if isinstance(value, Llama):
        return Llama(**{f.name: _mapped(getattr(value, f.name), change) for f in fields(value)})
    return value


def _queued(device: OpaqueDevice, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def launch(*arguments: Any, **attributes: Any) -> Any:
        device.launches += 1
        held = _mapped(arguments, lambda a: a)
        given = {key: _mapped(value, _refused) for key, value in attributes.items()}
        shown = kernel(*_mapped(held, early), **given)
        results = _mapped(shown, lambda a: _result(device, a))

        def run() -> None:
            done = kernel(*_mapped(held, late), **given)
            for target, value in zip(_flat(results), _flat(done), strict=True):
                assert target.shape == value.shape, name
                _fill(late(target), view(value))

        device.queue.append(run)
        return results

    launch.__name__, launch.__doc__ = name, kernel.__doc__
    return launch


def _refused(array: Array) -> Array:
    raise DeviceError("opaque", "an array as a keyword; kernels take arrays by position", got=repr(array))


def _result(device: OpaqueDevice, shown: Array) -> Array:
    """An array for a result that is still to come; what the hidden run found is its hidden memory."""
    buffer = OpaqueBuffer(device, shown.buffer.nbytes, shown.buffer, _poisoned(shown.buffer.nbytes))
    return Array(buffer, shown.shape, shown.dtype, shown.strides, shown.offset)


def _flat(value: Any) -> list[Array]:
    if isinstance(value, Array):
        return [value]
    return [a for v in value for a in _flat(v)] if isinstance(value, (list, tuple)) else []


def _fill(target: Array, value: np.ndarray[Any, Any]) -> None:
    view(target)[...] = value


def _poisoned(nbytes: int) -> Buffer:
    buffer = reference.allocate(nbytes)
    ctypes.memset(buffer.address, 0xFF, nbytes)
    return buffer


@contextmanager
def opaque_device(name: str = "opaque") -> Iterator[OpaqueDevice]:
    """An opaque device, registered by its name for as long as the block runs."""
    device = OpaqueDevice(name)
    register(device)
    try:
        yield device
    finally:
        unregister(name)


@pytest.fixture
def opaque() -> Iterator[OpaqueDevice]:
    """The opaque device of one test."""
    with opaque_device() as device:
        yield device
