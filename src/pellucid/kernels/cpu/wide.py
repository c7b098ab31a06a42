"""Several vectors of float32 as one value, for functions of numbers that are long chains of operations.

A polynomial waits for every one of its steps, four cycles each; the processor has something else to do meanwhile only
if it finds it among the next hundred instructions. So blocks of `step` elements go through a function together: LLVM
splits each operation on a `Wide` into one a register, side by side, independent of one another.

A function written with `+ - * /`, `abs` and the intrinsics of `functions` works for numbers and for blocks; `through1`
and its relatives lead a block of array elements through one. Where all arrays are bfloat16, a word of 32 bits holds two
neighbours: the lower halves are one half of the block, the upper ones the other, so nothing is ever moved across lanes.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, register_model

from . import formats
from .formats import BFloat16, Float16, intrinsic
from .isa import current

#: Bytes of a vector on this process's instruction path: what the code depends on.
VECTOR = current().vector

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()
_FLAGS = ("contract", "nsz")
_typed: Any = infer_global


class Wide(types.Type):
    """`count` numbers of float32: four vectors where there are 32 registers of 64 bytes, else two."""

    def __init__(self) -> None:
        self.dtype = types.float32
        self.count = VECTOR // 4 * (4 if VECTOR == 64 else 2)
        super().__init__(name=f"Wide({self.count})")


class _WideModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(_F32, kind.count))


register_model(Wide)(_WideModel)
wide = Wide()


def constant(value: int) -> Any:
    """An integer in every lane."""
    return ir.Constant(ir.VectorType(_I32, wide.count), [value] * wide.count)


def spread(builder: Any, value: Any) -> Any:
    """A number in every lane."""
    vector, zeros = ir.VectorType(value.type, wide.count), ir.Constant(ir.VectorType(_I32, wide.count), None)
    nothing = ir.Constant(vector, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _I32(0)), nothing, zeros)


def llvm_call(builder: Any, name: str, kind: Any, args: Any) -> Any:
    """One of LLVM's functions from numbers, or blocks, to one."""
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else kind.intrinsic_name
    function = ir.FunctionType(kind, [kind] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"{name}.{suffix}"), args)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _operator(symbol: Any, instruction: str, count: int) -> None:
    @_typed(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == count and all(isinstance(a, Wide) for a in args):
                return signature(wide, *args)
            return None

    @lower_builtin(symbol, *[Wide] * count)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=_FLAGS)


for _symbol, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _operator(_symbol, _instruction, 2)
_operator(operator.truediv, "fdiv", 2)
_operator(operator.neg, "fneg", 1)


@_typed(abs)
class _Absolute(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(wide, wide) if len(args) == 1 and isinstance(args[0], Wide) else None


@lower_builtin(abs, Wide)
def _absolute(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return llvm_call(builder, "llvm.fabs", args[0].type, args)


# --- blocks of elements -----------------------------------------------------------------------------------------------


def computed(array: Any) -> bool:
    """Whether the elements of an array are computed in float32."""
    return isinstance(array, types.Array) and (
        isinstance(array.dtype, BFloat16 | Float16) or array.dtype == types.float32
    )


def address(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    return formats._pointer(context, builder, array, value, types.int64, index)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def widened(builder: Any, kind: Any, found: Any) -> Any:
    """A vector of elements of that type in the numbers in which they are computed."""
    n = found.type.count
    floats, words = ir.VectorType(_F32, n), ir.VectorType(_I32, n)
    if isinstance(kind, Float16):
        return builder.fpext(builder.bitcast(found, ir.VectorType(ir.HalfType(), n)), floats)
    if isinstance(kind, BFloat16):
        return builder.bitcast(builder.shl(builder.zext(found, words), _all(words, 16)), floats)
    return found


def narrowed(builder: Any, kind: Any, value: Any) -> Any:
    """A vector of numbers as elements of that type. Rounded as `formats.store` does: to nearest, ties to even; what is
    not a number stays so."""
    n = value.type.count
    words, halves = ir.VectorType(_I32, n), ir.VectorType(_I16, n)
    if isinstance(kind, Float16):
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(ir.HalfType(), n)), halves)
    if not isinstance(kind, BFloat16):
        return value
    quiet = builder.or_(builder.bitcast(value, words), _all(words, 0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, _rounded(builder, value))
    if VECTOR < 64:
        return builder.trunc(builder.lshr(kept, _all(words, 16)), halves)
    both = builder.bitcast(kept, ir.VectorType(_I16, 2 * n))  # the upper halves of two vectors in one instruction
    return builder.shuffle_vector(both, both, ir.Constant(words, list(range(1, 2 * n, 2))))


def _rounded(builder: Any, value: Any) -> Any:
    """Bits whose upper half is the nearest bfloat16, if `value` is a number."""
    words = ir.VectorType(_I32, value.type.count)
    bits = builder.bitcast(value, words)
    odd = builder.and_(builder.lshr(bits, _all(words, 16)), _all(words, 1))
    return builder.add(bits, builder.add(odd, _all(words, 0x7FFF)))


def _load(context: Any, builder: Any, array: Any, value: Any, index: Any, paired: bool) -> Any:
    n, pointer = wide.count, address(context, builder, array, value, index)
    if not paired:
        kind = ir.VectorType(_F32 if array.dtype == types.float32 else _I16, n)
        return widened(builder, array.dtype, builder.load(builder.bitcast(pointer, kind.as_pointer()), align=2))
    words = ir.VectorType(_I32, n // 2)
    pairs = builder.load(builder.bitcast(pointer, words.as_pointer()), align=2)
    low, high = builder.shl(pairs, _all(words, 16)), builder.and_(pairs, _all(words, 0xFFFF0000))
    joined = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, n), list(range(n))))
    return builder.bitcast(joined, ir.VectorType(_F32, n))


