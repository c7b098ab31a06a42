"""Operations element by element. Operands broadcast; gradients are summed back to the operand's shape."""

from __future__ import annotations

from ..base import shapes
from ..base.dtypes import DType
from ..base.errors import ConfigError, DTypeError
from ..device import Array
from ..tape import Op, Tensor, constant
from . import common
from .common import Operand, floats, pair, unbroadcast


class Add(Op):
    """y = a + b"""

    def forward(self, a: Array, b: Array) -> Array:
        self.shapes = a.shape, b.shape
        return self.kernels.add(a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        a, b = self.shapes
        return {
            "a": unbroadcast(self.kernels, dy, a) if self.needs("a") else None,
            "b": unbroadcast(self.kernels, dy, b) if self.needs("b") else None,
        }


class Sub(Op):
    """y = a - b"""

    def forward(self, a: Array, b: Array) -> Array:
        self.shapes = a.shape, b.shape
        return self.kernels.sub(a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        a, b = self.shapes
        return {
            "a": unbroadcast(self.kernels, dy, a) if self.needs("a") else None,
            "b": unbroadcast(self.kernels, self.kernels.neg(dy), b) if self.needs("b") else None,
        }


class Mul(Op):
    """y = a b.   da = dy b, db = dy a"""

    saves = ("a", "b")

    def forward(self, a: Array, b: Array) -> Array:
        self.save(a=a, b=b)
        return self.kernels.mul(a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, a, b = self.kernels, self.a, self.b
        return {
            "a": unbroadcast(k, k.mul(dy, b), a.shape) if self.needs("a") else None,
            "b": unbroadcast(k, k.mul(dy, a), b.shape) if self.needs("b") else None,
        }


class Div(Op):
    """y = a / b.   da = dy / b, db = -dy y / b"""

    saves = ("b", "y")

    def forward(self, a: Array, b: Array) -> Array:
        y = self.kernels.div(a, b)
        self.shape = a.shape
        self.save(b=b, y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k = self.kernels
        da = k.div(dy, self.b)
        db = None
        if self.needs("b"):
            db = unbroadcast(k, k.neg(k.mul(da, self.y)), self.b.shape)
        return {"a": unbroadcast(k, da, self.shape) if self.needs("a") else None, "b": db}


class Pow(Op):
    """y = a**b.   da = dy b a**(b - 1), 0 where b = 0;   db = dy y ln a, 0 where a = 0"""

    saves = ("a", "b", "y")

    def forward(self, a: Array, b: Array) -> Array:
        y = self.kernels.pow(a, b)
        self.save(a=a, b=b, y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, a, b = self.kernels, self.a, self.b
        zero, one = constant(dy.device, 0.0, dy.dtype), constant(dy.device, 1.0, dy.dtype)
        da = db = None
        if self.needs("a"):
            slope = k.mul(b, k.pow(a, k.sub(b, one)))
            da = unbroadcast(k, k.mul(dy, k.where(k.eq(b, zero), zero, slope)), a.shape)
        if self.needs("b"):
            slope = k.where(k.eq(a, zero), zero, k.mul(self.y, k.log(a)))
            db = unbroadcast(k, k.mul(dy, slope), b.shape)
        return {"a": da, "b": db}


class Maximum(Op):
    """y = the larger.   The gradient goes to the larger, to `a` on a tie."""

    saves = ("a", "b")

    def forward(self, a: Array, b: Array) -> Array:
        self.save(a=a, b=b)
        return self.kernels.maximum(a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, a, b = self.kernels, self.a, self.b
        zero = constant(dy.device, 0.0, dy.dtype)
        return {
            "a": unbroadcast(k, k.where(k.ge(a, b), dy, zero), a.shape) if self.needs("a") else None,
            "b": unbroadcast(k, k.where(k.lt(a, b), dy, zero), b.shape) if self.needs("b") else None,
        }


class Minimum(Op):
    """y = the smaller.   The gradient goes to the smaller, to `a` on a tie."""

    saves = ("a", "b")

    def forward(self, a: Array, b: Array) -> Array:
        self.save(a=a, b=b)
        return self.kernels.minimum(a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, a, b = self.kernels, self.a, self.b
        zero = constant(dy.device, 0.0, dy.dtype)
        return {
            "a": unbroadcast(k, k.where(k.le(a, b), dy, zero), a.shape) if self.needs("a") else None,
            "b": unbroadcast(k, k.where(k.gt(a, b), dy, zero), b.shape) if self.needs("b") else None,
        }


class Where(Op):
    """y = a where condition, else b"""

    saves = ("condition",)

    def forward(self, condition: Array, a: Array, b: Array) -> Array:
        self.shapes = a.shape, b.shape
        self.save(condition=condition)
        return self.kernels.where(condition, a, b)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, (a, b) = self.kernels, self.shapes
        zero = constant(dy.device, 0.0, dy.dtype)
        return {
            "a": unbroadcast(k, k.where(self.condition, dy, zero), a) if self.needs("a") else None,
            "b": unbroadcast(k, k.where(self.condition, zero, dy), b) if self.needs("b") else None,
        }


class Cast(Op):
    """y = x in another dtype.   dx = dy in the dtype of x"""

    def forward(self, x: Array, *, dtype: DType) -> Array:
        self.dtype = x.dtype
        return self.kernels.cast(x, dtype=dtype)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.cast(dy, dtype=self.dtype)}


class Neg(Op):
    """y = -x"""

    def forward(self, x: Array) -> Array:
        return self.kernels.neg(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.neg(dy)}


class Abs(Op):
    """y = |x|.   dx = dy sign(x)"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.abs(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.mul(dy, self.kernels.sign(self.x))}


class Exp(Op):
    """y = e**x.   dx = dy y"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.exp(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.mul(dy, self.y)}


class Log(Op):
    """y = ln x.   dx = dy / x"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.log(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.div(dy, self.x)}


class Sqrt(Op):
    """y = x**0.5.   dx = dy / (2 y)"""

    saves = ("y",)

    def forward(self, x: Array) -> Array:
        y = self.kernels.sqrt(x)
        self.save(y=y)
        return y

    def backward(self, dy: Array) -> dict[str, Array | None]:
        half = constant(dy.device, 0.5, dy.dtype)
        return {"x": self.kernels.mul(self.kernels.div(dy, self.y), half)}


class Sin(Op):
    """y = sin x.   dx = dy cos x"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.sin(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.mul(dy, self.kernels.cos(self.x))}


class Cos(Op):
    """y = cos x.   dx = -dy sin x"""

    saves = ("x",)

    def forward(self, x: Array) -> Array:
        self.save(x=x)
        return self.kernels.cos(x)

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"x": self.kernels.neg(self.kernels.mul(dy, self.kernels.sin(self.x)))}


common._cast = lambda x, dtype: Cast.apply(x, dtype=dtype)


def add(a: Operand, b: Operand) -> Tensor:
    """y = a + b, broadcast. Raises ShapeError where the shapes do not broadcast, as all of these do."""
    a, b = _pair("add", a, b)
    return Add.apply(a, b)


def sub(a: Operand, b: Operand) -> Tensor:
    """y = a - b, broadcast."""
    a, b = _pair("sub", a, b)
    if a.array.dtype.kind == "bool":
        raise DTypeError("sub", "bools can't be subtracted", hint="cast to an integer type, or compare with !=")
    return Sub.apply(a, b)


def mul(a: Operand, b: Operand) -> Tensor:
    """y = a b, broadcast."""
    a, b = _pair("mul", a, b)
    return Mul.apply(a, b)


def div(a: Operand, b: Operand) -> Tensor:
    """y = a / b, broadcast; integers give float32."""
    a, b = _pair("div", a, b)
    return Div.apply(floats("div", a), floats("div", b))


def pow(a: Operand, b: Operand) -> Tensor:
    """y = a**b, broadcast; integers give float32."""
    a, b = _pair("pow", a, b)
    return Pow.apply(floats("pow", a), floats("pow", b))


def maximum(a: Operand, b: Operand) -> Tensor:
    """y = the larger of a and b, broadcast; NaN wins."""
    a, b = _pair("maximum", a, b)
    return Maximum.apply(a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """y = the smaller of a and b, broadcast; NaN wins."""
    a, b = _pair("minimum", a, b)
    return Minimum.apply(a, b)


def clip(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """y = x, at least `low` and at most `high` (None: no bound)."""
    if low is not None and high is not None and low > high:
        raise ConfigError("clip", "the bounds are the wrong way round", got=f"{low} and {high}")
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """y = a where condition is true, else b; all broadcast. At least one of a and b is a tensor."""
    if not isinstance(condition, Tensor) or condition.dtype.kind != "bool":
        got = condition.dtype.name if isinstance(condition, Tensor) else type(condition).__name__
        raise DTypeError("where", "the condition is not a tensor of bools", got=got)
    a, b = pair("where", a, b)
    shapes.broadcast(condition.shape, a.shape, b.shape, where="where")
    return Where.apply(condition, a, b)


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """y = value where mask is true, else x."""
    return where(mask, value, x)


def _pair(name: str, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    # The usual case asked for here: two calls for every operation otherwise.
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.array.dtype is b.array.dtype):
        a, b = pair(name, a, b)
    first, second = a.array.shape, b.array.shape
    if first != second and first and second:  # a single number goes with every shape
        shapes.broadcast(first, second, where=name)
    return a, b


def neg(x: Tensor) -> Tensor:
    """y = -x"""
    return Neg.apply(x)


def abs(x: Tensor) -> Tensor:
    """y = |x|"""
    return Abs.apply(x)


def exp(x: Tensor) -> Tensor:
    """y = e**x"""
    return Exp.apply(floats("exp", x))


def log(x: Tensor) -> Tensor:
    """y = ln x; -inf at 0, NaN below"""
    return Log.apply(floats("log", x))


def sqrt(x: Tensor) -> Tensor:
    """y = x**0.5; NaN below 0"""
    return Sqrt.apply(floats("sqrt", x))


def sin(x: Tensor) -> Tensor:
    """y = sin x, radians"""
    return Sin.apply(floats("sin", x))


def cos(x: Tensor) -> Tensor:
    """y = cos x, radians"""
    return Cos.apply(floats("cos", x))
