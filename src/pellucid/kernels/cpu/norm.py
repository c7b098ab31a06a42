"""Normalisation of rows. x: (..., D), weight and bias: (D,); statistics keep the leading shape of x, in float32
(float64 for float64 input).

Forward and backward are one pass each, over several rows at once where these are whole vectors (`wide_rows`). Backward
also sums the gradients of weight and bias over blocks of rows whose number depends on the rows alone; `fold` adds the
blocks in order.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from .formats import load, store
from .functions import below, inlined, like, muladd, summing
from .launch import kernel
from .memory import contiguous
from .rows import accumulator, fold, row_blocks, row_grain, sum_row
from .wide import VECTOR
from .wide_rows import (
    count,
    fits,
    inverse_root,
    lanes,
    nothing,
    number_load,
    number_store,
    rows_add,
    rows_load,
    rows_store,
    rows_sum,
    same_load,
)


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


@inlined
def _rmsnorm_rows(x, weight, y, rstd, n, eps, row, step):
    """`count` rows, or the same one again and again where step is 0."""
    i, d, one = row * n, step * n, like(1, nothing())
    squares = nothing()
    for k in range(0, n, lanes(x, VECTOR)):
        v = rows_load(x, i + k, d)
        squares = muladd(v, v, squares)
    r = inverse_root(rows_sum(squares) * like(np.float32(1) / np.float32(n), one) + like(eps, one))
    number_store(rstd, row, step, r)
    for k in range(0, n, lanes(x, VECTOR)):
        rows_store(y, i + k, d, rows_load(x, i + k, d) * r * same_load(weight, k))


@kernel
def _rmsnorm(lo, hi, x, weight, y, rstd, n, eps):
    if fits(x, n) and fits(weight, n) and fits(y, n):
        while lo < hi:
            step = 1 if hi - lo >= count(x, VECTOR) else 0
            _rmsnorm_rows(x, weight, y, rstd, n, eps, lo, step)
            lo += count(x, VECTOR) if step else 1
    for row in range(lo, hi):
        i = row * n
        zero = like(0, load(rstd, row))
        r = like(1, zero) / math.sqrt(_sum_of_squares(x, i, n, zero) / like(n, zero) + like(eps, zero))
        store(rstd, row, r)
        for k in range(n):
            store(y, i + k, load(x, i + k) * r * load(weight, k))


@inlined
def _rmsnorm_backward_rows(dy, x, weight, rstd, dx, dweights, to, n, row, step):
    i, d, r = row * n, step * n, number_load(rstd, row, step)
    products = nothing()
    for k in range(0, n, lanes(x, VECTOR)):
        g = rows_load(dy, i + k, d) * same_load(weight, k)
        products = muladd(g, rows_load(x, i + k, d), products)
    mean = rows_sum(products) * r * like(np.float32(1) / np.float32(n), r)
    for k in range(0, n, lanes(x, VECTOR)):
        v = rows_load(dy, i + k, d)
        h = rows_load(x, i + k, d) * r
        rows_store(dx, i + k, d, r * (v * same_load(weight, k) - h * mean))
        rows_add(dweights, to + k, v * h, step)


@kernel
def _rmsnorm_backward(lo, hi, dy, x, weight, rstd, dx, dweights, n, rows, length):
    """Items are blocks of `length` rows; dweights[block] = sum(dy h) over the block, h = x rstd."""
    for block in range(lo, hi):
        to = block * n
        _clear(dweights, to, n)
        first, last = block * length, min(block * length + length, rows)
        if fits(x, n) and fits(weight, n) and fits(dy, n):
            while first < last:
                step = 1 if last - first >= count(x, VECTOR) else 0
                _rmsnorm_backward_rows(dy, x, weight, rstd, dx, dweights, to, n, first, step)
                first += count(x, VECTOR) if step else 1
        for row in range(first, last):
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


@inlined
def _layernorm_rows(x, weight, bias, y, mean, rstd, n, eps, biased, row, step):
    """`count` rows, or the same one again and again where step is 0."""
    i, d, total = row * n, step * n, nothing()
    share = like(np.float32(1) / np.float32(n), total)
    for k in range(0, n, lanes(x, VECTOR)):
        total = total + rows_load(x, i + k, d)
    near = rows_sum(total) * share
    first, second = nothing(), nothing()
    for k in range(0, n, lanes(x, VECTOR)):
        v = rows_load(x, i + k, d) - near
        first = first + v
        second = muladd(v, v, second)
    rest = rows_sum(first) * share
    m, variance = near + rest, rows_sum(second) * share - rest * rest
    zero = like(0, total)
    r = inverse_root(below(zero, variance, variance, zero * variance) + like(eps, total))
    number_store(mean, row, step, m)
    number_store(rstd, row, step, r)
    for k in range(0, n, lanes(x, VECTOR)):
        h = (rows_load(x, i + k, d) - m) * r * same_load(weight, k)
        rows_store(y, i + k, d, h + same_load(bias, k) if biased else h)


@kernel
def _layernorm(lo, hi, x, weight, bias, y, mean, rstd, n, eps, biased):
    if fits(x, n) and fits(weight, n) and fits(bias, n) and fits(y, n):
        while lo < hi:
            step = 1 if hi - lo >= count(x, VECTOR) else 0
            _layernorm_rows(x, weight, bias, y, mean, rstd, n, eps, biased, lo, step)
            lo += count(x, VECTOR) if step else 1
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


@inlined
def _layernorm_backward_rows(dy, x, weight, mean, rstd, dx, dweights, dbiases, to, n, row, step):
    i, d = row * n, step * n
    m, r = number_load(mean, row, step), number_load(rstd, row, step)
    share = like(np.float32(1) / np.float32(n), r)
    first, second = nothing(), nothing()
    for k in range(0, n, lanes(x, VECTOR)):
        g = rows_load(dy, i + k, d) * same_load(weight, k)
        first = first + g
        second = muladd(g, rows_load(x, i + k, d) - m, second)
    mean_g, mean_gh = rows_sum(first) * share, rows_sum(second) * r * share
    for k in range(0, n, lanes(x, VECTOR)):
        v = rows_load(dy, i + k, d)
        h = (rows_load(x, i + k, d) - m) * r
        rows_store(dx, i + k, d, r * (v * same_load(weight, k) - mean_g - h * mean_gh))
        rows_add(dweights, to + k, v * h, step)
        rows_add(dbiases, to + k, v, step)


@kernel
def _layernorm_backward(lo, hi, dy, x, weight, mean, rstd, dx, dweights, dbiases, n, rows, length):
    """Items are blocks of `length` rows; dweights[block], dbiases[block] = sums of dy h, dy over the block."""
    for block in range(lo, hi):
        to = block * n
        _clear(dweights, to, n)
        _clear(dbiases, to, n)
        first, last = block * length, min(block * length + length, rows)
        if fits(x, n) and fits(weight, n) and fits(dy, n):
            while first < last:
                step = 1 if last - first >= count(x, VECTOR) else 0
                _layernorm_backward_rows(dy, x, weight, mean, rstd, dx, dweights, dbiases, to, n, first, step)
                first += count(x, VECTOR) if step else 1
        for row in range(first, last):
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