def _store(context: Any, builder: Any, array: Any, value: Any, index: Any, found: Any, paired: bool) -> None:
    """What is not a number among bfloat16 `paired` is what an operation made of one of bfloat16, quiet and with nothing
    in the lower half, so rounding leaves it alone."""
    n, pointer = wide.count, address(context, builder, array, value, index)
    if paired:
        words = ir.VectorType(_I32, n // 2)
        rounded = _rounded(builder, found)
        halves = [ir.Constant(words, list(range(s, s + n // 2))) for s in (0, n // 2)]
        low, high = (builder.shuffle_vector(rounded, rounded, half) for half in halves)
        bits = builder.or_(builder.lshr(low, _all(words, 16)), builder.and_(high, _all(words, 0xFFFF0000)))
    else:
        bits = narrowed(builder, array.dtype, found)
    builder.store(bits, builder.bitcast(pointer, bits.type.as_pointer()), align=2)


@intrinsic
def step(typing_context, array, vector):
    """How many elements of an array make a block, 0 where its numbers have no vectors here; `vector` is VECTOR."""
    number = wide.count if computed(array) else 0
    return types.int64(array, vector), lambda context, builder, signature, args: ir.IntType(64)(number)


def _through(typing_context: Any, function: Any, results: list[Any], operands: list[Any], given: list[Any]) -> Any:
    """results[r][i] = function(operand[i], ...) for a block. `given`: the types of all arguments, which after the
    function are an array and an index for each result and each operand."""
    arrays = [*results, *operands]
    if not all(computed(a) for a in arrays):
        return types.void(*given), lambda context, builder, signature, args: context.get_dummy_value()
    called = function.get_call_type(typing_context, (wide,) * len(operands), {})
    paired = all(isinstance(a.dtype, BFloat16) for a in arrays)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = list(zip(arrays, args[1::2], args[2::2], strict=True))
        loaded = [_load(context, builder, *place, paired) for place in places[len(results) :]]
        implementation = context.get_function(function, called)
        found = implementation(builder, loaded)
        found = [builder.extract_value(found, r) for r in range(len(results))] if len(results) > 1 else [found]
        for place, value in zip(places, found, strict=False):
            _store(context, builder, *place, value, paired)
        return context.get_dummy_value()

    return types.void(*given), generate


@intrinsic
def through1(typing_context, function, y, iy, x, ix):
    """y = function(x) for a block from these indices on; nothing where `step` is 0."""
    return _through(typing_context, function, [y], [x], [function, y, types.int64, x, types.int64])


@intrinsic
def through2(typing_context, function, y, iy, a, ia, b, ib):
    """y = function(a, b) for a block."""
    given = [function, y, types.int64, a, types.int64, b, types.int64]
    return _through(typing_context, function, [y], [a, b], given)


@intrinsic
def through1to2(typing_context, function, y, iy, z, iz, x, ix):
    """y, z = function(x) for a block."""
    given = [function, *(kind for array in (y, z, x) for kind in (array, types.int64))]
    return _through(typing_context, function, [y, z], [x], given)


@intrinsic
def through3to2(typing_context, function, y, iy, z, iz, a, ia, b, ib, c, ic):
    """y, z = function(a, b, c) for a block."""
    given = [function, *(kind for array in (y, z, a, b, c) for kind in (array, types.int64))]
    return _through(typing_context, function, [y, z], [a, b, c], given)
