"""Attention and rotary positions. Layout everywhere: (batch, time, heads, head size), any strides.

Grouped-query attention: H query heads share H_kv key/value heads; query head h reads key/value head h // (H / H_kv).
"""

from __future__ import annotations

import numpy as np

from ...base import rng
from ...base.dtypes import DType
from ...device import Array
from ...device.cpu import view
from ..indices import check_indices, check_starts
from .host import Host, compute_dtype, read, rounded, write


def rope(
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    *,
    offset: int,
    interleaved: bool,
    inverse: bool,
) -> Array:
    """Rotates pairs of features by position-dependent angles   (Su et al. 2021).

    x: (B, T, H, D), D even; cos, sin: (P, D/2) tables, row p the angles of position p; x[:, t] has position
    offset + t, or offset + positions[:, t] where they are given: (B, T) int32. Pairs are (i, i + D/2), or
    (2i, 2i + 1) with `interleaved`:
    y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. `inverse` rotates back: the gradient.
    """
    a = read(x)
    rows = np.arange(a.shape[1]) if positions is None else view(positions)
    if positions is not None:
        check_indices("rope", positions, cos.shape[0] - offset)
    c, s = (read(table)[offset + rows][..., None, :].astype(a.dtype) for table in (cos, sin))
    s = -s if inverse else s
    half = a.shape[-1] // 2
    first, second = (a[..., 0::2], a[..., 1::2]) if interleaved else (a[..., :half], a[..., half:])
    y = np.empty_like(a)
    y1, y2 = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :half], y[..., half:])
    y1[...], y2[...] = first * c - second * s, second * c + first * s
    return write(x, y)


def attention(
    q: Array,
    k: Array,
    v: Array,
    starts: Array | None = None,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    seed: int,
    counter: int,
    operand_dtype: DType | None = None,
) -> tuple[Array, Array]:
    """o = dropout(softmax(scale q k^T)) v. Returns o: (B, Tq, H, D) and lse: (B, H, Tq), the ln of each row's
    softmax sum with the maximum included, in float32 (float64 for float64 input).

    q: (B, Tq, H, D); k, v: (B, Tk, H_kv, D); Tq <= Tk where causal. causal: query i sees keys 0 .. i + Tk - Tq,
    so that the last query sees every key. starts: (B, Tq) int32, the first key that each query sees, with causal: along
    time it does not fall, and no query starts behind itself (None: key 0). Where it jumps to the query itself, a
    document begins; what stands before has no influence behind, and in a device's kernels not even where it is no
    number. dropout: probability of zeroing a softmax weight; the mask of (b, h, i, j) is word
    counter + ((b H + h) Tq + i) Tk + j of the Philox stream `seed`, as in `dropout`.
    operand_dtype: what enters a product is rounded to it (bfloat16 for mixed precision), where a device multiplies
    that faster; scores, softmax and sums keep their precision.
    Kernels of a device never build the score matrix (Dao et al. 2022); this definition does.
    """
    _, probabilities, lse, keep = _scores(q, k, starts, causal, scale, dropout, seed, counter, operand_dtype)
    weights, values = rounded(probabilities * keep, operand_dtype), rounded(read(v), operand_dtype)
    o = np.einsum("bhij,bjhd->bihd", weights, _heads(values, q.shape[2]))
    return write(q, o), write(q, lse, compute_dtype(q))


def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    starts: Array | None = None,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    seed: int,
    counter: int,
    operand_dtype: DType | None = None,
) -> tuple[Array, Array, Array]:
    """p = softmax weights, m = dropout mask / (1 - dropout):  dv = (p m)^T do,  dp = m (do v^T),
    ds = p (dp - sum(do o)),  dq = scale ds k,  dk = scale ds^T q. Returns dq, dk, dv."""
    _, p, _, keep = _scores(q, k, starts, causal, scale, dropout, seed, counter, operand_dtype)
    heads, kv_heads = q.shape[2], k.shape[2]
    delta = np.einsum("bihd,bihd->bhi", read(do), read(o))
    a, b, c, g = (rounded(read(x), operand_dtype) for x in (q, k, v, do))
    dp = np.einsum("bihd,bjhd->bhij", g, _heads(c, heads)) * keep
    ds = rounded(p * (dp - delta[..., None]) * p.dtype.type(scale), operand_dtype)
    dv = _fold(np.einsum("bhij,bihd->bjhd", rounded(p * keep, operand_dtype), g), kv_heads)
    dq = np.einsum("bhij,bjhd->bihd", ds, _heads(b, heads))
    dk = _fold(np.einsum("bhij,bihd->bjhd", ds, a), kv_heads)
    return write(q, dq), write(k, dk), write(v, dv)


def _scores(
    q: Array,
    k: Array,
    starts: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
    seed: int,
    counter: int,
    operand_dtype: DType | None,
) -> tuple[Host, Host, Host, Host]:
    a, b = rounded(read(q), operand_dtype), rounded(read(k), operand_dtype)
    s = np.einsum("bihd,bjhd->bhij", a, _heads(b, q.shape[2])) * a.dtype.type(scale)
    rows, keys = s.shape[-2:]
    if causal:
        hidden = np.arange(keys)[None, :] > np.arange(rows)[:, None] + keys - rows
        s = np.where(hidden, -np.inf, s)
    if starts is not None:
        check_starts("attention", starts, keys - rows)
        s = np.where(np.arange(keys) < view(starts)[:, None, :, None], -np.inf, s)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        lse = (top + np.log(total))[..., 0]
        p = e / np.where(total == 0, 1, total)
    keep = np.ones((), a.dtype)
    if dropout > 0:
        u = rng.uniform_from_words(rng.philox(seed, counter, s.size)).reshape(s.shape)
        keep = np.where(u >= np.float32(dropout), a.dtype.type(1 / (1 - dropout)), a.dtype.type(0))
    return s, p.astype(a.dtype), lse, keep


def _heads(x: Host, heads: int) -> Host:
    return np.repeat(x, heads // x.shape[2], axis=2)


def _fold(x: Host, kv_heads: int) -> Host:
    b, t, h, d = x.shape
    return x.reshape(b, t, kv_heads, h // kv_heads, d).sum(axis=3)
