"""Inference with matrices that are only held to be multiplied: int8 with a scale a row, bfloat16, or float32.

`decode_layer` is a whole layer of a Llama for one new token; it is defined by the kernels it stands for.
"""

from __future__ import annotations

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .attention import attention, rope
from .feedforward import swiglu
from .host import read, write
from .matmul import _operand
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
        y = _operand(x, operand_dtype) @ _weight(weight, operand_dtype, read(x).dtype).T
        y = y if scale is None else y * read(scale)
        return write(x, y if bias is None else y + read(bias))


def _weight(weight: Array, operand_dtype: DType | None, like: np.dtype) -> np.ndarray:
    return (_operand(weight, operand_dtype) if weight.dtype.is_float else read(weight)).astype(like)


def decode_layer(
    x: Array,
    norms: list[Array],
    weights: list[Array],
    scales: list[Array],
    cos: Array,
    sin: Array,
    keys: Array,
    values: Array,
    *,
    position: int,
    eps: float,
    interleaved: bool,
    operand_dtype: DType | None,
) -> Array:
    """x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x)), for the token at a position   (Touvron et al. 2023).

    x: (D,). norms: the two weights (D,). weights: of q, k, v, o, gate, up and down, as `held_linear` takes them;
    scales: one each, or none at all. keys, values: (capacity, H_kv, d), filled up to the position, whose row is
    written. cos, sin: as `rope` takes them.
    """
    width, (_, kv_heads, d) = x.shape[0], keys.shape
    heads = weights[0].shape[0] // d
    scaled: list[Array | None] = [*scales] if scales else [None] * len(weights)
    options = {"operand_dtype": operand_dtype}

    def linear(a: Array, i: int) -> Array:
        return held_linear(a, weights[i], scaled[i], **options)

    x = _as(x, (1, width))
    h, _ = rmsnorm(x, norms[0], eps=eps)
    q, k, v = (_as(linear(h, i), (1, 1, n, d)) for i, n in enumerate((heads, kv_heads, kv_heads)))
    turn = {"offset": position, "interleaved": interleaved, "inverse": False}
    q, k = rope(q, cos, sin, **turn), rope(k, cos, sin, **turn)
    assign_(keys.slice(0, position, position + 1), _as(k, (1, kv_heads, d)))
    assign_(values.slice(0, position, position + 1), _as(v, (1, kv_heads, d)))
    seen = [part.slice(0, 0, position + 1).unsqueeze(0) for part in (keys, values)]
    o, _ = attention(q, *seen, causal=True, scale=d**-0.5, dropout=0.0, seed=0, counter=0)
    x = add(x, linear(_as(o, (1, heads * d)), 3))
    h, _ = rmsnorm(x, norms[1], eps=eps)
    x = add(x, linear(swiglu(linear(h, 4), linear(h, 5)), 6))
    return _as(x, (width,))


def _as(x: Array, shape: tuple[int, ...]) -> Array:
    found = x.reshape(shape)
    assert found is not None
    return found
