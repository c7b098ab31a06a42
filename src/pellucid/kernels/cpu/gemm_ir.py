"""Generator of the matrix product's native code: register tiles, packing and the two parallel passes around them.

`matmul.py` plans a product and launches the passes; everything on the hot path is here, written through `ir.Function`
for one instruction path (`isa.Isa`) and one packed format. An operand is packed in panels: `rows` (a) or `columns` (b)
lines side by side, one step of k after another, so that the tile kernel reads both operands straight through:

    packed a   [panel][step][rows]        y tile = rows x columns, in registers for the whole panel
    packed b   [panel][step][columns]     rows = isa.rows, columns = isa.vectors * lanes

A step is one k, or for "pairs" two neighbouring k as two bfloat16 in 32 bits, which is what the bf16 instruction
multiplies. A panel with fewer lines repeats its last one: the surplus results are never stored, so padding never
meets real numbers; only the missing half of an odd last pair is zero, in both operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import ir
from .ir import Function, Variable
from .isa import Isa

#: Result formats of the tile kernel: as accumulated, bfloat16, float16.
PLAIN, BFLOAT16, FLOAT16 = 0, 1, 2

#: Storage of a source element in IR; narrow floats are handled as bits.
STORAGE = {"float32": "float", "float64": "double", "bfloat16": "i16", "float16": "i16"}
SIZE = {"float": 4, "double": 8, "i16": 2, "i32": 4}


@dataclass(frozen=True)
class Format:
    """How packed operands look.

    name: "float32", "float64", "pairs" (of bfloat16), or, for values rounded to bfloat16 where pairs do not apply,
    "rounded" (kept as float32) and "rounded64" (kept as float64).
    """

    name: str
    isa: Isa

    @property
    def accumulator(self) -> str:
        return "double" if self.name in ("float64", "rounded64") else "float"

    @property
    def unit(self) -> str:
        """IR type of one line's share of a step."""
        return "i32" if self.name == "pairs" else self.accumulator

    @property
    def per_step(self) -> int:
        """Values of k in a step."""
        return 2 if self.name == "pairs" else 1

    @property
    def lanes(self) -> int:
        return self.isa.vector // SIZE[self.accumulator]

    @property
    def rows(self) -> int:
        return self.isa.rows

    @property
    def columns(self) -> int:
        return self.isa.vectors * self.lanes


def constant(kind: str, values: Sequence[int | str]) -> str:
    return "<" + ", ".join(f"{kind} {v}" for v in values) + ">"


def splat(f: Function, kind: str, value: str, n: int) -> str:
    """A vector of n equal values."""
    one = f.let(f"insertelement <{n} x {kind}> poison, {kind} {value}, i64 0")
    return f.let(f"shufflevector <{n} x {kind}> {one}, <{n} x {kind}> poison, <{n} x i32> zeroinitializer")


def shuffle(f: Function, kind: str, n: int, a: str, b: str, lanes: Sequence[int]) -> str:
    order = constant("i32", lanes)
    return f.let(f"shufflevector <{n} x {kind}> {a}, <{n} x {kind}> {b}, <{len(lanes)} x i32> {order}")


