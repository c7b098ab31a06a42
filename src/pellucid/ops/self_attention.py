"""Self-attention from the layer's input to the heads' output, as one operation.

The three projections read the same input, so they are one matrix product with their weights behind one another; the
rotation, the fused attention and, in backward, the gradients of all three follow without a tape entry each. Where the
weights lie behind one another in memory already (`nn.SelfAttention` puts them there), the joint matrix is a view.
"""

from __future__ import annotations

from math import prod

from ..base.dtypes import DType
from ..base.errors import ConfigError, ShapeError
from ..base.rng import Generator
from ..device import Array
from ..kernels.views import joined, reshaped
from ..tape import Op, Tensor
from .attention import check_places
from .common import linear_gradients
from .low_rank import LowRank, check_low_rank, low_gradients, projected


class SelfAttention(Op):
    """q, k, v = x Wq^T + bq, x Wk^T + bk, x Wv^T + bv, in heads;  y = attention(rope(q), rope(k), v), heads joined.

    With u the gradients of q, k and v side by side: dx = u W, dW = u^T x, db = sum u. A low-rank change adds
    low change^T to q, k and v:  dlow = u change, dchange = u^T low.
    """

    saves = ("x", "q", "k", "v", "o", "lse", "weights", "rotary", "starts", "low", "change")

    def forward(
        self,
        x: Array,
        wq: Array,
        wk: Array,
        wv: Array,
        bq: Array | None,
        bk: Array | None,
        bv: Array | None,
        cos: Array | None,
        sin: Array | None,
        low: Array | None,
        change: Array | None,
        starts: Array | None,
        positions: Array | None,
        *,
        heads: int,
        kv_heads: int,
        interleaved: bool,
        dropout: float,
        seed: int,
        counter: int,
        operand_dtype: DType | None,
    ) -> Array:
        kernels, (batch, time, width) = self.kernels, x.shape
        size = wq.shape[0] // heads
        both, every = heads + kv_heads, heads + 2 * kv_heads
        self.shape, self.operand_dtype, self.interleaved = x.shape, operand_dtype, interleaved
        rows = reshaped(kernels, x, (batch * time, width))
        bias = None if bq is None or bk is None or bv is None else joined(kernels, [bq, bk, bv])
        y = projected(kernels, rows, joined(kernels, [wq, wk, wv]), bias, low, change, operand_dtype=operand_dtype)
        y = reshaped(kernels, y, (batch, time, every, size))
        q, k, v = y.slice(2, 0, heads), y.slice(2, heads, both), y.slice(2, both, every)
        if cos is not None and sin is not None:
            turned = kernels.rope(
                y.slice(2, 0, both), cos, sin, positions, offset=0, interleaved=interleaved, inverse=False
            )  # v is copied beside it, so that the unturned q and k need not be kept
            q, k, v = turned.slice(2, 0, heads), turned.slice(2, heads, both), kernels.copy(v)
        self.how = {
            "causal": True,
            "scale": size**-0.5,
            "dropout": dropout,
            "seed": seed,
            "counter": counter,
            "operand_dtype": operand_dtype,
        }
        o, lse = kernels.attention(q, k, v, starts, **self.how)
        self.x_dtype, trained = x.dtype, self.needs("wq") or self.needs("wk") or self.needs("wv")
        inside = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "weights": [wq, wk, wv]}
        places = {"rotary": [cos, sin, positions], "starts": starts}
        self.save(x=rows if trained else None, **inside, **places, low=low, change=change)
        return reshaped(kernels, o, (batch, time, heads * size))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        kernels, (cos, sin, positions) = self.kernels, self.rotary
        do = reshaped(kernels, dy, self.o.shape)
        kept = self.q, self.k, self.v, self.o, self.lse, self.starts
        dq, dk, dv = kernels.attention_backward(do, *kept, **self.how)
        if cos is not None and sin is not None:
            back = {"offset": 0, "interleaved": self.interleaved, "inverse": True}
            dq, dk = (kernels.rope(x, cos, sin, positions, **back) for x in (dq, dk))
        widths = [w.shape[0] for w in self.weights]
        rows = self.shape[0] * self.shape[1]
        u = reshaped(kernels, kernels.concatenate([dq, dk, dv], axis=2), (rows, sum(widths)))
        dx, dw, db = linear_gradients(
            kernels,
            u,
            self.x,
            self.x_dtype,
            joined(kernels, self.weights),
            operand_dtype=self.operand_dtype,
            for_x=self.needs("x"),
            for_bias=self.needs("bq") or self.needs("bk") or self.needs("bv"),
        )
        found: dict[str, Array | None] = {"x": None if dx is None else reshaped(kernels, dx, self.shape)}
        if self.low is not None:
            how = {"operand_dtype": self.operand_dtype}
            found["low"], found["change"] = low_gradients(kernels, u, self.low, self.change, **how)
        start = 0
        for name, width in zip("qkv", widths, strict=True):
            found[f"w{name}"] = None if dw is None else dw.slice(0, start, start + width)
            found[f"b{name}"] = None if db is None else db.slice(0, start, start + width)
            start += width
        return found


