"""Rows of a table by id, and the gradients that go back into it. ids: any integer dtype, any shape, 0 <= id < rows
(checked where ids enter the device, not here)."""

from __future__ import annotations

import numpy as np

from ...device import Array
from .host import read, write


def embedding(weight: Array, ids: Array) -> Array:
    """y[...] = weight[ids[...]].   weight: (V, ...), y: ids.shape + weight.shape[1:]"""
    return write(weight, read(weight)[read(ids)])


def embedding_backward(dy: Array, ids: Array, *, rows: int) -> Array:
    """dweight[v] = sum of dy over the positions with id v, in the order of the positions; (rows, ...)"""
    g, index = read(dy), read(ids).reshape(-1)
    rest = dy.shape[ids.rank :]
    dweight = np.zeros((rows, *rest), g.dtype)
    np.add.at(dweight, index, g.reshape(index.size, *rest))
    return write(dy, dweight)


def pick(x: Array, index: Array) -> Array:
    """y[...] = x[..., index[...]].   x: (..., C), index: (...) integer"""
    return write(x, np.take_along_axis(read(x), read(index)[..., None].astype(np.int64), axis=-1)[..., 0])


def pick_backward(dy: Array, index: Array, *, size: int) -> Array:
    """dx[..., index[...]] = dy[...], 0 elsewhere; (..., size)"""
    g = read(dy)
    dx = np.zeros((*g.shape, size), g.dtype)
    np.put_along_axis(dx, read(index)[..., None].astype(np.int64), g[..., None], axis=-1)
    return write(dy, dx)
