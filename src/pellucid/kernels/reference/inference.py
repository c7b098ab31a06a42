"""Inference with matrices that are only held to be multiplied: int8 with a scale a row, bfloat16, or float32.

`decode_token` is a whole Llama for one new token; it is defined by the kernels it stands for.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from ..llama import MATRICES, Llama
from .attention import attention, rope
from .feedforward import swiglu
from .host import read, rounded, write
from .norm import rmsnorm
from .pointwise import add, assign_


def quantize(x: Array) -> tuple[Array, Array]:
    """Rows as int8: scale = max |row| / 127 in float32, values = round(row / scale), halves to even, within +-127.

    x: (N, K). Returns values (N, K) and scale (N,). The quotient is taken in float64, so that it rounds alike
    everywhere. A row of zeros has scale 0; one that is not finite has scale NaN and values 0.
    """
    rows = read(x).astype(np.float64)
    with np.errstate(all="ignore"):
        scale = (np.abs(rows).max(axis=1, initial=0) / 127).astype(np.float32)
        scale = np.where(np.isfinite(rows).all(axis=1), scale, np.float32(np.nan))
        values = np.rint(rows / scale.astype(np.float64)[:, None])
        values = np.where(scale[:, None] > 0, np.clip(values, -127, 127), 0)
    return write(x, values, dtypes.int8), write(x, scale, dtypes.float32)


def dequantize(values: Array, scale: Array, *, dtype: DType) -> Array:
    """y = values scale.   values: (N, K) int8, scale: (N,)"""
    return write(values, read(values) * read(scale)[:, None], dtype)


def held_linear(
    x: Array, weight: Array, scale: Array | None = None, bias: Array | None = None, *, operand_dtype: DType | None
) -> Array:
    """y = (x weight^T) scale + bias.   x: (M, K), weight: (N, K) int8, bfloat16 or float32, scale, bias: (N,)

    operand_dtype: x, and a weight that is no integer, are rounded to it first; sums are float32.
    """
    with np.errstate(all="ignore"):
        y = rounded(read(x), operand_dtype) @ _weight(weight, operand_dtype, read(x).dtype).T
        y = y if scale is None else y * read(scale)
        return write(x, y if bias is None else y + read(bias))


def held_linear_backward(dy: Array, weight: Array, scale: Array | None = None, *, operand_dtype: DType | None) -> Array:
    """dx = (dy scale) weight.   dy: (M, N), weight: (N, K) int8, bfloat16 or float32, scale: (N,), dx: (M, K)

    operand_dtype: dy scale, and a weight that is no integer, are rounded to it first; sums are float32.
    """
    with np.errstate(all="ignore"):
        scaled = read(dy) if scale is None else read(dy) * read(scale)
        return write(dy, rounded(scaled, operand_dtype) @ _weight(weight, operand_dtype, read(dy).dtype))


def _weight(weight: Array, operand_dtype: DType | None, like: np.dtype) -> np.ndarray:
    return (rounded(read(weight), operand_dtype) if weight.dtype.is_float else read(weight)).astype(like)


def decode_token(llama: Llama, *, token: int, position: int) -> Array:
    """Logits behind a token: x = table[token]; for each layer x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x));
    y = rmsnorm(x) head^T   (Touvron et al. 2023).   y: (V,)

    The caches are filled up to the position, whose rows are written.
    """
    row = read(llama.table)[token] * (1 if llama.table_scale is None else read(llama.table_scale)[token])
    y = write(llama.norms[0], row[None])
    linear = [
        partial(held_linear, weight=w, scale=s, operand_dtype=llama.operand_dtype)
        for w, s in zip(llama.weights, llama.scales or [None] * len(llama.weights), strict=True)
    ]
    for i, (keys, values) in enumerate(zip(llama.keys, llama.values, strict=True)):
        norms, (q, k, v, o, gate, up, down) = llama.norms[2 * i : 2 * i + 2], linear[MATRICES * i : MATRICES * (i + 1)]
        (_, kv_heads, d), turn = keys.shape, {"offset": position, "interleaved": llama.interleaved, "inverse": False}
        h, _ = rmsnorm(y, norms[0], eps=llama.eps)
        queries = rope(_as(q(h), (1, 1, -1, d)), llama.cos, llama.sin, **turn)
        key = rope(_as(k(h), (1, 1, kv_heads, d)), llama.cos, llama.sin, **turn)
        assign_(keys.slice(0, position, position + 1), _as(key, (1, kv_heads, d)))
        assign_(values.slice(0, position, position + 1), _as(v(h), (1, kv_heads, d)))
        seen = [part.slice(0, 0, position + 1).unsqueeze(0) for part in (keys, values)]
        a, _ = attention(queries, *seen, causal=True, scale=d**-0.5, dropout=0.0, seed=0, counter=0)
        y = add(y, o(_as(a, (1, -1))))
        h, _ = rmsnorm(y, norms[1], eps=llama.eps)
        y = add(y, down(swiglu(gate(h), up(h))))
    h, _ = rmsnorm(y, llama.norms[-1], eps=llama.eps)
    return _as(linear[-1](h), (-1,))


def _as(x: Array, shape: tuple[int, ...]) -> Array:
    found = x.reshape(shape)
    assert found is not None
    return found
