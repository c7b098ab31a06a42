"""Indexing: `x[...]` by integers, slices, None and Ellipsis (views), or by one tensor of integers; rows of a table."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.errors import DTypeError, ShapeError
from ..base.shapes import Shape
from ..device import Array
from ..tape import Op, Tensor, constant
from .common import zeros_like

#: One change of view at an axis: "slice" (start, stop, step), "select" (index) or "insert" ().
Step = tuple[str, int, tuple[int, ...]]

_WHOLE = slice(None)


def look(x: Array, steps: tuple[Step, ...]) -> Array:
    """The view of `x` that the steps describe."""
    shape, strides, offset = _seen(x.shape, x.strides, steps)
    return x.strided(shape, strides, offset)


@lru_cache(4096)
def _seen(shape: Shape, strides: Shape, steps: tuple[Step, ...]) -> tuple[Shape, Shape, int]:
    """Shape and strides behind the steps, and how far the first element is from the first one before."""
    x = Array(None, shape, dtypes.uint8, strides)  # type: ignore[arg-type]
    for kind, axis, numbers in steps:
        if kind == "slice":
            x = x.slice(axis, *numbers)
        elif kind == "select":
            x = x.select(axis, *numbers)
        else:
            x = x.unsqueeze(axis)
    return x.shape, x.strides, x.offset


class View(Op):
    """Part of a tensor, sharing its memory.   dx = dy in that part, 0 elsewhere"""

    def forward(self, x: Array, *, steps: tuple[Step, ...]) -> Array:
        self.shape, self.steps = x.shape, steps
        return look(x, steps)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dx = zeros_like(self.kernels, dy, self.shape)
        self.kernels.assign_(look(dx, self.steps), dy)
        return {"x": dx}


class Embedding(Op):
    """y[...] = weight[ids[...]].   dweight[v] = sum of dy where the id is v"""

    saves = ("ids",)
    adds_into = "weight"

    def forward(self, weight: Array, ids: Array) -> Array:
        self.rows = weight.shape[0]
        self.save(ids=ids)
        return self.kernels.embedding(weight, ids)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        # A table that is the head as well has its gradient: a few rows are added to it. Narrow sums are made apart.
        if self.made_so_far is not None and dy.dtype in (dtypes.float32, dtypes.float64):
            self.kernels.add_rows_(self.made_so_far, dy, self.ids)
            return {}
        return {"weight": self.kernels.embedding_backward(dy, self.ids, rows=self.rows)}


class Pick(Op):
    """y[...] = x[..., index[...]].   dx[..., index[...]] = dy, 0 elsewhere"""

    saves = ("index",)

    def forward(self, x: Array, index: Array) -> Array:
        self.size = x.shape[-1]
        self.save(index=index)
        return self.kernels.pick(x, index)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.pick_backward(dy, self.index, size=self.size)}


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table: y[...] = weight[ids[...]].   weight: (V, ...), ids: integers in 0..V-1.

    Kernels on the host's memory raise ShapeError for an id outside the table.
    """
    if weight.ndim == 0:
        raise ShapeError("embedding", "a table needs rows", got=weight.shape)
    return Embedding.apply(weight, _integers("embedding", ids))


def pick(x: Tensor, index: Tensor) -> Tensor:
    """One element of the last axis each: y[...] = x[..., index[...]].   x: (..., C), index: (...) in 0..C-1."""
    if x.ndim == 0 or index.shape != x.shape[:-1]:
        raise ShapeError("pick", "the index does not fit", got=index.shape, expected=x.shape[:-1])
    return Pick.apply(x, _integers("pick", index))


