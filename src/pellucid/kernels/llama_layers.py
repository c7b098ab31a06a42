"""The layers of a Llama as decoding sees them: matrices that are held, norms, rotary tables, caches.

It is one argument of the kernel `decode_layers`, made once for a model and its caches: a backend may bind everything
about a step to it and keep that for as long as it lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.dtypes import DType
from ..device import Array

#: The matrices of a layer, in their order.
MATRICES: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, eq=False)
class LlamaLayers:
    """
    norms: two of every layer, (D,). weights: seven of every layer, (N, K) in int8, bfloat16 or float32, all alike;
    scales: one of each, (N,), or none at all.
    keys, values: one of every layer, (capacity, H_kv, d). cos, sin: (positions, d/2).
    operand_dtype: what inputs of products, and weights that are no integers, are rounded to.
    """

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
        """Bytes of all arrays but the caches."""
        return sum(a.nbytes for a in (*self.norms, *self.weights, *self.scales))
