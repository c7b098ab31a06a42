"""Elementary functions that LLVM can vectorise: exp, tanh, sigmoid, the normal distribution, and the extremes.

Called from inside the compiled loops of this backend. In float32 they are polynomials in straight-line code, without
branches and calls, a few units in the last place from the exact value over the whole range; infinities, NaN and
denormals come out as from the C library, which computes the float64 forms. Every function returns the type of its
argument: `single` tells the two apart at compile time, so the other branch leaves no code behind.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import extending, njit, types

# Typed as anything: what they make of a function is not called with the parameters it is written with.
intrinsic: Any = extending.intrinsic
_compiled: Any = njit

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_PLAIN, _SUM = {"contract": True, "nsz": True}, {"contract": True, "nsz": True, "reassoc": True}

#: For functions called from kernels. "contract" lets a multiply and an add become one instruction, "nsz" frees the
#: sign of zero.
inner = _compiled(fastmath=_PLAIN, **_OPTIONS)

#: The same, always inlined: a loop vectorises only with the whole of its body in sight. And what stays a function may
#: be bound to a copy that another kernel brought along, optimised otherwise: other bits, by what was compiled before.
inlined = _compiled(fastmath=_PLAIN, forceinline=True, **_OPTIONS)

#: For sums that may be taken in another order, the same in every run, so that they vectorise; always inlined.
summing = _compiled(fastmath=_SUM, forceinline=True, **_OPTIONS)

f = np.float32
_LOG2E = f(1 / math.log(2))
_LN2_HIGH = f(0.693359375)  # ln 2 in few bits: a small integer times it is exact
_LN2_LOW = f(math.log(2) - 0.693359375)
_ROUND = f(1.5 * 2**23)  # a float this large has no fraction: adding it rounds to an integer, kept in the low bits
_ROOT_HALF = math.sqrt(0.5)
_BELL = 1 / math.sqrt(2 * math.pi)


# --- from types to code -----------------------------------------------------------------------------------------------


@intrinsic
def like(typing_context, value, x):
    """`value` in the type of `x`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], value, x)

    return x(value, x), generate


@intrinsic
def single(typing_context, x):
    """Whether `x` is a float32, known at compile time."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.boolean, x == types.float32)

    return types.boolean(x), generate


@intrinsic
def muladd(typing_context, a, b, c):
    """a b + c in float32, rounded once where the processor has the instruction, twice elsewhere."""
    return types.float32(types.float32, types.float32, types.float32), _calls("llvm.fmuladd")


@intrinsic
def larger(typing_context, a, b):
    """The larger of two numbers of one type; NaN wins."""
    return a(a, a), _chooses("llvm.maximum", ">")


@intrinsic
def smaller(typing_context, a, b):
    """The smaller of two numbers of one type; NaN wins."""
    return a(a, a), _chooses("llvm.minimum", "<")


@intrinsic
def copysign(typing_context, a, b):
    """|a| with the sign of b."""
    return a(a, a), _calls("llvm.copysign")


@intrinsic
def odd(typing_context, x):
    """float32 of a float64, rounded to the odd neighbour where inexact: rounding that once more, to a narrower type,
    gives what rounding x once would (Boldo & Melquiond 2005)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single, double, word = ir.FloatType(), ir.DoubleType(), ir.IntType(32)
        nearest = builder.fptrunc(args[0], single)
        back = builder.fpext(nearest, double)
        absolute = builder.module.declare_intrinsic("llvm.fabs", (double,))
        away = builder.fcmp_ordered(">", builder.call(absolute, [back]), builder.call(absolute, [args[0]]))
        bits = builder.bitcast(nearest, word)
        bits = builder.or_(builder.sub(bits, builder.zext(away, word)), word(1))
        return builder.select(builder.fcmp_ordered("!=", back, args[0]), builder.bitcast(bits, single), nearest)

    return types.float32(types.float64), generate


