"""Matrices that are held, by the kernels of every backend."""

from __future__ import annotations

from ..base import dtypes
from ..device import Array
from .views import reshaped


def held_rows(table: Array, scale: Array | None, ids: Array) -> Array:
    """y[...] = table[ids[...]] scale[ids[...]] in float32.   table: (V, D), scale: (V,) or None, ids: any integers"""
    kernels = table.device.kernels
    found = kernels.embedding(table, ids)
    if scale is None:
        return found if found.dtype is dtypes.float32 else kernels.cast(found, dtype=dtypes.float32)
    rows = reshaped(kernels, found, (ids.size, table.shape[1]))
    scales = reshaped(kernels, kernels.embedding(scale, ids), (ids.size,))
    return reshaped(kernels, kernels.dequantize(rows, scales, dtype=dtypes.float32), found.shape)
