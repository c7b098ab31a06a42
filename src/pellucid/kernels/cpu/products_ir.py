"""Generator of the passes of a decode step: products of a few rows with a matrix that is read once, where it lies.

    prepare    x -> norm(x), rounded to the operands' dtype; for int8 weights also as digits
    product    y = x W^T scale + bias + residual, for up to three matrices that read one x
    gated      y = silu(x G^T) (x U^T)

`decode_layers.py` and `inference.py` launch them. W lies row by row, so a block of rows, which is an item of work, is
one stretch of memory; reading it is the cost. Each result is summed over k in one order.

With int8 weights on a path that has the instruction (`isa.dot8`), x is written as a fixed-point number of three digits
of 8 bits, x = unit (d0 + 256 d1 + 65536 d2), and the sums of weight times digit are exact integers: the result is as
precise as in float32, for one instruction on 64 weights a digit. The instruction wants one factor without a sign, so
the weights are moved up by 128, and the sums start at -128 times the sum of the digits. What has no such numbers
(infinite, NaN, all tiny) takes the way of every other format: converted in registers, multiplied in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from . import ir
from .floats_ir import Floats, pointers_of, words_of
from .ir import Function, Variable
from .pack_ir import element
from .vectors_ir import SIZE, STORAGE, Format, constant, splat

#: Words of the block of each pass; SEGMENT is repeated at the end of a product's for each of its matrices.
PREPARE = ("x", "x_row", "k", "norm", "eps", "out", "out_row", "digits", "digits_row")
PRODUCT = ("k", "rows", "x", "x_row", "digits", "digits_row", "per_task", "y_row", "residual")
SEGMENT = ("start", "weight", "line_step", "lines", "scale", "bias", "y")
SEGMENTS = 3

LINES = 256  # at most in an item: their sums lie on the stack
_TOGETHER = 4  # lines summed at once
_AHEAD = 4096  # bytes from what is read to what is asked of memory: the processor alone stops at each page
_CACHE_LINE = 64
_DIGITS = 3
_STEP = 64  # weights of an instruction
_HEAD = 64 * (1 + _DIGITS)  # bytes before the digits: unit and whether they are there, then where the sums start
_LARGEST = 127 << 16  # fixed-point number with a first digit of 127
_SMALLEST = "0x39B4484C00000000"  # 1e-30: smaller ones have no fixed-point numbers
_LOG2E = "0x3FF7154760000000"


def digits_bytes(k: int) -> int:
    """Bytes of the digits of a row of k numbers."""
    return _HEAD + _DIGITS * -(-k // _STEP) * _STEP


def fits_digits(k: int) -> bool:
    """Whether sums over k digits stay within 32 bits."""
    return k < 1 << 16


# --- the vector -------------------------------------------------------------------------------------------------------


def _dot8(e: Floats, f: Function, total: str, unsigned: str, signed: str) -> str:
    """total + the sums of four products of bytes; all <16 x i32>."""
    kind = "<16 x i32>"
    call = e.declare(kind, "llvm.x86.avx512.vpdpbusd.512", kind, kind, kind)
    return f.let(f"{call}({kind} {total}, {kind} {unsigned}, {kind} {signed})")


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
        if e.form.isa.dot8:
            with f.when(has_digits):
                _write_digits(e, f, to, k, highest.get(), bad.get(), f.at(digits, f.mul(row, digits_row)))
    return f


def _write_digits(e: Floats, f: Function, x: str, k: str, highest: str, bad: str, digits: str) -> None:
    """Digits of x, 64 of each kind side by side, behind their unit and the sums to start from."""
    words, call = "<16 x i32>", e.declare("float", "llvm.vector.reduce.fmax.v16f32", e.vector)
    top = f.let(f"{call}({e.vector} {highest})")
    finite = f.let(f"fcmp oeq float {e.total(f, bad)}, 0.0")
    usable = f.let(f"and i1 {finite}, {f.let(f'fcmp ogt float {top}, {_SMALLEST}')}")
    f.store("i32", f.let(f"zext i1 {usable} to i32"), f.at(digits, 4), 4)
    with f.when(usable):
        f.store("float", f.let(f"fdiv float {top}, {float(_LARGEST)!r}"), digits, 4)
        scale = e.splat(f, f.let(f"fdiv float {float(_LARGEST)!r}, {top}"))
        starts = [Variable(f, words, "zeroinitializer") for _ in range(_DIGITS)]
        with f.loop(0, k, _STEP) as i:
            here = f.at(digits, f.add(f.mul(i, _DIGITS), _HEAD))
            for part in range(0, _STEP, 16):
                at = f.add(i, part)
                value = e.op(f, "fmul", e.load(f, x, at, e.mask(f, f.sub(k, at))), scale)
                left = f.let(f"fptosi {e.vector} {e.unary(f, 'rint', value)} to {words}")
                for d in range(_DIGITS):
                    digit = f.let(f"trunc {words} {left} to <16 x i8>")
                    f.store("<16 x i8>", digit, f.at(here, d * _STEP + part), 16)
                    rest = f.let(f"sub {words} {left}, {f.let(f'sext <16 x i8> {digit} to {words}')}")
                    left = f.let(f"ashr {words} {rest}, {constant('i32', [8] * 16)}")
            for d, start in enumerate(starts):
                moved = constant("i32", [-0x7F7F7F80] * 16)  # 128 in each byte
                start.set(_dot8(e, f, start.get(), moved, f.load(words, f.at(here, d * _STEP), 64)))
        for d, start in enumerate(starts):
            f.store(words, f.let(f"sub {words} zeroinitializer, {start.get()}"), f.at(digits, 64 * (1 + d)), 64)


# --- the matrix -------------------------------------------------------------------------------------------------------

_DOTS = "ptr %matrix, i64 %line_step, i64 %k, i64 %count, ptr %x, ptr %digits, ptr %sums"


def _dots(e: Floats, source: str) -> Function:
    """sums[i] = matrix[i] x for `count` lines; writes up to three sums more."""
    f = Function("dots", _DOTS, internal=True, attributes="nounwind noinline")
    if source == "int8" and e.form.isa.dot8:
        with f.when(f.let("icmp ne ptr %digits, null")):
            there = f.let(f"icmp ne i32 {f.load('i32', f.at('%digits', 4), 4)}, 0")
            with f.when(there):
                _digit_dots(e, f)
                f.leave()
    stored, n = STORAGE[source], e.n
    size = SIZE[stored]

    def converted(raw: str) -> str:
        if source == "int8":
            return f.let(f"sitofp <{n} x i8> {raw} to {e.vector}")
        return element(e.v, f, e.form, source, n, raw)

    last, whole = f.sub("%count", 1), f.let(f"and i64 %k, {-2 * n}")
    with f.loop(0, "%count", _TOGETHER) as j:
        lines = [f.at("%matrix", f.mul(f.least(f.add(j, i), last), "%line_step")) for i in range(_TOGETHER)]
        total = [[Variable(f, e.vector, "zeroinitializer") for _ in range(2)] for _ in lines]
        pairs = list(zip(lines, total, strict=True))
        # Narrow lines one by one: memory is read in its order. Of wide ones four streams at once keep it busier.
        for some in [pairs] if size == SIZE["float"] else [[pair] for pair in pairs]:
            with f.loop(0, whole, 2 * n) as at:
                for half in range(2):
                    here = f.add(at, half * n)
                    value = f.load(e.vector, f.at("%x", f.mul(here, 4)), 4)
                    for line, sums in some:
                        place = f.at(line, f.mul(here, size))
                        if half * n * size % _CACHE_LINE == 0:
                            e.prefetch(f, f.at(place, _AHEAD))
                        raw = f.load(f"<{n} x {stored}>", place, size)
                        sums[half].set(e.multiply_add(f, value, converted(raw), sums[half].get()))
        with f.loop(whole, "%k", n) as here:
            mask = e.mask(f, f.sub("%k", here))
            value = e.load(f, "%x", here, mask)
            for i, line in enumerate(lines):
                raw = e.v.load_masked(f, stored, n, f.at(line, f.mul(here, size)), mask)
                total[i][0].set(e.multiply_add(f, value, converted(raw), total[i][0].get()))
        both = [e.op(f, "fadd", left.get(), right.get()) for left, right in total]
        f.store("<4 x float>", e.four_sums(f, both), f.at("%sums", f.mul(j, 4)), 4)
    return f


def _digit_dots(e: Floats, f: Function) -> None:
    """The sums for int8 weights, from digits: integers until the last step."""
    words, bytes_ = "<16 x i32>", f"<{_STEP} x i8>"
    unit = splat(f, "float", f.load("float", "%digits", 4), 4)
    starts = [f.load(words, f.at("%digits", 64 * (1 + d)), 64) for d in range(_DIGITS)]
    last, whole = f.sub("%count", 1), f.let(f"and i64 %k, {-_STEP}")
    with f.loop(0, "%count", _TOGETHER) as j:
        lines = [f.at("%matrix", f.mul(f.least(f.add(j, i), last), "%line_step")) for i in range(_TOGETHER)]
        total = [[Variable(f, words, start) for start in starts] for _ in lines]

        def step(at: str, line: str, sums: list[Variable], load: Callable[[str], str]) -> None:
            digits = f.at("%digits", f.add(f.mul(at, _DIGITS), _HEAD))
            here = f.at(line, at)
            e.prefetch(f, f.at(here, _AHEAD))
            raw = f.let(f"bitcast {bytes_} {load(here)} to {words}")
            moved = f.let(f"xor {words} {raw}, {constant('i32', [-0x7F7F7F80] * 16)}")
            for d, variable in enumerate(sums):
                digit = f.load(words, f.at(digits, d * _STEP), 64)
                variable.set(_dot8(e, f, variable.get(), moved, digit))

        for line, sums in zip(lines, total, strict=True):
            with f.loop(0, whole, _STEP) as at:
                step(at, line, sums, lambda address: f.load(bytes_, address, 1))
            with f.loop(whole, "%k", _STEP) as at:
                mask = e.v.mask(f, _STEP, f.sub("%k", at))
                step(at, line, sums, lambda address, m=mask: e.v.load_masked(f, "i8", _STEP, address, m))
        found = []
        for sums in total:
            low, middle, high = (f.let(f"sitofp {words} {variable.get()} to {e.vector}") for variable in sums)
            value = e.multiply_add(f, middle, e.number(256.0), low)
            found.append(e.multiply_add(f, high, e.number(65536.0), value))
        four = f.let(f"fmul <4 x float> {e.four_sums(f, found)}, {unit}")
        f.store("<4 x float>", four, f.at("%sums", f.mul(j, 4)), 4)


def _call_dots(f: Function, segment: str, first: str, count: str, k: str, x: str, digits: str, sums: str) -> None:
    (line_step,) = words_of(f, SEGMENT, "line_step", block=segment)
    (weight,) = pointers_of(f, SEGMENT, "weight", block=segment)
    here = f.at(weight, f.mul(first, line_step))
    f.do(f"call void @dots(ptr {here}, i64 {line_step}, i64 {k}, i64 {count}, ptr {x}, ptr {digits}, ptr {sums})")


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
    sums = f.slot("float", count=LINES + _TOGETHER)
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
        with f.loop(0, rows) as row:
            own = f.let(f"select i1 {has_digits}, ptr {f.at(digits, f.mul(row, digits_row))}, ptr null")
            _call_dots(f, segment, first, count, k, f.at(x, f.mul(row, x_row)), own, sums)
            to, beside = f.at(y, f.mul(row, y_row)), f.at(residual, f.mul(row, y_row))
            with f.loop(0, count, e.n) as i:
                mask = e.mask(f, f.sub(count, i))
                value = _scaled(e, f, sums, segment, first, i, mask)
                with f.when(has_residual):
                    value.set(e.op(f, "fadd", value.get(), e.load(f, beside, f.add(first, i), mask)))
                e.store(f, value.get(), to, f.add(first, i), mask)
    return f


def _gated(e: Floats) -> Function:
    """Items are blocks of lines of both matrices: y = g / (1 + exp(-g)) u for one row of x."""
    f = Function("gated", "ptr %block, i64 %lo, i64 %hi")
    k, per_task = words_of(f, PRODUCT, "k", "per_task")
    x, digits = pointers_of(f, PRODUCT, "x", "digits")
    at = [f.at("%block", 8 * (len(PRODUCT) + s * len(SEGMENT))) for s in range(2)]
    sums = [f.slot("float", count=LINES + _TOGETHER) for _ in at]
    (lines,), (y,) = words_of(f, SEGMENT, "lines", block=at[0]), pointers_of(f, SEGMENT, "y", block=at[0])
    with f.loop("%lo", "%hi") as item:
        first = f.mul(item, per_task)
        count = f.least(per_task, f.sub(lines, first))
        for segment, found in zip(at, sums, strict=True):
            _call_dots(f, segment, first, count, k, x, digits, found)
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
    functions = [_prepare(e), _dots(e, source), _product(e), _gated(e)]
    return ir.module_text(functions, sorted(e.v.declared))
