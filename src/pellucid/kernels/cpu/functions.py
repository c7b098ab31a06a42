"""Elementary functions that LLVM can vectorise: exp, tanh, sigmoid, the normal distribution, and the extremes.

Called from inside the compiled loops of this backend. In float32 they are polynomials in straight-line code, without
branches and calls, a few units in the last place from the exact value over the whole range; infinities, NaN and
denormals come out as from the C library, which computes the float64 forms. Every function returns the type of its
argument: `single` tells the two apart at compile time, so the other branch leaves no code behind. In float32 the
argument may be a whole block of numbers as well (`wide`).
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import extending, njit, types

from .wide import Wide, constant, llvm_call, spread, wide

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
_HALF_LOG2E = f(0.5 / math.log(2))
_LN2_HIGH = f(0.693359375)  # ln 2 in few bits: a small integer times it is exact
_LN2_LOW = f(math.log(2) - 0.693359375)
_ROUND = f(1.5 * 2**23)  # a float this large has no fraction: adding it rounds to an integer, kept in the low bits
_BIASED = f(1.5 * 2**23 + 127)  # the same, and the integer comes out as an exponent's bits
_ROOT_HALF = math.sqrt(0.5)
_BELL = 1 / math.sqrt(2 * math.pi)


# --- from types to code -----------------------------------------------------------------------------------------------


@intrinsic
def like(typing_context, value, x):
    """`value` in the type of `x`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _cast(context, builder, args[0], value, x)

    return x(value, x), generate


@intrinsic
def single(typing_context, x):
    """Whether `x` is float32, one number or a block of them, known at compile time."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.boolean, x == types.float32 or isinstance(x, Wide))

    return types.boolean(x), generate


@intrinsic
def muladd(typing_context, a, b, c):
    """a b + c in float32, rounded once where the processor has the instruction, twice elsewhere. Numbers and blocks
    may be mixed."""
    kind = wide if any(isinstance(k, Wide) for k in (a, b, c)) else types.float32

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        args = [_cast(context, builder, v, k, kind) for v, k in zip(args, (a, b, c), strict=True)]
        return _calls("llvm.fmuladd")(context, builder, signature, args)

    return kind(a, b, c), generate


@intrinsic
def below(typing_context, a, b, x, y):
    """x where a < b, else y (also where either is not a number), in the type of a. Numbers and blocks may be mixed."""
    kind = wide if any(isinstance(k, Wide) for k in (a, b, x, y)) else a

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        args = [_cast(context, builder, v, k, kind) for v, k in zip(args, (a, b, x, y), strict=True)]
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return kind(a, b, x, y), generate


@intrinsic
def by_library(typing_context, function, x):
    """function(x) of the C library; for numbers. Never runs for blocks, which are float32."""
    if isinstance(x, Wide):
        return x(function, x), lambda context, builder, signature, args: args[1]
    called = function.get_call_type(typing_context, (x,), {})

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_function(function, called)(builder, [context.cast(builder, args[1], x, called.args[0])])

    return called.return_type(function, x), generate


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


def _cast(context: Any, builder: Any, value: Any, kind: Any, to: Any) -> Any:
    if isinstance(to, Wide) and not isinstance(kind, Wide):
        return spread(builder, context.cast(builder, value, kind, types.float32))
    return value if kind == to else context.cast(builder, value, kind, to)


def _calls(name: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return llvm_call(builder, name, kind, args)

    return generate


def _chooses(name: str, relation: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind: Any = signature.return_type
        if isinstance(kind, types.Float | Wide):
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
        n = builder.sub(_bits(builder, args[1]), _word(shifted, 0x4B400000))
        first = builder.ashr(n, _word(shifted, 1))
        value = args[0]
        for part in (first, builder.sub(n, first)):
            factor = builder.shl(builder.add(part, _word(shifted, 127)), _word(shifted, 23))
            value = builder.fmul(value, builder.bitcast(factor, value.type))
        return value

    return p(p, shifted), generate


@intrinsic
def _power(typing_context, shifted):
    """2**n, n the integer to which `shifted` = n + 127 + 1.5 * 2**23 was rounded: 0 for n = -127, infinite for 128."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(_bits(builder, args[0]), _word(shifted, 23)), args[0].type)

    return shifted(shifted), generate


def _word(kind: Any, value: int) -> Any:
    """An integer as wide as a float32, or one for each of a block."""
    return constant(value) if isinstance(kind, Wide) else ir.IntType(32)(value)


def _bits(builder: Any, value: Any) -> Any:
    count = getattr(value.type, "count", 0)
    return builder.bitcast(value, ir.VectorType(ir.IntType(32), count) if count else ir.IntType(32))