class Vectors:
    """Number formats and masks on vectors of one module; collects the intrinsics it used."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.declared: set[str] = set()

    def _same(self, f: Function, op: str, kind: str, n: int, a: str, value: int) -> str:
        return f.let(f"{op} <{n} x {kind}> {a}, {constant(kind, [value] * n)}")

    def mask(self, f: Function, n: int, valid: str) -> str:
        """The first `valid` of n lanes."""
        return f.let(f"icmp slt <{n} x i64> {constant('i64', range(n))}, {splat(f, 'i64', valid, n)}")

    def load_masked(self, f: Function, kind: str, n: int, address: str, mask: str) -> str:
        """Lanes outside the mask are zero and are not read."""
        name, vector = f"llvm.masked.load.v{n}{suffix(kind)}.p0", f"<{n} x {kind}>"
        self.declared.add(f"declare {vector} @{name}(ptr, i32, <{n} x i1>, {vector})")
        return f.let(f"call {vector} @{name}(ptr {address}, i32 {SIZE[kind]}, <{n} x i1> {mask}, {vector} zeroinitializer)")

    def store_masked(self, f: Function, kind: str, n: int, value: str, address: str, mask: str) -> None:
        name, vector = f"llvm.masked.store.v{n}{suffix(kind)}.p0", f"<{n} x {kind}>"
        self.declared.add(f"declare void @{name}({vector}, ptr, i32, <{n} x i1>)")
        f.do(f"call void @{name}({vector} {value}, ptr {address}, i32 {SIZE[kind]}, <{n} x i1> {mask})")

    def multiply_add(self, f: Function, kind: str, n: int, a: str, b: str, c: str) -> str:
        """a * b + c, in one rounding where the path has the instruction."""
        name, vector = f"llvm.{'fma' if self.isa.fused else 'fmuladd'}.v{n}{suffix(kind)}", f"<{n} x {kind}>"
        self.declared.add(f"declare {vector} @{name}({vector}, {vector}, {vector})")
        return f.let(f"call {vector} @{name}({vector} {a}, {vector} {b}, {vector} {c})")

    def dot_pairs(self, f: Function, a: str, b: str, c: str) -> str:
        """c + the products of the two bfloat16 in each 32-bit lane; a, b: <16 x i32>."""
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        self.declared.add(f"declare <16 x float> @{name}(<16 x float>, <32 x bfloat>, <32 x bfloat>)")
        a, b = (f.let(f"bitcast <16 x i32> {x} to <32 x bfloat>") for x in (a, b))
        return f.let(f"call <16 x float> @{name}(<16 x float> {c}, <32 x bfloat> {a}, <32 x bfloat> {b})")

    def widen(self, f: Function, source: str, n: int, value: str, kind: str) -> str:
        """n elements as stored (`source` is a dtype name) to float or double."""
        if source == "bfloat16":
            bits = f.let(f"zext <{n} x i16> {value} to <{n} x i32>")
            value, stored = self._float(f, n, self._same(f, "shl", "i32", n, bits, 16)), "float"
        elif source == "float16":
            value, stored = self._half_to_float(f, n, value), "float"
        else:
            stored = STORAGE[source]
        if stored == kind:
            return value
        return f.let(f"{'fpext' if kind == 'double' else 'fptrunc'} <{n} x {stored}> {value} to <{n} x {kind}>")

    def to_bfloat16(self, f: Function, n: int, value: str) -> str:
        """<n x float> to bits, nearest even. The instruction reads and writes denormals as zero, like the product's."""
        if self.isa.bf16:
            return f.let(f"bitcast <{n} x bfloat> {f.let(f'fptrunc <{n} x float> {value} to <{n} x bfloat>')} to <{n} x i16>")
        bits = f.let(f"bitcast <{n} x float> {value} to <{n} x i32>")
        odd = self._same(f, "and", "i32", n, self._same(f, "lshr", "i32", n, bits, 16), 1)
        rounded = f.let(f"add <{n} x i32> {self._same(f, 'add', 'i32', n, bits, 0x7FFF)}, {odd}")
        quiet = self._same(f, "or", "i32", n, bits, 0x400000)
        nan = f.let(f"fcmp uno <{n} x float> {value}, {value}")
        chosen = f.let(f"select <{n} x i1> {nan}, <{n} x i32> {quiet}, <{n} x i32> {rounded}")
        return f.let(f"trunc <{n} x i32> {self._same(f, 'lshr', 'i32', n, chosen, 16)} to <{n} x i16>")

    def to_float16(self, f: Function, n: int, value: str) -> str:
        """<n x float> to bits, nearest even."""
        if self.isa.half:
            return f.let(f"bitcast <{n} x half> {f.let(f'fptrunc <{n} x float> {value} to <{n} x half>')} to <{n} x i16>")
        bits = f.let(f"bitcast <{n} x float> {value} to <{n} x i32>")
        sign = self._same(f, "and", "i32", n, self._same(f, "lshr", "i32", n, bits, 16), 0x8000)
        size = self._same(f, "and", "i32", n, bits, 0x7FFFFFFF)
        # a normal result: move the exponent, round to even on the 13 bits that go
        odd = self._same(f, "and", "i32", n, self._same(f, "lshr", "i32", n, size, 13), 1)
        moved = f.let(f"add <{n} x i32> {self._same(f, 'add', 'i32', n, size, 0xFFF - (112 << 23))}, {odd}")
        normal = self._same(f, "lshr", "i32", n, moved, 13)
        # a denormal result: adding 0.5 leaves the rounded bits at the bottom of the sum
        half = constant("float", ["0.5"] * n)
        total = f.let(f"fadd <{n} x float> {self._float(f, n, size)}, {half}")
        small = self._same(f, "sub", "i32", n, f.let(f"bitcast <{n} x float> {total} to <{n} x i32>"), 126 << 23)
        result = self._where(f, n, "ult", size, 113 << 23, small, normal)
        result = self._where(f, n, "uge", size, 0x477FF000, constant("i32", [0x7C00] * n), result)
        result = self._where(f, n, "ugt", size, 0x7F800000, constant("i32", [0x7E00] * n), result)
        return f.let(f"trunc <{n} x i32> {f.let(f'or <{n} x i32> {result}, {sign}')} to <{n} x i16>")

    def _half_to_float(self, f: Function, n: int, value: str) -> str:
        if self.isa.half:
            return f.let(f"fpext <{n} x half> {f.let(f'bitcast <{n} x i16> {value} to <{n} x half>')} to <{n} x float>")
        bits = f.let(f"zext <{n} x i16> {value} to <{n} x i32>")
        sign = self._same(f, "shl", "i32", n, self._same(f, "and", "i32", n, bits, 0x8000), 16)
        size = self._same(f, "shl", "i32", n, self._same(f, "and", "i32", n, bits, 0x7FFF), 13)
        scale = constant("float", ["0x46F0000000000000"] * n)  # 2**112: the exponents' biases differ by that, denormals too
        scaled = f.let(f"bitcast <{n} x float> {f.let(f'fmul <{n} x float> {self._float(f, n, size)}, {scale}')} to <{n} x i32>")
        special = self._same(f, "or", "i32", n, size, 0x7F800000)
        chosen = self._where(f, n, "uge", size, 0x7C00 << 13, special, scaled)
        return self._float(f, n, f.let(f"or <{n} x i32> {chosen}, {sign}"))

    def _float(self, f: Function, n: int, bits: str) -> str:
        return f.let(f"bitcast <{n} x i32> {bits} to <{n} x float>")

    def _where(self, f: Function, n: int, relation: str, a: str, limit: int, yes: str, no: str) -> str:
        test = f.let(f"icmp {relation} <{n} x i32> {a}, {constant('i32', [limit] * n)}")
        return f.let(f"select <{n} x i1> {test}, <{n} x i32> {yes}, <{n} x i32> {no}")


