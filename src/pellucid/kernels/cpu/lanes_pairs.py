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
from .lanes import VECTOR, Lanes, apart, is_half, vectors_of, vload, vsplat, vstore, widened, width
from .lanes_products import register_tile
from .lanes_tiles import TILES, product_tiles

_I16, _I32 = ir.IntType(16), ir.IntType(32)


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


@intrinsic
def vcouple(typing_context, x, y):
    """Pairs of bfloat16 (x[l], y[l])."""
    if not isinstance(x, Lanes) or x != y:
        return None

    def generate(context, builder, signature, arguments):
        n = x.count
        low, high = (_to_bfloat16(builder, v) for v in arguments)
        order = [lane // 2 + n * (lane % 2) for lane in range(2 * n)]
        zipped = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, 2 * n), order))
        return builder.bitcast(zipped, arguments[0].type)

    return x(x, y), generate


@intrinsic
def vbeside(typing_context, x, y):
    """Pairs of bfloat16 (x[0], x[1]), (x[2], x[3]), ..., (y[0], y[1]), ..."""
    if not isinstance(x, Lanes) or x != y:
        return None

    def generate(context, builder, signature, arguments):
        n = x.count
        halves = [_to_bfloat16(builder, v) for v in arguments]
        joined = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_I32, 2 * n), list(range(2 * n))))
        return builder.bitcast(joined, arguments[0].type)

    return x(x, y), generate


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
                found = builder.extract_element(widened(builder, x.dtype, one, 1), _I32(0))
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
def pair_row(to, to0, x, x0, step, n, factor):
    """to = the pairs (x[0], x[1]), (x[2], x[3]), ... of a row of n numbers times `factor`; to: (n + 1) // 2 pairs,
    written in whole vectors."""
    w = width(to, VECTOR)
    spread = vsplat(to, factor)
    for i in range(0, n, 2 * w):
        if step == 1 and i + 2 * w <= n:
            low, high = vload(x, x0 + i), vload(x, x0 + i + w)
        else:
            low = _some(to, x, x0 + i * step, step, n - i)
            high = _some(to, x, x0 + (i + w) * step, step, n - i - w)
        vstore(to, to0 + i // 2, vbeside(low * spread, high * spread))


@inner
def couple_rows(to, to0, x, x0, x1, step, n, second):
    """to[i] = the pair (x[x0 + i step], x[x1 + i step]) for n numbers, written in whole vectors; 0 beside the first
    where `second` is false."""
    w = width(to, VECTOR)
    for i in range(0, n, w):
        if step == 1 and i + w <= n:
            low, high = vload(x, x0 + i), vload(x, x1 + i)
        else:
            low, high = _some(to, x, x0 + i * step, step, n - i), _some(to, x, x1 + i * step, step, n - i)
        vstore(to, to0 + i, vcouple(low, high if second else vsplat(to, 0)))
