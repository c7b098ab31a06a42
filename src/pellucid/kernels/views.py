"""Views that need a kernel where memory does not allow them."""

from __future__ import annotations

from typing import Any

from ..device import Array


def joined(kernels: Any, parts: list[Array]) -> Array:
    """Arrays one behind the other along the first axis: a view where they lie so in memory, else a copy."""
    first = parts[0]
    end = first.offset
    for part in parts:
        if part.buffer is not first.buffer or part.offset != end or not part.is_contiguous:
            return kernels.concatenate(parts, axis=0)
        end += part.size
    rows = sum(part.shape[0] for part in parts)
    return Array(first.buffer, (rows, *first.shape[1:]), first.dtype, None, first.offset)