def suffix(kind: str) -> str:
    return {"float": "f32", "double": "f64"}.get(kind, kind)


# --- register tiles ---------------------------------------------------------------------------------------------------

_TILE_PARAMS = "i64 %steps, ptr %a, ptr %b, ptr %c, i64 %c_row, ptr %init, i64 %init_row, i64 %rows, i64 %columns, i64 %result"
_TILE_ARGS = _TILE_PARAMS.replace("%rows", "{rows}")


def _tile(v: Vectors, form: Format, rows: int, vectors: int, last: Function) -> Function:
    """y[rows, columns] = init + a @ b over `steps`, all accumulators in registers; see `tiles`."""
    f = Function(f"tile_{rows}x{vectors}", _TILE_PARAMS, internal=True, attributes="nounwind noinline")
    kind, n, unit = form.accumulator, form.lanes, form.unit
    vector, size = f"<{n} x {kind}>", SIZE[form.accumulator]
    y = [[Variable(f, vector, "zeroinitializer") for _ in range(vectors)] for _ in range(rows)]
    a, b = Variable(f, "ptr", "%a"), Variable(f, "ptr", "%b")

    def step(a_now: str, b_now: str, u: int) -> None:
        at_b = f.at(b_now, u * form.columns * SIZE[unit])
        columns = [f.load(f"<{n} x {unit}>", f.at(at_b, j * form.isa.vector), form.isa.vector) for j in range(vectors)]
        for i in range(rows):
            value = splat(f, unit, f.load(unit, f.at(a_now, (u * form.rows + i) * SIZE[unit]), SIZE[unit]), n)
            for j in range(vectors):
                if form.name == "pairs":
                    y[i][j].set(v.dot_pairs(f, value, columns[j], y[i][j].get()))
                else:
                    y[i][j].set(v.multiply_add(f, kind, n, value, columns[j], y[i][j].get()))

    def steps(start: str, stop: str, unroll: int) -> None:
        with f.loop(start, stop, unroll):
            a_now, b_now = a.get(), b.get()
            for u in range(unroll):
                step(a_now, b_now, u)
            a.set(f.at(a_now, unroll * form.rows * SIZE[unit]))
            b.set(f.at(b_now, unroll * form.columns * SIZE[unit]))

    unroll = 4 if rows * vectors >= form.rows else 2
    whole = f.let(f"and i64 %steps, {-unroll}")
    steps("0", whole, unroll)
    steps(whole, "%steps", 1)

    simple = f.let(f"and i1 {f.is_('eq', '%columns', vectors * n)}, {f.is_('eq', '%result', PLAIN)}")
    partial = f.let(f"xor i1 {simple}, true")
    with f.when(partial):
        spill = f.slot(vector, count=rows * vectors)
        for i in range(rows):
            for j in range(vectors):
                f.store(vector, y[i][j].get(), f.at(spill, (i * vectors + j) * form.isa.vector), form.isa.vector)
        f.do(
            f"call void @{last.name}(ptr {spill}, i64 {vectors * form.isa.vector}, i64 {rows}, i64 %columns, "
            "ptr %c, i64 %c_row, ptr %init, i64 %init_row, i64 %result)"
        )
        f.leave()
    with f.when(f.let("icmp ne ptr %init, null")):
        for i in range(rows):
            row = f.at("%init", f.mul("%init_row", i))
            for j in range(vectors):
                y[i][j].set(f.let(f"fadd {vector} {y[i][j].get()}, {f.load(vector, f.at(row, j * form.isa.vector), size)}"))
    for i in range(rows):
        row = f.at("%c", f.mul("%c_row", i))
        for j in range(vectors):
            f.store(vector, y[i][j].get(), f.at(row, j * form.isa.vector), size)
    return f


