"""Activations and their derivatives, element by element, in float32 for the 16-bit formats.

The tanh form of GELU is computed as x sigmoid(2 u), which is the same function with one exponential: the tanh in it
never appears.
"""

from __future__ import annotations

import math

from ...device import Array
from . import functions
from .elementwise import binary_of_blocks, map1, map1to2, map2, unary_of_blocks, unary_to_two
from .functions import below, like

_ROOT = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@unary_of_blocks
def _tanh(x):
    return functions.tanh(x)


@unary_of_blocks
def _sigmoid(x):
    return functions.sigmoid(x)


@unary_of_blocks
def _relu(x):
    return functions.larger(x, like(0, x))


@unary_of_blocks
def _gelu(x):
    return x * functions.normal(x)[0]


@unary_of_blocks
def _gelu_tanh(x):  # (1 + tanh u) / 2 = sigmoid(2 u)
    return x * functions.sigmoid(like(2 * _ROOT, x) * (x + like(_CUBIC, x) * x * x * x))


@unary_to_two
def _gelu_with_slope(x):
    cdf, density = functions.normal(x)
    return x * cdf, cdf + x * density


@unary_to_two
def _gelu_tanh_with_slope(x):  # s = sigmoid(2 u):  d(x s) = s + x s (1 - s) 2 u'
    one = like(1, x)
    s = functions.sigmoid(like(2 * _ROOT, x) * (x + like(_CUBIC, x) * x * x * x))
    slope = like(2 * _ROOT, x) * (one + like(3 * _CUBIC, x) * x * x)
    return x * s, s + x * s * (one - s) * slope


@unary_of_blocks
def _silu(x):
    return x * functions.sigmoid(x)


def tanh(x: Array) -> Array:
    """y = tanh x"""
    return map1(_tanh, x)


def sigmoid(x: Array) -> Array:
    """y = 1 / (1 + e**-x)"""
    return map1(_sigmoid, x)


def relu(x: Array) -> Array:
    """y = max(x, 0); NaN stays NaN"""
    return map1(_relu, x)


def gelu(x: Array, *, approximate: bool) -> Array:
    """y = x Phi(x); approximate: Phi(x) = (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2   (Hendrycks & Gimpel 2016)"""
    return map1(_gelu_tanh if approximate else _gelu, x)


def gelu_with_slope(x: Array, *, approximate: bool) -> tuple[Array, Array]:
    """y = gelu(x) and its derivative, Phi(x) + x phi(x), or that of the tanh form: one exponential for both."""
    return map1to2(_gelu_tanh_with_slope if approximate else _gelu_with_slope, x)


def silu(x: Array) -> Array:
    """y = x sigmoid(x)   (Elfwing et al. 2017)"""
    return map1(_silu, x)


# --- their derivatives ------------------------------------------------------------------------------------------------


@binary_of_blocks
def _tanh_backward(dy, y):
    return dy * (like(1, y) - y * y)


@binary_of_blocks
def _sigmoid_backward(dy, y):
    return dy * y * (like(1, y) - y)


@binary_of_blocks
def _relu_backward(dy, x):
    return below(like(0, x), x, dy, like(0, dy))


@binary_of_blocks
def _silu_backward(dy, x):
    one = like(1, x)
    s = functions.sigmoid(x)
    return dy * s * (one + x * (one - s))


def tanh_backward(dy: Array, y: Array) -> Array:
    """dx = dy (1 - y**2)"""
    return map2(_tanh_backward, dy, y)


def sigmoid_backward(dy: Array, y: Array) -> Array:
    """dx = dy y (1 - y)"""
    return map2(_sigmoid_backward, dy, y)


def relu_backward(dy: Array, x: Array) -> Array:
    """dx = dy where x > 0, else 0"""
    return map2(_relu_backward, dy, x)


def silu_backward(dy: Array, x: Array) -> Array:
    """dx = dy s (1 + x (1 - s)),  s = sigmoid(x)"""
    return map2(_silu_backward, dy, x)
