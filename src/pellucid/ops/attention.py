"""Fused attention and rotary positions. Layout: (batch, time, heads, head size)."""

from __future__ import annotations

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError, DTypeError, ShapeError
from ..base.rng import Generator
from ..device import Array
from ..tape import Op, Tensor


class Rope(Op):
    """Pairs of features rotated by position-dependent angles.   dx = dy rotated back   (Su et al. 2021)"""

    saves = ("cos", "sin", "positions")

    def forward(
        self, x: Array, cos: Array, sin: Array, positions: Array | None, *, offset: int, interleaved: bool
    ) -> Array:
        self.how = {"offset": offset, "interleaved": interleaved}
        self.save(cos=cos, sin=sin, positions=positions)
        return self.kernels.rope(x, cos, sin, positions, inverse=False, **self.how)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.rope(dy, self.cos, self.sin, self.positions, inverse=True, **self.how)}


class Attention(Op):
    """o = dropout(softmax(scale q k^T)) v, without a score matrix   (Dao et al. 2022)"""

    saves = ("q", "k", "v", "o", "lse", "starts")

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        starts: Array | None,
        *,
        causal: bool,
        scale: float,
        dropout: float,
        seed: int,
        counter: int,
        operand_dtype: DType | None,
    ) -> Array:
        self.how = {
            "causal": causal,
            "scale": scale,
            "dropout": dropout,
            "seed": seed,
            "counter": counter,
            "operand_dtype": operand_dtype,
        }
        o, lse = self.kernels.attention(q, k, v, starts, **self.how)
        self.save(q=q, k=k, v=v, o=o, lse=lse, starts=starts)
        return o

    def backward(self, dy: Array) -> dict[str, Array | None]:
        kept = self.q, self.k, self.v, self.o, self.lse, self.starts
        dq, dk, dv = self.kernels.attention_backward(dy, *kept, **self.how)
        return {"q": dq, "k": dk, "v": dv}


def check_places(where: str, name: str, places: Tensor, shape: tuple[int, ...]) -> None:
    """Raises DTypeError or ShapeError unless there is one int32 for each position of each sequence."""
    if places.dtype is not dtypes.int32:
        raise DTypeError(where, f"{name} have the wrong type", got=places.dtype.name, expected="int32")
    if places.shape != shape:
        raise ShapeError(where, f"{name} do not fit", got=places.shape, expected=f"{shape}, (batch, time)")


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    offset: int = 0,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> Tensor:
    """Rotary positions: x[:, t] is rotated by the angles of position offset + t, or of positions[:, t].

    x: (B, T, H, D), D even; cos, sin: (P, D/2), P >= offset + T. positions: int32 (B, T), in the tables, in
    the place of an offset. Pairs are (i, i + D/2), or (2i, 2i + 1) interleaved.
    """
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ShapeError(
            "rope", "input has the wrong shape", got=x.shape, expected="(batch, time, heads, even head size)"
        )
    if cos.ndim != 2 or cos.shape != sin.shape or cos.shape[1] * 2 != x.shape[-1]:
        raise ShapeError(
            "rope", "tables do not fit", got=f"{cos.shape} and {sin.shape}", expected=f"(positions, {x.shape[-1] // 2})"
        )
    if positions is not None:
        check_places("rope", "positions", positions, x.shape[:2])
        if offset:
            raise ConfigError("rope", "an offset beside positions", got=offset, hint="add it to the positions")
    elif offset < 0 or offset + x.shape[1] > cos.shape[0]:
        raise ShapeError(
            "rope", "position outside the tables", got=offset + x.shape[1] - 1, expected=f"0 to {cos.shape[0] - 1}"
        )
    return Rope.apply(x, cos, sin, positions, offset=offset, interleaved=interleaved)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    starts: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    generator: Generator | None = None,
    operand_dtype: DType | None = None,
) -> Tensor:
    """o = softmax(scale q k^T) v for each head   (Vaswani et al. 2017; grouped queries: Ainslie et al. 2023).

    q: (B, Tq, H, D); k, v: (B, Tk, H_kv, D), H a multiple of H_kv; o as q. causal: query i sees keys 0 .. i + Tk - Tq.
    starts: int32 (B, Tq), the first key each query sees in the place of 0, never falling along time and never behind
    the query itself; only with causal. For packed documents and sliding windows; what nobody sees costs nothing.
    scale None: D**-0.5. dropout: probability of zeroing a softmax weight, drawn from `generator`.
    operand_dtype as in `matmul`.
    """
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ShapeError(
            "attention",
            "q, k and v do not fit",
            got=f"{q.shape}, {k.shape}, {v.shape}",
            expected="(batch, time, heads, head size)",
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ShapeError("attention", "query heads are no multiple of key heads", got=f"{q.shape[2]} and {k.shape[2]}")
    if causal and q.shape[1] > k.shape[1]:
        raise ShapeError(
            "attention", "more queries than keys in causal attention", got=f"{q.shape[1]} and {k.shape[1]}"
        )
    if starts is not None:
        check_places("attention", "starts", starts, q.shape[:2])
        if not causal:
            raise ConfigError("attention", "starts in attention that is not causal", hint="pass causal=True")
    if not 0 <= dropout < 1:
        raise ConfigError("attention", "dropout is not a probability", got=dropout, expected="0 <= dropout < 1")
    seed = counter = 0
    if dropout > 0:
        if generator is None:
            raise ConfigError("attention", "dropout without a generator", hint="pass generator=")
        seed, counter = generator.seed, generator.reserve(q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1])
    factor = q.shape[3] ** -0.5 if scale is None else scale
    how = {"dropout": dropout, "seed": seed, "counter": counter, "operand_dtype": operand_dtype}
    return Attention.apply(q, k, v, starts, causal=causal, scale=factor, **how)
