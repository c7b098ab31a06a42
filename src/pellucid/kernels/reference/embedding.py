"""Rows of a table by id, and the gradients that go back into it. ids: any integer dtype, any shape, 0 <= id < rows,
else ShapeError."""

from __future__ import annotations

import numpy as np

from ...device import Array
from ...device.cpu import view
from ..indices import check_indices
from .host import read, write


def embedding(weight: Array, ids: Array) -> Array:
    """y[...] = weight[ids[...]].   weight: (V, ...), y: ids.shape + weight.shape[1:]"""
    check_indices("embedding", ids, weight.shape[0])
    return write(weight, read(weight)[read(ids)])


def embedding_backward(dy: Array, ids: Array, *, rows: int) -> Array:
    """dweight[v] = sum of dy over the positions with id v, in the order of the positions; (rows, ...)"""
    check_indices("embedding_backward", ids, rows)
    g, index = read(dy), read(ids).reshape(-1)
    rest = dy.shape[ids.rank :]
    dweight = np.zeros((rows, *rest), g.dtype)
    np.add.at(dweight, index, g.reshape(index.size, *rest))
    return write(dy, dweight)


def add_rows_(target: Array, dy: Array, ids: Array) -> None:
    """target[v] += sum of dy over the positions with id v, one after the other.   target: (V, ...), contiguous"""
    check_indices("add_rows_", ids, target.shape[0])
    index = read(ids).reshape(-1)
    np.add.at(view(target), index, read(dy).reshape(index.size, *target.shape[1:]))


def pick(x: Array, index: Array) -> Array:
    """y[...] = x[..., index[...]].   x: (..., C), index: (...) integer"""
    check_indices("pick", index, x.shape[-1])
    return write(x, np.take_along_axis(read(x), read(index)[..., None].astype(np.int64), axis=-1)[..., 0])


def pick_backward(dy: Array, index: Array, *, size: int) -> Array:
    """dx[..., index[...]] = dy[...], 0 elsewhere; (..., size)"""
    check_indices("pick_backward", index, size)
    g = read(dy)
    dx = np.zeros((*g.shape, size), g.dtype)
    np.put_along_axis(dx, read(index)[..., None].astype(np.int64), g[..., None], axis=-1)
    return write(dy, dx)
