"""The host's memory as a device: an aligned caching allocator, and NumPy views for the kernels.

Blocks are 64-byte aligned and kept in free lists by size class, so that a steady training step asks the system for
nothing; `blocks` has the code, loaded with the first allocation. Two devices share this memory: "cpu", whose kernels
are compiled, and "reference", whose kernels are the NumPy definitions.
"""

from __future__ import annotations

from array import array as int64_words
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..base.dtypes import DType
from ..base.errors import DeviceError
from ..base.settings import settings
from .array import Array
from .device import Buffer, Device, load, register

if TYPE_CHECKING:
    from .region import Region

_KEEP = 4 << 30  # bytes of free blocks a device holds on to
_BLOCKS, _REGION = f"{__package__}.blocks", f"{__package__}.region"

# What a device's words hold: four numbers of bytes, 0 or 1, a count; then free lists by size class.
IN_USE, CACHED, PEAK, KEEP, POISON, FROM_SYSTEM = range(6)
LISTS, WORDS = 8, 264


class Watcher(Protocol):
    """Who has to know what is not done by kernels alone: that Python looks into an array's memory, say."""

    def told(self, why: str) -> None:
        """Something like that is about to happen."""

    def check(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function that looks and does nothing else but raise an error."""


watchers: list[Watcher] = []
LOOKED, DRAWN = "Python looks into an array's memory", "it draws random numbers, other ones each time"


class HostDevice(Device):
    """Memory of this process."""

    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend = name, backend
        self._words = int64_words("q", bytes(8 * WORDS))

    def allocate(self, nbytes: int) -> Buffer:
        """The first allocation: later ones go to native code that takes the place of this method and of `empty`."""
        self._words[KEEP], self._words[POISON] = _KEEP, settings().poison
        blocks = load(_BLOCKS)
        self.allocate, self.empty = blocks.allocator(self, self._words, self._refuse), blocks.emptier(self)
        return self.allocate(nbytes)

    def _refuse(self, nbytes: int) -> Buffer:
        raise DeviceError(
            self.name,
            "out of memory",
            got=f"a request of {nbytes:,} bytes with {self.bytes_in_use:,} in use",
            hint="use a smaller batch, a shorter sequence, a smaller model, or activation checkpointing",
        )

    def region(self) -> Region:
        """Memory apart, for one thread: see `Region`."""
        return load(_REGION).Region(self, self._words)

    def trim(self) -> None:
        """Gives every cached free block back to the system."""
        load(_BLOCKS).trim(self._words.buffer_info()[0])

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the blocks that living buffers hold."""
        return self._words[IN_USE]

    @property
    def bytes_cached(self) -> int:
        """Bytes of free blocks held back for the next requests."""
        return self._words[CACHED]

    @property
    def peak_bytes(self) -> int:
        """The most that `bytes_in_use` has been; assign to it to measure from there."""
        return self._words[PEAK]

    @peak_bytes.setter
    def peak_bytes(self, value: int) -> None:
        self._words[PEAK] = value

    @property
    def blocks_from_system(self) -> int:
        """How many blocks the system was asked for so far; it does not grow in a steady loop."""
        return self._words[FROM_SYSTEM]

    def adopt(self, host: np.ndarray[Any, Any], dtype: DType) -> Array:
        """The memory of a NumPy array as an Array, without a copy; the two share every later change."""
        tell(LOOKED)
        strides = tuple(s // host.itemsize for s in host.strides)
        if any(s % host.itemsize for s in host.strides):
            raise DeviceError(
                "adopt",
                "strides that are no multiple of the element size",
                got=host.strides,
                hint="copy the array first",
            )
        buffer = Buffer(self, host.ctypes.data, host.nbytes, host)
        return Array(buffer, host.shape, dtype, strides)

    def upload(self, host: np.ndarray[Any, Any], dtype: DType) -> Array:
        array = self.empty(host.shape, dtype)
        view(array)[...] = host
        return array

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        return view(array).copy()

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        return view(array)

    def synchronize(self) -> None:
        return


class _Exposed:
    """Shows an Array's memory to NumPy and keeps its buffer alive for as long as the NumPy array lives."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, array: Array) -> None:
        n = array.dtype.itemsize
        plain = array.dtype.numpy if array.dtype.numpy.kind != "V" else np.dtype(np.uint16)
        self.buffer = array.buffer
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": plain.str,
            "strides": tuple(s * n for s in array.strides),
            "data": (array.address, False),
        }


def tell(why: str) -> None:
    """Has watchers know what kernels alone could not do again."""
    for watcher in watchers:
        watcher.told(why)


def view(array: Array) -> np.ndarray[Any, Any]:
    """The memory of a host array as NumPy sees it, without a copy. For kernels, uploads and downloads only."""
    tell(LOOKED)
    shown = np.asarray(_Exposed(array))
    return shown if shown.dtype == array.dtype.numpy else shown.view(array.dtype.numpy)


def check(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function that looks into memory and does nothing else but raise an error."""
    for watcher in watchers:  # one at most, which may go at any time
        watcher.check(function, *arguments)
        return
    function(*arguments)


cpu = register(HostDevice("cpu", "pellucid.kernels.cpu"))
reference = register(HostDevice("reference", "pellucid.kernels.reference"))