def self_attention(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor] | None = None,
    *,
    heads: int,
    kv_heads: int,
    rotary: tuple[Tensor, Tensor] | None = None,
    low_rank: LowRank | None = None,
    interleaved: bool = False,
    starts: Tensor | None = None,
    positions: Tensor | None = None,
    dropout: float = 0.0,
    generator: Generator | None = None,
    operand_dtype: DType | None = None,
) -> Tensor:
    """Causal self-attention of a sequence, projections and rotary positions included; see `attention` and `rope`.

    x: (B, T, width); weights of q, k and v: (heads D, width), (kv_heads D, width) twice, biases to match; rotary: cos
    and sin tables, (positions, D / 2), used from position 0; y: (B, T, heads D). low_rank: (low, change), of shapes
    (B, T, R) and ((heads + 2 kv_heads) D, R), adds low change^T to q, k and v side by side. starts: as in
    `attention`; positions: int32 (B, T), the rows of the tables to use in the place of 0 to T - 1. operand_dtype as in
    `matmul`; y has it where it is given.
    """
    wq, wk, wv = weights
    size = wq.shape[0] // max(heads, 1)
    wanted = ((heads * size, x.shape[-1]), *[(kv_heads * size, x.shape[-1])] * 2)
    if x.ndim != 3 or tuple(w.shape for w in weights) != wanted or kv_heads < 1 or heads % kv_heads:
        got = f"x {x.shape}, weights {wq.shape}, {wk.shape}, {wv.shape}, {heads} and {kv_heads} heads"
        raise ShapeError("self_attention", "input, weights and heads do not fit", got=got)
    for name, places in (("starts", starts), ("positions", positions)):
        if places is not None:
            check_places("self_attention", name, places, x.shape[:2])
    enough = positions is not None or rotary is None or rotary[0].shape[0] >= x.shape[1]
    if rotary is not None and (not enough or rotary[0].shape[1] * 2 != size):
        got = f"{rotary[0].shape} for {x.shape[1]} positions of {size} features"
        raise ShapeError("self_attention", "rotary tables do not fit", got=got)
    if dropout > 0 and generator is None:
        raise ConfigError("self_attention", "dropout without a generator", hint="pass generator=")
    low, change = check_low_rank("self_attention", x, sum(w.shape[0] for w in weights), low_rank)
    seed = counter = 0
    if dropout > 0 and generator is not None:
        seed, counter = generator.seed, generator.reserve(prod((x.shape[0], heads, x.shape[1], x.shape[1])))
    return SelfAttention.apply(
        x,
        *weights,
        *(biases or (None, None, None)),
        *(rotary or (None, None)),
        low,
        change,
        starts,
        positions,
        heads=heads,
        kv_heads=kv_heads,
        interleaved=interleaved,
        dropout=dropout,
        seed=seed,
        counter=counter,
        operand_dtype=operand_dtype,
    )
