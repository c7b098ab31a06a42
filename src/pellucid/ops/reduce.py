"""Operations along axes: sums, means, extremes, softmax, running sums."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ..base import shapes
from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array, Device
from ..kernels.views import reshaped
from ..tape import Op, Tensor, constant
from .common import Axes, floats


class Sum(Op):
    """y = sum of x over axes.   dx = dy, repeated"""

    def forward(self, x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        self.shape, self.axes = x.shape, axes
        return self.kernels.sum(x, axes=axes, keepdims=keepdims)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": _spread(self.kernels, dy, self.shape, self.axes)}


class Mean(Op):
    """y = sum of x over axes / n.   dx = dy / n, repeated"""

    def forward(self, x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        self.shape, self.axes = x.shape, axes
        self.share = _share(x.buffer.device, x.dtype, x.shape, axes)
        return self.kernels.mul(self.kernels.sum(x, axes=axes, keepdims=keepdims), self.share)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": _spread(self.kernels, self.kernels.mul(dy, self.share), self.shape, self.axes)}


@lru_cache(256)
def _share(device: Device, dtype: DType, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """1 / n on the device, n the elements that the axes hold together."""
    return constant(device, 1.0 / prod(shape[a] for a in axes), dtype)


class _Extreme(Op):
    saves = ("x", "y")
    kernel = ""

    def forward(self, x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        y = getattr(self.kernels, self.kernel)(x, axes=axes, keepdims=True)
        self.axes = axes
        self.save(x=x, y=y)
        return y if keepdims else reshaped(self.kernels, y, shapes.reduced(x.shape, axes, False))

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k = self.kernels
        hit = k.cast(k.eq(self.x, self.y), dtype=dy.dtype)
        each = k.div(reshaped(k, dy, self.y.shape), k.sum(hit, axes=self.axes, keepdims=True))
        return {"x": k.mul(hit, each)}


class Max(_Extreme):
    """y = the largest x over axes.   dx = dy, shared equally among the largest"""

    kernel = "max"


class Min(_Extreme):
    """y = the smallest x over axes.   dx = dy, shared equally among the smallest"""

    kernel = "min"


class CumSum(Op):
    """y[i] = x[0] + ... + x[i].   dx[i] = dy[i] + ... + dy[n-1]"""

    def forward(self, x: Array, *, axis: int) -> Array:
        self.axis = axis
        return self.kernels.cumsum(x, axis=axis, reverse=False)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.cumsum(dy, axis=self.axis, reverse=True)}


class Softmax(Op):
    """y = e**x / sum e**x over the last axis.   dx = y (dy - sum(dy y))"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.softmax(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.softmax_backward(dy, self.y)}


class LogSoftmax(Op):
    """y = x - ln sum e**x over the last axis.   dx = dy - e**y sum(dy)"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.log_softmax(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.log_softmax_backward(dy, self.y)}


class LogSumExp(Op):
    """y = m + ln sum e**(x - m), m = max x, over the last axis, which stays.   dx = dy e**(x - y)"""

    saves = ("x", "y")

    def forward(self, x: Array) -> Array:
        k, axes = self.kernels, (x.rank - 1,)
        top = k.max(x, axes=axes, keepdims=True)
        low, zero = constant(x.device, float("-inf"), x.dtype), constant(x.device, 0.0, x.dtype)
        top = k.where(k.eq(top, low), zero, top)
        y = k.add(top, k.log(k.sum(k.exp(k.sub(x, top)), axes=axes, keepdims=True)))
        self.save(x=x, y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.mul(dy, self.kernels.exp(self.kernels.sub(self.x, self.y)))}


def _spread(kernels: object, dy: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    return reshaped(kernels, dy, shapes.reduced(shape, axes, True)).expand(shape)


def sum(x: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """y = the sum over `axis` (one, several, or None: all); integers and bools give int64."""
    return Sum.apply(x, axes=shapes.axes(axis, len(x.array.shape), where="sum"), keepdims=keepdims)


def mean(x: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """y = the mean over `axis`; integers give float32. Raises ShapeError over an empty axis."""
    axes = _filled("mean", x, axis)
    return Mean.apply(x if x.array.dtype.is_float else floats("mean", x), axes=axes, keepdims=keepdims)


def var(x: Tensor, axis: Axes = None, *, keepdims: bool = False, correction: int = 0) -> Tensor:
    """y = sum((x - mean)**2) / (n - correction) over `axis`; correction 1 is Bessel's."""
    axes = _filled("var", x, axis)
    n = prod(x.shape[a] for a in axes)
    if n <= correction:
        raise ShapeError("var", "too few elements for the correction", got=n, expected=f"more than {correction}")
    centred = x - mean(x, axes, keepdims=True)
    return sum(centred * centred, axes, keepdims=keepdims) * (1.0 / (n - correction))


def max(x: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """y = the largest element over `axis`; NaN wins. Raises ShapeError over an empty axis."""
    return Max.apply(x, axes=_filled("max", x, axis), keepdims=keepdims)


def min(x: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """y = the smallest element over `axis`; NaN wins. Raises ShapeError over an empty axis."""
    return Min.apply(x, axes=_filled("min", x, axis), keepdims=keepdims)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """int64 position of the largest element along `axis`, the lowest on a tie; no gradient."""
    (found,) = _filled("argmax", x, axis)
    return Tensor(x.device.kernels.argmax(x.array, axis=found))


def cumsum(x: Tensor, axis: int = -1) -> Tensor:
    """y[i] = x[0] + ... + x[i] along `axis`."""
    return CumSum.apply(x, axis=shapes.axis(axis, x.ndim, where="cumsum"))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """y = e**x / sum e**x along `axis`."""
    return _last("softmax", Softmax, x, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """y = x - ln sum e**x along `axis`."""
    return _last("log_softmax", LogSoftmax, x, axis)


def logsumexp(x: Tensor, axis: int = -1, *, keepdims: bool = False) -> Tensor:
    """y = ln sum e**x along `axis`, without overflow."""
    (found,) = _filled("logsumexp", x, axis)
    y = _last("logsumexp", LogSumExp, x, found)
    return y if keepdims else y.squeeze(found)


def _last(name: str, op: type[Op], x: Tensor, axis: int) -> Tensor:
    x = floats(name, x)
    found = shapes.axis(axis, x.ndim, where=name)
    if found == x.ndim - 1:
        return op.apply(x)
    return op.apply(x.transpose(found, -1)).transpose(found, -1)


def _filled(name: str, x: Tensor, axis: Axes) -> tuple[int, ...]:
    axes = shapes.axes(axis, len(x.array.shape), where=name)
    if 0 in x.array.shape and any(x.shape[a] == 0 for a in axes):
        raise ShapeError(name, "nothing to reduce", got=x.shape, expected=f"no empty axis among {axes}")
    return axes
