"""The norm of all gradients and the factor that clips it, left on the device: nothing waits for a number.

Squares are summed in float64 over blocks of fixed length, and the blocks in order, so that the norm has the same bits
on any number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...base.shapes import contiguous_strides
from ...device import Array
from .formats import array_at, load, store
from .functions import summing
from .launch import kernel
from .launch_ir import MOST_LISTED
from .memory import copy
from .pieces import BLOCK, ask_block, pieces, shape_of
from .rows import sum_piece


@summing
def _squares(x, i, n):
    total = 0.0
    quarter = (n + 4 * BLOCK - 1) // (4 * BLOCK) * BLOCK
    for start in range(i, i + quarter, BLOCK):
        for at in range(start, i + n, quarter):
            ask_block(x, at)
            for k in range(at, min(at + BLOCK, i + n)):
                v = np.float64(load(x, k))
                total += v * v
    return total


@kernel
def _square_sums(lo, hi, parts, part_like, table, sums, at):
    """Items are pieces of the parts: sums[at + item] = sum of x**2 over a piece."""
    for item in range(lo, hi):
        first, last = load(table, 3 * item + 1), load(table, 3 * item + 2)
        x = array_at(parts, load(table, 3 * item), part_like)
        store(sums, at + item, _squares(x, first, last - first))


@kernel
def _root(lo, hi, sums, norm, n):
    store(norm, 0, math.sqrt(sum_piece(sums, 0, 1, n, 0.0)))


@kernel
def _clip(lo, hi, norm, scale, max_norm):
    n, most = load(norm, 0), np.float32(max_norm)
    store(scale, 0, np.float32(1) if n <= most else most / n)


def global_norm(parts: list[Array]) -> Array:
    """float32, shape (): (sum of x**2 over every element of every part)**0.5, accumulated in float64"""
    empty = parts[0].buffer.device.empty
    groups = _alike(parts)
    total, work = 0, []
    for group in groups:
        cut = pieces(tuple(map(shape_of, group)))
        total += cut[0]
        work.append(cut)
    sums = empty((total,), dtypes.float64)
    at = 0
    for group, (items, grain, table) in zip(groups, work, strict=True):
        _square_sums.launch(items, grain, group, group[0], table, sums, at)
        at += items
    norm = empty((), dtypes.float32)
    _root.launch(1, 2, sums, norm, at)
    return norm


def _alike(parts: list[Array]) -> list[list[Array]]:
    """The parts in order, in lists for one launch each: of one dtype, contiguous, not too many."""
    kind = parts[0].dtype
    for part in parts:
        if part.dtype is not kind or part.strides != contiguous_strides(part.shape):
            break
    else:
        if len(parts) <= MOST_LISTED:
            return [parts]
    groups: list[list[Array]] = []
    dtype, room = None, 0
    for part in parts:
        if part.dtype is not dtype or not room:
            groups.append([])
            dtype, room = part.dtype, MOST_LISTED
        groups[-1].append(part if part.is_contiguous else copy(part))
        room -= 1
    return groups


def clip_scale(norm: Array, *, max_norm: float) -> Array:
    """float32, shape (): max_norm / norm where norm > max_norm, else exactly 1; NaN stays NaN
    (Pascanu et al. 2013)."""
    scale = norm.device.empty((), dtypes.float32)
    _clip.launch(1, 2, norm, scale, float(max_norm))
    return scale
