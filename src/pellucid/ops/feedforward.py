"""The gated nonlinearity of a feed-forward layer, alone and with the two projections in front of it."""

from __future__ import annotations

from math import prod

from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..kernels.views import joined, reshaped
from ..tape import Op, Tensor
from .common import linear_gradients, pair
from .low_rank import LowRank, check_low_rank, low_gradients, projected


class SwiGLU(Op):
    """y = silu(gate) up   (Shazeer 2020)"""

    saves = ("gate", "up")

    def forward(self, gate: Array, up: Array) -> Array:
        self.save(gate=gate, up=up)
        return self.kernels.swiglu(gate, up)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dgate, dup = self.kernels.swiglu_backward(dy, self.gate, self.up)
        return {"gate": dgate, "up": dup}


class GatedLinear(Op):
    """h = silu(x Wg^T + bg) (x Wu^T + bu): the projections are one product with their weights behind one another.

    With u the gradients of both projections side by side: dx = u W, dW = u^T x, db = sum u. A low-rank change adds
    low change^T to them:  dlow = u change, dchange = u^T low.
    """

    saves = ("x", "both", "weights", "low", "change")

    def forward(
        self,
        x: Array,
        wg: Array,
        wu: Array,
        bg: Array | None,
        bu: Array | None,
        low: Array | None,
        change: Array | None,
        *,
        operand_dtype: DType | None,
    ) -> Array:
        k, self.shape, self.operand_dtype, hidden = self.kernels, x.shape, operand_dtype, wg.shape[0]
        rows = reshaped(k, x, (prod(x.shape[:-1]), x.shape[-1]))
        bias = None if bg is None or bu is None else joined(k, [bg, bu])
        both = projected(k, rows, joined(k, [wg, wu]), bias, low, change, operand_dtype=operand_dtype)
        self.x_dtype, trained = x.dtype, self.needs("wg") or self.needs("wu")
        self.save(x=rows if trained else None, both=both, weights=[wg, wu], low=low, change=change)
        h = k.swiglu(both.slice(1, 0, hidden), both.slice(1, hidden, 2 * hidden))
        return reshaped(k, h, (*x.shape[:-1], hidden))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, hidden = self.kernels, dy.shape[-1]
        u = k.swiglu_joint_backward(reshaped(k, dy, (self.both.shape[0], hidden)), self.both)
        dx, dw, db = linear_gradients(
            k,
            u,
            self.x,
            self.x_dtype,
            joined(k, self.weights),
            operand_dtype=self.operand_dtype,
            for_x=self.needs("x"),
            for_bias=self.needs("bg") or self.needs("bu"),
        )
        parts = {"g": (0, hidden), "u": (hidden, 2 * hidden)}
        found = {"x": None if dx is None else reshaped(k, dx, self.shape)}
        if self.low is not None:
            found["low"], found["change"] = low_gradients(k, u, self.low, self.change, operand_dtype=self.operand_dtype)
        for name, (start, stop) in parts.items():
            found[f"w{name}"] = None if dw is None else dw.slice(0, start, stop)
            found[f"b{name}"] = None if db is None else db.slice(0, start, stop)
        return found


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = gate sigmoid(gate) up.   Both of one shape."""
    if gate.shape != up.shape:
        raise ShapeError("swiglu", "gate and up differ in shape", got=f"{gate.shape} and {up.shape}")
    gate, up = pair("swiglu", gate, up)
    return SwiGLU.apply(gate, up)


def gated_linear(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor, Tensor] | None = None,
    *,
    low_rank: LowRank | None = None,
    operand_dtype: DType | None = None,
) -> Tensor:
    """h = swiglu(x Wg^T + bg, x Wu^T + bu), the first half of a gated feed-forward layer   (Shazeer 2020).

    x: (..., K); weights of gate and up: (F, K) each, biases to match; h: (..., F). low_rank: (low, change), of shapes
    (..., R) and (2 F, R), adds low change^T to both projections, gate's first. operand_dtype as in `matmul`; h has it
    where it is given.
    """
    wg, wu = weights
    if wg.ndim != 2 or wg.shape != wu.shape or x.ndim == 0 or x.shape[-1] != wg.shape[1]:
        got = f"x {x.shape}, weights {wg.shape} and {wu.shape}"
        raise ShapeError("gated_linear", "weights do not fit the input", got=got)
    low, change = check_low_rank("gated_linear", x, 2 * wg.shape[0], low_rank)
    return GatedLinear.apply(x, wg, wu, *(biases or (None, None)), low, change, operand_dtype=operand_dtype)