def _calls(name: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        function = builder.module.declare_intrinsic(name, (kind,), ir.FunctionType(kind, [kind] * len(args)))
        return builder.call(function, args)

    return generate


def _chooses(name: str, relation: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind: Any = signature.return_type
        if isinstance(kind, types.Float):
            return _calls(name)(context, builder, signature, args)
        signed = isinstance(signature.return_type, types.Integer) and kind.signed
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        return builder.select(compare(relation, *args), *args)

    return generate


@intrinsic
def _scaled(typing_context, p, shifted):
    """p 2**n, n the integer to which `shifted` = n + 1.5 * 2**23 was rounded, -252 < n < 254: by two factors, so that
    a result among the denormals is rounded once and one beyond the largest float is infinite."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        n = builder.sub(builder.bitcast(args[1], word), word(0x4B400000))
        first = builder.ashr(n, word(1))
        value = args[0]
        for part in (first, builder.sub(n, first)):
            factor = builder.bitcast(builder.shl(builder.add(part, word(127)), word(23)), ir.FloatType())
            value = builder.fmul(value, factor)
        return value

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _scaled_once(typing_context, p, shifted):
    """p 2**n by one factor, -127 < n < 128; any number for other n."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        power = builder.shl(builder.bitcast(args[1], word), word(23))
        return builder.fmul(args[0], builder.bitcast(builder.add(power, word(0x3F800000)), ir.FloatType()))

    return types.float32(types.float32, types.float32), generate


# --- float32 ----------------------------------------------------------------------------------------------------------


@inlined
def _split(x):
    """p and n + 1.5 * 2**23 of e**x = p 2**n, by the polynomial of Cephes' expf (Moshier 1989) for x - n ln 2."""
    shifted = muladd(x, _LOG2E, _ROUND)
    n = shifted - _ROUND
    r = muladd(n, -_LN2_LOW, muladd(n, -_LN2_HIGH, x))
    p = muladd(r, f(1.9875691500e-4), f(1.3981999507e-3))
    p = muladd(r, p, f(8.3334519073e-3))
    p = muladd(r, p, f(4.1665795894e-2))
    p = muladd(r, p, f(1.6666665459e-1))
    p = muladd(r, p, f(5.0000001201e-1))
    return muladd(r * r, p, r) + f(1), shifted


@inlined
def _exp(x):
    """e**x, from the smallest denormal to the largest float"""
    x = f(-104) if x < f(-104) else x
    x = f(89) if x > f(89) else x
    p, shifted = _split(x)
    return _scaled(p, shifted)


@inlined
def _exp_flushed(x):
    """e**x to be added to numbers near 1 or divided by their sum: 0 below 2e-38, infinite above 2e38, and faster."""
    p, shifted = _split(x)
    e = _scaled_once(p, shifted)
    e = f(0) if x < f(-87) else e
    return f(np.inf) if x > f(88) else e


@inlined
def _tanh(x):
    """An odd polynomial below 0.625 (Cephes' tanhf), 1 - 2 / (e**2x + 1) above."""
    a = abs(x)
    q = a * a
    p = muladd(q, f(-5.70498872745e-3), f(2.06390887954e-2))
    p = muladd(q, p, f(-5.37397155531e-2))
    p = muladd(q, p, f(1.33314422036e-1))
    p = muladd(q, p, f(-3.33332819422e-1))
    near = muladd(q * a, p, a)
    far = f(1) - f(2) / (_exp_flushed(a + a) + f(1))
    return copysign(near if a < f(0.625) else far, x)


@inlined
def _bell(x):
    """e**(-x**2 / 2), with the rounding error of x**2 made good."""
    x = f(15) if x > f(15) else x
    x = f(-15) if x < f(-15) else x
    q = x * x
    e = _exp_flushed(f(-0.5) * q)
    return muladd(e, f(-0.5) * muladd(x, x, -q), e)


@inlined
def _mills(x):
    """Phi(-|x|) / e**(-x**2 / 2) by a polynomial in t = 1 / (1 + 0.35 |x|), fitted to a relative error of 3.2e-8."""
    t = f(1) / muladd(f(0.35), abs(x), f(1))
    p = muladd(t, f(-0.0291578865), f(0.144030915))
    p = muladd(t, p, f(-0.255839))
    p = muladd(t, p, f(0.1593197))
    p = muladd(t, p, f(-0.023212353))
    p = muladd(t, p, f(0.1055525))
    p = muladd(t, p, f(0.11982129))
    p = muladd(t, p, f(0.13986352))
    p = muladd(t, p, f(0.1396213))
    return p * t


# --- for float32 and float64 ------------------------------------------------------------------------------------------


@inlined
def exp(x):
    """e**x"""
    if single(x):
        return like(_exp(f(x)), x)
    return like(math.exp(x), x)


@inlined
def exp_flushed(x):
    """e**x where numbers too small to count beside 1 may as well be 0: in a softmax, a sigmoid"""
    if single(x):
        return like(_exp_flushed(f(x)), x)
    return like(math.exp(x), x)


@inlined
def tanh(x):
    """(e**x - e**-x) / (e**x + e**-x)"""
    if single(x):
        return like(_tanh(f(x)), x)
    return like(math.tanh(x), x)


@inlined
def sigmoid(x):
    """1 / (1 + e**-x)"""
    one = like(1, x)
    return one / (one + exp_flushed(-x))


@inlined
def normal(x):
    """Phi(x) and phi(x): the probability below x, and the density at x, of the normal distribution."""
    if single(x):
        bell = _bell(f(x))
        tail = _mills(f(x)) * bell
        return like(tail if f(x) < f(0) else f(1) - tail, x), like(bell * f(_BELL), x)
    cdf = 0.5 * math.erfc(-x * _ROOT_HALF)
    return like(cdf, x), like(_BELL * math.exp(-0.5 * x * x), x)


@inlined
def magnitude(x):
    """|x|, whatever `abs` is called where this is used"""
    return abs(x)
