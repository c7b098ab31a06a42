"""The gated nonlinearity of a feed-forward layer, alone and with the two projections in front of it."""

from __future__ import annotations

from math import prod

from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..tape import Op, Tensor
from .common import joined, narrow, pair, reshaped


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

    With u the gradients of both projections side by side: dx = u W, dW = u^T x, db = sum u.
    """

    saves = ("x", "both", "weights")

    def forward(
        self, x: Array, wg: Array, wu: Array, bg: Array | None, bu: Array | None, *, operand_dtype: DType | None
    ) -> Array:
        k, self.shape, self.operand_dtype, hidden = self.kernels, x.shape, operand_dtype, wg.shape[0]
        rows = reshaped(k, x, (prod(x.shape[:-1]), x.shape[-1]))
        bias = None if bg is None or bu is None else joined(k, [bg, bu])
        how = {"operand_dtype": operand_dtype, "result_dtype": narrow(x, operand_dtype)}
        both = k.matmul(rows, joined(k, [wg, wu]).transpose(), bias, **how)
        self.save(x=rows, both=both, weights=[wg, wu])
        h = k.swiglu(both.slice(1, 0, hidden), both.slice(1, hidden, 2 * hidden))
        return reshaped(k, h, (*x.shape[:-1], hidden))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, hidden = self.kernels, dy.shape[-1]
        u = k.swiglu_joint_backward(reshaped(k, dy, (self.x.shape[0], hidden)), self.both)
        dx, dw, db = k.linear_backward(
            u,
            self.x,
            joined(k, self.weights),
            operand_dtype=self.operand_dtype,
            for_x=self.needs("x"),
            for_weight=self.needs("wg") or self.needs("wu"),
            for_bias=self.needs("bg") or self.needs("bu"),
        )
        parts = {"g": (0, hidden), "u": (hidden, 2 * hidden)}
        found = {"x": None if dx is None else reshaped(k, dx, self.shape)}
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
    operand_dtype: DType | None = None,
) -> Tensor:
    """h = swiglu(x Wg^T + bg, x Wu^T + bu), the first half of a gated feed-forward layer   (Shazeer 2020).

    x: (..., K); weights of gate and up: (F, K) each, biases to match; h: (..., F). operand_dtype as in `matmul`; h
    has it where it is given.
    """
    wg, wu = weights
    if wg.ndim != 2 or wg.shape != wu.shape or x.ndim == 0 or x.shape[-1] != wg.shape[1]:
        got = f"x {x.shape}, weights {wg.shape} and {wu.shape}"
        raise ShapeError("gated_linear", "weights do not fit the input", got=got)
    return GatedLinear.apply(x, wg, wu, *(biases or (None, None)), operand_dtype=operand_dtype)
