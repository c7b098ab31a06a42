"""Normalisation of rows. x: (..., D), weight and bias: (D,); statistics keep the leading shape of x, in float32
(float64 for float64 input).

Forward and backward are one pass each. Backward also sums the gradients of weight and bias over blocks of rows whose
number depends on the rows alone; `fold` adds the blocks in order.
"""

from __future__ import annotations

import math

from ...base.dtypes import DType
from ...device import Array
from .formats import load, store
from .functions import inlined, like, summing
from .launch import kernel
from .memory import contiguous
from .rows import accumulator, fold, row_blocks, row_grain, sum_row


@summing
def _sum_of_squares(x, i, n, centre):
    """sum of (x - centre)**2 over a row"""
    total = like(0, centre)
    for k in range(n):
        v = load(x, i + k) - centre
        total += v * v
    return total


@summing
def _deviations(x, i, n, centre):
    """sums of x - centre and of its square over a row"""
    first, second = like(0, centre), like(0, centre)
    for k in range(n):
        v = load(x, i + k) - centre
        first += v
        second += v * v
    return first, second


@summing
def _two_sums(dy, x, weight, i, n, centre, scale):
    """sum of g and of g h over a row, g = dy weight, h = (x - centre) scale"""
    first, second = like(0, centre), like(0, centre)
    for k in range(n):
        g = load(dy, i + k) * load(weight, k)
        first += g
        second += g * ((load(x, i + k) - centre) * scale)
    return first, second


@inlined
def _clear(x, i, n):
    for k in range(n):
        store(x, i + k, 0)


# --- root mean square -------------------------------------------------------------------------------------------------


@kernel
def _rmsnorm(lo, hi, x, weight, y, rstd, n, eps):
    for row in range(lo, hi):
        i = row * n
        zero = like(0, load(rstd, row))
        r = like(1, zero) / math.sqrt(_sum_of_squares(x, i, n, zero) / like(n, zero) + like(eps, zero))
        store(rstd, row, r)
        for k in range(n):
            store(y, i + k, load(x, i + k) * r * load(weight, k))


@kernel
def _rmsnorm_backward(lo, hi, dy, x, weight, rstd, dx, dweights, n, rows, length):
    """Items are blocks of `length` rows; dweights[block] = sum(dy h) over the block, h = x rstd."""
    for block in range(lo, hi):
        to = block * n
        _clear(dweights, to, n)
        for row in range(block * length, min(block * length + length, rows)):
            i = row * n
            r = load(rstd, row)
            _, gh = _two_sums(dy, x, weight, i, n, like(0, r), r)
            mean = gh / like(n, r)
            for k in range(n):
                d, h = load(dy, i + k), load(x, i + k) * r
                store(dx, i + k, r * (d * load(weight, k) - h * mean))
                store(dweights, to + k, load(dweights, to + k) + d * h)


def rmsnorm(x: Array, weight: Array, *, eps: float, result_dtype: DType | None = None) -> tuple[Array, Array]:
    """y = x rstd weight,  rstd = (mean(x**2) + eps)**-0.5   (Zhang & Sennrich 2019). Returns y, rstd.
    result_dtype: of y, None for that of x."""
    x, weight = contiguous(x), contiguous(weight)
    y, rstd, rows, n = _results(x, result_dtype)
    _rmsnorm(rows, row_grain(n, cost=2), x, weight, y, rstd, n, float(eps))
    return y, rstd


def rmsnorm_backward(dy: Array, x: Array, weight: Array, rstd: Array) -> tuple[Array, Array]:
    """g = dy weight;  dx = rstd (g - x rstd**2 mean(g x));  dweight = sum(dy x rstd). Returns dx, dweight."""
    dy, x, w, rstd = contiguous(dy), contiguous(x), contiguous(weight), contiguous(rstd)
    dx, dweight, n, rows, blocks, length = _gradients(dy, x, weight)
    parts = x.device.empty((blocks, n), accumulator(x.dtype))
    _rmsnorm_backward(blocks, 1, dy, x, w, rstd, dx, parts, n, rows, length)
    return dx, fold(parts, dweight)


# --- mean and variance ------------------------------------------------------------------------------------------------


