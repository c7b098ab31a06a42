"""Element by element: copies and casts, arithmetic with broadcasting, comparisons, activations, dropout.

Binary kernels take arrays of one dtype and broadcast them; casting to a common dtype is the caller's part.
Functions ending in `_` write into their first argument, which may be any strided view.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes, rng
from ...base.dtypes import DType
from ...device import Array
from ...device.cpu import view
from .host import Host, read, write

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf_like(x: Host) -> Host:
    return _erf(x).astype(x.dtype) if x.size else x


# --- memory -----------------------------------------------------------------------------------------------------------


def copy(x: Array) -> Array:
    """The elements of any strided view as a fresh contiguous array."""
    return write(x, read(x))


def cast(x: Array, *, dtype: DType) -> Array:
    """Elements in another dtype: round to nearest even; float to integer truncates; to bool is x != 0."""
    if dtype.kind == "bool":
        return write(x, read(x) != 0, dtype)
    with np.errstate(all="ignore"):
        return write(x, read(x).astype(dtype.numpy), dtype)


def assign_(target: Array, source: Array) -> None:
    """target[...] = source, broadcast to the target's shape and cast to its dtype."""
    with np.errstate(all="ignore"):
        view(target)[...] = read(source).astype(target.dtype.numpy)


def fill_(target: Array, *, value: float) -> None:
    """Every element of target = value."""
    view(target)[...] = value


def normal_(target: Array, *, std: float, seed: int, counter: int) -> None:
    """Every element of a contiguous target = std z, z[i] number i of `base.rng.normals(seed, counter, n)`, i the
    row-major index (Box & Muller 1958)."""
    view(target)[...] = (std * rng.normals(seed, counter, target.size)).reshape(target.shape)


# --- one argument -----------------------------------------------------------------------------------------------------


def neg(x: Array) -> Array:
    """y = -x"""
    return write(x, -read(x))


def abs(x: Array) -> Array:
    """y = |x|"""
    return write(x, np.abs(read(x)))


def sign(x: Array) -> Array:
    """y = -1, 0 or 1; NaN stays NaN"""
    with np.errstate(all="ignore"):
        return write(x, np.sign(read(x)))


def exp(x: Array) -> Array:
    """y = e**x"""
    with np.errstate(all="ignore"):
        return write(x, np.exp(read(x)))


def log(x: Array) -> Array:
    """y = ln x"""
    with np.errstate(all="ignore"):
        return write(x, np.log(read(x)))


def sqrt(x: Array) -> Array:
    """y = x**0.5"""
    with np.errstate(all="ignore"):
        return write(x, np.sqrt(read(x)))


def sin(x: Array) -> Array:
    """y = sin x, x in radians"""
    with np.errstate(all="ignore"):
        return write(x, np.sin(read(x)))


def cos(x: Array) -> Array:
    """y = cos x, x in radians"""
    with np.errstate(all="ignore"):
        return write(x, np.cos(read(x)))


def tanh(x: Array) -> Array:
    """y = tanh x"""
    return write(x, np.tanh(read(x)))


def sigmoid(x: Array) -> Array:
    """y = 1 / (1 + e**-x)"""
    return write(x, _sigmoid(read(x)))


def relu(x: Array) -> Array:
    """y = max(x, 0); NaN stays NaN"""
    return write(x, np.maximum(read(x), 0))


def gelu(x: Array, *, approximate: bool) -> Array:
    """y = x Phi(x); approximate: Phi(x) = (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2   (Hendrycks & Gimpel 2016)"""
    a = read(x)
    with np.errstate(all="ignore"):
        if approximate:
            return write(x, 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))))
        return write(x, 0.5 * a * (1 + _erf_like(a * math.sqrt(0.5))))


def gelu_with_slope(x: Array, *, approximate: bool) -> tuple[Array, Array]:
    """y = gelu(x) and its derivative, Phi(x) + x phi(x), or that of the tanh form: one exponential for both."""
    a = read(x)
    with np.errstate(all="ignore"):
        if approximate:
            c = math.sqrt(2 / math.pi)
            t = np.tanh(c * (a + 0.044715 * a**3))
            slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)
        else:
            phi = np.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
            slope = 0.5 * (1 + _erf_like(a * math.sqrt(0.5))) + a * phi
    return gelu(x, approximate=approximate), write(x, slope)


def silu(x: Array) -> Array:
    """y = x sigmoid(x)   (Elfwing et al. 2017)"""
    a = read(x)
    with np.errstate(all="ignore"):
        return write(x, a * _sigmoid(a))


