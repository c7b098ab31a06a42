"""Array: typed, strided memory on a device. The thing kernels take and return; a Tensor is an Array plus autodiff.

An Array never computes and never reads its memory: every method here makes another view of the same buffer by
changing shape, strides and offset. Whatever needs the numbers goes through the kernels of `array.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import shapes
from ..base.dtypes import DType

if TYPE_CHECKING:
    from .device import Buffer, Device

Shape = tuple[int, ...]


class Array:
    """A view of a device buffer.

    Attributes:
        buffer: the memory, kept alive by this reference.
        shape, strides: lengths and steps of the axes; steps in elements.
        offset: elements from the start of the buffer to the first element.
        dtype: the element type.
    """

    __slots__ = ("buffer", "dtype", "offset", "shape", "strides")

    def __init__(
        self, buffer: Buffer, shape: Shape, dtype: DType, strides: Shape | None = None, offset: int = 0
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.strides = shapes.contiguous_strides(shape) if strides is None else strides
        self.offset = offset

    @property
    def device(self) -> Device:
        return self.buffer.device

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements shown (a stretched axis counts as often as it repeats)."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        strides = self.strides
        return strides == shapes.contiguous_strides(self.shape) or shapes.is_contiguous(self.shape, strides)

    @property
    def address(self) -> int:
        """Address of the first element. Only kernels of this array's device may ask."""
        return self.buffer.address + self.offset * self.dtype.itemsize

    def reshape(self, shape: Sequence[int]) -> Array | None:
        """The same elements under another shape, or None where the strides do not allow a view."""
        new, strides = shapes.reshaped(self.shape, self.strides, tuple(shape))
        return None if strides is None else _new(self.buffer, new, self.dtype, strides, self.offset)

    def strided(self, shape: Shape, strides: Shape, offset: int) -> Array:
        """What stands at these places, counted from the first element of this one."""
        return _new(self.buffer, shape, self.dtype, strides, self.offset + offset)

    def permute(self, order: Sequence[int]) -> Array:
        """Axes in another order."""
        shape, strides = shapes.permuted(self.shape, self.strides, tuple(order))
        return _new(self.buffer, shape, self.dtype, strides, self.offset)

    def transpose(self, a: int = -2, b: int = -1) -> Array:
        """Two axes exchanged."""
        if len(self.shape) == 2 and (a, b) == (-2, -1):  # a matrix: the case that is everywhere in a training step
            (m, n), (down, right) = self.shape, self.strides
            return _new(self.buffer, (n, m), self.dtype, (right, down), self.offset)
        return self.permute(shapes.exchanged(len(self.shape), a, b))

    def expand(self, shape: Sequence[int]) -> Array:
        """Broadcast to `shape` by steps of zero."""
        shape = tuple(shape)
        return _new(self.buffer, shape, self.dtype, shapes.stretched(self.shape, self.strides, shape), self.offset)

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Array:
        """Elements start, start + step, ... before stop along an axis; bounds already resolved, step not zero."""
        count = max(0, (stop - start + step - (1 if step > 0 else -1)) // step)
        shape, strides = self.shape, self.strides
        offset = self.offset + start * strides[axis] if count else self.offset
        shape = (*shape[:axis], count, *shape[axis + 1 :])
        strides = (*strides[:axis], strides[axis] * step, *strides[axis + 1 :])
        return _new(self.buffer, shape, self.dtype, strides, offset)

    def select(self, axis: int, index: int) -> Array:
        """One position of an axis; the axis goes."""
        offset = self.offset + index * self.strides[axis]
        shape, strides = self.shape[:axis] + self.shape[axis + 1 :], self.strides[:axis] + self.strides[axis + 1 :]
        return _new(self.buffer, shape, self.dtype, strides, offset)

    def unsqueeze(self, axis: int) -> Array:
        """A new axis of length 1 before position `axis`."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], 0, *self.strides[axis:])
        return _new(self.buffer, shape, self.dtype, strides, self.offset)

    def __reduce__(self) -> tuple[object, ...]:
        # A copy, and what is unpickled, is memory of its own: an address means nothing anywhere else.
        return _uploaded, (self.device.download(self), self.dtype, self.device)

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, dtype={self.dtype.name}, device={self.device.name!r})"


_new: Callable[[Buffer, Shape, DType, Shape, int], Array] = Array


def make_views_by(maker: Callable[[Buffer, Shape, DType, Shape, int], Array]) -> None:
    """Has views made by native code, which is not there before the first allocation."""
    global _new
    _new = maker


def _uploaded(host: np.ndarray[Any, Any], dtype: DType, device: Device) -> Array:
    return device.upload(host, dtype)
