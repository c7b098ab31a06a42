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
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_model

from . import formats
from .formats import BFloat16, Float16, ask
from .functions import inlined, intrinsic
from .isa import current
from .wide import narrowed, widened

#: Bytes of a vector on this process's instruction path.
VECTOR = current().vector

_I32, _I64 = ir.IntType(32), ir.IntType(64)
FLAGS = ("contract", "nsz")


class Lanes(types.Type):
    """A vector of `count` floats of a scalar type."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        self.count = VECTOR // (8 if dtype == types.float64 else 4)
        super().__init__(name=f"Lanes({dtype}, {self.count})")


class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(scalar_of(kind), kind.count))


register_model(Lanes)(_LanesModel)


def scalar_of(kind: Lanes) -> Any:
    return ir.DoubleType() if kind.dtype == types.float64 else ir.FloatType()


def vectors_of(array: types.Type) -> Lanes | None:
    """The vector type in which the elements of an array are computed."""
    if not isinstance(array, types.Array) or array.ndim != 1 or array.layout != "C":
        return None
    return Lanes(types.float64 if array.dtype == types.float64 else types.float32)


def splat(builder: Any, value: Any, count: int) -> Any:
    vector = ir.VectorType(value.type, count)
    nothing, zeros = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _I32(0)), nothing, zeros)


@intrinsic
def apart(typing_context):
    """Keeps the function that calls it out of its callers' code, so that a long one is compiled once."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def still(typing_context):
    """In a loop: leave it as it is written. For the odd elements at an edge, where vectors are code for nothing."""

    def generate(context, builder, signature, arguments):
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate


# --- memory -----------------------------------------------------------------------------------------------------------


def address(context: Any, builder: Any, array: Any, value: Any, index: Any, count: int) -> tuple[Any, int]:
    """Pointer to a vector of the array's elements, and the alignment that is certain."""
    pointer = formats._pointer(context, builder, array, value, types.int64, index)
    element = pointer.type.pointee
    size = 2 if isinstance(element, ir.IntType) else 8 if isinstance(element, ir.DoubleType) else 4
    return builder.bitcast(pointer, ir.VectorType(element, count).as_pointer()), size


def is_half(array: types.Array) -> bool:
    return isinstance(array.dtype, BFloat16 | Float16)


def loaded(context: Any, builder: Any, array: Any, value: Any, index: Any, count: int) -> Any:
    """The vector of elements from an index on, in the numbers in which they are computed."""
    pointer, align = address(context, builder, array, value, index, count)
    return widened(builder, array.dtype, builder.load(pointer, align=align))


@intrinsic
def width(typing_context, array, vector):
    """Lanes of the vectors in which an array's elements are computed; `vector` is VECTOR."""
    kind = vectors_of(array)
    if kind is None:
        return None
    return types.int64(array, vector), lambda context, builder, signature, arguments: _I64(kind.count)


@intrinsic
def vload(typing_context, array, index):
    """The elements from an index on."""
    kind = vectors_of(array)
    if kind is None or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        return loaded(context, builder, array, arguments[0], arguments[1], kind.count)

    return kind(array, types.int64), generate


@intrinsic
def vload_part(typing_context, array, index, count):
    """The `count` elements from an index on, fewer than a vector; 0 in the other lanes."""
    kind = vectors_of(array)
    if kind is None or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        pointer, align = address(context, builder, array, arguments[0], arguments[1], kind.count)
        found = pointer.type.pointee
        mask_type = ir.VectorType(ir.IntType(1), kind.count)
        numbers = ir.Constant(ir.VectorType(_I64, kind.count), list(range(kind.count)))
        mask = builder.icmp_signed("<", numbers, splat(builder, arguments[2], kind.count))
        element = "i16" if is_half(array) else "f64" if kind.dtype == types.float64 else "f32"
        takes = ir.FunctionType(found, [pointer.type, _I32, mask_type, found])
        load = cgutils.get_or_insert_function(builder.module, takes, f"llvm.masked.load.v{kind.count}{element}.p0")
        loaded = builder.call(load, [pointer, _I32(align), mask, ir.Constant(found, None)])
        return widened(builder, array.dtype, loaded)

    return kind(array, types.int64, types.int64), generate


@intrinsic
def vstore(typing_context, array, index, value):
    """Writes a vector to the elements from an index on."""
    kind = vectors_of(array)
    if kind is None or value != kind:
        return None

    def generate(context, builder, signature, arguments):
        pointer, align = address(context, builder, array, arguments[0], arguments[1], kind.count)
        vector = narrowed(builder, array.dtype, arguments[2])
        builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.int64, value), generate


@intrinsic
def vsplat(typing_context, array, value):
    """A number in every lane, as wide as the vectors of `array`."""
    kind = vectors_of(array)
    if kind is None or not isinstance(value, types.Number):
        return None

    def generate(context, builder, signature, arguments):
        scalar = context.cast(builder, arguments[1], value, kind.dtype)
        return splat(builder, scalar, kind.count)

    return kind(array, value), generate


@intrinsic
def vspread(typing_context, array, index):
    """One element of an array in every lane."""
    kind = vectors_of(array)
    if kind is None or is_half(array):
        return None

    def generate(context, builder, signature, arguments):
        pointer = formats._pointer(context, builder, array, arguments[0], types.int64, arguments[1])
        return splat(builder, builder.load(pointer), kind.count)

    return kind(array, types.int64), generate


@intrinsic
def operand(typing_context, x, copy):
    """`x` itself where its elements are computed as they are stored, else `copy`, the array for a widened copy."""
    if vectors_of(x) is None or vectors_of(x) != vectors_of(copy):
        return None
    chosen, index = (copy, 1) if is_half(x) else (x, 0)

    def generate(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, chosen, arguments[index])

    return chosen(x, copy), generate


@intrinsic
def narrow(typing_context, x):
    """Whether `x` holds 16-bit floats; known when the kernel is compiled."""
    if vectors_of(x) is None:
        return None
    answer = cgutils.true_bit if is_half(x) else cgutils.false_bit
    return types.boolean(x), lambda context, builder, signature, arguments: answer


@inlined
def ask_run(array, first, n):
    """Asks memory for n neighbouring elements that will be read; see `formats.ask`."""
    for i in range(first, first + n, 16):  # a line of float32, half a line of 16 bits
        ask(array, i)


# --- arithmetic -------------------------------------------------------------------------------------------------------


_typed: Any = infer_global


def _operator(symbol: Any, instruction: str) -> None:
    @_typed(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=FLAGS)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
