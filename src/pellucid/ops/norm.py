"""Normalisation of the last axis, fused: one kernel forward, one backward, statistics kept for the way back."""

from __future__ import annotations

from ..base.errors import ShapeError
from ..device import Array
from ..tape import Op, Tensor


class RMSNorm(Op):
    """y = x rstd weight,  rstd = (mean(x**2) + eps)**-0.5   (Zhang & Sennrich 2019)"""

    saves = ("x", "weight", "rstd")

    def forward(self, x: Array, weight: Array, *, eps: float) -> Array:
        y, rstd = self.kernels.rmsnorm(x, weight, eps=eps)
        self.save(x=x, weight=weight, rstd=rstd)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dx, dweight = self.kernels.rmsnorm_backward(dy, self.x, self.weight, self.rstd)
        return {"x": dx, "weight": dweight}


class LayerNorm(Op):
    """y = (x - mean) rstd weight + bias,  rstd = (var + eps)**-0.5   (Ba et al. 2016)"""

    saves = ("x", "weight", "mean", "rstd")

    def forward(self, x: Array, weight: Array, bias: Array | None, *, eps: float) -> Array:
        y, mean, rstd = self.kernels.layernorm(x, weight, bias, eps=eps)
        self.save(x=x, weight=weight, mean=mean, rstd=rstd)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dx, dweight, dbias = self.kernels.layernorm_backward(dy, self.x, self.weight, self.mean, self.rstd)
        return {"x": dx, "weight": dweight, "bias": dbias}


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float = 1e-5) -> Tensor:
    """y = x (mean(x**2) + eps)**-0.5 weight over the last axis.   x: (..., D), weight: (D,)."""
    _check("rmsnorm", x, weight)
    return RMSNorm.apply(x, weight, eps=eps)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """y = (x - mean) (var + eps)**-0.5 weight + bias over the last axis.   x: (..., D), weight, bias: (D,)."""
    _check("layernorm", x, weight)
    if bias is not None:
        _check("layernorm", x, bias)
    return LayerNorm.apply(x, weight, bias, eps=eps)


def _check(name: str, x: Tensor, weight: Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] == 0 or weight.shape != x.shape[-1:]:
        raise ShapeError(name, "weight does not fit the last axis", got=f"x {x.shape}, weight {weight.shape}")
