"""Kernels that draw random numbers: dropout and normal weights.

Numbers are words of a Philox stream addressed by position (`philox`), so each element makes its own and nothing is
stored; a block of four words is computed once for the four elements that use it.
"""

from __future__ import annotations

import math

import numpy as np

from ...device import Array
from ...device.cpu import DRAWN, tell
from .elementwise import GRAIN, fresh, plan_of
from .formats import load, store
from .functions import inlined, like
from .launch import kernel
from .memory import contiguous
from .philox import philox


@kernel
def _dropout(lo, hi, x, y, n, p, scale, low, high, counter):
    """Blocks lo to hi-1 of four random words, counted from the one that holds word `counter`."""
    first, shift = counter // 4, counter % 4
    for block in range(lo, hi):
        i = 4 * block - shift
        if i >= 0 and i + 4 <= n:
            break
        _keep_some(x, y, i, n, p, scale, philox(low, high, first + block))
        lo += 1
    whole = min(hi, (n + shift) // 4)
    for block in range(lo, whole):
        r0, r1, r2, r3 = philox(low, high, first + block)
        i = 4 * block - shift
        _keep(x, y, i, r0, p, scale)
        _keep(x, y, i + 1, r1, p, scale)
        _keep(x, y, i + 2, r2, p, scale)
        _keep(x, y, i + 3, r3, p, scale)
    for block in range(max(lo, whole), hi):
        _keep_some(x, y, 4 * block - shift, n, p, scale, philox(low, high, first + block))


@inlined
def _keep_some(x, y, i, n, p, scale, words):
    """Elements i to i + 3 that exist."""
    for k, word in enumerate(words):
        if 0 <= i + k < n:
            _keep(x, y, i + k, word, p, scale)


@inlined
def _keep(x, y, i, word, p, scale):
    value = load(x, i)
    u = np.float32(np.int32(word >> np.uint32(8))) * np.float32(2.0**-24)
    store(y, i, value * like(scale, value) if u >= np.float32(p) else like(0, value))


def dropout(x: Array, *, p: float, seed: int, counter: int) -> Array:
    """y[i] = x[i] / (1 - p) where u[i] >= p, else 0. u[i] in [0, 1) is word counter + i of the Philox stream `seed`
    (top 24 bits), i the row-major index; applied to dy with the same numbers it is its own backward
    (Srivastava et al. 2014)."""
    tell(DRAWN)
    x = contiguous(x)
    q = plan_of(x)
    y = fresh(q, x, x.dtype)
    blocks = (counter % 4 + q.size + 3) // 4 if q.size else 0
    low, high = seed & 0xFFFFFFFF, seed >> 32
    _dropout(blocks, GRAIN // 4, x, y, q.size, float(p), 1 / (1 - p), low, high, counter)
    return y


@inlined
def _pair(y, i, n, std, w1, w2):
    """Two normal numbers of two words into elements i and i + 1, where these exist."""
    radius = std * math.sqrt(-2.0 * math.log((np.float64(w1) + 1.0) * 2.0**-32))
    angle = 2.0 * math.pi * 2.0**-32 * np.float64(w2)
    store(y, i, radius * math.cos(angle))
    if i + 1 < n:
        store(y, i + 1, radius * math.sin(angle))


@kernel
def _normal(lo, hi, y, n, std, low, high, first):
    for block in range(lo, hi):
        w0, w1, w2, w3 = philox(low, high, first + block)
        i = 4 * block
        _pair(y, i, n, std, w0, w1)
        if i + 2 < n:
            _pair(y, i + 2, n, std, w2, w3)


def normal_(target: Array, *, std: float, seed: int, counter: int) -> None:
    """Every element of a contiguous target = std z, z[i] number i of `base.rng.normals(seed, counter, n)`, i the
    row-major index (Box & Muller 1958)."""
    tell(DRAWN)
    n, low, high = target.size, seed & 0xFFFFFFFF, seed >> 32
    _normal((n + 3) // 4, GRAIN // 16, target, n, float(std), low, high, counter // 4)
