"""Products of pairs in tile registers, inside kernels: what `lanes_pairs.product_pairs` does where the path has them.

A kernel encloses its work in `begin_tiles()` and `end_tiles()`, which do nothing on other paths. One operand then has
its pairs along a row, a register's 16 pairs side by side in memory, the other one has them down its columns, which is
how the kernels of attention lay both out. Blocks are 32 or 16 rows and 32 columns; rows and pairs beyond whole
registers are left to the vectors.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils

from . import formats
from .functions import inner, intrinsic
from .isa import current
from .lanes import vectors_of
from .tiles_ir import configuration

#: Whether this process's path has tile registers.
TILES = current().tiles

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_LINES = 16  # rows of a register, and pairs in a row


def _call(builder: Any, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}")
    builder.call(function, arguments)


def _register(number: int) -> Any:
    return ir.Constant(_I8, number)


@intrinsic
def begin_tiles(typing_context):
    """Before the first product of a kernel's chunk of items."""

    def generate(context, builder, signature, arguments):
        if TILES:
            values = ir.Constant(ir.ArrayType(_I8, 64), configuration())
            constant = cgutils.global_constant(builder.module, "tile_registers", values)
            constant.align = 64  # type: ignore[assignment]
            _call(builder, "ldtilecfg", builder.bitcast(constant, _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def end_tiles(typing_context):
    """After the last one."""

    def generate(context, builder, signature, arguments):
        if TILES:
            _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _block(registers: int) -> Any:
    """The product of `registers` x 16 rows and 32 columns."""

    @intrinsic
    def block(typing_context, c, c0, ldc, a, a0, row, b, b0, ldb, steps, accumulate):
        """c = a b, or c += a b where `accumulate` is not 0, over `steps` times 16 pairs; indices as in
        `product_pairs`."""
        kind = vectors_of(c)
        if kind is None or not vectors_of(a) == vectors_of(b) == kind:
            return None

        def generate(context, builder, signature, arguments):
            if not TILES:
                return context.get_dummy_value()
            c_value, c_at, c_row, a_value, a_at, a_row, b_value, b_at, b_row, steps, more = arguments

            def at(array: Any, value: Any, index: Any) -> Any:
                pointer = formats._pointer(context, builder, array, value, types.int64, index)
                return builder.bitcast(pointer, _I8.as_pointer())

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            def stride(row: Any) -> Any:
                return builder.mul(row, number(4))

            cells = [(i, j) for i in range(registers) for j in range(2)]
            places = [
                builder.add(c_at, builder.add(builder.mul(number(_LINES * i), c_row), number(_LINES * j)))
                for i, j in cells
            ]
            with builder.if_else(builder.icmp_signed("!=", more, number(0))) as (again, fresh):
                with again:
                    for cell, place in enumerate(places):
                        _call(builder, "tileloadd64", _register(cell), at(c, c_value, place), stride(c_row))
                with fresh:
                    for cell in range(len(cells)):
                        _call(builder, "tilezero", _register(cell))
            left = [_register(len(cells) + j) for j in range(2)]
            passing = _register(len(cells) + 2)
            with cgutils.for_range(builder, steps) as loop:
                pair = builder.mul(loop.index, number(_LINES))
                below = builder.add(b_at, builder.mul(pair, b_row))
                for i in range(registers):
                    start = builder.add(builder.add(a_at, pair), builder.mul(number(_LINES * i), a_row))
                    _call(builder, "tileloadd64", passing, at(a, a_value, start), stride(a_row))
                    for j in range(2):
                        if i == 0:  # as late as can be: products begin with the first pair
                            column = builder.add(below, number(_LINES * j))
                            _call(builder, "tileloadd64", left[j], at(b, b_value, column), stride(b_row))
                        _call(builder, "tdpbf16ps", _register(2 * i + j), passing, left[j])
            for cell, place in enumerate(places):
                _call(builder, "tilestored64", _register(cell), at(c, c_value, place), stride(c_row))
            return context.get_dummy_value()

        whole = types.int64
        return types.void(c, whole, whole, a, whole, whole, b, whole, whole, whole, whole), generate

    return block


_block_1, _block_2 = _block(1), _block(2)


@inner
def product_tiles(c, c0, ldc, a, a0, row, b, b0, ldb, m, n, steps, accumulate):
    """c = a b, or c += a b where `accumulate` is not 0, for m rows, a multiple of 16, over `steps` times 16 pairs,
    which lie side by side in a's rows; the rest as in `product_pairs`."""
    for r in range(0, m, 2 * _LINES):
        for column in range(0, n, 2 * _LINES):
            into, here = c0 + r * ldc + column, a0 + r * row
            if r + _LINES < m:
                _block_2(c, into, ldc, a, here, row, b, b0 + column, ldb, steps, accumulate)
            else:
                _block_1(c, into, ldc, a, here, row, b, b0 + column, ldb, steps, accumulate)
