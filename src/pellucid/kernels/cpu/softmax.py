"""Softmax over the last axis, its logarithm, and the derivatives of both: one kernel each, a row at a time.

A row is read three times while it is in the first cache level: for its maximum, for the sum of its exponentials, and
to write. Exponentials are computed twice rather than stored, which keeps the 16-bit formats exact.
"""

from __future__ import annotations

import math

from ...device import Array
from .formats import load, store
from .functions import exp, exp_flushed, like, summing
from .launch import Kernel, kernel
from .memory import contiguous
from .rows import largest, row_grain, sum_row


@summing
def sum_exp(x, i, n, top):
    """sum of e**(x - top) over a row"""
    total = like(0, top)
    for k in range(n):
        total += exp_flushed(load(x, i + k) - top)
    return total


@kernel
def _softmax(lo, hi, x, y, n):
    for row in range(lo, hi):
        i = row * n
        top = largest(x, i, 1, n, load(x, i))
        scale = like(1, top) / sum_exp(x, i, n, top)
        for k in range(n):
            store(y, i + k, exp_flushed(load(x, i + k) - top) * scale)


@kernel
def _log_softmax(lo, hi, x, y, n):
    for row in range(lo, hi):
        i = row * n
        top = largest(x, i, 1, n, load(x, i))
        rest = like(math.log(sum_exp(x, i, n, top)), top)
        for k in range(n):
            store(y, i + k, (load(x, i + k) - top) - rest)


@summing
def _dot(a, b, i, n):
    total = load(a, i) * load(b, i)
    for k in range(1, n):
        total += load(a, i + k) * load(b, i + k)
    return total


@kernel
def _softmax_backward(lo, hi, dy, y, dx, n):
    for row in range(lo, hi):
        i = row * n
        mean = _dot(dy, y, i, n)
        for k in range(n):
            store(dx, i + k, load(y, i + k) * (load(dy, i + k) - mean))


@kernel
def _log_softmax_backward(lo, hi, dy, y, dx, n):
    for row in range(lo, hi):
        i = row * n
        total = like(sum_row(dy, i, 1, n), load(dy, i))
        for k in range(n):
            store(dx, i + k, load(dy, i + k) - exp(load(y, i + k)) * total)


def softmax(x: Array) -> Array:
    """y = e**(x - m) / sum e**(x - m),  m = max x, over the last axis"""
    return _by_rows(_softmax, x)


def softmax_backward(dy: Array, y: Array) -> Array:
    """dx = y (dy - sum(dy y)) over the last axis"""
    return _by_rows(_softmax_backward, dy, y)


def log_softmax(x: Array) -> Array:
    """y = x - m - ln sum e**(x - m),  m = max x, over the last axis"""
    return _by_rows(_log_softmax, x)


def log_softmax_backward(dy: Array, y: Array) -> Array:
    """dx = dy - e**y sum(dy) over the last axis"""
    return _by_rows(_log_softmax_backward, dy, y)


def _by_rows(run: Kernel, *arrays: Array) -> Array:
    arrays = tuple(contiguous(a) for a in arrays)
    like_ = arrays[0]
    result = like_.device.empty(like_.shape, like_.dtype)
    if like_.size:
        n = like_.shape[-1]
        run(like_.size // n, row_grain(n, cost=4), *arrays, result, n)
    return result
