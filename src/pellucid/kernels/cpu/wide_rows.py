"""Several rows of a matrix at once: a block (`wide`) that holds one vector of each of `count` rows.

What is done to a row takes few vectors and then waits: for the sum across its lanes, for a root. Rows side by side wait
together. Their numbers (a mean, a scale) are blocks too, the number of a row in all its lanes. `step` is the distance
from one row to the next; 0 takes one row `count` times, which costs as much as different ones and gives the same
bits, so a row's result does not depend on its neighbours. With the length of a vector as `step` a block is a piece of
one row.

Only for rows of whole vectors (`fits`).
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types

from .formats import intrinsic
from .functions import inlined
from .wide import VECTOR, Wide, address, computed, llvm_call, narrowed, wide, widened

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LANES = VECTOR // 4
_COUNT = wide.count // _LANES
_FLAGS = ("contract", "nsz")


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _joined(builder: Any, vectors: list[Any]) -> Any:
    while len(vectors) > 1:
        n = vectors[0].type.count
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_shuffled(builder, a, b, list(range(2 * n))) for a, b in pairs]
    return vectors[0]


def _rows(builder: Any, block: Any) -> list[Any]:
    return [_shuffled(builder, block, block, list(range(s, s + _LANES))) for s in range(0, wide.count, _LANES)]


def _compact(builder: Any, block: Any) -> Any:
    """The first lane of each row, side by side."""
    return _shuffled(builder, block, block, list(range(0, wide.count, _LANES)))


def _spread(builder: Any, numbers: Any) -> Any:
    return _shuffled(builder, numbers, numbers, [row for row in range(_COUNT) for _ in range(_LANES)])


def _at(builder: Any, index: Any, step: Any, row: int) -> Any:
    return builder.add(index, builder.mul(step, _I64(row)))


@intrinsic
def lanes(typing_context, array, vector):
    """Elements of a row in a block, 0 where the array's numbers have no blocks; `vector` is VECTOR."""
    number = _LANES if computed(array) else 0
    return types.int64(array, vector), lambda context, builder, signature, args: _I64(number)


@intrinsic
def count(typing_context, array, vector):
    """Rows in a block."""
    return types.int64(array, vector), lambda context, builder, signature, args: _I64(_COUNT)


@inlined
def fits(x, n):
    """Whether rows of n elements are whole vectors in which `x` is computed."""
    return lanes(x, VECTOR) > 0 and n % max(1, lanes(x, VECTOR)) == 0


@intrinsic
def nothing(typing_context):
    """A block of zeros."""
    kind = ir.VectorType(_F32, wide.count)
    return wide(), lambda context, builder, signature, args: ir.Constant(kind, [0.0] * wide.count)


@intrinsic
def rows_load(typing_context, x, index, step):
    """The vectors from an index on in this row and the next ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = [_at(builder, args[1], args[2], row) for row in range(_COUNT)]
        return _joined(builder, [_vector(context, builder, x, args[0], place) for place in places])

    return _of_blocks(wide, x, types.int64, types.int64, generate=generate)


@intrinsic
def same_load(typing_context, x, index):
    """One vector of an array, for every row."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _joined(builder, [_vector(context, builder, x, *args)] * _COUNT)

    return _of_blocks(wide, x, types.int64, generate=generate)


