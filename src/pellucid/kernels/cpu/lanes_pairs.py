"""Pairs of bfloat16 in the lanes of float32 vectors, and the register tile of their products.

The bf16 instruction multiplies two neighbouring values of the summed axis at once: a 32-bit lane holds both. Such lanes
travel as `Lanes` of float32 and in float32 arrays, whose loads, stores and shuffles leave bits alone; arithmetic on
them means nothing but through `vdot`. They are made in two ways: `vcouple(x, y)` couples each lane of x with that of y
(two rows of what is summed over), `vbeside(x, y)` sets the numbers of x and y side by side in their order (the summed
axis runs along the lanes).

Only for paths whose `Isa.bf16` is set. Rounding is to nearest, ties to even; like the products, it reads and writes
denormal numbers as zero.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils

from . import formats
from .functions import inner, intrinsic
from .lanes import VECTOR, Lanes, apart, is_half, loaded, vectors_of, vload, vsplat, vstore, width
from .lanes_products import register_tile
from .lanes_tiles import TILES, product_tiles
from .wide import widened

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def _declare(builder: Any, name: str, result: Any, *takes: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, list(takes)), name)


def _to_bfloat16(builder: Any, value: Any) -> Any:
    """<n x float> to <n x i16>. By the intrinsic: llvmlite's IR has no bfloat type to truncate to."""
    n = value.type.count
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * n}"
    bits = _declare(builder, name, ir.VectorType(_BFloat(), n), value.type)
    return builder.bitcast(builder.call(bits, [value]), ir.VectorType(_I16, n))


