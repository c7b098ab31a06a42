"""Arrays in another shape, or several as one: views where memory allows them."""

from __future__ import annotations

from typing import Any

from ..device import Array


def together(parts: list[Array]) -> Array | None:
    """A view of arrays one behind the other along the first axis; None where they do not lie so in memory."""
    first = parts[0]
    end = first.offset
    for part in parts:
        if part.buffer is not first.buffer or part.offset != end or not part.is_contiguous:
            return None
        end += part.size
    rows = sum(part.shape[0] for part in parts)
    return Array(first.buffer, (rows, *first.shape[1:]), first.dtype, None, first.offset)


def joined(kernels: Any, parts: list[Array]) -> Array:
    """Arrays one behind the other along the first axis: a view where they lie so in memory, else a copy."""
    view = together(parts)
    return kernels.concatenate(parts, axis=0) if view is None else view


def reshaped(kernels: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Another shape of the same elements: a view where the strides allow it, else a copy."""
    if x.shape == shape:
        return x
    view = x.reshape(shape)
    if view is None:
        view = kernels.copy(x).reshape(shape)
        assert view is not None
    return view