@kernel
def _layernorm(lo, hi, x, weight, bias, y, mean, rstd, n, eps, biased):
    for row in range(lo, hi):
        i = row * n
        zero = like(0, load(rstd, row))
        near = like(sum_row(x, i, 1, n), zero) / like(n, zero)
        # what rounding left in that mean shows in the deviations, which are small and hence exact
        first, second = _deviations(x, i, n, near)
        rest = first / like(n, zero)
        m = near + rest
        variance = second / like(n, zero) - rest * rest
        r = like(1, zero) / math.sqrt((variance if variance > 0 else like(0, zero) * variance) + like(eps, zero))
        store(mean, row, m)
        store(rstd, row, r)
        if biased:
            for k in range(n):
                store(y, i + k, (load(x, i + k) - m) * r * load(weight, k) + load(bias, k))
        else:
            for k in range(n):
                store(y, i + k, (load(x, i + k) - m) * r * load(weight, k))


@kernel
def _layernorm_backward(lo, hi, dy, x, weight, mean, rstd, dx, dweights, dbiases, n, rows, length):
    """Items are blocks of `length` rows; dweights[block], dbiases[block] = sums of dy h, dy over the block."""
    for block in range(lo, hi):
        to = block * n
        _clear(dweights, to, n)
        _clear(dbiases, to, n)
        for row in range(block * length, min(block * length + length, rows)):
            i = row * n
            m, r = load(mean, row), load(rstd, row)
            g, gh = _two_sums(dy, x, weight, i, n, m, r)
            mean_g, mean_gh = g / like(n, r), gh / like(n, r)
            for k in range(n):
                d, h = load(dy, i + k), (load(x, i + k) - m) * r
                store(dx, i + k, r * (d * load(weight, k) - mean_g - h * mean_gh))
                store(dweights, to + k, load(dweights, to + k) + d * h)
                store(dbiases, to + k, load(dbiases, to + k) + d)


def layernorm(
    x: Array, weight: Array, bias: Array | None, *, eps: float, result_dtype: DType | None = None
) -> tuple[Array, Array, Array]:
    """y = (x - mean) rstd weight + bias,  rstd = (var + eps)**-0.5   (Ba et al. 2016). Returns y, mean, rstd.
    result_dtype: of y, None for that of x."""
    x, weight = contiguous(x), contiguous(weight)
    y, rstd, rows, n = _results(x, result_dtype)
    mean = x.device.empty(rstd.shape, rstd.dtype)
    shift = weight if bias is None else contiguous(bias)
    _layernorm(rows, row_grain(n, cost=2), x, weight, shift, y, mean, rstd, n, float(eps), bias is not None)
    return y, mean, rstd


def layernorm_backward(dy: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """h = (x - mean) rstd, g = dy weight;  dx = rstd (g - mean(g) - h mean(g h));  dweight = sum(dy h);
    dbias = sum(dy). Returns dx, dweight, dbias."""
    dy, x, w, mean, rstd = contiguous(dy), contiguous(x), contiguous(weight), contiguous(mean), contiguous(rstd)
    dx, dweight, n, rows, blocks, length = _gradients(dy, x, weight)
    dbias = x.device.empty(dweight.shape, dweight.dtype)
    kind = accumulator(x.dtype)
    weights, biases = x.device.empty((blocks, n), kind), x.device.empty((blocks, n), kind)
    _layernorm_backward(blocks, 1, dy, x, w, mean, rstd, dx, weights, biases, n, rows, length)
    return dx, fold(weights, dweight), fold(biases, dbias)


# --- their shapes -----------------------------------------------------------------------------------------------------


def _results(x: Array, dtype: DType | None) -> tuple[Array, Array, int, int]:
    """y, rstd, rows, width"""
    n = x.shape[-1]
    y = x.device.empty(x.shape, dtype or x.dtype)
    rstd = x.device.empty(x.shape[:-1], accumulator(x.dtype))
    return y, rstd, rstd.size, n


def _gradients(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, int, int, int, int]:
    """dx, dweight, width, rows, blocks, rows a block"""
    n = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    dx = x.device.empty(x.shape, x.dtype)
    dweight = x.device.empty(weight.shape, weight.dtype)
    return dx, dweight, n, rows, *row_blocks(rows)