def finish(v: Vectors, form: Format) -> Function:
    """Stores sums that are not a whole float32 tile: c = round(sums + init), any number of columns, any result format."""
    params = "ptr %sums, i64 %sums_row, i64 %rows, i64 %columns, ptr %c, i64 %c_row, ptr %init, i64 %init_row, i64 %result"
    f = Function("finish", params, internal=True, attributes="nounwind noinline")
    kind, n = form.accumulator, form.lanes
    size, vector = SIZE[kind], f"<{n} x {kind}>"
    with f.loop(0, "%rows") as i, f.loop(0, "%columns", n) as j:
        mask = v.mask(f, n, f.sub("%columns", j))
        here = f.add(f.mul(i, "%sums_row"), f.mul(j, size))
        value = Variable(f, vector, f.load(vector, f.at("%sums", here), size))
        with f.when(f.let("icmp ne ptr %init, null")):
            init = v.load_masked(f, kind, n, f.at("%init", f.add(f.mul(i, "%init_row"), f.mul(j, size))), mask)
            value.set(f.let(f"fadd {vector} {value.get()}, {init}"))
        row = f.at("%c", f.mul(i, "%c_row"))
        with f.when(f.is_("eq", "%result", PLAIN)):
            v.store_masked(f, kind, n, value.get(), f.at(row, f.mul(j, size)), mask)
        if kind == "float":
            for code, narrow in ((BFLOAT16, v.to_bfloat16), (FLOAT16, v.to_float16)):
                with f.when(f.is_("eq", "%result", code)):
                    v.store_masked(f, "i16", n, narrow(f, n, value.get()), f.at(row, f.mul(j, 2)), mask)
    return f


def _tiles(v: Vectors, form: Format) -> list[Function]:
    """`tile`: one panel of a times one panel of b, choosing the variant for the rows and vectors of columns in use."""
    last = finish(v, form)
    variants = {(r, n): _tile(v, form, r, n, last) for r in range(1, form.rows + 1) for n in range(1, form.isa.vectors + 1)}
    f = Function("tile", _TILE_PARAMS)
    for (rows, vectors), variant in reversed(variants.items()):
        fits = f.is_("eq", "%rows", rows)
        if vectors > 1:
            fits = f.let(f"and i1 {fits}, {f.is_('sgt', '%columns', (vectors - 1) * form.lanes)}")
        with f.when(fits):
            f.do(f"call void @{variant.name}({_TILE_ARGS.format(rows=rows)})")
            f.leave()
    return [last, *variants.values(), f]


# --- packing ----------------------------------------------------------------------------------------------------------