# --- float32 ----------------------------------------------------------------------------------------------------------


@inlined
def _near_one(r):
    """e**r for |r| <= ln 2 / 2, to a relative error of 3.2e-9 before rounding"""
    p = muladd(r, f(0.00138204114), f(0.00836867746))
    p = muladd(r, p, f(0.0416682698))
    p = muladd(r, p, f(0.166665211))
    p = muladd(r, p, f(0.49999994))
    p = muladd(r, p, f(1))
    return muladd(r, p, f(1))


@inlined
def _exp(x):
    """e**x, from the smallest denormal to the largest float"""
    x = below(x, f(-104), f(-104), x)
    x = below(f(89), x, f(89), x)
    shifted = muladd(x, _LOG2E, _ROUND)
    n = shifted - like(_ROUND, x)
    return _scaled(_near_one(muladd(n, -_LN2_LOW, muladd(n, -_LN2_HIGH, x))), shifted)


@inlined
def _exp_flushed(x):
    """e**x to be added to numbers near 1 or divided by their sum: 0 below 1e-38, infinite above 2.4e38, and faster."""
    x = below(x, f(-88), f(-88), x)
    x = below(f(89), x, f(89), x)
    shifted = muladd(x, _LOG2E, _BIASED)
    n = shifted - like(_BIASED, x)
    return _near_one(muladd(n, -_LN2_LOW, muladd(n, -_LN2_HIGH, x))) * _power(shifted)


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
    one = like(1, x)
    far = one - like(2, x) / (_exp_flushed(a + a) + one)
    return copysign(below(a, f(0.625), near, far), x)


@inlined
def _bell(a):
    """2**(-c a**2) for c = 1 / (2 ln 2) in float32: e**(-a**2 / 2) but for the rounding of c, 1e-6 of it at a = 13.
    Other rounding errors are made good. 0 from 13.25 on."""
    a = below(f(13.26), a, f(13.26), a)
    q = a * a
    rest = muladd(a, a, -q)
    shifted = muladd(q, -_HALF_LOG2E, _BIASED)
    n = shifted - like(_BIASED, a)
    r = muladd(rest, -_HALF_LOG2E, muladd(q, -_HALF_LOG2E, -n))
    p = muladd(r, f(0.000153278423), f(0.00133909972))
    p = muladd(r, p, f(0.00961850304))
    p = muladd(r, p, f(0.0555035956))
    p = muladd(r, p, f(0.240226477))
    p = muladd(r, p, f(0.693147182))
    return muladd(r, p, f(1)) * _power(shifted)


@inlined
def _mills(a):
    """Phi(-a) / `_bell`(a), a >= 0, by a polynomial in t = 1 / (1 + 0.35 a), fitted to a relative error of 3.4e-8."""
    t = like(1, a) / muladd(f(0.35), a, f(1))
    p = muladd(t, f(-0.0292185042), f(0.144347534))
    p = muladd(t, p, f(-0.25655067))
    p = muladd(t, p, f(0.160219774))
    p = muladd(t, p, f(-0.0239147097))
    p = muladd(t, p, f(0.105900563))
    p = muladd(t, p, f(0.119713232))
    p = muladd(t, p, f(0.139883116))
    p = muladd(t, p, f(0.139619648))
    return p * t


# --- for float32 and float64 ------------------------------------------------------------------------------------------


@inlined
def exp(x):
    """e**x"""
    return _exp(x) if single(x) else by_library(math.exp, x)


@inlined
def exp_flushed(x):
    """e**x where numbers too small to count beside 1 may as well be 0: in a softmax, a sigmoid"""
    return _exp_flushed(x) if single(x) else by_library(math.exp, x)


@inlined
def tanh(x):
    """(e**x - e**-x) / (e**x + e**-x)"""
    return _tanh(x) if single(x) else by_library(math.tanh, x)


@inlined
def sigmoid(x):
    """1 / (1 + e**-x)"""
    one = like(1, x)
    return one / (one + exp_flushed(-x))


@inlined
def normal(x):
    """Phi(x) and phi(x): the probability below x, and the density at x, of the normal distribution."""
    if single(x):
        a = abs(x)
        bell = _bell(a)
        tail = _mills(a) * bell
        return below(x, like(0, x), tail, like(1, x) - tail), bell * like(_BELL, x)
    cdf = like(0.5, x) * by_library(math.erfc, x * like(-_ROOT_HALF, x))
    return cdf, like(_BELL, x) * by_library(math.exp, like(-0.5, x) * x * x)


@inlined
def magnitude(x):
    """|x|, whatever `abs` is called where this is used"""
    return abs(x)