def getitem(x: Tensor, key: Any) -> Tensor:
    """`x[key]`: integers, slices (steps of either sign), None and Ellipsis give a view; one tensor, array or list of
    integers picks along its axis (ShapeError out of bounds). Masks of bools are refused."""
    shape = x.array.shape
    if shape and type(key) is int:
        return View.apply(x, steps=(("select", 0, (_index(key, shape[0]),)),))
    if shape and type(key) is slice and key != _WHOLE:
        return View.apply(x, steps=(("slice", 0, _bounds(key, shape[0])),))
    keys = _without_ellipsis(key if isinstance(key, tuple) else (key,), len(shape))
    steps: list[Step] = []
    picking: Any = None
    pick_axis, axis, at = -1, 0, 0  # axes of the view; the axis of x that the next key is for
    for k in keys:
        if k is None:
            steps.append(("insert", axis, ()))
            axis += 1
            continue
        if isinstance(k, slice):
            if k != _WHOLE:
                steps.append(("slice", axis, _bounds(k, shape[at])))
            axis += 1
        elif isinstance(k, (Tensor, np.ndarray, list)):
            if pick_axis >= 0:
                got = sum(isinstance(other, (Tensor, np.ndarray, list)) for other in keys)
                hint = "index one axis at a time"
                raise ShapeError("getitem", "more than one tensor in an index", got=got, hint=hint)
            picking, pick_axis = k, axis
            axis += 1
        else:
            steps.append(("select", axis, (_index(k, shape[at]),)))
        at += 1
    y = View.apply(x, steps=tuple(steps)) if steps else x
    if pick_axis < 0:
        return y
    index = _index_tensor(picking, y, pick_axis)
    if pick_axis == 0:
        return Embedding.apply(y, index)
    order = (pick_axis, *(i for i in range(y.ndim) if i != pick_axis))
    rows = Embedding.apply(y.permute(order), index)
    k = index.ndim
    back = (*range(k, k + pick_axis), *range(k), *range(k + pick_axis, rows.ndim))
    return rows.permute(back)


def _without_ellipsis(keys: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """Whole slices in place of an Ellipsis. Raises ShapeError for two, and for more keys than axes."""
    used, dots = 0, -1
    for i, k in enumerate(keys):
        if k is Ellipsis:
            if dots >= 0:
                raise ShapeError("getitem", "more than one Ellipsis in an index")
            dots = i
        elif k is not None:
            used += 1
    if used > rank:
        raise ShapeError("getitem", "too many indices", got=used, expected=f"at most {rank}")
    return keys if dots < 0 else (*keys[:dots], *(_WHOLE,) * (rank - used), *keys[dots + 1 :])


def _bounds(key: slice, n: int) -> tuple[int, int, int]:
    try:
        start, stop, step = key.indices(n)
    except (TypeError, ValueError) as error:
        raise ShapeError("getitem", "not a usable slice", got=key, hint=str(error)) from None
    some = start < stop if step > 0 else start > stop
    return (start, stop, step) if some else (0, 0, 1)


def _index(key: Any, n: int) -> int:
    if type(key) is not int and (isinstance(key, (bool, np.bool_)) or not isinstance(key, (int, np.integer))):
        hint = "use where() or masked_fill() instead of a mask"
        raise DTypeError(
            "getitem", "not an index", got=type(key).__name__, expected="integer, slice, None or ...", hint=hint
        )
    if not -n <= key < n:
        raise ShapeError("getitem", "index out of range", got=int(key), expected=f"-{n} to {n - 1}")
    return int(key) % n


def _index_tensor(key: Any, x: Tensor, axis: int) -> Tensor:
    if isinstance(key, Tensor):
        index, k = _integers("getitem", key).array, key.device.kernels
        zero, n = constant(key.device, 0, key.dtype), constant(key.device, x.shape[axis], key.dtype)
        return Tensor(k.where(k.lt(index, zero), k.add(index, n), index))  # as in a list, -1 is the last
    host = np.asarray(key)
    if host.size == 0:
        host = host.astype(np.int64)
    if host.dtype.kind not in "iu":
        hint = "use where() or masked_fill() instead of a mask" if host.dtype.kind == "b" else None
        raise DTypeError("getitem", "an index of this type", got=host.dtype, expected="integers", hint=hint)
    n = x.shape[axis]
    if host.size and not (-n <= host.min() and host.max() < n):
        bad = host.min() if host.min() < -n else host.max()
        raise ShapeError("getitem", "index out of range", got=int(bad), expected=f"-{n} to {n - 1}")
    return Tensor(x.device.upload(host.astype(np.int64) % max(n, 1), dtypes.int64))


def _integers(where: str, ids: Tensor) -> Tensor:
    if ids.dtype.kind != "int":
        hint = "use where() or masked_fill() instead of a mask" if ids.dtype.kind == "bool" else "cast it first"
        raise DTypeError(where, "an index must be integers", got=ids.dtype.name, hint=hint)
    return ids


__all__ = ["Embedding", "Pick", "View", "embedding", "getitem", "pick"]
