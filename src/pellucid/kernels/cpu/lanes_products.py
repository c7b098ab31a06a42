"""The register tile of small matrix products inside kernels: some rows by two vectors of sums, held in registers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils

from . import formats
from .functions import intrinsic
from .lanes import splat, vectors_of

_VECTORS = 2


def register_tile(count: int, multiply_add: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """The tile of `count` rows, as an intrinsic. multiply_add(builder, total, a, b) emits total + a b on vectors.

        tile(c, c0, ldc, last, a, a0, row, step, b, b0, ldb, k, accumulate)

    c = a b, or c += a b where `accumulate` is not 0. c: (count, 2 vectors) from c0 on, rows ldc apart; a: (count, k)
    from a0 on, elements of a row `step` apart, rows `row` apart; b: (k, 2 vectors) from b0 on, rows ldb apart. Rows
    beyond `last` repeat it: they compute and store the same numbers again.
    """

    @intrinsic
    def tile(typing_context, c, c0, ldc, last, a, a0, row, step, b, b0, ldb, k, accumulate):
        kind = vectors_of(c)
        if kind is None or not vectors_of(a) == vectors_of(b) == kind:
            return None

        def generate(context, builder, signature, arguments):
            c_value, c_at, c_row, last, a_value, a_at, a_row, a_step, b_value, b_at, b_row, steps, more = arguments
            number, floats = c_at.type, context.get_value_type(kind)

            def at(array: Any, value: Any, index: Any) -> Any:
                return formats._pointer(context, builder, array, value, types.int64, index)

            def vector(array: Any, value: Any, index: Any) -> Any:
                return builder.bitcast(at(array, value, index), floats.as_pointer())

            rows = [number(0)]
            for r in range(1, count):
                inside = builder.icmp_signed("<=", number(r), last)
                rows.append(builder.select(inside, number(r), rows[-1]))
            sums = [[cgutils.alloca_once(builder, floats) for _ in range(_VECTORS)] for _ in rows]
            places = [
                [builder.add(builder.add(c_at, builder.mul(r, c_row)), number(v * kind.count)) for v in range(_VECTORS)]
                for r in rows
            ]
            every = list(zip(itertools.chain(*sums), itertools.chain(*places), strict=True))
            with builder.if_else(builder.icmp_signed("!=", more, number(0))) as (again, fresh):
                with again:
                    for s, p in every:
                        builder.store(builder.load(vector(c, c_value, p), align=4), s)
                with fresh:
                    for s, _ in every:
                        builder.store(ir.Constant(floats, None), s)
            starts = [builder.add(a_at, builder.mul(r, a_row)) for r in rows]
            with cgutils.for_range(builder, steps) as loop:
                below = builder.add(b_at, builder.mul(loop.index, b_row))
                columns = [
                    builder.load(vector(b, b_value, builder.add(below, number(v * kind.count))), align=4)
                    for v in range(_VECTORS)
                ]
                along = builder.mul(loop.index, a_step)
                for start, row_sums in zip(starts, sums, strict=True):
                    spread = splat(builder, builder.load(at(a, a_value, builder.add(start, along))), kind.count)
                    for s, column in zip(row_sums, columns, strict=True):
                        builder.store(multiply_add(builder, builder.load(s), spread, column), s)
            for s, p in every:
                builder.store(builder.load(s), vector(c, c_value, p), align=4)
            return context.get_dummy_value()

        whole = types.int64
        return types.void(c, whole, whole, whole, a, whole, whole, whole, b, whole, whole, whole, whole), generate

    return tile
