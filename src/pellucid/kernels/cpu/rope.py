"""Rotary positions: one pass over the heads of each position, from any strides into a contiguous result."""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...device import Array
from .attention_tiles import memory
from .formats import load, store
from .functions import inner, like
from .indices import check_indices
from .launch import kernel

_GRAIN = 1 << 14  # elements of a chunk


def rope(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    *,
    offset: int,
    interleaved: bool,
    inverse: bool,
) -> Array:
    """Rotates pairs of features by position-dependent angles; see the definition."""
    batch, steps, heads, d = x.shape
    y = x.device.empty(x.shape, x.dtype)
    grain = max(1, _GRAIN // max(1, heads * d))
    if positions is not None:
        check_indices("rope", positions, cos.shape[0] - offset)
    given = x.device.empty((1, 1), dtypes.int32) if positions is None else positions
    pairs = (2, 1) if interleaved else (1, d // 2)
    _rotate(
        batch * steps, grain, x, cos, sin, y, memory(given), positions is not None, *given.strides, steps, heads,
        d // 2, *x.strides, *cos.strides, *sin.strides, *pairs, offset, -1 if inverse else 1,
    )  # fmt: skip
    return y


@inner
def _pair(x, cos, sin, y, x1, x2, c, s, y1, y2, sign):
    a, b = load(x, x1), load(x, x2)
    cosine, sine = like(load(cos, c), a), like(load(sin, s), a) * like(sign, a)
    store(y, y1, a * cosine - b * sine)
    store(y, y2, b * cosine + a * sine)


@kernel
def _rotate(
    lo, hi, x, cos, sin, y, positions, given, pb, pt, steps, heads, half, xb, xt, xh, xd, cos_row, cos_step,
    sin_row, sin_step, step, other, offset, sign,
):  # fmt: skip
    """y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin for the pairs (i step, i step + other) of positions lo to hi-1."""
    for item in range(lo, hi):
        b, t = item // steps, item % steps
        row = offset + (np.int64(load(positions, b * pb + t * pt)) if given else t)
        c0, s0 = row * cos_row, row * sin_row
        for h in range(heads):
            x1, y1 = b * xb + t * xt + h * xh, (item * heads + h) * 2 * half
            if xd == 1 and step == 1 and cos_step == 1 and sin_step == 1:
                for i in range(half):
                    _pair(x, cos, sin, y, x1 + i, x1 + half + i, c0 + i, s0 + i, y1 + i, y1 + half + i, sign)
            else:
                for i in range(half):
                    a, e = i * step, i * step + other
                    c, s = c0 + i * cos_step, s0 + i * sin_step
                    _pair(x, cos, sin, y, x1 + a * xd, x1 + e * xd, c, s, y1 + a, y1 + e, sign)
