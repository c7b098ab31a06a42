"""Generator of the matrix product of bfloat16 on a processor with tile registers (Intel AMX).

A tile register holds 16 rows of 64 bytes, and one instruction adds the product of two of them to a third: 16 x 32 times
32 x 16 bfloat16, sums in float32. The passes around are those of every other format (`gemm_ir`); here are the tile
kernel and the packing. A step is 32 k, and a packed panel holds, step after step, one register's content for each 16 of
its lines, 1024 bytes in a row:

    packed a   [panel][step][16 lines][line][16 pairs of k]     packed b   [panel][step][16 lines][16 pairs of k][line]

A block of the result is two by two registers, which reads least. That leaves four for operands, and the kernel uses
three: the processor renames tile registers from few spare ones, fewer still while a neighbour runs on the same core, so
that there a kernel in seven registers was measured up to 1.3 times as fast as the same in eight.
"""

from __future__ import annotations

from . import ir
from .ir import Function
from .pack_ir import PACK_PARAMS, element, transposed
from .vectors_ir import SIZE, STORAGE, TILE_LINES, Format, Vectors, shuffle

_LINE = 64  # bytes of a row of a register
_TILE = TILE_LINES * _LINE

_INTRINSICS = (
    "declare void @llvm.x86.ldtilecfg(ptr)",
    "declare void @llvm.x86.tilerelease()",
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
)


def configuration() -> list[int]:
    """The 64 bytes that make every register 16 rows of 64 bytes   (Intel SDM, LDTILECFG)."""
    return [1, *[0] * 15, *[_LINE, 0] * 8, *[0] * 16, *[TILE_LINES] * 8, *[0] * 8]


_REGISTERS = f"@registers = internal constant [64 x i8] [{', '.join(f'i8 {v}' for v in configuration())}], align 64"
DECLARATIONS = (*_INTRINSICS, _REGISTERS)


def begin(f: Function) -> None:
    """Before the first tile of a pass on a thread."""
    f.do("call void @llvm.x86.ldtilecfg(ptr @registers)")


def end(f: Function) -> None:
    """After the last one: registers in use make every switch between threads dearer."""
    f.do("call void @llvm.x86.tilerelease()")


# --- the tile kernel --------------------------------------------------------------------------------------------------


def init_rows(v: Vectors) -> Function:
    """Copies what sums start from to a whole block: sums[rows, columns] = init; the rest of a vector is zero."""
    params = "ptr %sums, i64 %sums_row, i64 %rows, i64 %columns, ptr %init, i64 %init_row"
    f = Function("init_rows", params, internal=True, attributes="nounwind noinline")
    n = TILE_LINES
    with f.loop(0, "%rows") as i, f.loop(0, "%columns", n) as j:
        mask = v.mask(f, n, f.sub("%columns", j))
        value = v.load_masked(f, "float", n, f.at("%init", f.add(f.mul(i, "%init_row"), f.mul(j, 4))), mask)
        f.store(f"<{n} x float>", value, f.at("%sums", f.add(f.mul(i, "%sums_row"), f.mul(j, 4))), _LINE)
    return f


def _narrow(v: Vectors, f: Function, sums: str, lines: int, columns: int) -> None:
    """c = bfloat16(sums) for a whole block, some lines at once."""
    n, some = TILE_LINES, 4
    with f.loop(0, lines, some) as first:
        for i in range(some):
            line = f.add(first, i)
            for j in range(columns):
                value = f.load(f"<{n} x float>", f.at(sums, f.add(f.mul(line, columns * _LINE), j * _LINE)), _LINE)
                to = f.at("%c", f.add(f.mul(line, "%c_row"), j * n * 2))
                f.store(f"<{n} x i16>", v.to_bfloat16(f, n, value), to, 2)


