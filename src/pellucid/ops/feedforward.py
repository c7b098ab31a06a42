"""The gated nonlinearity of a feed-forward layer, fused."""

from __future__ import annotations

from ..base.errors import ShapeError
from ..device import Array
from ..tape import Op, Tensor
from .common import pair


class SwiGLU(Op):
    """y = silu(gate) up   (Shazeer 2020)"""

    saves = ("gate", "up")

    def forward(self, gate: Array, up: Array) -> Array:
        self.save(gate=gate, up=up)
        return self.kernels.swiglu(gate, up)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dgate, dup = self.kernels.swiglu_backward(dy, self.gate, self.up)
        return {"gate": dgate, "up": dup}


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = gate sigmoid(gate) up.   Both of one shape."""
    if gate.shape != up.shape:
        raise ShapeError("swiglu", "gate and up differ in shape", got=f"{gate.shape} and {up.shape}")
    gate, up = pair("swiglu", gate, up)
    return SwiGLU.apply(gate, up)
