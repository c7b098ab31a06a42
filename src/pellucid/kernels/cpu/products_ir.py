"""Generator of the passes of a decode step: products of a few rows with a matrix that is read once, where it lies.

    prepare    x -> norm(x), rounded to the operands' dtype; for int8 weights also as digits
    product    y = x W^T scale + bias + residual, for up to three matrices that read one x
    gated      y = silu(x G^T) (x U^T)

`decode_token.py` and `inference.py` launch them. W lies row by row, so a block of rows, which is an item of work, is
one stretch of memory; reading it is the cost. Several rows of x are multiplied with what is read together; each result
is summed over k in one order, whatever rows there are beside it.

With int8 weights on a path that adds products of integers, one row of x, or a few more, is written as digits
(`digits_ir`). What has none takes the way of every other format: converted in registers, multiplied in float32.
"""

from __future__ import annotations

from . import ir
from .digits_ir import digit_dots, digits_of, write_digits
from .floats_ir import Floats, pointers_of, words_of
from .ir import Function, Variable
from .isa import Isa
from .pack_ir import element
from .streams_ir import CACHE_LINE, STREAMS, ask_ahead, line_sums
from .vectors_ir import SIZE, STORAGE, Format, shuffle

#: Words of the block of each pass; SEGMENT is repeated at the end of a product's for each of its matrices.
PREPARE = ("x", "x_row", "k", "norm", "eps", "out", "out_row", "digits", "digits_row")
PRODUCT = ("k", "rows", "x", "x_row", "digits", "digits_row", "per_task", "y_row", "residual")
SEGMENT = ("start", "weight", "line_step", "lines", "scale", "bias", "y")
SEGMENTS = 3

LINES = 2048  # at most in an item: their sums lie on the stack
SUMS = LINES + STREAMS  # numbers of a row's sums there
_LINES_TOGETHER = 4  # whose sums with several rows of x are made at once
_LOG2E = "0x3FF7154760000000"


# --- the vector -------------------------------------------------------------------------------------------------------


def _prepare(e: Floats) -> Function:
    """Items are rows of x: out = x rstd norm (x itself without a norm), rounded; digits where wanted."""
    f = Function("prepare", "ptr %block, i64 %lo, i64 %hi")
    x_row, k, out_row, digits_row = words_of(f, PREPARE, "x_row", "k", "out_row", "digits_row")
    x, norm, out, digits = pointers_of(f, PREPARE, "x", "norm", "out", "digits")
    eps = f.load("float", f.at("%block", 8 * PREPARE.index("eps")), 8)
    has_norm, has_digits = (f.let(f"icmp ne ptr {p}, null") for p in (norm, digits))
    zero = "zeroinitializer"
    with f.loop("%lo", "%hi") as row:
        source, to = f.at(x, f.mul(row, x_row)), f.at(out, f.mul(row, out_row))
        rstd = Variable(f, "float", "1.0")
        with f.when(has_norm):
            squares = Variable(f, e.vector, zero)
            with f.loop(0, k, e.n) as i:
                value = e.load(f, source, i, e.mask(f, f.sub(k, i)))
                squares.set(e.multiply_add(f, value, value, squares.get()))
            mean = f.let(f"fdiv float {e.total(f, squares.get())}, {f.let(f'sitofp i64 {k} to float')}")
            root = f.let(f"{e.declare('float', 'llvm.sqrt.f32', 'float')}(float {f.let(f'fadd float {mean}, {eps}')})")
            rstd.set(f.let(f"fdiv float 1.0, {root}"))
        highest, bad = Variable(f, e.vector, zero), Variable(f, e.vector, zero)
        factor = e.splat(f, rstd.get())
        with f.loop(0, k, e.n) as i:
            mask = e.mask(f, f.sub(k, i))
            value = Variable(f, e.vector, e.load(f, source, i, mask))
            with f.when(has_norm):
                value.set(e.op(f, "fmul", e.op(f, "fmul", value.get(), factor), e.load(f, norm, i, mask)))
            if e.form.name == "rounded":
                bits = e.v.to_bfloat16(f, e.n, value.get())
                value.set(e.v.widen(f, "bfloat16", e.n, bits, "float"))
            now = value.get()
            e.store(f, now, to, i, mask)
            size = e.unary(f, "fabs", now)
            larger = f.let(f"fcmp ogt {e.vector} {size}, {highest.get()}")
            highest.set(f.let(f"select <{e.n} x i1> {larger}, {e.vector} {size}, {e.vector} {highest.get()}"))
            bad.set(e.op(f, "fadd", bad.get(), e.op(f, "fsub", now, now)))
        if digits_of(e.form.isa):
            with f.when(has_digits):
                write_digits(e, f, to, k, highest.get(), bad.get(), f.at(digits, f.mul(row, digits_row)))
    return f