def tile(
    v: Vectors, form: Format, shape: tuple[int, int], params: str, results: tuple[int, int], first: Function,
    last: Function, *, direct: bool,
) -> Function:  # fmt: skip
    """y = init + a @ b for a block of `shape` registers; see `gemm_ir._tiles`. `results`: the numbers of its plain and
    its bfloat16 result. With `direct`, line i of a lies a_row * i bytes from %a, and a step is a_step bytes long."""
    (rows, columns), (plain, bfloat16) = shape, results
    f = Function(f"tile_{rows}x{columns}", params, internal=True, attributes="nounwind noinline")
    row = columns * _LINE
    sums = f.slot("<16 x float>", count=rows * TILE_LINES * columns)
    whole = f.let(f"and i1 {f.is_('eq', '%rows', rows * TILE_LINES)}, {f.is_('eq', '%columns', columns * TILE_LINES)}")
    has_init = f.let("icmp ne ptr %init, null")
    cells = [(i, j) for i in range(rows) for j in range(columns)]

    def each(do: str, base: str, step: str | int) -> None:
        for i, j in cells:
            at = f.at(f.at(base, f.mul(step, i * TILE_LINES)), j * _LINE)
            f.do(f"call void @llvm.x86.{do}64(i8 {i * columns + j}, ptr {at}, i64 {step})")

    with f.when(f.let(f"xor i1 {has_init}, true")):
        for cell in range(len(cells)):
            f.do(f"call void @llvm.x86.tilezero(i8 {cell})")
    with f.when(f.let(f"and i1 {has_init}, {whole}")):
        each("tileloadd", "%init", "%init_row")
    with f.when(f.let(f"and i1 {has_init}, {f.let(f'xor i1 {whole}, true')}")):
        f.do(f"call void @{first.name}(ptr {sums}, i64 {row}, i64 %rows, i64 %columns, ptr %init, i64 %init_row)")
        each("tileloadd", sums, row)
    step_bytes = {"a": "%a_step" if direct else form.rows * _LINE, "b": form.columns * _LINE}
    line_bytes = {"a": "%a_row" if direct else _LINE, "b": _LINE}
    a, b = len(cells), range(len(cells) + 1, len(cells) + 1 + columns)  # a's registers pass through one, b's stay

    def load(register: int, side: str, now: dict[str, str], i: int) -> None:
        line = line_bytes[side]
        at = f.at(now[side], f.mul(line, i * TILE_LINES))
        f.do(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {at}, i64 {line})")

    with f.loop(0, "%steps") as s:
        now = {side: f.at(f"%{side}", f.mul(s, nbytes)) for side, nbytes in step_bytes.items()}
        for i in range(rows):
            load(a, "a", now, i)
            for j in range(columns):
                if i == 0:  # as late as can be: products begin with the first pair
                    load(b[j], "b", now, j)
                f.do(f"call void @llvm.x86.tdpbf16ps(i8 {i * columns + j}, i8 {a}, i8 {b[j]})")
    with f.when(f.let(f"and i1 {whole}, {f.is_('eq', '%result', plain)}")):
        each("tilestored", "%c", "%c_row")
        f.leave()
    each("tilestored", sums, row)
    with f.when(f.let(f"and i1 {whole}, {f.is_('eq', '%result', bfloat16)}")):
        _narrow(v, f, sums, rows * TILE_LINES, columns)
        f.leave()
    f.do(
        f"call void @{last.name}(ptr {sums}, i64 {row}, i64 %rows, i64 %columns, ptr %c, i64 %c_row, "
        "ptr null, i64 0, i64 %result)"
    )
    return f


# --- packing ----------------------------------------------------------------------------------------------------------


