"""Elements as kernels read and write them: the two 16-bit float formats, and indexing by plain pointer arithmetic.

Numba has neither bfloat16 nor float16 on a CPU, so an Array of them reaches a kernel with the element types defined
here, which have no arithmetic: `load` turns an element into a float32 and `store` rounds a number to the nearest
element, ties to even. For every other type they read and write the element as it is, so one kernel serves all.

None of the four functions wraps a negative index round or checks a bound, unlike `x[i]`: they address the element
`i` steps from the first one, wherever that is. That makes negative strides work, and lets a loop from an unknown
start vectorise. An index is an integer, or a tuple of them for a contiguous array of that rank.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic as _untyped_intrinsic
from numba.extending import register_model
from numba.np import arrayobj

intrinsic: Any = _untyped_intrinsic  # the functions below take one argument less than they declare


class _Half(types.Type):
    """A 16-bit float in memory."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


class _HalfModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(16))


class BFloat16(_Half):
    """8 bits of exponent, 7 of fraction: the upper half of a float32."""

    def __init__(self) -> None:
        super().__init__("bfloat16")


class Float16(_Half):
    """IEEE binary16."""

    def __init__(self) -> None:
        super().__init__("float16_storage")


register_model(BFloat16)(_HalfModel)
register_model(Float16)(_HalfModel)
bfloat16, float16 = BFloat16(), Float16()

_I16, _I32, _F16, _F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()


def _widen(builder: Any, kind: types.Type, bits: Any) -> Any:
    """float32 of the 16 bits; exact."""
    if isinstance(kind, Float16):
        return builder.fpext(builder.bitcast(bits, _F16), _F32)
    return builder.bitcast(builder.shl(builder.zext(bits, _I32), _I32(16)), _F32)


def _narrow(builder: Any, kind: types.Type, value: Any) -> Any:
    """The 16 bits nearest to a float32, ties to even; what is not a number stays so, quiet."""
    if isinstance(kind, Float16):
        return builder.bitcast(builder.fptrunc(value, _F16), _I16)
    bits = builder.bitcast(value, _I32)
    odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
    quiet = builder.or_(bits, _I32(0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(kept, _I32(16)), _I16)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """Address of an element; row-major offset from the lengths, never wrapped."""
    view = arrayobj.make_array(array_type)(context, builder, array)
    parts = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else [index]
    kinds = _kinds(index_type)
    parts = [context.cast(builder, part, kind, types.int64) for part, kind in zip(parts, kinds, strict=True)]
    offset = parts[0] if parts else ir.Constant(ir.IntType(64), 0)
    for part, length in zip(parts[1:], cgutils.unpack_tuple(builder, view.shape)[1:], strict=True):
        offset = builder.add(builder.mul(offset, length), part)
    return builder.gep(view.data, [offset])


def _kinds(index: Any) -> tuple[types.Type, ...]:
    """Types of the parts of an index."""
    return tuple(index.types) if isinstance(index, types.UniTuple | types.Tuple) else (index,)


def _fits(array: Any, index: Any) -> bool:
    if not isinstance(array, types.Array) or array.layout != "C":
        return False
    return len(_kinds(index)) == array.ndim and all(isinstance(kind, types.Integer) for kind in _kinds(index))


@intrinsic
def load(typing_context, array, index):
    """The element at an index: float32 for the 16-bit formats, the element itself for any other type."""
    if not _fits(array, index):
        return None
    half = isinstance(array.dtype, _Half)

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, arguments[0], index, arguments[1])
        element = arrayobj.load_item(context, builder, array, pointer)
        return _widen(builder, array.dtype, element) if half else element

    return (types.float32 if half else array.dtype)(array, index), generate


@intrinsic
def array_at(typing_context, addresses, index, like):
    """The array whose address is the element at an index, of the type of the array `like`."""
    if not _fits(addresses, index) or addresses.dtype != types.int64 or not isinstance(like, types.Array):
        return None

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, addresses, arguments[0], index, arguments[1])
        array = arrayobj.make_array(like)(context, builder, arguments[2])
        array.data = builder.inttoptr(builder.load(pointer), array.data.type)
        return array._getvalue()

    return like(addresses, index, like), generate


@intrinsic
def uncounted(typing_context, array):
    """The same array without its reference count, which takes a locked instruction to hand it to a function and another
    to take it back. `hold` it until it is no longer used."""
    if not isinstance(array, types.Array):
        return None

    def generate(context, builder, signature, arguments):
        view = arrayobj.make_array(array)(context, builder, arguments[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        return view._getvalue()

    return array(array), generate


@intrinsic
def hold(typing_context, array):
    """Keeps an array alive up to here."""

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(array), generate


@intrinsic
def store(typing_context, array, index, value):
    """Writes a number at an index, rounded to the element type (by way of float32 for the 16-bit formats)."""
    if not _fits(array, index) or not isinstance(value, types.Number | types.Boolean):
        return None
    half = isinstance(array.dtype, _Half)

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, arguments[0], index, arguments[1])
        element = context.cast(builder, arguments[2], value, types.float32 if half else array.dtype)
        if half:
            element = _narrow(builder, array.dtype, element)
        arrayobj.store_item(context, builder, array, element, pointer)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def ask(typing_context, array, index):
    """Asks memory for the cache line of an element that will be read; one that is not there does no harm."""
    if not _fits(array, index):
        return None

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, arguments[0], index, arguments[1])
        byte = ir.IntType(8).as_pointer()
        takes = [byte, _I32, _I32, _I32]
        prefetch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), takes), "llvm.prefetch.p0"
        )
        builder.call(prefetch, [builder.bitcast(pointer, byte), _I32(0), _I32(3), _I32(1)])  # to read, to keep, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def element(typing_context, array, index):
    """The element at an index as it lies in memory: uint16 bits for the 16-bit formats. For copies."""
    if not _fits(array, index):
        return None

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, arguments[0], index, arguments[1])
        return arrayobj.load_item(context, builder, array, pointer)

    return (types.uint16 if isinstance(array.dtype, _Half) else array.dtype)(array, index), generate


@intrinsic
def put(typing_context, array, index, value):
    """Writes an element as `element` gave it."""
    plain = types.uint16 if isinstance(getattr(array, "dtype", None), _Half) else getattr(array, "dtype", None)
    if not _fits(array, index) or value != plain:
        return None

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, arguments[0], index, arguments[1])
        arrayobj.store_item(context, builder, array, arguments[2], pointer)
        return context.get_dummy_value()

    return types.void(array, index, value), generate
