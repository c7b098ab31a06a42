"""Shape arithmetic: broadcasting, axes, strides. Strides count elements, never bytes. Nothing here holds data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import SupportsIndex

from .errors import ShapeError

Shape = tuple[int, ...]


@lru_cache(4096)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, in elements."""
    strides, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        strides[i] = step
        step *= max(shape[i], 1)
    return tuple(strides)


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie row-major without gaps (axes of length 1 and empty arrays never matter)."""
    if strides == contiguous_strides(shape):
        return True
    step = 1
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1:
            if strides[i] != step:
                return prod(shape) == 0
            step *= shape[i]
    return True


@lru_cache(4096)
def broadcast(*shapes: Shape, where: str = "broadcast") -> Shape:
    """The common shape under NumPy's rule: align right, length 1 stretches. Raises ShapeError if there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                if result[i] not in (1, n):
                    raise ShapeError(where, "shapes do not broadcast", got=" and ".join(str(s) for s in shapes))
                result[i] = n
    return tuple(result)


def broadcast_axes(shape: Shape, to: Shape) -> Shape:
    """Axes of `to` along which an array of `shape` is repeated: the axes its gradient is summed over."""
    lead = len(to) - len(shape)
    return tuple(i for i in range(len(to)) if i < lead or (shape[i - lead] == 1 and to[i] != 1))


def axis(value: int, rank: int, *, where: str = "axis") -> int:
    """A non-negative axis number. Raises ShapeError when out of range."""
    if not -rank <= value < rank:
        raise ShapeError(where, "axis out of range", got=value, expected=f"-{rank} to {rank - 1}")
    return value % rank


@lru_cache
def every_axis(rank: int) -> Shape:
    """0 to rank - 1."""
    return tuple(range(rank))


def axes(value: int | Sequence[int] | None, rank: int, *, where: str = "axis") -> Shape:
    """Sorted, distinct axis numbers; None means all of them."""
    if value is None:
        return every_axis(rank)
    if type(value) is int:  # before others are asked whether they are a kind of integer, which is slow
        return (axis(value, rank, where=where),)
    listed = [int(value)] if isinstance(value, SupportsIndex) else list(value)  # NumPy's integers too
    found = sorted(axis(a, rank, where=where) for a in listed)
    if len(set(found)) != len(found):
        raise ShapeError(where, "the same axis twice", got=tuple(listed))
    return tuple(found)


def lengths(shape: Sequence[object], *, where: str) -> Shape:
    """Lengths of axes as ints. Raises ShapeError for what is no whole number."""
    for n in shape:
        if type(n) is not int:
            break
    else:  # as almost always, and in half the time
        return tuple(shape)  # type: ignore[arg-type]
    try:
        return tuple(map(index, shape))  # type: ignore[arg-type]
    except TypeError:
        got = tuple(shape)
        raise ShapeError(where, "a length that is no whole number", got=got, expected="ints") from None


@lru_cache(4096)
def reduced(shape: Shape, over: Shape, keepdims: bool) -> Shape:
    """The shape left after a reduction over the axes `over`."""
    if keepdims:
        return tuple(1 if i in over else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in over)


def resolve(shape: Sequence[int], size: int, *, where: str = "reshape") -> Shape:
    """Replaces a single -1 by the length that makes the product equal `size`. Raises ShapeError if it can't be."""
    return _resolve(tuple(shape), size, where)


@lru_cache(4096)
def _resolve(shape: Shape, size: int, where: str) -> Shape:
    wanted = shape
    holes = wanted.count(-1)
    known = prod(n for n in wanted if n != -1)
    bad = holes > 1 or any(n < -1 for n in wanted)
    if not bad and holes == 1:
        bad = known == 0 or size % known != 0
        if not bad:
            wanted = tuple(size // known if n == -1 else n for n in wanted)
    if bad or prod(wanted) != size:
        raise ShapeError(
            where,
            "the new shape does not hold the same number of elements",
            got=tuple(shape),
            expected=f"{size} elements",
        )
    return wanted


@lru_cache(4096)
def reshaped(shape: Shape, strides: Shape, new: Shape) -> tuple[Shape, Shape | None]:
    """`new` without its -1, and the strides that show the same elements so; None for these where a copy is needed."""
    found = resolve(new, prod(shape))
    return found, contiguous_strides(found) if is_contiguous(shape, strides) else view_strides(shape, strides, found)


@lru_cache(4096)
def permuted(shape: Shape, strides: Shape, order: Shape) -> tuple[Shape, Shape]:
    """Shape and strides with the axes in another order. Raises ShapeError for what is not an order of them."""
    rank = len(shape)
    found = [axis(a, rank, where="permute") for a in order]
    if sorted(found) != list(range(rank)):
        expected = f"each of 0 to {rank - 1} once"
        raise ShapeError("permute", "not a permutation of the axes", got=order, expected=expected)
    return tuple(shape[a] for a in found), tuple(strides[a] for a in found)


@lru_cache(4096, typed=True)
def exchanged(rank: int, a: int, b: int) -> Shape:
    """The order of axes in which a and b have changed places."""
    order = list(range(rank))
    a, b = axis(a, rank, where="transpose"), axis(b, rank, where="transpose")
    order[a], order[b] = b, a
    return tuple(order)


@lru_cache(4096)
def stretched(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """Strides that repeat the elements up to the shape `to`, by steps of zero. Raises ShapeError if it can't be."""
    lead = len(to) - len(shape)
    if broadcast(shape, to, where="expand") != to:
        raise ShapeError("expand", "does not broadcast", got=shape, expected=to)
    repeated = (0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, to[lead:], strict=True))
    return (*(0,) * lead, *repeated)


def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides that show the same elements as `new` without a copy, or None where a copy is needed."""
    if prod(shape) == 0:
        return contiguous_strides(new)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    merged: list[tuple[int, int]] = []  # runs of axes that lie behind one another in memory
    for n, s in old:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    result = [0] * len(new)
    i = len(new) - 1
    for n, s in reversed(merged):
        step, left = s, n
        while left > 1:
            if i < 0 or left % new[i]:
                return None
            result[i] = step
            step *= new[i]
            left //= new[i]
            i -= 1
    for j in range(i, -1, -1):  # leading axes of length 1
        result[j] = result[j + 1] * new[j + 1] if j + 1 < len(new) else 1
    return tuple(result)
