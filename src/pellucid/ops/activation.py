"""Activation functions and dropout: one argument, element by element."""

from __future__ import annotations

from ..base.errors import ConfigError
from ..base.rng import Generator
from ..device import Array
from ..tape import Op, Tensor
from .common import floats


class Tanh(Op):
    """y = tanh x.   dx = dy (1 - y**2)"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.tanh(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.tanh_backward(dy, self.y)}


class Sigmoid(Op):
    """y = 1 / (1 + e**-x).   dx = dy y (1 - y)"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.sigmoid(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.sigmoid_backward(dy, self.y)}


class ReLU(Op):
    """y = max(x, 0).   dx = dy where x > 0, else 0"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.relu(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.relu_backward(dy, self.x)}


class GELU(Op):
    """y = x Phi(x), Phi the standard normal distribution function, exact or in its tanh form.

    dx = dy (Phi(x) + x phi(x)): that slope is made with y, from the same exponential, and kept in the place of x.
    """

    saves = ("slope",)

    def forward(self, x: Array, *, approximate: bool) -> Array:
        if not self.recording:
            return self.kernels.gelu(x, approximate=approximate)
        y, slope = self.kernels.gelu_with_slope(x, approximate=approximate)
        self.save(slope=slope)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.mul(dy, self.slope)}


class SiLU(Op):
    """y = x sigmoid(x).   dx = dy s (1 + x (1 - s))"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.silu(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.silu_backward(dy, self.x)}


class Dropout(Op):
    """y = x / (1 - p) where u >= p, else 0.   dx = the same of dy, with the same u: only their address is kept."""

    def forward(self, x: Array, *, p: float, seed: int, counter: int) -> Array:
        self.draw = {"p": p, "seed": seed, "counter": counter}
        return self.kernels.dropout(x, **self.draw)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.dropout(dy, **self.draw)}


def tanh(x: Tensor) -> Tensor:
    """y = tanh x"""
    return Tanh.apply(floats("tanh", x))


def sigmoid(x: Tensor) -> Tensor:
    """y = 1 / (1 + e**-x)"""
    return Sigmoid.apply(floats("sigmoid", x))


def relu(x: Tensor) -> Tensor:
    """y = max(x, 0)"""
    return ReLU.apply(x)


def gelu(x: Tensor, *, approximate: bool = False) -> Tensor:
    """y = x Phi(x), by the error function or in GPT-2's tanh form (Hendrycks & Gimpel 2016)."""
    return GELU.apply(floats("gelu", x), approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """y = x sigmoid(x) (Elfwing et al. 2017)."""
    return SiLU.apply(floats("silu", x))


def dropout(x: Tensor, *, p: float, generator: Generator) -> Tensor:
    """y = 0 with probability p, else x / (1 - p), by the next numbers of `generator` (Srivastava et al. 2014)."""
    if not 0 <= p < 1:
        raise ConfigError("dropout", "not a probability", got=p, expected="0 <= p < 1")
    if p == 0:
        return x
    x = floats("dropout", x)
    return Dropout.apply(x, p=p, seed=generator.seed, counter=generator.reserve(x.size))
