"""Vectors as values inside kernels: a Numba type for one vector register, and what a kernel may do with it.

Loops over arrays vectorise when LLVM can prove enough; a register tile, an online softmax or a transpose need the
vectors themselves. Here `v = vload(x, i)` gives the `width` elements from index i on as one value, in float32 (float64
for float64 arrays), `+ - *` work lane by lane, and `vstore` writes them back, rounded to the array's element type. The
16-bit formats are widened and narrowed on the way, so a kernel is written once for all of them.

Nothing names an instruction set: LLVM maps a vector to whatever registers the host has. `VECTOR`, the bytes of a
vector, comes from the instruction path; a kernel gets the number of lanes from `width(x, VECTOR)`, which also makes
the path a part of the name under which its code is kept on disk. Indices are those of `formats.load`: never checked.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from . import formats
from .formats import BFloat16, Float16
from .isa import current

#: Bytes of a vector on this process's instruction path.
VECTOR = current().vector

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLAGS = ("contract", "nsz")


class Lanes(types.Type):
    """A vector of `count` floats of a scalar type."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        self.count = VECTOR // (8 if dtype == types.float64 else 4)
        super().__init__(name=f"Lanes({dtype}, {self.count})")


class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(_scalar(kind), kind.count))


register_model(Lanes)(_LanesModel)


def _scalar(kind: Lanes) -> Any:
    return ir.DoubleType() if kind.dtype == types.float64 else ir.FloatType()


def _of(array: types.Type) -> Lanes | None:
    """The vector type in which the elements of an array are computed."""
    if not isinstance(array, types.Array) or array.ndim != 1 or array.layout != "C":
        return None
    return Lanes(types.float64 if array.dtype == types.float64 else types.float32)


def _splat(builder: Any, value: Any, count: int) -> Any:
    vector = ir.VectorType(value.type, count)
    start = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(start, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, count), [0] * count))


@intrinsic
def apart(typing_context):
    """Keeps the function that calls it out of its callers' code, so that a long one is compiled once."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def still(typing_context):
    """In a loop: leave it as it is written. For the odd elements at an edge, where vectors would be code for nothing."""

    def generate(context, builder, signature, arguments):
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate


# --- memory -----------------------------------------------------------------------------------------------------------


def _address(context: Any, builder: Any, array: Any, value: Any, index: Any, count: int) -> tuple[Any, int]:
    """Pointer to a vector of the array's elements, and the alignment that is certain."""
    pointer = formats._pointer(context, builder, array, value, types.int64, index)
    element = pointer.type.pointee
    size = 2 if isinstance(element, ir.IntType) else 8 if isinstance(element, ir.DoubleType) else 4
    return builder.bitcast(pointer, ir.VectorType(element, count).as_pointer()), size


def _widen(builder: Any, kind: types.Type, bits: Any, count: int) -> Any:
    floats = ir.VectorType(ir.FloatType(), count)
    if isinstance(kind, Float16):
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), count)), floats)
    words = ir.VectorType(_I32, count)
    return builder.bitcast(builder.shl(builder.zext(bits, words), ir.Constant(words, [16] * count)), floats)