_PACK_PARAMS = "ptr %source, i64 %line_step, i64 %k_step, i64 %lines, i64 %k, ptr %packed, i64 %panel_bytes"
_K_BLOCK = 32  # steps of line-contiguous sources packed for all panels of a group before the next: they share pages


def element(v: Vectors, f: Function, form: Format, source: str, n: int, raw: str) -> str:
    """n stored elements in the packed format's element: accumulator values, or bfloat16 bits for pairs."""
    if form.name in ("float32", "float64"):
        return v.widen(f, source, n, raw, form.accumulator)
    bits = raw if source == "bfloat16" else v.to_bfloat16(f, n, v.widen(f, source, n, raw, "float"))
    return bits if form.name == "pairs" else v.widen(f, "bfloat16", n, bits, form.accumulator)


def _pack_some(v: Vectors, form: Format, source: str, width: int, side: str) -> Function:
    """One panel from step `first` on, element by element: any strides, and what the vector loops leave."""
    params = _PACK_PARAMS.replace("i64 %panel_bytes", "i64 %first")
    f = Function(f"pack_some_{side}", params, internal=True, attributes="nounwind noinline")
    stored = STORAGE[source]
    steps = f.div(f.add("%k", form.per_step - 1), form.per_step)
    last_line, last_k = f.sub("%lines", 1), f.sub("%k", 1)
    with f.loop("%first", steps) as s, f.loop(0, width) as i:
        line = f.at("%source", f.mul(f.least(i, last_line), "%line_step"))
        values = []
        for p in range(form.per_step):
            k = f.add(f.mul(s, form.per_step), p)
            at = f.at(line, f.mul(f.least(k, last_k), "%k_step"))
            value = element(v, f, form, source, 1, f.load(f"<1 x {stored}>", at, SIZE[stored]))
            values.append((value, f.is_("slt", k, "%k")))
        to = f.at("%packed", f.mul(f.add(f.mul(s, width), i), SIZE[form.unit]))
        if form.per_step == 1:
            f.store(f"<1 x {form.unit}>", values[0][0], to, SIZE[form.unit])
        else:
            for p, (value, inside) in enumerate(values):
                kept = f.let(f"select i1 {inside}, <1 x i16> {value}, <1 x i16> zeroinitializer")
                f.store("<1 x i16>", kept, f.at(to, 2 * p), 2)
    return f


def _transposed(f: Function, unit: str, n: int, rows: list[str]) -> list[str]:
    """n vectors of n lanes, rows exchanged with lanes."""
    rows, distance = list(rows), n // 2
    while distance:
        low = [lane if not lane & distance else n + lane - distance for lane in range(n)]
        high = [lane + distance if not lane & distance else n + lane for lane in range(n)]
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = shuffle(f, unit, n, a, b, low), shuffle(f, unit, n, a, b, high)
        distance //= 2
    return rows


def _pack_k_contiguous(v: Vectors, f: Function, form: Format, source: str, width: int, some: Function) -> None:
    """Panels whose lines run along k: square blocks of lanes lines x lanes steps, transposed in registers."""
    stored, n, unit = STORAGE[source], form.lanes, form.unit
    size, per, out = SIZE[stored], form.per_step, SIZE[unit]
    whole = f.mul(f.div("%k", n * per), n)
    with f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, "%line_step"))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.sub("%lines", first)
        last = f.sub(f.least(lines, width), 1)
        starts = [f.at(here, f.mul(f.least(i, last), "%line_step")) for i in range(width)]
        with f.loop(0, whole, n) as s:
            offset = f.mul(s, per * size)
            for group in range(0, width, n):
                used = min(n, width - group)
                rows = []
                for i in range(group, group + used):
                    raw = f.load(f"<{n * per} x {stored}>", f.at(starts[i], offset), size)
                    row = element(v, f, form, source, n * per, raw)
                    rows.append(f.let(f"bitcast <{2 * n} x i16> {row} to <{n} x i32>") if per == 2 else row)
                rows += ["poison"] * (n - used)
                for u, column in enumerate(_transposed(f, unit, n, rows)):
                    to = f.at(panel, f.mul(f.add(s, u), width * out))
                    kept = column if used == n else shuffle(f, unit, n, column, "poison", range(used))
                    f.store(f"<{used} x {unit}>", kept, f.at(to, group * out), out)
        f.do(f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {f.least(lines, width)}, i64 %k, ptr {panel}, i64 {whole})")


