"""The host's memory as a device: an aligned caching allocator, and NumPy views for the kernels.

Blocks are 64-byte aligned and kept in free lists by size class, so that a steady training step asks the system for
nothing. Two devices share this memory: "cpu", whose kernels are compiled, and "reference", whose kernels are the
NumPy definitions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..base.dtypes import DType
from ..base.errors import DeviceError
from ..base.settings import settings
from .array import Array
from .device import Buffer, Device, register

_ALIGN = 64
_KEEP = 4 << 30  # bytes of free blocks a device holds on to


@lru_cache(4096)
def size_class(nbytes: int) -> int:
    """The block size that serves a request: a multiple of 64 up to 1 KiB, then steps of an eighth of a power of two."""
    if nbytes <= 1024:
        return max(64, (nbytes + 63) & -64)
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return (nbytes + step - 1) // step * step


class HostDevice(Device):
    """Memory of this process."""

    def __init__(self, name: str, backend: str) -> None:
        self.name, self.backend = name, backend
        self._free: dict[int, list[tuple[int, Any]]] = {}
        self.bytes_cached = 0
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self._keep = _KEEP
        self._poison: bool | None = None  # read at the first allocation, so that importing can't fail

    def allocate(self, nbytes: int) -> Buffer:
        wanted = size_class(nbytes)
        try:
            address, memory = self._free[wanted].pop()
            self.bytes_cached -= wanted
        except LookupError:
            address, memory = self._from_system(wanted)
        self.bytes_in_use += wanted
        if self.bytes_in_use > self.peak_bytes:
            self.peak_bytes = self.bytes_in_use
        if self._poison is None:
            self._poison = settings().poison
        if self._poison:
            memory[:] = 0xFF  # every float format reads this as NaN, every integer as -1 or its largest
        return Buffer(self, address, nbytes, memory, wanted)

    def _from_system(self, nbytes: int) -> tuple[int, Any]:
        try:
            block = np.empty(nbytes + _ALIGN, np.uint8)
        except MemoryError:
            raise DeviceError(
                self.name,
                "out of memory",
                got=f"a request of {nbytes:,} bytes with {self.bytes_in_use:,} in use",
                hint="use a smaller batch, a shorter sequence, a smaller model, or activation checkpointing",
            ) from None
        shift = -block.ctypes.data % _ALIGN
        memory = block[shift : shift + nbytes]
        return memory.ctypes.data, memory

    def release(self, buffer: Buffer) -> None:
        # Runs while the interpreter shuts down, too, when names of modules are gone: only what `self` holds is used.
        block = buffer.block
        self.bytes_in_use -= block
        if self.bytes_cached + block <= self._keep:
            self.bytes_cached += block
            self._free.setdefault(block, []).append((buffer.address, buffer.memory))

    def trim(self) -> None:
        """Gives every cached free block back to the system."""
        self._free.clear()
        self.bytes_cached = 0

    def adopt(self, host: np.ndarray[Any, Any], dtype: DType) -> Array:
        """The memory of a NumPy array as an Array, without a copy; the two share every later change."""
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


def view(array: Array) -> np.ndarray[Any, Any]:
    """The memory of a host array as NumPy sees it, without a copy. For kernels, uploads and downloads only."""
    shown = np.asarray(_Exposed(array))
    return shown if shown.dtype == array.dtype.numpy else shown.view(array.dtype.numpy)


cpu = register(HostDevice("cpu", "pellucid.kernels.cpu"))
reference = register(HostDevice("reference", "pellucid.kernels.reference"))
