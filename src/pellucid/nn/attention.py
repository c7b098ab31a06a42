"""Self-attention: projections, rotary positions, the fused attention operation, and the cache of keys and values.

One layer serves training (no cache: all positions at once), prefill (an empty cache: all positions, then kept) and
decoding (a filled cache: the new positions attend to everything kept). The cache is plain device memory of fixed
capacity, filled in place and shown to the kernel as a view, so a step of decoding copies only the new rows.
"""

from __future__ import annotations

from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..base.rng import Generator
from ..device import Array, Device
from ..device import device as find_device
from ..ops import attention, rope, self_attention
from ..tape import Tensor
from .layers import Linear, lay_out_together
from .module import Module


class KVCache:
    """Keys and values of one layer, each (batch, capacity, kv heads, head size); `length` positions are filled."""

    def __init__(
        self, batch: int, capacity: int, kv_heads: int, head_dim: int, *, dtype: DType, device: str | Device = "cpu"
    ) -> None:
        where = find_device(device)
        shape = (batch, capacity, kv_heads, head_dim)
        self.keys, self.values = where.empty(shape, dtype), where.empty(shape, dtype)
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    def extend(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Appends new positions; returns views of everything filled. Raises ShapeError past the capacity."""
        stop = self.length + k.shape[1]
        if stop > self.capacity:
            raise ShapeError(
                "KVCache", "the context is full", got=f"{stop} positions", expected=f"at most {self.capacity}"
            )
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
        generator: Generator,
        bias: bool = False,
        dropout: float = 0.0,
        interleaved: bool = False,
        std: float = 0.02,
        out_std: float = 0.02,
        operand_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        def project(inputs: int, outputs: int, std: float) -> Linear:
            return Linear(
                inputs, outputs, generator=generator, bias=bias, std=std, operand_dtype=operand_dtype, device=device
            )

        self.q_proj = project(width, heads * head_dim, std)
        self.k_proj = project(width, kv_heads * head_dim, std)
        self.v_proj = project(width, kv_heads * head_dim, std)
        lay_out_together([self.q_proj, self.k_proj, self.v_proj])
        self.o_proj = project(heads * head_dim, width, out_std)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.dropout, self.interleaved, self.generator = dropout, interleaved, generator

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        if cache is None:
            return self.o_proj(self._whole(x, rotary), residual)
        batch, time, _ = x.shape
        q = self.q_proj(x).reshape(batch, time, self.heads, self.head_dim)
        k = self.k_proj(x).reshape(batch, time, self.kv_heads, self.head_dim)
        v = self.v_proj(x).reshape(batch, time, self.kv_heads, self.head_dim)
        if rotary is not None:
            q = rope(q, *rotary, offset=cache.length, interleaved=self.interleaved)
            k = rope(k, *rotary, offset=cache.length, interleaved=self.interleaved)
        keys, values = cache.extend(k.array, v.array)
        y = attention(q, Tensor(keys), Tensor(values), causal=True, operand_dtype=self.q_proj.operand_dtype)
        return self.o_proj(y.reshape(batch, time, self.heads * self.head_dim), residual)

    def _whole(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """All positions at once, in one operation."""
        q, k, v = self.q_proj, self.k_proj, self.v_proj
        biases = None if q.bias is None or k.bias is None or v.bias is None else (q.bias, k.bias, v.bias)
        p = self.dropout if self.training else 0.0
        return self_attention(
            x,
            (q.weight, k.weight, v.weight),
            biases,
            heads=self.heads,
            kv_heads=self.kv_heads,
            rotary=rotary,
            interleaved=self.interleaved,
            dropout=p,
            generator=self.generator if p > 0 else None,
            operand_dtype=q.operand_dtype,
        )
