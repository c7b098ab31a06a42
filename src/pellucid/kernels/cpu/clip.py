"""The norm of all gradients and the factor that clips it, left on the device: nothing waits for a number.

Squares are summed in float64 over blocks of fixed length, and the blocks in order, so that the norm has the same bits
on any number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...device import Array
from .elementwise import GRAIN
from .formats import load, store
from .functions import summing
from .launch import kernel
from .memory import copy
from .rows import sum_piece


@summing
def _squares(x, i, n):
    total = 0.0
    for k in range(n):
        v = np.float64(load(x, i + k))
        total += v * v
    return total


@kernel
def _square_sums(lo, hi, x, sums, at, n, length):
    """sums[at + block] = sum of x**2 over a block of `length` elements."""
    for block in range(lo, hi):
        first = block * length
        store(sums, at + block, _squares(x, first, min(length, n - first)))


@kernel
def _root(lo, hi, sums, norm, n):
    store(norm, 0, math.sqrt(sum_piece(sums, 0, 1, n, 0.0)))


@kernel
def _clip(lo, hi, norm, scale, max_norm):
    n, most = load(norm, 0), np.float32(max_norm)
    store(scale, 0, np.float32(1) if n <= most else most / n)


def global_norm(parts: list[Array]) -> Array:
    """float32, shape (): (sum of x**2 over every element of every part)**0.5, accumulated in float64"""
    device = parts[0].device
    sizes = [part.size for part in parts]
    sums = device.empty((sum(-(-n // GRAIN) for n in sizes),), dtypes.float64)
    at = 0
    for part, n in zip(parts, sizes, strict=True):
        count = -(-n // GRAIN)
        _square_sums.launch(count, 2, part if part.is_contiguous else copy(part), sums, at, n, GRAIN)
        at += count
    norm = device.empty((), dtypes.float32)
    _root.launch(1, 2, sums, norm, at)
    return norm


def clip_scale(norm: Array, *, max_norm: float) -> Array:
    """float32, shape (): max_norm / norm where norm > max_norm, else exactly 1; NaN stays NaN
    (Pascanu et al. 2013)."""
    scale = norm.device.empty((), dtypes.float32)
    _clip.launch(1, 2, norm, scale, float(max_norm))
    return scale
