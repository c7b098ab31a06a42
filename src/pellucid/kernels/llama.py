"""A Llama as decoding sees it: its table, matrices that are held, norms, rotary tables, caches.

It is one argument of the kernel `decode_token`, made once for a model and its caches: a backend may bind everything
about a step to it and keep that for as long as it lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.dtypes import DType
from ..device import Array

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