@intrinsic
def rows_store(typing_context, y, index, step, block):
    """Writes the vectors of a block, rounded, to this row and the next ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for row, vector in enumerate(_rows(builder, narrowed(builder, y.dtype, args[3]))):
            _put(context, builder, y, args[0], _at(builder, args[1], args[2], row), vector)
        return context.get_dummy_value()

    return _of_blocks(types.void, y, types.int64, types.int64, block, generate=generate)


@intrinsic
def rows_add(typing_context, total, index, block, step):
    """total += the sum of a block over its rows, over the first alone where `step` is 0. total: float32"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = _rows(builder, args[2])
        first = rows[0]
        while len(rows) > 1:
            rows = [builder.fadd(a, b, flags=_FLAGS) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        one = builder.icmp_signed("==", args[3], _I64(0))
        before = _vector(context, builder, total, args[0], args[1])
        _put(context, builder, total, args[0], args[1], builder.fadd(before, builder.select(one, first, rows[0])))
        return context.get_dummy_value()

    return _of_blocks(types.void, total, types.int64, block, types.int64, generate=generate)


@intrinsic
def number_load(typing_context, numbers, index, step):
    """The number of each row, from an index on, `step` apart, in all its lanes. numbers: float32"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = ir.Constant(ir.VectorType(_F32, _COUNT), ir.Undefined)
        for row in range(_COUNT):
            place = address(context, builder, numbers, args[0], _at(builder, args[1], args[2], row))
            found = builder.insert_element(found, builder.load(place), _I32(row))
        return _spread(builder, found)

    return _of_blocks(wide, numbers, types.int64, types.int64, generate=generate)


@intrinsic
def number_store(typing_context, numbers, index, step, block):
    """Writes the number of each row, from an index on, `step` apart. numbers: float32"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for row in range(_COUNT):
            value = builder.extract_element(args[3], _I32(row * _LANES))
            builder.store(value, address(context, builder, numbers, args[0], _at(builder, args[1], args[2], row)))
        return context.get_dummy_value()

    return _of_blocks(types.void, numbers, types.int64, types.int64, block, generate=generate)


@intrinsic
def rows_sum(typing_context, block):
    """The sum of each row's lanes, in all of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half, found = _LANES // 2, args[0]
        while half:
            order = [lane ^ half for lane in range(wide.count)]
            found = builder.fadd(found, _shuffled(builder, found, found, order), flags=_FLAGS)
            half //= 2
        return found

    return wide(block), generate


@intrinsic
def lane_sum(typing_context, block):
    """The sum of all lanes of all rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _one(builder, args[0], lambda a, b: builder.fadd(a, b, flags=_FLAGS))

    return types.float32(block), generate


@intrinsic
def highest(typing_context, block):
    """The largest lane of all rows; what is not a number may be passed over."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _one(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return types.float32(block), generate


def _one(builder: Any, vector: Any, join: Any) -> Any:
    while vector.type.count > 1:
        half = vector.type.count // 2
        vector = join(*(_shuffled(builder, vector, vector, list(range(s, s + half))) for s in (0, half)))
    return builder.extract_element(vector, _I32(0))


@intrinsic
def inverse_root(typing_context, block):
    """1 / sqrt(v) of each row's number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = _compact(builder, args[0])
        root = llvm_call(builder, "llvm.sqrt", numbers.type, [numbers])
        ones = ir.Constant(numbers.type, [1.0] * _COUNT)
        return _spread(builder, builder.fdiv(ones, root, flags=_FLAGS))

    return wide(block), generate


def _vector(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    kind = ir.VectorType(_F32 if array.dtype == types.float32 else ir.IntType(16), _LANES)
    place = builder.bitcast(address(context, builder, array, value, index), kind.as_pointer())
    return widened(builder, array.dtype, builder.load(place, align=4 if array.dtype == types.float32 else 2))


def _put(context: Any, builder: Any, array: Any, value: Any, index: Any, vector: Any) -> None:
    place = builder.bitcast(address(context, builder, array, value, index), vector.type.as_pointer())
    builder.store(vector, place, align=4 if array.dtype == types.float32 else 2)


def _of_blocks(result: Any, array: Any, *others: Any, generate: Any) -> Any:
    """The signature and code of an intrinsic whose first argument is an array. Where its numbers have no blocks the
    code never runs, and is left out."""
    if computed(array):
        return result(array, *others), generate
    nothing = ir.Constant(ir.VectorType(_F32, wide.count), ir.Undefined)

    def left_out(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return nothing if isinstance(result, Wide) else context.get_dummy_value()

    return result(array, *others), left_out