def _pack_line_contiguous(v: Vectors, f: Function, form: Format, source: str, width: int, some: Function) -> None:
    """Panels whose steps run along the lines: each step is a load and a store; pairs interleave two rows."""
    stored, unit, per = STORAGE[source], form.unit, form.per_step
    size = SIZE[stored]
    whole = f.div("%k", per)
    with f.loop(0, whole, _K_BLOCK) as s0, f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, size))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.sub("%lines", first)
        stop = f.least(f.add(s0, _K_BLOCK), whole)
        full = f.is_("sge", lines, width)
        mask = v.mask(f, width, lines)
        for part, condition in ((False, full), (True, f.let(f"xor i1 {full}, true"))):
            with f.when(condition), f.loop(s0, stop) as s:
                values = []
                for p in range(per):
                    at = f.at(here, f.mul(f.add(f.mul(s, per), p), "%k_step"))
                    raw = v.load_masked(f, stored, width, at, mask) if part else f.load(f"<{width} x {stored}>", at, size)
                    values.append(element(v, f, form, source, width, raw))
                to = f.at(panel, f.mul(s, width * SIZE[unit]))
                if per == 1:
                    f.store(f"<{width} x {unit}>", values[0], to, SIZE[unit])
                else:
                    zipped = [lane // 2 + width * (lane % 2) for lane in range(2 * width)]
                    f.store(f"<{2 * width} x i16>", shuffle(f, "i16", width, *values, zipped), to, SIZE[unit])
    with f.when(f.is_("ne", f.mul(whole, per), "%k")), f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, size))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.least(f.sub("%lines", first), width)
        f.do(f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {lines}, i64 %k, ptr {panel}, i64 {whole})")


def _pack(v: Vectors, form: Format, source: str, width: int, side: str) -> list[Function]:
    some = _pack_some(v, form, source, width, side)
    f = Function(f"pack_{side}", _PACK_PARAMS)
    size = SIZE[STORAGE[source]]
    with f.when(f.is_("eq", "%k_step", size)):
        _pack_k_contiguous(v, f, form, source, width, some)
        f.leave()
    with f.when(f.is_("eq", "%line_step", size)):
        _pack_line_contiguous(v, f, form, source, width, some)
        f.leave()
    with f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, "%line_step"))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.least(f.sub("%lines", first), width)
        f.do(f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {lines}, i64 %k, ptr {panel}, i64 0)")
    return [some, f]


# --- the two passes ---------------------------------------------------------------------------------------------------

#: Words of the block that describe one operand to `pack_pass`; a's come first, then b's.
OPERAND = ("source", "line_step", "k_step", "lines", "per_group", "groups", "packed", "panel_bytes", "batch_bytes", "offsets", "pack")
#: Words of the block of both passes.
WORDS = (
    *(f"a_{w}" for w in OPERAND),
    *(f"b_{w}" for w in OPERAND),
    *("k", "steps", "columns_of_tasks", "rows_of_tasks", "a_per_task", "b_per_task"),
    *("c", "c_row", "c_column", "c_batch", "init", "init_row", "init_column", "init_batch", "result"),
)
WORD = {name: i for i, name in enumerate(WORDS)}


def words(f: Function, *names: str) -> list[str]:
    """Words of the block of the pass under construction."""
    return [f.load("i64", f.at("%block", 8 * WORD[name]), 8) for name in names]


def _pointer(f: Function, value: str) -> str:
    return f.let(f"inttoptr i64 {value} to ptr")


def pointers(f: Function, *names: str) -> list[str]:
    """The same, as pointers."""
    return [_pointer(f, word) for word in words(f, *names)]


