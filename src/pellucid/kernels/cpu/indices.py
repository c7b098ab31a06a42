"""Indices checked before a kernel follows them, in native code: NumPy would take longer than many a kernel does."""

from __future__ import annotations

from array import array

from ...base import dtypes
from ...device import Array, Buffer, cpu
from ...device.cpu import check
from .. import indices as slowly
from .formats import load, store
from .launch import kernel

_count = array("q", [0])
_COUNT = Array(Buffer(cpu, _count.buffer_info()[0], 8, _count), (1,), dtypes.int64)


@kernel
def _outside(lo, hi, indices, size, count):
    """Counts on for each that is outside 0 to size - 1. One chunk, under Python's lock: `count` is everybody's, and is
    never less, since another thread may come between a launch and a look at it."""
    found = load(count, 0)
    for i in range(lo, hi):
        v = load(indices, i)
        if v < 0 or v >= size:
            found += 1
    store(count, 0, found)


def check_indices(where: str, indices: Array, size: int, weights: Array | None = None) -> None:
    """Raises ShapeError unless 0 <= index < size for every index, or for every one whose weight is not 0."""
    check(_check if indices.is_contiguous else slowly.check_indices, where, indices, size, weights)


def _check(where: str, indices: Array, size: int, weights: Array | None) -> None:
    n, before = indices.size, _count[0]
    _outside.launch(n, n + 1, indices, size, _COUNT)
    if _count[0] != before:  # by these indices, or another thread's
        slowly.check_indices(where, indices, size, weights)
