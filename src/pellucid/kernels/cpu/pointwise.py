"""Element by element: arithmetic with broadcasting, comparisons, dropout; copies are in `memory`,
activations in `activation`.

Each operation is a function of numbers, made a kernel by `unary` or `binary`, and the public function that runs it;
see `elementwise` for how arrays of any strides are walked. Arithmetic is in float32 for the 16-bit formats and in
the type itself for all others.
"""

from __future__ import annotations

import math

import numpy as np

from ...base import dtypes
from ...device import Array
from . import functions
from .elementwise import GRAIN, binary, fresh, map1, map2, plan_of, pointer, unary
from .formats import load, store
from .functions import inlined, like
from .launch import kernel
from .memory import contiguous
from .philox import philox

# --- one argument -----------------------------------------------------------------------------------------------------


@unary
def _neg(x):
    return -x


@unary
def _abs(x):
    return functions.magnitude(x)


@unary
def _sign(x):
    return like(1, x) if x > 0 else (like(-1, x) if x < 0 else x)


@unary
def _exp(x):
    return functions.exp(x)


@unary
def _log(x):
    return math.log(x)


@unary
def _sqrt(x):
    return math.sqrt(x)


@unary
def _sin(x):
    return math.sin(x)


@unary
def _cos(x):
    return math.cos(x)


def neg(x: Array) -> Array:
    """y = -x"""
    return map1(_neg, x)


def abs(x: Array) -> Array:
    """y = |x|"""
    return map1(_abs, x)


def sign(x: Array) -> Array:
    """y = -1, 0 or 1; NaN stays NaN"""
    return map1(_sign, x)


def exp(x: Array) -> Array:
    """y = e**x"""
    return map1(_exp, x)


def log(x: Array) -> Array:
    """y = ln x"""
    return map1(_log, x)


def sqrt(x: Array) -> Array:
    """y = x**0.5"""
    return map1(_sqrt, x)


def sin(x: Array) -> Array:
    """y = sin x, x in radians"""
    return map1(_sin, x)


def cos(x: Array) -> Array:
    """y = cos x, x in radians"""
    return map1(_cos, x)


# --- two arguments ----------------------------------------------------------------------------------------------------


@binary
def _add(a, b):
    return a + b


@binary
def _sub(a, b):
    return a - b


@binary
def _mul(a, b):
    return a * b


@binary
def _div(a, b):
    return a / b


@binary
def _pow(a, b):
    return a * a if b == 2 else a**b


@binary
def _maximum(a, b):
    return functions.larger(a, b)


@binary
def _minimum(a, b):
    return functions.smaller(a, b)


@binary
def _eq(a, b):
    return a == b


@binary
def _ne(a, b):
    return a != b


@binary
def _lt(a, b):
    return a < b


@binary
def _le(a, b):
    return a <= b


def add(a: Array, b: Array) -> Array:
    """y = a + b"""
    return map2(_add, a, b)


def sub(a: Array, b: Array) -> Array:
    """y = a - b"""
    return map2(_sub, a, b)


def mul(a: Array, b: Array) -> Array:
    """y = a b"""
    return map2(_mul, a, b)


def div(a: Array, b: Array) -> Array:
    """y = a / b   (floats only)"""
    return map2(_div, a, b)


def pow(a: Array, b: Array) -> Array:
    """y = a**b   (floats only)"""
    return map2(_pow, a, b)


def maximum(a: Array, b: Array) -> Array:
    """y = the larger; NaN wins"""
    return map2(_maximum, a, b)


def minimum(a: Array, b: Array) -> Array:
    """y = the smaller; NaN wins"""
    return map2(_minimum, a, b)


def eq(a: Array, b: Array) -> Array:
    """y = (a == b), bool"""
    return map2(_eq, a, b, dtypes.bool_)


def ne(a: Array, b: Array) -> Array:
    """y = (a != b), bool"""
    return map2(_ne, a, b, dtypes.bool_)


def lt(a: Array, b: Array) -> Array:
    """y = (a < b), bool"""
    return map2(_lt, a, b, dtypes.bool_)


def le(a: Array, b: Array) -> Array:
    """y = (a <= b), bool"""
    return map2(_le, a, b, dtypes.bool_)


def gt(a: Array, b: Array) -> Array:
    """y = (a > b), bool"""
    return map2(_lt, b, a, dtypes.bool_)


def ge(a: Array, b: Array) -> Array:
    """y = (a >= b), bool"""
    return map2(_le, b, a, dtypes.bool_)


# --- the rest ---------------------------------------------------------------------------------------------------------


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
    x = contiguous(x)
    q = plan_of(x)
    y = fresh(q, x, x.dtype)
    blocks = (counter % 4 + q.size + 3) // 4 if q.size else 0
    low, high = seed & 0xFFFFFFFF, seed >> 32
    _dropout(blocks, GRAIN // 4, pointer(x), pointer(y), q.size, float(p), 1 / (1 - p), low, high, counter)
    return y
