"""Vectors inside kernels, continued: extremes, sums across lanes, transposes, powers of two.

Everything here is straight-line code of LLVM vector instructions for the type `Lanes`; see `lanes` for what that is.
Where a number may be NaN, each function says what becomes of it: attention relies on it to pass NaN on.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types

from .functions import intrinsic
from .lanes import FLAGS, Lanes, address, is_half, loaded, scalar_of, vectors_of
from .wide import narrowed

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def vmax(typing_context, a, b):
    """The larger of two; b where either is not a number."""
    if not isinstance(a, Lanes) or a != b:
        return None

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return a(a, b), generate


@intrinsic
def vbelow(typing_context, a, b, x, y):
    """x where a < b, else y (also where either is not a number)."""
    if not isinstance(a, Lanes) or not a == b == x == y:
        return None

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<", arguments[0], arguments[1]), arguments[2], arguments[3])

    return a(a, b, x, y), generate


def _halves(builder: Any, vector: Any, join: Any) -> Any:
    """One number from all lanes: the two halves joined, and again, until one lane is left."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        kind = ir.VectorType(_I32, half)
        parts = [builder.shuffle_vector(vector, vector, ir.Constant(kind, list(range(s, s + half)))) for s in (0, half)]
        vector = join(*parts)
    return builder.extract_element(vector, _I32(0))


@intrinsic
def vsum(typing_context, a):
    """The sum of the lanes."""
    if not isinstance(a, Lanes):
        return None

    def generate(context, builder, signature, arguments):
        return _halves(builder, arguments[0], lambda x, y: builder.fadd(x, y, flags=FLAGS))

    return a.dtype(a), generate


@intrinsic
def store_sums(typing_context, array, index, a, b, c, d):
    """Writes the sums of the lanes of four vectors to four elements from an index on."""
    kind = vectors_of(array)
    if kind is None or is_half(array) or not kind == a == b == c == d:
        return None
    n = kind.count

    def generate(context, builder, signature, arguments):
        def joined(x: Any, y: Any, low: list[int], high: list[int]) -> Any:
            parts = [builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(i)), i)) for i in (low, high)]
            return builder.fadd(*parts, flags=FLAGS)

        # a and b alternate, c and d alternate; then all four do; then the halves are added until four lanes are left.
        even = [i + n * second for i in range(0, n, 2) for second in (0, 1)]
        odd = [i + 1 for i in even]
        ab, cd = joined(arguments[2], arguments[3], even, odd), joined(arguments[4], arguments[5], even, odd)
        if n == 2:
            vector = builder.shuffle_vector(ab, cd, ir.Constant(ir.VectorType(_I32, 4), [0, 1, 2, 3]))
        else:
            fours = [i + e + n * second for i in range(0, n, 4) for second in (0, 1) for e in (0, 1)]
            vector = joined(ab, cd, fours, [i + 2 for i in fours])
        while vector.type.count > 4:
            half = vector.type.count // 2
            vector = joined(vector, vector, list(range(half)), list(range(half, 2 * half)))
        pointer, align = address(context, builder, array, arguments[0], arguments[1], 4)
        builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.int64, a, b, c, d), generate


@intrinsic
def vhighest(typing_context, a):
    """The largest lane; lanes that are not a number may be passed over."""
    if not isinstance(a, Lanes):
        return None

    def generate(context, builder, signature, arguments):
        return _halves(builder, arguments[0], lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))

    return a.dtype(a), generate


#: Coefficients of r, r**2, ... : 2**r on [-1/2, 1/2] to a relative error of 2.6e-9 and 1.8e-17.
POWERS = {
    32: (
        *(0.693147214968027899, 0.240226527828877374, 0.0555031055101379717),
        *(0.00961769297299306232, 0.00134066439023517592, 0.000155946781613266193),
    ),
    64: (
        *(0.693147180559945697, 0.24022650695910098, 0.0555041086647903946, 0.00961812910760700238),
        *(0.00133335581534399647, 0.000154035304415721303, 1.52527273851938682e-5, 1.32154426753298221e-6),
        *(1.01806476592341389e-7, 7.07257041281442351e-9, 4.07807192958833667e-10),
    ),
}


@intrinsic
def vexp2(typing_context, x):
    """2**x = 2**n p(r), n = round(x), r = x - n (exact), p a minimax polynomial with p(0) = 1. About one unit in the
    last place; 0 where the result is below the smallest normal number; NaN stays NaN."""
    if not isinstance(x, Lanes):
        return None
    bits, integer, fraction, bias = (64, _I64, 52, 1023) if x.dtype == types.float64 else (32, _I32, 23, 127)

    def generate(context, builder, signature, arguments):
        floats, words = ir.VectorType(scalar_of(x), x.count), ir.VectorType(integer, x.count)

        def lanes(value: float) -> Any:
            return ir.Constant(floats, [float(np.float32(value)) if bits == 32 else value] * x.count)

        def every(word: int) -> Any:
            return ir.Constant(words, [word] * x.count)

        # n from the exponent that reads as zero to the one that reads as infinity.
        value = arguments[0]
        value = builder.select(builder.fcmp_ordered("<", value, lanes(-bias)), lanes(-bias), value)
        value = builder.select(builder.fcmp_ordered(">", value, lanes(bias + 1)), lanes(bias + 1), value)
        # Adding a float so large that it has no fraction rounds to an integer, which then stands in the low bits.
        rounding = lanes(1.5 * 2.0**fraction)
        shifted = builder.fadd(value, rounding)
        r = builder.fsub(value, builder.fsub(shifted, rounding))
        first, *others = reversed(POWERS[bits])
        p = lanes(first)
        for c in (*others, 1.0):
            p = builder.fadd(builder.fmul(p, r, flags=FLAGS), lanes(c), flags=FLAGS)
        n = builder.shl(builder.bitcast(shifted, words), every(fraction))
        return builder.fmul(p, builder.bitcast(builder.add(n, every(bias << fraction)), floats))

    return x(x), generate


@intrinsic
def vtranspose(typing_context, to, to_index, to_step, source, index, step):
    """Transposes a square of `width` by `width` elements: row r starts at index + r step of `source`, and becomes
    column r, whose elements lie `to_step` apart from to_index + r on."""
    kind = vectors_of(to)
    if kind is None or kind != vectors_of(source):
        return None
    count = kind.count

    def generate(context, builder, signature, arguments):
        to_value, to_start, to_stride, value, start, stride = arguments
        rows = []
        for r in range(count):
            at = builder.add(start, builder.mul(stride, _I64(r)))
            rows.append(loaded(context, builder, source, value, at, count))
        # Exchange lane bits with row bits, one bit a stage.
        half = 1
        while half < count:
            low = [i if not i & half else i - half + count for i in range(count)]
            high = [i + half if not i & half else i + count for i in range(count)]
            for r in range(count):
                if not r & half:
                    a, b = rows[r], rows[r | half]
                    rows[r] = builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, count), low))
                    rows[r | half] = builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, count), high))
            half *= 2
        for r in range(count):
            at = builder.add(to_start, builder.mul(to_stride, _I64(r)))
            pointer, align = address(context, builder, to, to_value, at, count)
            vector = narrowed(builder, to.dtype, rows[r])
            builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(to, types.int64, types.int64, source, types.int64, types.int64), generate