def _sigmoid(a: Host) -> Host:
    with np.errstate(all="ignore"):
        return 1 / (1 + np.exp(-a))


# --- their derivatives ------------------------------------------------------------------------------------------------


def tanh_backward(dy: Array, y: Array) -> Array:
    """dx = dy (1 - y**2)"""
    b = read(y)
    return write(dy, read(dy) * (1 - b * b))


def sigmoid_backward(dy: Array, y: Array) -> Array:
    """dx = dy y (1 - y)"""
    b = read(y)
    return write(dy, read(dy) * b * (1 - b))


def relu_backward(dy: Array, x: Array) -> Array:
    """dx = dy where x > 0, else 0"""
    return write(dy, np.where(read(x) > 0, read(dy), 0))


def silu_backward(dy: Array, x: Array) -> Array:
    """dx = dy s (1 + x (1 - s)),  s = sigmoid(x)"""
    a = read(x)
    s = _sigmoid(a)
    with np.errstate(all="ignore"):
        return write(dy, read(dy) * s * (1 + a * (1 - s)))


# --- two arguments ----------------------------------------------------------------------------------------------------


def add(a: Array, b: Array) -> Array:
    """y = a + b"""
    with np.errstate(all="ignore"):
        return write(a, read(a) + read(b))


def sub(a: Array, b: Array) -> Array:
    """y = a - b"""
    with np.errstate(all="ignore"):
        return write(a, read(a) - read(b))


def mul(a: Array, b: Array) -> Array:
    """y = a b"""
    with np.errstate(all="ignore"):
        return write(a, read(a) * read(b))


def div(a: Array, b: Array) -> Array:
    """y = a / b   (floats only)"""
    with np.errstate(all="ignore"):
        return write(a, read(a) / read(b))


def pow(a: Array, b: Array) -> Array:
    """y = a**b   (floats only)"""
    with np.errstate(all="ignore"):
        return write(a, read(a) ** read(b))


def maximum(a: Array, b: Array) -> Array:
    """y = the larger; NaN wins"""
    return write(a, np.maximum(read(a), read(b)))


def minimum(a: Array, b: Array) -> Array:
    """y = the smaller; NaN wins"""
    return write(a, np.minimum(read(a), read(b)))


def eq(a: Array, b: Array) -> Array:
    """y = (a == b), bool"""
    return write(a, read(a) == read(b), dtypes.bool_)


def ne(a: Array, b: Array) -> Array:
    """y = (a != b), bool"""
    return write(a, read(a) != read(b), dtypes.bool_)


def lt(a: Array, b: Array) -> Array:
    """y = (a < b), bool"""
    return write(a, read(a) < read(b), dtypes.bool_)


def le(a: Array, b: Array) -> Array:
    """y = (a <= b), bool"""
    return write(a, read(a) <= read(b), dtypes.bool_)


def gt(a: Array, b: Array) -> Array:
    """y = (a > b), bool"""
    return write(a, read(a) > read(b), dtypes.bool_)


def ge(a: Array, b: Array) -> Array:
    """y = (a >= b), bool"""
    return write(a, read(a) >= read(b), dtypes.bool_)


def where(condition: Array, a: Array, b: Array) -> Array:
    """y = a where condition, else b; all three broadcast"""
    return write(a, np.where(read(condition), read(a), read(b)))


# --- the rest ---------------------------------------------------------------------------------------------------------


def dropout(x: Array, *, p: float, seed: int, counter: int) -> Array:
    """y[i] = x[i] / (1 - p) where u[i] >= p, else 0. u[i] in [0, 1) is word counter + i of the Philox stream `seed`
    (top 24 bits), i the row-major index; applied to dy with the same numbers it is its own backward
    (Srivastava et al. 2014)."""
    a = read(x)
    keep = rng.uniform_from_words(rng.philox(seed, counter, a.size)).reshape(a.shape) >= np.float32(p)
    return write(x, np.where(keep, a * a.dtype.type(1 / (1 - p)), 0))


def all_finite(x: Array) -> Array:
    """bool, shape (): no element is infinite or NaN"""
    return write(x, np.isfinite(read(x)).all(), dtypes.bool_)


def concatenate(parts: list[Array], *, axis: int) -> Array:
    """The arrays one behind the other along `axis`; other axes equal, one dtype."""
    return write(parts[0], np.concatenate([read(p) for p in parts], axis=axis))