# --- the matrix -------------------------------------------------------------------------------------------------------

_DOTS = "ptr %matrix, i64 %line_step, i64 %k, i64 %count, ptr %x, i64 %x_row, ptr %digits, ptr %sums"


def rows_together(isa: Isa) -> int:
    """Rows of x that are multiplied with a line as it is read: their sums for four lines fill half of the registers."""
    return 4 if isa.vector == 64 or isa.machine == "aarch64" else 2


def _dots(e: Floats, source: str, rows: int) -> Function:
    """sums[r, i] = matrix[i] x[r] for `count` lines and so many rows, SUMS numbers apart; writes some sums more
    (`STREAMS`). Digits are for one row."""
    f = Function(f"dots_{rows}", _DOTS, internal=True, attributes="nounwind noinline")
    if source == "int8" and rows == 1 and digits_of(e.form.isa):
        with f.when(f.let("icmp ne ptr %digits, null")):
            there = f.let(f"icmp ne i32 {f.load('i32', f.at('%digits', 4), 4)}, 0")
            with f.when(there):
                digit_dots(e, f)
                f.leave()
    stored, n = STORAGE[source], e.n
    size = SIZE[stored]
    x = [f.at("%x", f.mul("%x_row", r)) for r in range(rows)]

    def converted(raw: str) -> str:
        return element(e.v, f, e.form, source, n, raw)

    in_pairs = source == "bfloat16"  # a load is two vectors of weights then: those of even and of odd places
    together = 2 if in_pairs else 1

    def weights(address: str) -> list[str]:
        if in_pairs:
            return e.v.widen_pairs(f, n, f.load(f"<{n} x i32>", address, size))
        return [converted(f.load(f"<{n} x {stored}>", address, size))]

    def values_of(row: str, here: str) -> list[str]:
        values = [f.load(e.vector, f.at(row, f.mul(f.add(here, i * n), 4)), 4) for i in range(together)]
        if in_pairs:
            values = [shuffle(f, "float", n, values[0], values[1], range(i, 2 * n, 2)) for i in range(2)]
        return values

    step = max(together * n, CACHE_LINE // size)
    whole = f.let(f"and i64 %k, {-step}")

    def sums_of(lines: list[str]) -> list[list[str]]:
        total = [[Variable(f, e.vector, "zeroinitializer") for _ in lines] for _ in x]
        with f.loop(0, whole, step) as at:
            for line in lines:
                ask_ahead(e, f, f.at(line, f.mul(at, size)))
            for here in [f.add(at, part) for part in range(0, step, together * n)]:
                values = [values_of(row, here) for row in x]
                for i, line in enumerate(lines):
                    for j, weight in enumerate(weights(f.at(line, f.mul(here, size)))):
                        for row, sums in zip(values, total, strict=True):
                            sums[i].set(e.multiply_add(f, row[j], weight, sums[i].get()))
        with f.loop(whole, "%k", n) as here:
            mask = e.mask(f, f.sub("%k", here))
            values = [[e.load(f, row, here, mask)] for row in x]
            for i, line in enumerate(lines):
                weight = converted(e.v.load_masked(f, stored, n, f.at(line, f.mul(here, size)), mask))
                for row, sums in zip(values, total, strict=True):
                    sums[i].set(e.multiply_add(f, row[0], weight, sums[i].get()))
        return [[one.get() for one in sums] for sums in total]

    line_sums(e, f, STREAMS if rows == 1 else _LINES_TOGETHER, sums_of, row_bytes=4 * SUMS)
    return f


def _call_dots(
    f: Function, rows: int, segment: str, first: str, count: str, k: str, x: str, x_row: str, digits: str, sums: str
) -> None:
    (line_step,) = words_of(f, SEGMENT, "line_step", block=segment)
    (weight,) = pointers_of(f, SEGMENT, "weight", block=segment)
    here = f.at(weight, f.mul(first, line_step))
    f.do(
        f"call void @dots_{rows}(ptr {here}, i64 {line_step}, i64 {k}, i64 {count}, ptr {x}, i64 {x_row}, "
        f"ptr {digits}, ptr {sums})"
    )


def _scaled(e: Floats, f: Function, sums: str, segment: str, first: str, i: str, mask: str) -> Variable:
    """Sums i to i + n - 1 of the lines from `first` on, times their scales and with their biases."""
    value = Variable(f, e.vector, e.load(f, sums, i, mask))
    scale, bias = pointers_of(f, SEGMENT, "scale", "bias", block=segment)
    for pointer, name in ((scale, "fmul"), (bias, "fadd")):
        with f.when(f.let(f"icmp ne ptr {pointer}, null")):
            value.set(e.op(f, name, value.get(), e.load(f, pointer, f.add(first, i), mask)))
    return value


def _product(e: Floats) -> Function:
    """Items are blocks of `per_task` lines, matrix after matrix: y = x W^T scale + bias + residual, each row of x."""
    f = Function("product", "ptr %block, i64 %lo, i64 %hi")
    k, rows, x_row, digits_row, per_task, y_row = words_of(
        f, PRODUCT, "k", "rows", "x_row", "digits_row", "per_task", "y_row"
    )
    x, digits, residual = pointers_of(f, PRODUCT, "x", "digits", "residual")
    has_residual, has_digits = (f.let(f"icmp ne ptr {p}, null") for p in (residual, digits))
    together = rows_together(e.form.isa)
    sums = f.slot("float", count=together * SUMS)
    at = [f.at("%block", 8 * (len(PRODUCT) + s * len(SEGMENT))) for s in range(SEGMENTS)]
    starts = [words_of(f, SEGMENT, "start", block=segment)[0] for segment in at]
    with f.loop("%lo", "%hi") as item:
        segment, start = at[0], starts[0]
        for other, begin in zip(at[1:], starts[1:], strict=True):
            inside = f.is_("sge", item, begin)
            segment = f.let(f"select i1 {inside}, ptr {other}, ptr {segment}")
            start = f.let(f"select i1 {inside}, i64 {begin}, i64 {start}")
        (lines,) = words_of(f, SEGMENT, "lines", block=segment)
        (y,) = pointers_of(f, SEGMENT, "y", block=segment)
        first = f.mul(f.sub(item, start), per_task)
        count = f.least(per_task, f.sub(lines, first))

        def finish(row: str, found: str) -> None:
            to, beside = f.at(y, f.mul(row, y_row)), f.at(residual, f.mul(row, y_row))
            with f.loop(0, count, e.n) as i:
                mask = e.mask(f, f.sub(count, i))
                value = _scaled(e, f, found, segment, first, i, mask)
                with f.when(has_residual):
                    value.set(e.op(f, "fadd", value.get(), e.load(f, beside, f.add(first, i), mask)))
                e.store(f, value.get(), to, f.add(first, i), mask)

        whole = f.let(f"and i64 {rows}, {-together}")
        with f.loop(0, whole, together) as row:
            _call_dots(f, together, segment, first, count, k, f.at(x, f.mul(row, x_row)), x_row, "null", sums)
            with f.loop(0, together) as r:
                finish(f.add(row, r), f.at(sums, f.mul(r, 4 * SUMS)))
        with f.loop(whole, rows) as row:
            own = f.let(f"select i1 {has_digits}, ptr {f.at(digits, f.mul(row, digits_row))}, ptr null")
            _call_dots(f, 1, segment, first, count, k, f.at(x, f.mul(row, x_row)), x_row, own, sums)
            finish(row, sums)
    return f


def _gated(e: Floats) -> Function:
    """Items are blocks of lines of both matrices: y = g / (1 + exp(-g)) u for one row of x."""
    f = Function("gated", "ptr %block, i64 %lo, i64 %hi")
    k, per_task = words_of(f, PRODUCT, "k", "per_task")
    x, digits = pointers_of(f, PRODUCT, "x", "digits")
    at = [f.at("%block", 8 * (len(PRODUCT) + s * len(SEGMENT))) for s in range(2)]
    sums = [f.slot("float", count=SUMS) for _ in at]
    (lines,), (y,) = words_of(f, SEGMENT, "lines", block=at[0]), pointers_of(f, SEGMENT, "y", block=at[0])
    with f.loop("%lo", "%hi") as item:
        first = f.mul(item, per_task)
        count = f.least(per_task, f.sub(lines, first))
        for segment, found in zip(at, sums, strict=True):
            _call_dots(f, 1, segment, first, count, k, x, "0", digits, found)
        with f.loop(0, count, e.n) as i:
            mask = e.mask(f, f.sub(count, i))
            gate, up = (_scaled(e, f, s, segment, first, i, mask).get() for s, segment in zip(sums, at, strict=True))
            power = e.exp2(f, e.op(f, "fmul", f.let(f"fneg {e.vector} {gate}"), e.number(_LOG2E)))
            value = e.op(f, "fdiv", gate, e.op(f, "fadd", power, e.number(1.0)))
            e.store(f, e.op(f, "fmul", value, up), y, f.add(first, i), mask)
    return f


def passes_text(form: Format, source: str) -> str:
    """IR of the three passes for weights of one dtype; `form` is "float32", or "rounded" for bfloat16 operands."""
    e = Floats(form)
    dots = [_dots(e, source, rows) for rows in (1, rows_together(form.isa))]
    functions = [_prepare(e), *dots, _product(e), _gated(e)]
    return ir.module_text(functions, sorted(e.v.declared))
