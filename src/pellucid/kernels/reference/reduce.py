"""Along axes: sums, extremes, softmax and running sums. `axes` are sorted, non-negative and distinct."""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...device import Array
from .host import read, write


def sum(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = sum over `axes`; narrow floats and float32 are accumulated in float32 or wider; integers give int64"""
    a = read(x)
    if x.dtype.is_float:
        return write(x, a.sum(axis=axes, keepdims=keepdims, dtype=a.dtype))
    return write(x, a.sum(axis=axes, keepdims=keepdims, dtype=np.int64), dtypes.int64)


def max(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = the largest element over `axes`; NaN wins; no axis may be empty"""
    return write(x, read(x).max(axis=axes, keepdims=keepdims))


def min(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
    """y = the smallest element over `axes`; NaN wins; no axis may be empty"""
    return write(x, read(x).min(axis=axes, keepdims=keepdims))


def argmax(x: Array, *, axis: int) -> Array:
    """int64 position of the largest element along `axis`; the lowest position wins a tie, the first NaN wins all"""
    return write(x, read(x).argmax(axis=axis), dtypes.int64)


def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    """y[i] = x[0] + ... + x[i] along `axis`, or x[i] + ... + x[n-1] with `reverse`"""
    a = read(x)
    if reverse:
        return write(x, np.flip(np.cumsum(np.flip(a, axis), axis=axis, dtype=a.dtype), axis))
    return write(x, np.cumsum(a, axis=axis, dtype=a.dtype))


def softmax(x: Array) -> Array:
    """y = e**(x - m) / sum e**(x - m),  m = max x, over the last axis"""
    a = read(x)
    with np.errstate(all="ignore"):
        e = np.exp(a - a.max(axis=-1, keepdims=True, initial=-np.inf))
        return write(x, e / e.sum(axis=-1, keepdims=True))


def softmax_backward(dy: Array, y: Array) -> Array:
    """dx = y (dy - sum(dy y)) over the last axis"""
    g, b = read(dy), read(y)
    return write(dy, b * (g - (g * b).sum(axis=-1, keepdims=True)))


def log_softmax(x: Array) -> Array:
    """y = x - m - ln sum e**(x - m),  m = max x, over the last axis"""
    a = read(x)
    with np.errstate(all="ignore"):
        a = a - a.max(axis=-1, keepdims=True, initial=-np.inf)
        return write(x, a - np.log(np.exp(a).sum(axis=-1, keepdims=True)))


def log_softmax_backward(dy: Array, y: Array) -> Array:
    """dx = dy - e**y sum(dy) over the last axis"""
    g = read(dy)
    return write(dy, g - np.exp(read(y)) * g.sum(axis=-1, keepdims=True))


def global_norm(parts: list[Array]) -> Array:
    """float32, shape (): (sum of x**2 over every element of every part)**0.5, accumulated in float64"""
    total = np.float64(0)
    with np.errstate(all="ignore"):
        for part in parts:
            total = total + np.square(read(part).astype(np.float64)).sum()
        return write(parts[0], np.sqrt(total), dtypes.float32)


def clip_scale(norm: Array, *, max_norm: float) -> Array:
    """float32, shape (): max_norm / norm where norm > max_norm, else exactly 1; NaN stays NaN (Pascanu et al. 2013)"""
    n = read(norm)
    with np.errstate(all="ignore"):
        return write(norm, np.where(n <= max_norm, np.float32(1), np.float32(max_norm) / n), dtypes.float32)
