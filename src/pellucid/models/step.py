"""Tokens through a whole Llama at once: the path of generation, without a tape and the layers' own code.

The kernel `decode_token` reads one token, where reading the weights is all there is, `read_tokens` a prompt; here is
when they apply, and what they are given. It is put together once for a set of caches. Whether a weight, an adapter, a
layer or a cache was exchanged since is asked at every step, but not of each one: no attribute of any module was
assigned, the layers are the same, and so are the arrays of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import DTypeError, ShapeError
from ..device import Array
from ..kernels.llama import MATRICES, Llama, read_tokens
from ..nn import HeldMatrix, KVCache, Module
from ..ops import tensor
from ..tape import Tensor
from ..tape.state import state, traces
from .config import TransformerConfig


class _Bound(NamedTuple):
    """A step put together. facts: what it was made of; change: the latest of any module then; layers: as they were;
    room: the most positions; llama: None where the layers have to run one by one."""

    facts: list[Any]
    change: object
    layers: list[Any]
    room: int
    llama: Llama | None


class Step:
    """Decides and reads tokens for one model."""

    def __init__(self, config: TransformerConfig, operand_dtype: DType | None) -> None:
        c = config
        plain = (c.norm, c.positions, c.activation, c.experts, c.qk_norm)
        biases = (c.has_qkv_bias, c.has_out_bias, c.has_ff_bias)
        windows = any(c.window_of(i) is not None for i in range(c.n_layers))
        self._is_llama = plain == ("rmsnorm", "rope", "swiglu", None, False) and not any(biases) and not windows
        self._config, self._operand_dtype = c, operand_dtype
        self._bound: WeakKeyDictionary[KVCache, _Bound] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a model has weights and caches of its own: nothing bound here is for them.
        return Step, (self._config, self._operand_dtype)

    def __call__(
        self, model: Any, ids: int | np.ndarray, caches: Sequence[KVCache], *, last_only: bool
    ) -> Tensor | None:
        """Logits: (1, T or 1, V), behind a token, or ids (1, T), of one text; the caches, one a layer, are longer by
        them then. None, with nothing done, where something wants gradients, dropout, adapters, a trace or several
        texts.

        Raises what `filled` raises.
        """
        batch, count = (1, 1) if isinstance(ids, int) else ids.shape
        if not self._is_llama or batch > 1 or model.model.training or state.recording or traces:
            return None
        bound, position = self._bound.get(caches[0]), caches[0].length
        if bound is None or not _holds(bound, model.model.layers, caches, position, count):
            filled(caches, 1, count)
            bound = self._bound[caches[0]] = self._bind(model, caches, bound)
        llama = bound.llama
        if llama is None:
            return None
        device = llama.table.device
        if isinstance(ids, int):
            y = device.kernels.decode_token(llama, token=ids, position=position).unsqueeze(0)
        else:
            y = read_tokens(llama, tensor(ids[0], device=device).array, position=position, last_only=last_only)
        for cache in caches:
            cache.length = position + count
        return Tensor(y.strided((1, *y.shape), (y.size, *y.strides), 0))

    def _bind(self, model: Any, caches: Sequence[KVCache], before: _Bound | None) -> _Bound:
        change, trunk = Module.latest_change, model.model  # the change first: what comes behind it is seen next time
        layers, keys, values = list(trunk.layers), [c.keys for c in caches], [c.values for c in caches]
        matrices, norms, adapters = [], [], []
        for layer in layers:
            a, m = layer.self_attn, layer.mlp
            projections = (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)
            assert len(projections) == MATRICES
            matrices += [p.weight for p in projections]
            adapters += [p.adapter for p in projections]
            norms += [layer.input_layernorm.weight, layer.post_attention_layernorm.weight]
        matrices.append(model.head_weight)
        norms.append(trunk.norm.weight)
        table, rotary = trunk.embed_tokens.weight, trunk.rotary
        facts = [*keys, *values, *matrices, *norms, *adapters, table, *rotary]
        room = min(cache.capacity for cache in caches)
        if before is not None and len(before.facts) == len(facts) and all(map(is_, before.facts, facts)):
            return before._replace(change=change, layers=layers)
        arrays = [_values(w) for w in (table, *matrices)]
        alike = all(a.dtype is arrays[1].dtype for a in arrays[1:]) and all(a.is_contiguous for a in arrays)
        if any(adapters) or not alike:
            return _Bound(facts, change, layers, room, None)
        llama = Llama(
            table=arrays[0],
            table_scale=table.scale if isinstance(table, HeldMatrix) else None,
            norms=[w.array for w in norms],
            weights=arrays[1:],
            scales=[w.scale for w in matrices if isinstance(w, HeldMatrix) and w.scale is not None],
            keys=[k.select(0, 0) for k in keys],
            values=[v.select(0, 0) for v in values],
            cos=rotary[0].array,
            sin=rotary[1].array,
            eps=self._config.norm_eps,
            interleaved=self._config.rope_interleaved,
            operand_dtype=self._operand_dtype,
        )
        return _Bound(facts, change, layers, room, llama)


def _holds(bound: _Bound, layers: Sequence[Any], caches: Sequence[KVCache], position: int, count: int) -> bool:
    """Whether the step is that of these layers and caches as they are now, and the caches have room for so many tokens
    behind what all of them hold."""
    if bound.change is not Module.latest_change or bound.layers != layers or position + count > bound.room:
        return False
    if any(cache.length != position for cache in caches):
        return False
    return all(map(is_, bound.facts, [c.keys for c in caches] + [c.values for c in caches]))


def _values(weight: Tensor | HeldMatrix) -> Array:
    return weight.values if isinstance(weight, HeldMatrix) else weight.array


def filled(caches: Sequence[KVCache], batch: int, time: int) -> int:
    """How many positions are filled. Raises ShapeError where `time` more, of `batch` texts, don't fit every cache, and
    DTypeError for a cache that is not float32."""
    filled = caches[0].length
    for cache in caches:
        cache.check(time)
        if cache.length != filled or cache.keys.shape[0] != batch:
            got, expected = f"{cache.length} of {cache.keys.shape[0]} texts", f"{filled} of {batch}"
            raise ShapeError("forward_cached", "the filled positions of a cache don't fit", got=got, expected=expected)
        if cache.keys.dtype is not dtypes.float32:
            got = cache.keys.dtype.name
            raise DTypeError("forward_cached", "keys and values are kept in float32", got=got, expected="float32")
    return filled