class _Packer:
    """The packing of one operand: 16 lines x 32 k at a time, as they lie in memory, turned where they have to be."""

    def __init__(self, v: Vectors, form: Format, source: str, width: int, side: str) -> None:
        self.v, self.form, self.source, self.side = v, form, source, side
        self.stored, self.size = STORAGE[source], SIZE[STORAGE[source]]
        self.tiles = width // TILE_LINES
        self.f = f = Function(f"pack_{side}", PACK_PARAMS)
        self.k_steps = f.div("%k", form.per_step)
        self.rest = f.is_("ne", f.mul(self.k_steps, form.per_step), "%k")

    def _to(self, line: str, step: str) -> str:
        """Where 16 lines from `line` on go."""
        f = self.f
        group = f.div(line, TILE_LINES)
        panel = f.at("%packed", f.mul(f.div(group, self.tiles), "%panel_bytes"))
        return f.at(panel, f.mul(f.add(f.mul(step, self.tiles), f.rem(group, self.tiles)), _TILE))

    def _bits(self, n: int, raw: str) -> str:
        return element(self.v, self.f, self.form, self.source, n, raw)

    def _store(self, rows: list[str], to: str, *, by_line: bool) -> None:
        """16 vectors of 16 pairs: `by_line`, each of one line, else each of one pair of k."""
        if by_line != (self.side == "a"):
            rows = transposed(self.f, "i32", TILE_LINES, rows)
        for i, row in enumerate(rows):
            self.f.store(f"<{TILE_LINES} x i32>", row, self.f.at(to, i * _LINE), _LINE)

    def _along_k(self, starts: list[str], step: str, to: str, valid: str | None) -> None:
        """Lines contiguous along k; `valid` of the step's k exist (None: all)."""
        f, k = self.f, self.form.per_step
        offset = f.mul(step, k * self.size)
        mask = None if valid is None else self.v.mask(f, k, valid)
        rows = []
        for start in starts:
            at = f.at(start, offset)
            if mask is None:
                raw = f.load(f"<{k} x {self.stored}>", at, self.size)
            else:
                raw = self.v.load_masked(f, self.stored, k, at, mask)
            rows.append(f.let(f"bitcast <{k} x i16> {self._bits(k, raw)} to <{k // 2} x i32>"))
        self._store(rows, to, by_line=True)

    def k_contiguous(self) -> None:
        f = self.f
        with f.loop(0, "%lines", TILE_LINES) as line:
            last = f.sub(f.least(f.sub("%lines", line), TILE_LINES), 1)
            here = f.at("%source", f.mul(line, "%line_step"))
            starts = [f.at(here, f.mul(f.least(i, last), "%line_step")) for i in range(TILE_LINES)]
            with f.loop(0, self.k_steps) as step:
                self._along_k(starts, step, self._to(line, step), None)
            with f.when(self.rest):
                valid = f.sub("%k", f.mul(self.k_steps, self.form.per_step))
                self._along_k(starts, self.k_steps, self._to(line, self.k_steps), valid)

    def _along_lines(self, line: str, step: str, valid: str | None) -> None:
        """Lines contiguous in memory for each k."""
        f, n = self.f, TILE_LINES
        k0 = f.mul(step, self.form.per_step)
        here = f.at(f.at("%source", f.mul(line, self.size)), f.mul(k0, "%k_step"))
        rows = []
        for k in range(self.form.per_step):
            at = f.at(here, f.mul("%k_step", k))
            if valid is None:
                raw = f.load(f"<{n} x {self.stored}>", at, self.size)
            else:
                count = f.let(f"select i1 {f.is_('slt', f.add(k0, k), '%k')}, i64 {valid}, i64 0")
                raw = self.v.load_masked(f, self.stored, n, at, self.v.mask(f, n, count))
            rows.append(self._bits(n, raw))
        zipped = [lane // 2 + n * (lane % 2) for lane in range(2 * n)]
        pairs = [shuffle(f, "i16", n, a, b, zipped) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        pairs = [f.let(f"bitcast <{2 * n} x i16> {p} to <{n} x i32>") for p in pairs]
        self._store(pairs, self._to(line, step), by_line=False)

    def line_contiguous(self) -> None:
        f = self.f
        with f.loop(0, f.add(self.k_steps, f.let(f"zext i1 {self.rest} to i64"))) as step:
            inside = f.is_("slt", step, self.k_steps)
            with f.loop(0, "%lines", TILE_LINES) as line:
                left = f.sub("%lines", line)
                whole = f.let(f"and i1 {inside}, {f.is_('sge', left, TILE_LINES)}")
                with f.when(whole):
                    self._along_lines(line, step, None)
                with f.when(f.let(f"xor i1 {whole}, true")):
                    self._along_lines(line, step, left)

    def any_strides(self) -> None:
        """Element by element into rows of their own, which then are lines contiguous along k."""
        f, k = self.f, self.form.per_step
        block = f.slot("i16", count=TILE_LINES * k)
        starts = [f.at(block, i * _LINE) for i in range(TILE_LINES)]
        last_line, last_k = f.sub("%lines", 1), f.sub("%k", 1)
        steps = f.add(self.k_steps, f.let(f"zext i1 {self.rest} to i64"))
        with f.loop(0, "%lines", TILE_LINES) as line, f.loop(0, steps) as step:
            with f.loop(0, TILE_LINES) as i, f.loop(0, k) as p:
                at_k = f.add(f.mul(step, k), p)
                at = f.add(
                    f.mul(f.least(f.add(line, i), last_line), "%line_step"), f.mul(f.least(at_k, last_k), "%k_step")
                )
                bits = self._bits(1, f.load(f"<1 x {self.stored}>", f.at("%source", at), self.size))
                kept = f.let(f"select i1 {f.is_('slt', at_k, '%k')}, <1 x i16> {bits}, <1 x i16> zeroinitializer")
                f.store("<1 x i16>", kept, f.at(block, f.add(f.mul(i, _LINE), f.mul(p, 2))), 2)
            rows = [f.load(f"<{TILE_LINES} x i32>", start, _LINE) for start in starts]
            self._store(rows, self._to(line, step), by_line=True)

    def function(self) -> Function:
        f = self.f
        with f.when(f.is_("eq", "%k_step", self.size)):
            self.k_contiguous()
            f.leave()
        with f.when(f.is_("eq", "%line_step", self.size)):
            self.line_contiguous()
            f.leave()
        self.any_strides()
        return f


def packing_text(form: Format, source: str) -> str:
    """IR of `pack_a` and `pack_b` from one source dtype."""
    v = Vectors(form.isa)
    functions = [
        _Packer(v, form, source, width, side).function() for side, width in (("a", form.rows), ("b", form.columns))
    ]
    return ir.module_text(functions, sorted(v.declared))
