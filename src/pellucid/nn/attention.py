"""Self-attention: projections, rotary positions, the fused attention operation, and the cache of keys and values.

One layer serves training (no cache: all positions at once), prefill (an empty cache: all positions, then kept) and
decoding (a filled cache: the new positions attend to everything kept). The cache is plain device memory of fixed
capacity, filled in place and shown to the kernel as a view, so a step of decoding copies only the new rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..base.rng import Generator
from ..device import Array, Device
from ..device import device as find_device
from ..ops import attention, rope, self_attention, tensor
from ..tape import Tensor
from .held import HeldMatrix
from .layers import Linear, RMSNorm, lay_out_together
from .low_rank import changes
from .module import Module


class KVCache:
    """Keys and values of one layer, each (batch, capacity, kv heads, head size); `length` positions are filled."""

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: DType,
        device: str | Device = "cpu",
        memory: Array | None = None,
    ) -> None:
        """memory: (2, batch, capacity, kv heads, head size) to lie in; None takes some of its own."""
        if memory is None:
            memory = find_device(device).empty((2, batch, capacity, kv_heads, head_dim), dtype)
        self.keys, self.values = memory.select(0, 0), memory.select(0, 1)
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    def check(self, count: int) -> int:
        """The length after `count` positions more. Raises ShapeError past the capacity."""
        stop = self.length + count
        if stop > self.capacity:
            raise ShapeError(
                "KVCache", "the context is full", got=f"{stop} positions", expected=f"at most {self.capacity}"
            )
        return stop

    def extend(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Appends new positions; returns views of everything filled. Raises ShapeError past the capacity."""
        stop = self.check(k.shape[1])
        kernels = k.device.kernels
        kernels.assign_(self.keys.slice(1, self.length, stop), k)
        kernels.assign_(self.values.slice(1, self.length, stop), v)
        self.length = stop
        return self.keys.slice(1, 0, stop), self.values.slice(1, 0, stop)

    def truncate(self, length: int) -> None:
        """Forgets every position from `length` on."""
        if not 0 <= length <= self.length:
            raise ShapeError(
                "KVCache", "can't keep more positions than there are", got=length, expected=f"0 to {self.length}"
            )
        self.length = length

    def repeat(self, source: KVCache) -> None:
        """Every text of the batch begins with what the one text of `source` holds, in place of what was here. Raises
        ShapeError where that is not one text, or longer than the capacity."""
        if source.keys.shape[0] != 1:
            raise ShapeError("KVCache", "can't repeat several texts", got=source.keys.shape[0], expected=1)
        self.length = 0
        self.length = self.check(source.length)
        for mine, theirs in ((self.keys, source.keys), (self.values, source.values)):
            kernels = mine.device.kernels
            kernels.assign_(mine.slice(1, 0, self.length), theirs.slice(1, 0, self.length))