class _BFloat(ir.Type):
    """LLVM's bfloat, as far as signatures need it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


def _dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    pairs = ir.VectorType(_BFloat(), 2 * total.type.count)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * total.type.count}"
    function = _declare(builder, name, total.type, total.type, pairs, pairs)
    return builder.call(function, [total, builder.bitcast(a, pairs), builder.bitcast(b, pairs)])


def _zip(builder: Any, low: Any, high: Any) -> Any:
    n = low.type.count
    order = [lane // 2 + n * (lane % 2) for lane in range(2 * n)]
    zipped = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, 2 * n), order))
    return builder.bitcast(zipped, ir.VectorType(ir.FloatType(), n))


def _couple(builder: Any, x: Any, y: Any) -> Any:
    return _zip(builder, _to_bfloat16(builder, x), _to_bfloat16(builder, y))


def _beside(builder: Any, x: Any, y: Any) -> Any:
    n = x.type.count
    order = ir.Constant(ir.VectorType(_I32, 2 * n), list(range(2 * n)))
    joined = builder.shuffle_vector(_to_bfloat16(builder, x), _to_bfloat16(builder, y), order)
    return builder.bitcast(joined, x.type)


@intrinsic
def vcouple(typing_context, x, y):
    """Pairs of bfloat16 (x[l], y[l])."""
    if not isinstance(x, Lanes) or x != y:
        return None

    return x(x, y), lambda context, builder, signature, arguments: _couple(builder, *arguments)


@intrinsic
def vbeside(typing_context, x, y):
    """Pairs of bfloat16 (x[0], x[1]), (x[2], x[3]), ..., (y[0], y[1]), ..."""
    if not isinstance(x, Lanes) or x != y:
        return None

    return x(x, y), lambda context, builder, signature, arguments: _beside(builder, *arguments)


def _raw(context: Any, builder: Any, x: Any, value: Any, index: Any, count: int) -> Any:
    """`count` elements of an array of bfloat16 as they are."""
    pointer = formats._pointer(context, builder, x, value, types.int64, index)
    return builder.load(builder.bitcast(pointer, ir.VectorType(_I16, count).as_pointer()), align=2)


@intrinsic
def vload_pairs(typing_context, like, x, index):
    """The pairs (x[0], x[1]), (x[2], x[3]), ... from an index on."""
    kind = vectors_of(x)
    if kind is None or kind != vectors_of(like):
        return None
    n = kind.count

    def generate(context, builder, signature, arguments):
        _, value, at = arguments
        if isinstance(x.dtype, formats.BFloat16):
            return builder.bitcast(_raw(context, builder, x, value, at, 2 * n), ir.VectorType(ir.FloatType(), n))
        low, high = (loaded(context, builder, x, value, builder.add(at, _I64(i)), n) for i in (0, n))
        return _beside(builder, low, high)

    return kind(like, x, types.int64), generate


@intrinsic
def vload_couples(typing_context, like, x, index, other):
    """The pairs (x[index + l], x[other + l])."""
    kind = vectors_of(x)
    if kind is None or kind != vectors_of(like):
        return None
    n = kind.count

    def generate(context, builder, signature, arguments):
        _, value, *both = arguments
        if isinstance(x.dtype, formats.BFloat16):
            return _zip(builder, *(_raw(context, builder, x, value, at, n) for at in both))
        return _couple(builder, *(loaded(context, builder, x, value, at, n) for at in both))

    return kind(like, x, types.int64, types.int64), generate


_tile = register_tile(8, _dot)


@intrinsic
def _some(typing_context, like, x, index, step, count):
    """The elements index, index + step, ... of x, at most `count` of them (which may be negative); 0 in the rest."""
    kind = vectors_of(x)
    if kind is None or kind != vectors_of(like):
        return None

    def generate(context, builder, signature, arguments):
        _, value, start, stride, wanted = arguments
        floats = ir.VectorType(ir.FloatType(), kind.count)
        slot = cgutils.alloca_once(builder, floats)
        builder.store(ir.Constant(floats, None), slot)
        first = builder.bitcast(slot, ir.FloatType().as_pointer())
        number = start.type
        limit = builder.select(builder.icmp_signed("<", wanted, number(kind.count)), wanted, number(kind.count))
        with cgutils.for_range(builder, limit) as loop:
            at = builder.add(start, builder.mul(loop.index, stride))
            pointer = formats._pointer(context, builder, x, value, types.int64, at)
            found = builder.load(pointer)
            if is_half(x):
                one = builder.insert_element(ir.Constant(ir.VectorType(_I16, 1), ir.Undefined), found, _I32(0))
                found = builder.extract_element(widened(builder, x.dtype, one), _I32(0))
            builder.store(found, builder.gep(first, [loop.index]))
        return builder.load(slot, align=4)

    return kind(like, x, types.int64, types.int64, types.int64), generate


@inner
def _by_vectors(c, c0, ldc, a, a0, row, step, b, b0, ldb, m, n, k, accumulate):
    apart()
    w = width(c, VECTOR)
    for r in range(0, m, 8):
        for column in range(0, n, 2 * w):
            _tile(
                c, c0 + r * ldc + column, ldc, m - 1 - r, a, a0 + r * row, row, step, b, b0 + column, ldb, k, accumulate
            )


@inner
def product_pairs(c, c0, ldc, a, a0, row, step, b, b0, ldb, m, n, k, accumulate):
    """c = a b, or c += a b where `accumulate` is not 0, over k pairs. c: (m, n) numbers from c0 on, rows ldc apart, n a
    multiple of two vectors; a: (m, k) pairs from a0 on, a row's `step` apart, rows `row` apart; b: (k, n) pairs, rows
    ldb apart. Where there are tile registers, a step is 1."""
    apart()
    done = 0  # rows
    if TILES:
        whole, steps = m // 16 * 16, k // 16
        if steps > 0:
            product_tiles(c, c0, ldc, a, a0, row, b, b0, ldb, whole, n, steps, accumulate)
            first = 16 * steps
            if first < k:
                _by_vectors(c, c0, ldc, a, a0 + first, row, step, b, b0 + first * ldb, ldb, whole, n, k - first, steps)
            done = whole
    into, here = c0 + done * ldc, a0 + done * row
    _by_vectors(c, into, ldc, a, here, row, step, b, b0, ldb, m - done, n, k, accumulate)


@inner
def pair_rows(to, to0, x, x0, row, step, rows, n, factor):
    """Rows of the pairs (x[0], x[1]), (x[2], x[3]), ... of n numbers times `factor`; to: (rows, (n + 1) // 2) pairs, in
    whole vectors; rows of x `row` apart, numbers `step`."""
    apart()
    w = width(to, VECTOR)
    wide, whole = (n + 2 * w - 1) // (2 * w) * w, n // (2 * w) * w if step == 1 else 0
    spread = vsplat(to, factor)
    for r in range(rows):
        into, at = to0 + r * wide, x0 + r * row
        if factor == 1:
            for i in range(0, whole, w):
                vstore(to, into + i, vload_pairs(to, x, at + 2 * i))
        else:
            for i in range(0, whole, w):
                vstore(to, into + i, vbeside(vload(x, at + 2 * i) * spread, vload(x, at + 2 * i + w) * spread))
        for i in range(whole, wide, w):
            low = _some(to, x, at + 2 * i * step, step, n - 2 * i)
            high = _some(to, x, at + (2 * i + w) * step, step, n - 2 * i - w)
            vstore(to, into + i, vbeside(low * spread, high * spread))


@inner
def couple_rows(to, to0, to_row, x, x0, row, step, rows, n):
    """The pairs (x[2 r, i], x[2 r + 1, i]) of a number of rows, 0 in the place of one that is missing in the end; to:
    ((rows + 1) // 2, n) pairs, rows `to_row` apart, written in whole vectors; rows of x `row` apart, numbers `step`."""
    apart()
    w = width(to, VECTOR)
    wide, whole = (n + w - 1) // w * w, n // w * w if step == 1 else 0
    for r in range(rows // 2):
        into, at = to0 + r * to_row, x0 + 2 * r * row
        for i in range(0, whole, w):
            vstore(to, into + i, vload_couples(to, x, at + i, at + row + i))
        for i in range(whole, wide, w):
            low, high = _some(to, x, at + i * step, step, n - i), _some(to, x, at + row + i * step, step, n - i)
            vstore(to, into + i, vcouple(low, high))
    if rows % 2:
        for i in range(0, wide, w):
            low = _some(to, x, x0 + (rows - 1) * row + i * step, step, n - i)
            vstore(to, to0 + rows // 2 * to_row + i, vcouple(low, vsplat(to, 0)))
