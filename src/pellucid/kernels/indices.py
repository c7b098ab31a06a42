"""Indices on the host's memory, checked before a kernel follows them: a wrong one would read or write foreign memory.

Both backends of the host call this; a device whose memory the host can't see has to check, or to clamp, in its kernels.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import ShapeError
from ..device import Array
from ..device.cpu import check, view


def check_indices(where: str, indices: Array, size: int, weights: Array | None = None) -> None:
    """Raises ShapeError unless 0 <= index < size for every index, or for every one whose weight is not 0."""
    check(_check_indices, where, indices, size, weights)


def _check_indices(where: str, indices: Array, size: int, weights: Array | None) -> None:
    found = view(indices)
    if found.size == 0 or (found.min() >= 0 and found.max() < size):
        return
    bad = (found < 0) | (found >= size)
    if weights is not None:
        bad &= view(weights) != 0
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        got = f"{int(found[at])} at position {', '.join(map(str, at)) or '()'}"
        raise ShapeError(where, "index out of range", got=got, expected=f"0 to {size - 1}")


def check_starts(where: str, starts: Array, before: int) -> None:
    """Raises ShapeError unless every query starts with a key up to its own, and none before an earlier query's.

    starts: (B, T); query t stands at key `before` + t."""
    check(_check_starts, where, starts, before)


def _check_starts(where: str, starts: Array, before: int) -> None:
    found = view(starts)
    own = np.arange(before, before + found.shape[1])
    wrong = (found < 0) | (found > own)
    wrong[:, 1:] |= found[:, 1:] < found[:, :-1]
    if wrong.any():
        b, t = (int(i) for i in np.argwhere(wrong)[0])
        low = int(found[b, t - 1]) if t else 0
        expected = f"{max(low, 0)} to {own[t]}"
        raise ShapeError(where, f"start out of order at position {b}, {t}", got=int(found[b, t]), expected=expected)
