"""Normalisation of the last axis, fused: one kernel forward, one backward, statistics kept for the way back."""

from __future__ import annotations

from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..tape import Op, Tensor


class RMSNorm(Op):
    """y = x rstd weight,  rstd = (mean(x**2) + eps)**-0.5   (Zhang & Sennrich 2019)"""

    saves = ("x", "weight", "rstd")

    def forward(self, x: Array, weight: Array, *, eps: float, result_dtype: DType | None) -> Array:
        y, rstd = self.kernels.rmsnorm(x, weight, eps=eps, result_dtype=result_dtype)
        self.save(x=x, weight=weight, rstd=rstd)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dx, dweight = self.kernels.rmsnorm_backward(dy, self.x, self.weight, self.rstd)
        return {"x": dx, "weight": dweight}


class LayerNorm(Op):
    """y = (x - mean) rstd weight + bias,  rstd = (var + eps)**-0.5   (Ba et al. 2016)"""

    saves = ("x", "weight", "mean", "rstd")

    def forward(self, x: Array, weight: Array, bias: Array | None, *, eps: float, result_dtype: DType | None) -> Array:
        y, mean, rstd = self.kernels.layernorm(x, weight, bias, eps=eps, result_dtype=result_dtype)
        self.save(x=x, weight=weight, mean=mean, rstd=rstd)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        dx, dweight, dbias = self.kernels.layernorm_backward(dy, self.x, self.weight, self.mean, self.rstd)
        return {"x": dx, "weight": dweight, "bias": dbias}


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float = 1e-5, result_dtype: DType | None = None) -> Tensor:
    """y = x (mean(x**2) + eps)**-0.5 weight over the last axis.   x: (..., D), weight: (D,).

    result_dtype: of y, None for that of x; bfloat16 where y is nothing but an operand of products in mixed precision.
    """
    _check("rmsnorm", x, weight)
    return RMSNorm.apply(x, weight, eps=eps, result_dtype=result_dtype)


def layernorm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5, result_dtype: DType | None = None
) -> Tensor:
    """y = (x - mean) (var + eps)**-0.5 weight + bias over the last axis.   x: (..., D), weight, bias: (D,).

    result_dtype as in `rmsnorm`.
    """
    _check("layernorm", x, weight)
    if bias is not None:
        _check("layernorm", x, bias)
    return LayerNorm.apply(x, weight, bias, eps=eps, result_dtype=result_dtype)


def _check(name: str, x: Tensor, weight: Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] == 0 or weight.shape != x.shape[-1:]:
        raise ShapeError(name, "weight does not fit the last axis", got=f"x {x.shape}, weight {weight.shape}")
