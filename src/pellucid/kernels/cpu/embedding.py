"""Rows of a table by id, and the gradients that go back into it. ids: any integer dtype, any shape, 0 <= id < rows
(checked where ids enter the device, not here).

The gradient of a table adds rows of dy in the order of their positions, whatever the number of threads: the ids are
dealt out by their remainder, so that each row of the table belongs to one item, and frequent ids spread.
"""

from __future__ import annotations

import math

from ...device import Array
from .elementwise import GRAIN
from .formats import element, load, put, store
from .indices import check_indices
from .launch import kernel
from .memory import cast, contiguous
from .rows import accumulator, add_row, row_grain

_SHARES = 16  # items a table is dealt out to


@kernel
def _gather(lo, hi, table, ids, y, n):
    for i in range(lo, hi):
        at = load(ids, i) * n
        for k in range(n):
            put(y, i * n + k, element(table, at + k))


@kernel
def _scatter(lo, hi, dy, ids, dtable, rows, count, n, shares):
    """Items are the remainders of ids by `shares`."""
    for share in range(lo, hi):
        for v in range(share, rows, shares):
            for k in range(n):
                store(dtable, v * n + k, 0)
        for i in range(count):
            v = load(ids, i)
            if v % shares == share:
                add_row(dtable, v * n, dy, i * n, n)


@kernel
def _add_rows(lo, hi, dy, ids, target, count, n, shares):
    """Items are the remainders of ids by `shares`."""
    for share in range(lo, hi):
        for i in range(count):
            v = load(ids, i)
            if v % shares == share:
                add_row(target, v * n, dy, i * n, n)


@kernel
def _pick(lo, hi, x, index, y, n):
    for i in range(lo, hi):
        put(y, i, element(x, i * n + load(index, i)))


@kernel
def _put_back(lo, hi, dy, index, dx, n):
    for i in range(lo, hi):
        for k in range(n):
            store(dx, i * n + k, 0)
        put(dx, i * n + load(index, i), element(dy, i))


def embedding(weight: Array, ids: Array) -> Array:
    """y[...] = weight[ids[...]].   weight: (V, ...), y: ids.shape + weight.shape[1:]"""
    weight, ids = contiguous(weight), contiguous(ids)
    check_indices("embedding", ids, weight.shape[0])
    rest = weight.shape[1:]
    y = weight.device.empty((*ids.shape, *rest), weight.dtype)
    if y.size:
        n = math.prod(rest)
        _gather(ids.size, row_grain(n), weight, ids, y, n)
    return y


def embedding_backward(dy: Array, ids: Array, *, rows: int) -> Array:
    """dweight[v] = sum of dy over the positions with id v, in the order of the positions; (rows, ...)"""
    check_indices("embedding_backward", ids, rows)
    rest = dy.shape[ids.rank :]
    dy, ids = contiguous(dy), contiguous(ids)
    kind = accumulator(dy.dtype)
    dweight = dy.device.empty((rows, *rest), kind)
    n = math.prod(rest)
    shares = _SHARES if (rows + ids.size) * n > GRAIN else 1
    _scatter(shares, 1, dy, ids, dweight, rows, ids.size, n, shares)
    return dweight if kind is dy.dtype else cast(dweight, dtype=dy.dtype)


def add_rows_(target: Array, dy: Array, ids: Array) -> None:
    """target[v] += sum of dy over the positions with id v, one after the other.   target: (V, ...), contiguous"""
    check_indices("add_rows_", ids, target.shape[0])
    dy, ids = contiguous(dy), contiguous(ids)
    n = math.prod(target.shape[1:])
    shares = _SHARES if ids.size * n > GRAIN else 1
    _add_rows(shares, 1, dy, ids, target, ids.size, n, shares)


def pick(x: Array, index: Array) -> Array:
    """y[...] = x[..., index[...]].   x: (..., C), index: (...) integer"""
    check_indices("pick", index, x.shape[-1])
    x, index = contiguous(x), contiguous(index)
    y = x.device.empty(index.shape, x.dtype)
    _pick(y.size, GRAIN, x, index, y, x.shape[-1])
    return y


def pick_backward(dy: Array, index: Array, *, size: int) -> Array:
    """dx[..., index[...]] = dy[...], 0 elsewhere; (..., size)"""
    check_indices("pick_backward", index, size)
    dy, index = contiguous(dy), contiguous(index)
    dx = dy.device.empty((*dy.shape, size), dy.dtype)
    _put_back(dy.size, row_grain(size), dy, index, dx, size)
    return dx