def _narrow(builder: Any, kind: types.Type, value: Any, count: int) -> Any:
    """As `formats.store` rounds: to nearest, ties to even; what is not a number stays so."""
    halves = ir.VectorType(ir.IntType(16), count)
    if isinstance(kind, Float16):
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(ir.HalfType(), count)), halves)
    words = ir.VectorType(_I32, count)

    def all_lanes(n: int) -> Any:
        return ir.Constant(words, [n] * count)

    bits = builder.bitcast(value, words)
    odd = builder.and_(builder.lshr(bits, all_lanes(16)), all_lanes(1))
    rounded = builder.add(bits, builder.add(odd, all_lanes(0x7FFF)))
    quiet = builder.or_(bits, all_lanes(0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(kept, all_lanes(16)), halves)


def _is_half(array: types.Array) -> bool:
    return isinstance(array.dtype, BFloat16 | Float16)


@intrinsic
def width(typing_context, array, vector):
    """Lanes of the vectors in which an array's elements are computed; `vector` is VECTOR."""
    kind = _of(array)
    if kind is None:
        return None
    return types.int64(array, vector), lambda context, builder, signature, arguments: _I64(kind.count)


@intrinsic
def vload(typing_context, array, index):
    """The elements from an index on."""
    kind = _of(array)
    if kind is None or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        pointer, align = _address(context, builder, array, arguments[0], arguments[1], kind.count)
        found = builder.load(pointer, align=align)
        return _widen(builder, array.dtype, found, kind.count) if _is_half(array) else found

    return kind(array, types.int64), generate


@intrinsic
def vload_part(typing_context, array, index, count):
    """The `count` elements from an index on, fewer than a vector; 0 in the other lanes."""
    kind = _of(array)
    if kind is None or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        pointer, align = _address(context, builder, array, arguments[0], arguments[1], kind.count)
        found = pointer.type.pointee
        mask_type = ir.VectorType(ir.IntType(1), kind.count)
        numbers = ir.Constant(ir.VectorType(_I64, kind.count), list(range(kind.count)))
        mask = builder.icmp_signed("<", numbers, _splat(builder, arguments[2], kind.count))
        name = f"llvm.masked.load.v{kind.count}{'i16' if _is_half(array) else 'f64' if kind.dtype == types.float64 else 'f32'}.p0"
        load = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(found, [pointer.type, _I32, mask_type, found]), name
        )
        loaded = builder.call(load, [pointer, _I32(align), mask, ir.Constant(found, None)])
        return _widen(builder, array.dtype, loaded, kind.count) if _is_half(array) else loaded

    return kind(array, types.int64, types.int64), generate


@intrinsic
def vstore(typing_context, array, index, value):
    """Writes a vector to the elements from an index on."""
    kind = _of(array)
    if kind is None or value != kind:
        return None

    def generate(context, builder, signature, arguments):
        pointer, align = _address(context, builder, array, arguments[0], arguments[1], kind.count)
        vector = _narrow(builder, array.dtype, arguments[2], kind.count) if _is_half(array) else arguments[2]
        builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.int64, value), generate


@intrinsic
def vsplat(typing_context, array, value):
    """A number in every lane, as wide as the vectors of `array`."""
    kind = _of(array)
    if kind is None or not isinstance(value, types.Number):
        return None

    def generate(context, builder, signature, arguments):
        scalar = context.cast(builder, arguments[1], value, kind.dtype)
        return _splat(builder, scalar, kind.count)

    return kind(array, value), generate


@intrinsic
def vspread(typing_context, array, index):
    """One element of an array in every lane."""
    kind = _of(array)
    if kind is None or _is_half(array):
        return None

    def generate(context, builder, signature, arguments):
        pointer = formats._pointer(context, builder, array, arguments[0], types.int64, arguments[1])
        return _splat(builder, builder.load(pointer), kind.count)

    return kind(array, types.int64), generate


@intrinsic
def vtranspose(typing_context, to, to_index, to_step, source, index, step):
    """Transposes a square of `width` by `width` elements: row r starts at index + r step of `source`, and becomes
    column r, whose elements lie `to_step` apart from to_index + r on."""
    kind = _of(to)
    if kind is None or kind != _of(source):
        return None
    count = kind.count

    def generate(context, builder, signature, arguments):
        to_value, to_start, to_stride, value, start, stride = arguments
        rows = []
        for r in range(count):
            at = builder.add(start, builder.mul(stride, _I64(r)))
            pointer, align = _address(context, builder, source, value, at, count)
            found = builder.load(pointer, align=align)
            rows.append(_widen(builder, source.dtype, found, count) if _is_half(source) else found)
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
            pointer, align = _address(context, builder, to, to_value, at, count)
            vector = _narrow(builder, to.dtype, rows[r], count) if _is_half(to) else rows[r]
            builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(to, types.int64, types.int64, source, types.int64, types.int64), generate


@intrinsic
def operand(typing_context, x, copy):
    """`x` itself where its elements are computed as they are stored, else `copy`, the array for a widened copy."""
    if _of(x) is None or _of(x) != _of(copy):
        return None
    chosen, index = (copy, 1) if _is_half(x) else (x, 0)

    def generate(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, chosen, arguments[index])

    return chosen(x, copy), generate


