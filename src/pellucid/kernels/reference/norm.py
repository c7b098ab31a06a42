"""Normalisation of rows. x: (..., D), weight and bias: (D,); statistics keep the leading shape of x, in float32
(float64 for float64 input)."""

from __future__ import annotations

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from .host import compute_dtype, read, write


def rmsnorm(x: Array, weight: Array, *, eps: float, result_dtype: DType | None = None) -> tuple[Array, Array]:
    """y = x rstd weight,  rstd = (mean(x**2) + eps)**-0.5   (Zhang & Sennrich 2019). Returns y, rstd.
    result_dtype: of y, None for that of x."""
    a = read(x)
    rstd = 1 / np.sqrt(np.mean(a * a, axis=-1, keepdims=True) + a.dtype.type(eps))
    return write(x, a * rstd * read(weight), result_dtype), write(x, rstd[..., 0], compute_dtype(x))


def rmsnorm_backward(dy: Array, x: Array, weight: Array, rstd: Array) -> tuple[Array, Array]:
    """g = dy weight;  dx = rstd (g - x rstd**2 mean(g x));  dweight = sum(dy x rstd). Returns dx, dweight."""
    g, a, r = read(dy), read(x), read(rstd)[..., None]
    scaled = g * read(weight)
    dx = r * (scaled - a * r * r * np.mean(scaled * a, axis=-1, keepdims=True))
    dweight = (g * a * r).reshape(-1, a.shape[-1]).sum(axis=0)
    return write(x, dx), write(weight, dweight)


def layernorm(
    x: Array, weight: Array, bias: Array | None, *, eps: float, result_dtype: DType | None = None
) -> tuple[Array, Array, Array]:
    """y = (x - mean) rstd weight + bias,  rstd = (var + eps)**-0.5   (Ba et al. 2016). Returns y, mean, rstd.
    result_dtype: of y, None for that of x."""
    a = read(x)
    mean = a.mean(axis=-1, keepdims=True)
    centred = a - mean
    rstd = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + a.dtype.type(eps))
    y = centred * rstd * read(weight)
    if bias is not None:
        y = y + read(bias)
    return write(x, y, result_dtype), write(x, mean[..., 0], compute_dtype(x)), write(x, rstd[..., 0], compute_dtype(x))


def layernorm_backward(dy: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """h = (x - mean) rstd, g = dy weight;  dx = rstd (g - mean(g) - h mean(g h));  dweight = sum(dy h);
    dbias = sum(dy). Returns dx, dweight, dbias."""
    g, r = read(dy), read(rstd)[..., None]
    h = (read(x) - read(mean)[..., None]) * r
    scaled = g * read(weight)
    dx = r * (scaled - scaled.mean(axis=-1, keepdims=True) - h * np.mean(scaled * h, axis=-1, keepdims=True))
    width = h.shape[-1]
    dweight, dbias = (g * h).reshape(-1, width).sum(axis=0), g.reshape(-1, width).sum(axis=0)
    return write(x, dx), write(weight, dweight), write(weight, dbias)
