"""Comparisons and logic: results are bools and have no gradient, so nothing here is recorded."""

from __future__ import annotations

from ..base.errors import DTypeError
from ..tape import Tensor
from .common import Operand
from .pointwise import _pair, maximum, mul


def compare(name: str, a: Operand, b: Operand) -> Tensor:
    """The bool tensor of a comparison kernel: eq, ne, lt, le, gt or ge."""
    a, b = _pair(name, a, b)
    return Tensor(getattr(a.array.buffer.device.kernels, name)(a.array, b.array))


def eq(a: Operand, b: Operand) -> Tensor:
    """y = (a == b), bool"""
    return compare("eq", a, b)


def ne(a: Operand, b: Operand) -> Tensor:
    """y = (a != b), bool"""
    return compare("ne", a, b)


def lt(a: Operand, b: Operand) -> Tensor:
    """y = (a < b), bool"""
    return compare("lt", a, b)


def le(a: Operand, b: Operand) -> Tensor:
    """y = (a <= b), bool"""
    return compare("le", a, b)


def gt(a: Operand, b: Operand) -> Tensor:
    """y = (a > b), bool"""
    return compare("gt", a, b)


def ge(a: Operand, b: Operand) -> Tensor:
    """y = (a >= b), bool"""
    return compare("ge", a, b)


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """y = a and b; bools only"""
    return mul(_bool("&", a), _bool("&", b))


def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """y = a or b; bools only"""
    return maximum(_bool("|", a), _bool("|", b))


def logical_not(a: Tensor) -> Tensor:
    """y = not a; bools only"""
    return eq(_bool("~", a), False)


def _bool(name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.dtype.kind != "bool":
        got = x.dtype.name if isinstance(x, Tensor) else type(x).__name__
        raise DTypeError(name, "not a tensor of bools", got=got, hint="compare first: (x > 0) & (y > 0)")
    return x
