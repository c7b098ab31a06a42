"""The plain layers: linear maps, tables, norms, dropout, feed-forward blocks.

Every layer that draws initial weights takes the generator to draw from, or None for weights that will be loaded; drawn
ones are normal with the standard deviation given, biases zero, norm weights one. `operand_dtype` is the mixed-precision
switch: bfloat16 rounds the operands of matrix products, and what is nothing but such an operand is made in it
(`result_dtype`), while weights, sums and everything else stay float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError
from ..base.rng import Generator
from ..device import Device
from ..device import device as find_device
from ..ops import (
    concatenate,
    dropout,
    embedding,
    gated_linear,
    gelu,
    layernorm,
    linear,
    ones,
    randn,
    rmsnorm,
    swiglu,
    zeros,
)
from ..tape import Parameter, Tensor
from .held import HeldMatrix
from .low_rank import LowRank, changes
from .module import Module


def normal(shape: tuple[int, ...], std: float, *, generator: Generator | None, device: str | Device) -> Parameter:
    """A float32 parameter drawn from N(0, std**2); without a generator memory that nobody wrote, to be loaded into."""
    if generator is None:
        return Parameter(Tensor(find_device(device).empty(shape, dtypes.float32)))
    return Parameter(randn(shape, generator=generator, std=std, device=device))


class Linear(Module):
    """y = x weight^T + bias + residual.   x: (..., K), weight: (N, K), bias: (N,) or none, residual: as y or none.

    `adapter` adds its low-rank change where there is one, see `add_lora`.
    """

    adapter: LowRank | None = None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        generator: Generator | None,
        bias: bool = True,
        std: float = 0.02,
        operand_dtype: DType | None = None,
        result_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        self.weight: Parameter | HeldMatrix = normal((outputs, inputs), std, generator=generator, device=device)
        self.bias = Parameter(zeros((outputs,), device=device), decay=False) if bias else None
        self.operand_dtype, self.result_dtype = operand_dtype, result_dtype

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if isinstance(self.weight, HeldMatrix):
            y = self.weight.linear(x, self.bias, residual, operand_dtype=self.operand_dtype)
            return y if self.adapter is None else self.adapter(x, y, operand_dtype=self.operand_dtype)
        if self.adapter is not None:
            y = linear(x, self.weight, self.bias, residual=residual, operand_dtype=self.operand_dtype)
            how = {"operand_dtype": self.operand_dtype, "result_dtype": self.result_dtype}
            return self.adapter(x, y, **how)
        return linear(
            x,
            self.weight,
            self.bias,
            residual=residual,
            operand_dtype=self.operand_dtype,
            result_dtype=self.result_dtype,
        )


def lay_out_together(layers: Sequence[Linear]) -> None:
    """Moves the weights, and the biases, of layers that read the same input behind one another in memory, so that they
    can be one matrix product. Names, shapes and values stay."""
    for name in ("weight", "bias"):
        parameters = [getattr(layer, name) for layer in layers]
        if any(p is None for p in parameters):
            continue
        joint = concatenate([p.detach() for p in parameters]).array
        start = 0
        for layer, p in zip(layers, parameters, strict=True):
            rows = joint.slice(0, start, start + p.shape[0])
            setattr(layer, name, Parameter(Tensor(rows), decay=p.decay))
            start += p.shape[0]


class Embedding(Module):
    """y = weight[ids].   ids: any shape of integers, weight: (rows, width)."""

    def __init__(
        self, rows: int, width: int, *, generator: Generator | None, std: float = 0.02, device: str | Device = "cpu"
    ) -> None:
        self.weight: Parameter | HeldMatrix = normal((rows, width), std, generator=generator, device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        if isinstance(self.weight, HeldMatrix):
            return self.weight.rows(ids)
        return embedding(self.weight, ids)


class RMSNorm(Module):
    """y = x (mean(x**2) + eps)**-0.5 weight over the last axis   (Zhang & Sennrich 2019)."""

    def __init__(
        self, width: int, *, eps: float = 1e-5, result_dtype: DType | None = None, device: str | Device = "cpu"
    ) -> None:
        self.weight = Parameter(ones((width,), device=device), decay=False)
        self.eps, self.result_dtype = eps, result_dtype

    def __call__(self, x: Tensor) -> Tensor:
        return rmsnorm(x, self.weight, eps=self.eps, result_dtype=self.result_dtype)


class LayerNorm(Module):
    """y = (x - mean) (var + eps)**-0.5 weight + bias over the last axis   (Ba et al. 2016)."""

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        result_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        self.weight = Parameter(ones((width,), device=device), decay=False)
        self.bias = Parameter(zeros((width,), device=device), decay=False) if bias else None
        self.eps, self.result_dtype = eps, result_dtype

    def __call__(self, x: Tensor) -> Tensor:
        return layernorm(x, self.weight, self.bias, eps=self.eps, result_dtype=self.result_dtype)


class Dropout(Module):
    """While training, zeroes each element with probability p and scales the rest by 1 / (1 - p)
    (Srivastava et al. 2014)."""

    def __init__(self, p: float, *, generator: Generator) -> None:
        if not 0 <= p < 1:
            raise ConfigError("Dropout", "not a probability", got=p, expected="0 <= p < 1")
        self.p, self.generator = p, generator

    def __call__(self, x: Tensor) -> Tensor:
        return dropout(x, p=self.p, generator=self.generator) if self.training and self.p > 0 else x


class SwiGLU(Module):
    """y = down(silu(gate(x)) * up(x)) + residual   (Shazeer 2020). Width -> hidden -> width."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        generator: Generator | None,
        bias: bool = False,
        std: float = 0.02,
        out_std: float = 0.02,
        operand_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        self.gate_proj = Linear(
            width, hidden, generator=generator, bias=bias, std=std, operand_dtype=operand_dtype, device=device
        )
        self.up_proj = Linear(
            width, hidden, generator=generator, bias=bias, std=std, operand_dtype=operand_dtype, device=device
        )
        lay_out_together([self.gate_proj, self.up_proj])
        self.down_proj = Linear(
            hidden, width, generator=generator, bias=bias, std=out_std, operand_dtype=operand_dtype, device=device
        )

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        gate, up = self.gate_proj, self.up_proj
        if isinstance(gate.weight, HeldMatrix) or isinstance(up.weight, HeldMatrix):
            return self.down_proj(swiglu(gate(x), up(x)), residual)
        biases = None if gate.bias is None or up.bias is None else (gate.bias, up.bias)
        how = {"operand_dtype": gate.operand_dtype}
        h = gated_linear(x, (gate.weight, up.weight), biases, low_rank=changes(x, [gate, up], **how), **how)
        return self.down_proj(h, residual)


class GELUFeedForward(Module):
    """y = fc_out(gelu(fc_in(x))) + residual   (Hendrycks & Gimpel 2016). Width -> hidden -> width."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        generator: Generator | None,
        bias: bool = True,
        approximate: bool = False,
        std: float = 0.02,
        out_std: float = 0.02,
        operand_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        self.fc_in = Linear(
            width,
            hidden,
            generator=generator,
            bias=bias,
            std=std,
            operand_dtype=operand_dtype,
            result_dtype=operand_dtype,
            device=device,
        )
        self.fc_out = Linear(
            hidden, width, generator=generator, bias=bias, std=out_std, operand_dtype=operand_dtype, device=device
        )
        self.approximate = approximate

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.fc_out(gelu(self.fc_in(x), approximate=self.approximate), residual)
