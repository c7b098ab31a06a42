"""A Llama as generation sees it: its table, matrices that are held, norms, rotary tables, caches.

It is one argument of the kernel `decode_token`, made once for a model and its caches: a backend may bind everything
about a step to it and keep that for as long as it lives. `read_tokens` is the same for any number of tokens, kernel
after kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.dtypes import DType
from ..device import Array
from .held import held_rows
from .views import reshaped, together

#: Matrices of a layer: q, k, v, o, gate, up, down, in this order.
MATRICES = 7


@dataclass(frozen=True, eq=False)
class Llama:
    """
    table: (V, D) in int8, bfloat16 or float32; table_scale: (V,), or None where it has none.
    norms: two of every layer and the last, (D,). weights: seven of every layer and the head, (N, K) in int8, bfloat16
    or float32, all alike; scales: one of each, (N,), or none at all.
    keys, values: one of every layer, (capacity, H_kv, d). cos, sin: (positions, d/2).
    operand_dtype: what inputs of products, and weights that are no integers, are rounded to.
    """

    table: Array
    table_scale: Array | None
    norms: list[Array]
    weights: list[Array]
    scales: list[Array]
    keys: list[Array]
    values: list[Array]
    cos: Array
    sin: Array
    eps: float
    interleaved: bool
    operand_dtype: DType | None

    @property
    def nbytes(self) -> int:
        """Bytes of what a step reads whole: all arrays but the table, of which it is one row, and the caches."""
        return sum(a.nbytes for a in (*self.norms, *self.weights, *self.scales))


def read_tokens(llama: Llama, ids: Array, *, position: int, last_only: bool) -> Array:
    """Logits behind tokens: x = table[ids]; for each layer x + attention(rmsnorm(x)), then x + swiglu(rmsnorm(x));
    y = rmsnorm(x) head^T   (Touvron et al. 2023).   ids: (T,), integers; y: (T, V), or (1, V) behind the last one.

    The caches are filled up to the position, from which on T rows are written. What reads the same input is one
    product, and sums start from the residual.
    """
    kernels, operand, (count,) = llama.table.device.kernels, llama.operand_dtype, ids.shape
    (_, kv_heads, size), inner, stop = llama.keys[0].shape, llama.weights[0].shape[0], position + count
    heads = inner // size
    both, every = heads + kv_heads, heads + 2 * kv_heads
    scales = llama.scales or [None] * len(llama.weights)
    turn = {"offset": position, "interleaved": llama.interleaved, "inverse": False}
    how = {"causal": True, "scale": size**-0.5, "dropout": 0.0, "seed": 0, "counter": 0, "operand_dtype": operand}

    def product(x: Array, weight: Array, scale: Array | None, residual: Array | None = None) -> Array:
        return kernels.held_linear(x, weight, scale, None, residual, operand_dtype=operand)

    def linear(x: Array, number: int, residual: Array | None = None) -> Array:
        return product(x, llama.weights[number], scales[number], residual)

    def side_by_side(x: Array, first: int, stop: int) -> Array:
        """x times several matrices: one product where they lie together in memory."""
        weight = together(llama.weights[first:stop])
        scale = together(llama.scales[first:stop]) if llama.scales else None
        if weight is None or (llama.scales and scale is None):
            return kernels.concatenate([linear(x, number) for number in range(first, stop)], axis=1)
        return product(x, weight, scale)

    def normed(x: Array, norm: Array) -> Array:
        return kernels.rmsnorm(x, norm, eps=llama.eps, result_dtype=operand)[0]

    x = held_rows(llama.table, llama.table_scale, ids)
    for i, caches in enumerate(zip(llama.keys, llama.values, strict=True)):
        layer = MATRICES * i  # the number of its first matrix
        qkv = side_by_side(normed(x, llama.norms[2 * i]), layer, layer + 3)
        qkv = reshaped(kernels, qkv, (1, count, every, size))
        turned = kernels.rope(qkv.slice(2, 0, both), llama.cos, llama.sin, None, **turn)
        new = turned.slice(2, heads, both), qkv.slice(2, both, every)
        for cache, part in zip(caches, new, strict=True):
            kernels.assign_(cache.slice(0, position, stop), part.select(0, 0))
        seen = [cache.slice(0, 0, stop).unsqueeze(0) for cache in caches]
        a, _ = kernels.attention(turned.slice(2, 0, heads), *seen, None, **how)
        x = linear(reshaped(kernels, a, (count, inner)), layer + 3, x)
        gate_up = side_by_side(normed(x, llama.norms[2 * i + 1]), layer + 4, layer + 6)
        hidden = gate_up.shape[1] // 2
        h = kernels.swiglu(gate_up.slice(1, 0, hidden), gate_up.slice(1, hidden, 2 * hidden))
        x = linear(h, layer + 6, x)
    if last_only:
        x = x.slice(0, count - 1, count)
    return linear(normed(x, llama.norms[-1]), len(llama.weights) - 1)
