"""Softmax over the last axis, its logarithm, and the derivatives of both: one kernel each, a row at a time.

A row is read three times while it is in the first cache level: for its maximum, for the sum of its exponentials, and
to write. Exponentials are computed twice rather than stored, which keeps the 16-bit formats exact.
"""

from __future__ import annotations

import math

from ...device import Array
from .formats import load, store
from .functions import below, exp, exp_flushed, inlined, like, summing
from .launch import Kernel, kernel
from .memory import contiguous
from .rows import largest, row_grain, sum_row
from .wide import VECTOR, step
from .wide_rows import highest, lane_sum, lanes, nothing, rows_load, rows_store


@inlined
def in_blocks(x, y, n):
    """How many elements of a row of n go through whole blocks from x to y."""
    return n - n % step(x, VECTOR) if step(x, VECTOR) * step(y, VECTOR) > 0 else 0


@inlined
def row_top(x, i, n):
    """The largest of a row. What is not a number may be passed over: it shows in the sum of the exponentials."""
    top, done = load(x, i), in_blocks(x, x, n)
    if done:
        block = rows_load(x, i, lanes(x, VECTOR))
        for k in range(step(x, VECTOR), done, step(x, VECTOR)):
            v = rows_load(x, i + k, lanes(x, VECTOR))
            block = below(block, v, v, block)
        top = like(highest(block), top)
    return largest(x, i + done, 1, n - done, top)


@inlined
def sum_exp(x, i, n, top):
    """sum of e**(x - top) over a row"""
    done, block = in_blocks(x, x, n), nothing()
    for k in range(0, done, max(1, step(x, VECTOR))):
        block = block + exp_flushed(rows_load(x, i + k, lanes(x, VECTOR)) - like(top, block))
    return _sum_exp(x, i + done, n - done, top) + like(lane_sum(block), top)


@summing
def _sum_exp(x, i, n, top):
    rest = like(0, top)
    for k in range(n):
        rest += exp_flushed(load(x, i + k) - top)
    return rest


@inlined
def scaled_exp(x, i, y, j, n, top, scale):
    """y = scale e**(x - top) for a row"""
    done = in_blocks(x, y, n)
    for k in range(0, done, max(1, step(x, VECTOR))):
        block = exp_flushed(rows_load(x, i + k, lanes(x, VECTOR)) - like(top, nothing())) * like(scale, nothing())
        rows_store(y, j + k, lanes(x, VECTOR), block)
    for k in range(done, n):
        store(y, j + k, exp_flushed(load(x, i + k) - top) * scale)


@kernel
def _softmax(lo, hi, x, y, n):
    for row in range(lo, hi):
        i = row * n
        top = row_top(x, i, n)
        scaled_exp(x, i, y, i, n, top, like(1, top) / sum_exp(x, i, n, top))


@kernel
def _log_softmax(lo, hi, x, y, n):
    for row in range(lo, hi):
        i = row * n
        top = row_top(x, i, n)
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