class SelfAttention(Module):
    """Causal grouped-query self-attention   (Vaswani et al. 2017; Ainslie et al. 2023).

    x: (batch, time, width) -> (batch, time, width), plus `residual` where one is given. Rotary tables are handed in by
    the model, which shares them among its layers; without them positions are the model's own affair.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        generator: Generator | None,
        bias: bool = False,
        out_bias: bool | None = None,
        qk_norm_eps: float | None = None,
        window: int | None = None,
        dropout: float = 0.0,
        interleaved: bool = False,
        std: float = 0.02,
        out_std: float = 0.02,
        operand_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        """out_bias: of the projection out of the heads (None: as `bias`). qk_norm_eps: of an RMSNorm over the
        features of each head of queries and keys, before they are rotated (None: no such norm). window: positions
        a query sees at most, its own included (None: all before it; Beltagy et al. 2020)."""

        def project(inputs: int, outputs: int, std: float, bias: bool) -> Linear:
            return Linear(
                inputs, outputs, generator=generator, bias=bias, std=std, operand_dtype=operand_dtype, device=device
            )

        self.q_proj = project(width, heads * head_dim, std, bias)
        self.k_proj = project(width, kv_heads * head_dim, std, bias)
        self.v_proj = project(width, kv_heads * head_dim, std, bias)
        lay_out_together([self.q_proj, self.k_proj, self.v_proj])
        self.o_proj = project(heads * head_dim, width, out_std, bias if out_bias is None else out_bias)
        self.q_norm = self.k_norm = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_dim, eps=qk_norm_eps, device=device)
            self.k_norm = RMSNorm(head_dim, eps=qk_norm_eps, device=device)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.dropout, self.interleaved, self.generator = dropout, interleaved, generator
        self.window = window

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        residual: Tensor | None = None,
        *,
        starts: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """starts: int32 (batch, time), the first key each position sees, counted from the beginning of a cache where
        there is one; None: all before it. positions: int32 (batch, time), rows of the rotary tables; None: in order,
        behind a cache where there is one."""
        if self.window is not None:
            starts = within(self.window, starts, 0 if cache is None else cache.length, x)
        q, k, v = self.q_proj.weight, self.k_proj.weight, self.v_proj.weight
        if cache is None and self.q_norm is None and not isinstance(q, HeldMatrix):
            return self.o_proj(self._whole(x, (q, k, v), rotary, starts, positions), residual)
        return self.o_proj(self._parts(x, rotary, cache, starts, positions), residual)

    def _parts(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None,
        cache: KVCache | None,
        starts: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """Operation by operation, for a cache, norms of queries and keys, and held weights; behind the positions of the
        cache where there is one."""
        start = 0 if cache is None or positions is not None else cache.length
        batch, time, _ = x.shape
        q = self.q_proj(x).reshape(batch, time, self.heads, self.head_dim)
        k = self.k_proj(x).reshape(batch, time, self.kv_heads, self.head_dim)
        v = self.v_proj(x).reshape(batch, time, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q = rope(q, *rotary, offset=start, positions=positions, interleaved=self.interleaved)
            k = rope(k, *rotary, offset=start, positions=positions, interleaved=self.interleaved)
        if cache is not None:
            k, v = map(Tensor, cache.extend(k.array, v.array))
        p = self.dropout if self.training and cache is None else 0.0
        y = attention(
            q,
            k,
            v,
            causal=True,
            starts=starts,
            dropout=p,
            generator=self.generator if p > 0 else None,
            operand_dtype=self.q_proj.operand_dtype,
        )
        return y.reshape(batch, time, self.heads * self.head_dim)

    def _whole(
        self,
        x: Tensor,
        weights: tuple[Any, Any, Any],
        rotary: tuple[Tensor, Tensor] | None,
        starts: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """All positions at once, in one operation."""
        q, k, v = self.q_proj, self.k_proj, self.v_proj
        biases = None if q.bias is None or k.bias is None or v.bias is None else (q.bias, k.bias, v.bias)
        p = self.dropout if self.training else 0.0
        return self_attention(
            x,
            weights,
            biases,
            heads=self.heads,
            kv_heads=self.kv_heads,
            rotary=rotary,
            low_rank=changes(x, [q, k, v], operand_dtype=q.operand_dtype),
            interleaved=self.interleaved,
            starts=starts,
            positions=positions,
            dropout=p,
            generator=self.generator if p > 0 else None,
            operand_dtype=q.operand_dtype,
        )


def within(window: int, starts: Tensor | None, before: int, x: Tensor) -> Tensor | None:
    """The first key that each position of x: (batch, time, width) sees in a window, `before` positions being in a
    cache: its own place - window + 1, or `starts` where that is later. None where every one sees all before it."""
    batch, time, _ = x.shape
    if before + time <= window:
        return starts
    first = np.maximum(np.arange(before, before + time, dtype=np.int32) - (window - 1), 0)
    found = tensor(np.ascontiguousarray(np.broadcast_to(first, (batch, time))), dtype=dtypes.int32, device=x.device)
    if starts is None:
        return found
    return Tensor(x.device.kernels.maximum(found.array, starts.array))
