"""Operations that move no numbers where a view will do: shapes, axes, joining and cutting."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from ..base import dtypes, shapes
from ..base.errors import ShapeError
from ..device import Array
from ..kernels.views import reshaped
from ..tape import Op, Tensor
from .common import cast, unbroadcast


class Reshape(Op):
    """The same elements under another shape; a copy only where the strides need one."""

    def forward(self, x: Array, *, shape: tuple[int, ...]) -> Array:
        self.shape = x.shape
        view = x.reshape(shape)
        return reshaped(self.kernels, x, shape) if view is None else view

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": reshaped(self.kernels, dy, self.shape)}


class Permute(Op):
    """Axes in another order."""

    def forward(self, x: Array, *, order: tuple[int, ...]) -> Array:
        self.order = order
        return x.permute(order)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": dy.permute([self.order.index(i) for i in range(len(self.order))])}


class Expand(Op):
    """Broadcast to a shape, without a copy.   dx = dy summed over the repeated axes"""

    def forward(self, x: Array, *, shape: tuple[int, ...]) -> Array:
        self.shape = x.shape
        return x.expand(shape)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": unbroadcast(self.kernels, dy, self.shape)}


class Copy(Op):
    """The elements in fresh contiguous memory."""

    def forward(self, x: Array) -> Array:
        return self.kernels.copy(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": dy}


class Concatenate(Op):
    """Tensors one behind the other along an axis.   The gradient is cut where they meet."""

    def forward(self, *parts: Array, axis: int) -> Array:
        self.axis, self.lengths = axis, [p.shape[axis] for p in parts]
        return self.kernels.concatenate(list(parts), axis=axis)

    def backward(self, dy: Array) -> dict[str, list[Array]]:
        cut, start = [], 0
        for n in self.lengths:
            cut.append(dy.slice(self.axis, start, start + n))
            start += n
        return {"parts": cut}


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The same elements, row-major, under another shape; one length may be -1: `x.reshape(2, -1)`."""
    return Reshape.apply(x, shape=shapes.lengths(_listed(shape), where="reshape"))


def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    """Axes `start` to `end` (included) as one."""
    if x.ndim == 0:
        return reshape(x, 1)
    first, last = shapes.axis(start, x.ndim, where="flatten"), shapes.axis(end, x.ndim, where="flatten")
    if first > last:
        raise ShapeError("flatten", "the first axis comes after the last", got=f"{start} and {end}")
    joined = 1
    for n in x.shape[first : last + 1]:
        joined *= n
    return reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def permute(x: Tensor, *order: Any) -> Tensor:
    """Axes in another order: a view."""
    found = tuple(shapes.axis(index(a), x.ndim, where="permute") for a in _listed(order))
    if sorted(found) != list(range(x.ndim)):
        raise ShapeError(
            "permute", "not a permutation of the axes", got=_listed(order), expected=f"each of {x.ndim} axes once"
        )
    return Permute.apply(x, order=found)


def transpose(x: Tensor, a: int = -2, b: int = -1) -> Tensor:
    """Two axes exchanged: a view."""
    return Permute.apply(x, order=shapes.exchanged(len(x.array.shape), a, b))


def matrix_transpose(x: Tensor) -> Tensor:
    """All axes in reverse order, as NumPy's `T`: a view."""
    return Permute.apply(x, order=tuple(range(len(x.array.shape) - 1, -1, -1)))


def expand(x: Tensor, *shape: Any) -> Tensor:
    """Broadcast to a shape: a view whose repeated axes have stride 0."""
    wanted = tuple(_listed(shape))
    if shapes.broadcast(x.shape, wanted, where="expand") != wanted:
        raise ShapeError("expand", "does not broadcast to the shape", got=x.shape, expected=wanted)
    return Expand.apply(x, shape=wanted)


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """A new axis of length 1 at position `axis`."""
    found = shapes.axis(axis, x.ndim + 1, where="unsqueeze")
    return Reshape.apply(x, shape=(*x.shape[:found], 1, *x.shape[found:]))


def squeeze(x: Tensor, axis: int | None = None) -> Tensor:
    """Without the axis, which must have length 1; None: without every axis of length 1."""
    if axis is None:
        return Reshape.apply(x, shape=tuple(n for n in x.shape if n != 1))
    found = shapes.axis(axis, x.ndim, where="squeeze")
    if x.shape[found] != 1:
        raise ShapeError("squeeze", "the axis has more than one element", got=x.shape[found], expected=1)
    return Reshape.apply(x, shape=(*x.shape[:found], *x.shape[found + 1 :]))


def contiguous(x: Tensor) -> Tensor:
    """The tensor itself if its elements lie row-major without gaps, else a copy that does."""
    return x if x.is_contiguous else Copy.apply(x)


def clone(x: Tensor) -> Tensor:
    """A copy in fresh memory."""
    return Copy.apply(x)


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one behind the other along `axis`; the other axes are equal. Dtypes are promoted."""
    if not tensors:
        raise ShapeError("concatenate", "no tensors")
    first = tensors[0]
    if first.ndim == 0:
        raise ShapeError("concatenate", "tensors of shape () have no axis to join along", hint="use stack")
    found = shapes.axis(axis, first.ndim, where="concatenate")
    dtype = first.dtype
    for t in tensors:
        dtype = dtypes.promote(dtype, t.dtype)
        if t.ndim != first.ndim or any(t.shape[i] != first.shape[i] for i in range(first.ndim) if i != found):
            raise ShapeError("concatenate", "shapes differ beside the axis", got=f"{first.shape} and {t.shape}")
    return Concatenate.apply(*(cast(t, dtype) for t in tensors), axis=found)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    if not tensors:
        raise ShapeError("stack", "no tensors")
    for t in tensors:
        if t.shape != tensors[0].shape:
            raise ShapeError("stack", "shapes differ", got=f"{tensors[0].shape} and {t.shape}")
    return concatenate([unsqueeze(t, axis) for t in tensors], shapes.axis(axis, tensors[0].ndim + 1, where="stack"))


def split(x: Tensor, parts: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Views of consecutive parts along `axis`: so many equal ones, or ones of the lengths listed."""
    found = shapes.axis(axis, x.ndim, where="split")
    n = x.shape[found]
    if isinstance(parts, int):
        if parts < 1 or n % parts:
            raise ShapeError("split", "the axis is not a multiple of the parts", got=f"{n} and {parts}")
        lengths = [n // parts] * parts
    else:
        lengths = list(parts)
        if sum(lengths) != n or any(p < 0 for p in lengths):
            raise ShapeError("split", "the lengths do not add up to the axis", got=lengths, expected=f"a sum of {n}")
    cut, start = [], 0
    for length in lengths:
        cut.append(x[(slice(None),) * found + (slice(start, start + length),)])
        start += length
    return cut


def _listed(values: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
