"""One token through all layers of a Llama at once: the path of decoding, where reading the weights is all there is.

The kernel `decode_layers` does the work; here is when it applies, and what it is given. It is put together once for a
set of caches and checked at every step: a weight or a cache that was exchanged makes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

from ..base import dtypes
from ..base.dtypes import DType
from ..device import Array
from ..kernels.llama_layers import MATRICES, LlamaLayers
from ..nn import HeldMatrix, KVCache
from ..tape import Tensor
from ..tape.state import state
from .config import TransformerConfig


class Step:
    """Decides and decodes for one model. `layers` are its blocks."""

    def __init__(self, config: TransformerConfig, layers: Sequence[Any], operand_dtype: DType | None) -> None:
        self._layers, self._operand_dtype = layers, operand_dtype
        c = config
        plain = (c.norm, c.positions, c.activation, c.experts, c.qk_norm)
        biases = (c.has_qkv_bias, c.has_out_bias, c.has_ff_bias)
        windows = any(c.window_of(i) is not None for i in range(c.n_layers))
        self._is_llama = plain == ("rmsnorm", "rope", "swiglu", None, False) and not any(biases) and not windows
        self._config = c
        self._bound: WeakKeyDictionary[KVCache, tuple[list[Any], LlamaLayers]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a model has weights and caches of its own: nothing bound here is for them.
        return Step, (self._config, self._layers, self._operand_dtype)

    def fits(self, x: Tensor, *, training: bool) -> bool:
        """Whether x: (batch, time, width) is one token of one text, and nothing wants gradients, dropout or
        adapters."""
        if not self._is_llama or x.shape[:2] != (1, 1) or training or state.recording:
            return False
        return not any(_adapted(layer) for layer in self._layers)  # the kernel knows whole weights alone

    def __call__(self, x: Tensor, rotary: tuple[Tensor, Tensor], caches: Sequence[KVCache]) -> Tensor:
        """Every layer's x + attention(norm(x)), then x + feedforward(norm(x)); the caches, which have room for it, are
        longer by one."""
        facts: list[Any] = [cache.keys for cache in caches]
        facts += _weights(self._layers)
        bound = self._bound.get(caches[0])
        if bound is None or not all(map(is_, bound[0], facts)):
            bound = self._bound[caches[0]] = facts, self._bind(rotary, caches)
        row = x.array.reshape((x.shape[2],))
        assert row is not None
        y = x.device.kernels.decode_layers(row, bound[1], position=caches[0].length)
        for cache in caches:
            cache.length += 1
        return Tensor(y).reshape(*x.shape)

    def _bind(self, rotary: tuple[Tensor, Tensor], caches: Sequence[KVCache]) -> LlamaLayers:
        found, count = _weights(self._layers), len(MATRICES) + 2
        norms = [w for i, w in enumerate(found) if i % count >= len(MATRICES)]
        weights = [w for i, w in enumerate(found) if i % count < len(MATRICES)]
        held = [w for w in weights if isinstance(w, HeldMatrix)]
        return LlamaLayers(
            norms=[w.array for w in norms],
            weights=[w.values if isinstance(w, HeldMatrix) else w.array for w in weights],
            scales=[w.scale for w in held if w.scale is not None],
            keys=[_positions(cache.keys) for cache in caches],
            values=[_positions(cache.values) for cache in caches],
            cos=rotary[0].array,
            sin=rotary[1].array,
            eps=self._config.norm_eps,
            interleaved=self._config.rope_interleaved,
            operand_dtype=self._operand_dtype,
        )


def _weights(layers: Sequence[Any]) -> list[Any]:
    """Of each layer the matrices, in the order of MATRICES, then both norms; written out, since it runs for every
    token."""
    found: list[Any] = []
    for layer in layers:
        a, m = layer.self_attn, layer.mlp
        found += (a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, a.o_proj.weight)
        found += (m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight)
        found += (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
    return found


def _adapted(layer: Any) -> bool:
    a, m = layer.self_attn, layer.mlp
    if a.q_proj.adapter or a.k_proj.adapter or a.v_proj.adapter or a.o_proj.adapter:
        return True
    return bool(m.gate_proj.adapter or m.up_proj.adapter or m.down_proj.adapter)


def _positions(cache: Array) -> Array:
    assert cache.dtype is dtypes.float32
    return cache.select(0, 0)
