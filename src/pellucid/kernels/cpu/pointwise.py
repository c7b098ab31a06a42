"""Element by element: arithmetic with broadcasting, comparisons; copies are in `memory`,
activations in `activation`.

Each operation is a function of numbers, made a kernel by `unary` or `binary`, and the public function that runs it;
see `elementwise` for how arrays of any strides are walked. Arithmetic is in float32 for the 16-bit formats and in
the type itself for all others.
"""

from __future__ import annotations

import math

from ...base import dtypes
from ...device import Array
from . import functions
from .elementwise import binary, binary_of_blocks, map1, map2, unary, unary_of_blocks
from .functions import like

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


@unary_of_blocks
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


@binary_of_blocks
def _add(a, b):
    return a + b


@binary_of_blocks
def _sub(a, b):
    return a - b


@binary_of_blocks
def _mul(a, b):
    return a * b


@binary_of_blocks
def _div(a, b):
    return a / b


@binary
def _pow(a, b):
    return a * a if b == 2 else a**b


@binary_of_blocks
def _maximum(a, b):
    return functions.larger(a, b)


@binary_of_blocks
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