@intrinsic
def narrow(typing_context, x):
    """Whether `x` holds 16-bit floats; known when the kernel is compiled."""
    if _of(x) is None:
        return None
    answer = cgutils.true_bit if _is_half(x) else cgutils.false_bit
    return types.boolean(x), lambda context, builder, signature, arguments: answer


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _operator(symbol: Any, instruction: str) -> None:
    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=_FLAGS)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


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
        vector = join(*(builder.shuffle_vector(vector, vector, ir.Constant(kind, list(range(s, s + half)))) for s in (0, half)))
    return builder.extract_element(vector, _I32(0))


@intrinsic
def vsum(typing_context, a):
    """The sum of the lanes."""
    if not isinstance(a, Lanes):
        return None

    def generate(context, builder, signature, arguments):
        return _halves(builder, arguments[0], lambda x, y: builder.fadd(x, y, flags=_FLAGS))

    return a.dtype(a), generate


@intrinsic
def store_sums(typing_context, array, index, a, b, c, d):
    """Writes the sums of the lanes of four vectors to four elements from an index on."""
    kind = _of(array)
    if kind is None or _is_half(array) or not kind == a == b == c == d:
        return None
    n = kind.count

    def generate(context, builder, signature, arguments):
        def joined(x: Any, y: Any, low: list[int], high: list[int]) -> Any:
            parts = [builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(i)), i)) for i in (low, high)]
            return builder.fadd(*parts, flags=_FLAGS)

        # a and b alternate, c and d alternate; then all four do; then the halves are added until four lanes are left.
        even = [i + n * odd for i in range(0, n, 2) for odd in (0, 1)]
        ab, cd = (joined(*arguments[i : i + 2], even, [i + 1 for i in even]) for i in (2, 4))
        if n == 2:
            vector = builder.shuffle_vector(ab, cd, ir.Constant(ir.VectorType(_I32, 4), [0, 1, 2, 3]))
        else:
            fours = [i + e + n * later for i in range(0, n, 4) for later in (0, 1) for e in (0, 1)]
            vector = joined(ab, cd, fours, [i + 2 for i in fours])
        while vector.type.count > 4:
            half = vector.type.count // 2
            vector = joined(vector, vector, list(range(half)), list(range(half, 2 * half)))
        pointer, align = _address(context, builder, array, arguments[0], arguments[1], 4)
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
_POWERS = {
    32: (0.693147214968027899, 0.240226527828877374, 0.0555031055101379717, 0.00961769297299306232, 0.00134066439023517592, 0.000155946781613266193),
    64: (0.693147180559945697, 0.24022650695910098, 0.0555041086647903946, 0.00961812910760700238, 0.00133335581534399647, 0.000154035304415721303,
         1.52527273851938682e-5, 1.32154426753298221e-6, 1.01806476592341389e-7, 7.07257041281442351e-9, 4.07807192958833667e-10),
}  # fmt: skip


@intrinsic
def vexp2(typing_context, x):
    """2**x = 2**n p(r), n = round(x), r = x - n (exact), p a minimax polynomial with p(0) = 1. About one unit in the
    last place; 0 where the result is below the smallest normal number; NaN stays NaN."""
    if not isinstance(x, Lanes):
        return None
    bits, integer, fraction, bias = (64, _I64, 52, 1023) if x.dtype == types.float64 else (32, _I32, 23, 127)

    def generate(context, builder, signature, arguments):
        floats, words = ir.VectorType(_scalar(x), x.count), ir.VectorType(integer, x.count)

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
        first, *others = reversed(_POWERS[bits])
        p = lanes(first)
        for c in (*others, 1.0):
            p = builder.fadd(builder.fmul(p, r, flags=_FLAGS), lanes(c), flags=_FLAGS)
        n = builder.shl(builder.bitcast(shifted, words), every(fraction))
        return builder.fmul(p, builder.bitcast(builder.add(n, every(bias << fraction)), floats))

    return x(x), generate