def _pack_pass(form: Format) -> Function:
    """Items are groups of panels, a's then b's, batch after batch: packs groups lo to hi."""
    f = Function("pack_pass", "ptr %block, i64 %lo, i64 %hi")
    a_groups, b_groups, k = words(f, "a_groups", "b_groups", "k")
    each = f.add(a_groups, b_groups)
    with f.loop("%lo", "%hi") as item:
        batch, at = f.div(item, each), f.rem(item, each)
        is_a = f.is_("slt", at, a_groups)
        for side, width, condition in (("a", form.rows, is_a), ("b", form.columns, f.let(f"xor i1 {is_a}, true"))):
            with f.when(condition):
                group = at if side == "a" else f.sub(at, a_groups)
                source, line_step, k_step, lines, per, _, packed, panel_bytes, batch_bytes, offsets, pack = words(
                    f, *(f"{side}_{w}" for w in OPERAND)
                )
                first = f.mul(group, per)  # panel
                line = f.mul(first, width)
                offset = f.load("i64", f.at(_pointer(f, offsets), f.mul(batch, 8)), 8)
                here = f.at(f.at(_pointer(f, source), offset), f.mul(line, line_step))
                count = f.least(f.mul(per, width), f.sub(lines, line))
                to = f.at(f.at(_pointer(f, packed), f.mul(batch, batch_bytes)), f.mul(first, panel_bytes))
                f.do(f"call void {_pointer(f, pack)}(ptr {here}, i64 {line_step}, i64 {k_step}, i64 {count}, i64 {k}, ptr {to}, i64 {panel_bytes})")
    return f


def _multiply_pass(form: Format) -> Function:
    """Items are blocks of tiles, rows fastest, batch after batch: multiplies packed panels into blocks lo to hi."""
    f = Function("multiply_pass", "ptr %block, i64 %lo, i64 %hi")
    down, across, per_a, per_b, rows, columns, steps, result = words(
        f, "rows_of_tasks", "columns_of_tasks", "a_per_task", "b_per_task", "a_lines", "b_lines", "steps", "result"
    )
    a, a_panel, a_batch, b, b_panel, b_batch = words(
        f, "a_packed", "a_panel_bytes", "a_batch_bytes", "b_packed", "b_panel_bytes", "b_batch_bytes"
    )
    c, c_row, c_column, c_batch, init, init_row, init_column, init_batch = words(
        f, "c", "c_row", "c_column", "c_batch", "init", "init_row", "init_column", "init_batch"
    )
    each = f.mul(down, across)
    has_init = f.is_("ne", init, 0)
    with f.loop("%lo", "%hi") as item:
        batch, at = f.div(item, each), f.rem(item, each)
        row0 = f.mul(f.mul(f.rem(at, down), per_a), form.rows)
        column0 = f.mul(f.mul(f.div(at, down), per_b), form.columns)
        row1 = f.least(rows, f.add(row0, f.mul(per_a, form.rows)))
        column1 = f.least(columns, f.add(column0, f.mul(per_b, form.columns)))
        a_here = f.at(_pointer(f, a), f.mul(batch, a_batch))
        b_here = f.at(_pointer(f, b), f.mul(batch, b_batch))
        c_here = f.at(_pointer(f, c), f.mul(batch, c_batch))
        init_here = f.at(_pointer(f, init), f.mul(batch, init_batch))
        with f.loop(row0, row1, form.rows) as i:
            a_now = f.at(a_here, f.mul(f.div(i, form.rows), a_panel))
            m = f.least(f.sub(rows, i), form.rows)
            c_line = f.at(c_here, f.mul(i, c_row))
            init_line = f.at(init_here, f.mul(i, init_row))
            with f.loop(column0, column1, form.columns) as j:
                b_now = f.at(b_here, f.mul(f.div(j, form.columns), b_panel))
                n = f.least(f.sub(columns, j), form.columns)
                c_now = f.at(c_line, f.mul(j, c_column))
                init_now = f.let(f"select i1 {has_init}, ptr {f.at(init_line, f.mul(j, init_column))}, ptr null")
                f.do(
                    f"call void @tile(i64 {steps}, ptr {a_now}, ptr {b_now}, ptr {c_now}, i64 {c_row}, "
                    f"ptr {init_now}, i64 {init_row}, i64 {m}, i64 {n}, i64 {result})"
                )
    return f


def product_text(form: Format) -> str:
    """IR of `tile`, `pack_pass` and `multiply_pass` for one packed format."""
    v = Vectors(form.isa)
    functions = [*_tiles(v, form), _pack_pass(form), _multiply_pass(form)]
    return ir.module_text(functions, sorted(v.declared))


def packing_text(form: Format, source: str) -> str:
    """IR of `pack_a` and `pack_b` from one source dtype to one packed format."""
    v = Vectors(form.isa)
    functions = [*_pack(v, form, source, form.rows, "a"), *_pack(v, form, source, form.columns, "b")]
    return ir.module_text(functions, sorted(v.declared))
