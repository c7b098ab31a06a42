"""Generator of the matrix product's native code: the tile kernels and the two parallel passes around them.

`matmul.py` launches what `gemm_plan.py` has planned; everything on the hot path is here and in `pack_ir.py`, written
through `ir.Function` for one instruction path (`isa.Isa`) and one packed format. A tile of the result, isa.rows x
(isa.vectors * lanes), stays in registers while a panel of each operand is read straight through; every number of rows
has a kernel of its own, so that small products compute little that is thrown away.
"""

from __future__ import annotations

import itertools

from . import ir, tiles_ir
from .ir import Function, Variable
from .vectors_ir import SIZE, TILE_COLUMNS, TILE_LINES, TILE_ROWS, Format, Vectors, splat

#: Result formats of the tile kernel: as accumulated, bfloat16, float16.
PLAIN, BFLOAT16, FLOAT16 = 0, 1, 2


# --- register tiles ---------------------------------------------------------------------------------------------------

_TILE_PARAMS = (
    "i64 %steps, ptr %a, ptr %b, ptr %c, i64 %c_row, ptr %init, i64 %init_row, i64 %rows, i64 %columns, i64 %result"
)
_DIRECT_PARAMS = f"{_TILE_PARAMS}, i64 %a_row, i64 %a_step, i64 %b_step"
_PIECE = 8  # steps in tile registers whose panels of both operands stay in the first cache level together
_WAITING = 16  # tiles of which that many steps are added before the next ones
_BASES = 3  # rows that share a pointer in a direct tile: their steps are 0, 1 and 2 rows, which fit an address


def _tile(v: Vectors, form: Format, rows: int, vectors: int, last: Function, direct: bool) -> Function:
    """y[rows, columns] = init + a @ b over `steps`, all accumulators in registers; see `_tiles`."""
    params = _DIRECT_PARAMS if direct else _TILE_PARAMS
    f = Function(f"tile_{rows}x{vectors}", params, internal=True, attributes="nounwind noinline")
    kind, n, unit = form.accumulator, form.lanes, form.unit
    vector, size = f"<{n} x {kind}>", SIZE[form.accumulator]
    y = [[Variable(f, vector, "zeroinitializer") for _ in range(vectors)] for _ in range(rows)]
    starts = [f.at("%a", f.mul("%a_row", i)) for i in range(0, rows, _BASES)] if direct else ["%a"]
    a, b = [Variable(f, "ptr", start) for start in starts], Variable(f, "ptr", "%b")
    a_step = "%a_step" if direct else form.rows * SIZE[unit]
    b_step = "%b_step" if direct else form.columns * SIZE[unit]

    def step(a_now: list[str], b_now: str) -> None:
        align = SIZE[unit] if direct else form.isa.vector
        columns = [f.load(f"<{n} x {unit}>", f.at(b_now, j * form.isa.vector), align) for j in range(vectors)]
        for i in range(rows):
            if direct:
                at_a = f.at(a_now[i // _BASES], f.mul("%a_row", i % _BASES))
            else:
                at_a = f.at(a_now[0], i * SIZE[unit])
            value = splat(f, unit, f.load(unit, at_a, SIZE[unit] // form.per_step), n)
            for j in range(vectors):
                if form.name == "pairs":
                    y[i][j].set(v.dot_pairs(f, value, columns[j], y[i][j].get()))
                else:
                    y[i][j].set(v.multiply_add(f, kind, n, value, columns[j], y[i][j].get()))

    def steps(start: str, stop: str, unroll: int) -> None:
        with f.loop(start, stop, unroll):
            a_now, b_now = [x.get() for x in a], b.get()
            for _ in range(unroll):
                step(a_now, b_now)
                a_now, b_now = [f.at(x, a_step) for x in a_now], f.at(b_now, b_step)
            for x, following in zip(a, a_now, strict=True):
                x.set(following)
            b.set(b_now)

    unroll = 4 if rows * vectors >= form.rows and not direct else 2
    whole = f.let(f"and i64 %steps, {-unroll}")
    steps("0", whole, unroll)
    steps(whole, "%steps", 1)

    whole_row, plain = f.is_("eq", "%columns", vectors * n), f.is_("eq", "%result", PLAIN)
    narrow = f.is_("eq", "%result", BFLOAT16 if kind == "float" else PLAIN)
    simple = f.let(f"and i1 {whole_row}, {f.let(f'or i1 {plain}, {narrow}')}")
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
                y[i][j].set(
                    f.let(f"fadd {vector} {y[i][j].get()}, {f.load(vector, f.at(row, j * form.isa.vector), size)}")
                )
    with f.when(plain):
        for i in range(rows):
            row = f.at("%c", f.mul("%c_row", i))
            for j in range(vectors):
                f.store(vector, y[i][j].get(), f.at(row, j * form.isa.vector), size)
        f.leave()
    if kind == "float":
        for i in range(rows):
            row = f.at("%c", f.mul("%c_row", i))
            for j in range(vectors):
                f.store(f"<{n} x i16>", v.to_bfloat16(f, n, y[i][j].get()), f.at(row, j * n * 2), 2)
    return f


def finish(v: Vectors, form: Format) -> Function:
    """Stores sums that are not a whole plain tile: c = round(sums + init), any columns, any result format."""
    params = (
        "ptr %sums, i64 %sums_row, i64 %rows, i64 %columns, ptr %c, i64 %c_row, ptr %init, i64 %init_row, i64 %result"
    )
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


def _tiles(v: Vectors, form: Format, direct: bool) -> list[Function]:
    """`tile`: one panel of a times one panel of b, choosing the variant for the rows and vectors of columns in use.

    A direct tile reads operands that nobody packed: element (i, step) of a is a_row * i + a_step * step bytes from
    %a, and the columns of a step of b lie side by side, b_step bytes from step to step.
    """
    last, params = finish(v, form), _DIRECT_PARAMS if direct else _TILE_PARAMS
    sizes = itertools.product(range(1, form.rows + 1), range(1, form.isa.vectors + 1))
    variants = {(rows, n): _tile(v, form, rows, n, last, direct) for rows, n in sizes}
    f = Function("tile", params)
    for (rows, vectors), variant in reversed(variants.items()):
        fits = f.is_("eq", "%rows", rows)
        if vectors > 1:
            fits = f.let(f"and i1 {fits}, {f.is_('sgt', '%columns', (vectors - 1) * form.lanes)}")
        with f.when(fits):
            f.do(f"call void @{variant.name}({params})")
            f.leave()
    return [last, *variants.values(), f]


def _tile_registers(v: Vectors, form: Format, direct: bool) -> list[Function]:
    """`tile` in tile registers, choosing the variant as `_tiles` does; direct, it reads an unpacked a of whole steps
    and registers, and a packed b."""
    first, last, params = tiles_ir.init_rows(v), finish(v, form), _DIRECT_PARAMS if direct else _TILE_PARAMS
    variants = {
        shape: tiles_ir.tile(v, form, shape, params, (PLAIN, BFLOAT16), first, last, direct=direct)
        for shape in itertools.product(range(1, TILE_ROWS + 1), range(1, TILE_COLUMNS + 1))
    }
    f = Function("tile", params)
    for (rows, columns), variant in reversed(variants.items()):
        more_rows = f.is_("sgt", "%rows", (rows - 1) * TILE_LINES)
        more_columns = f.is_("sgt", "%columns", (columns - 1) * TILE_LINES)
        with f.when(f.let(f"and i1 {more_rows}, {more_columns}")):
            f.do(f"call void @{variant.name}({params})")
            f.leave()
    return [first, last, *variants.values(), f]


# --- the two passes ---------------------------------------------------------------------------------------------------

#: Words of the block that describe one operand to `pack_pass`; a's come first, then b's.
OPERAND = (
    "source",
    "line_step",
    "k_step",
    "lines",
    "per_group",
    "k_per_group",
    "k_groups",
    "groups",
    "packed",
    "panel_bytes",
    "batch_bytes",
    "offsets",
    "pack",
)
#: Words of the block of both passes.
WORDS = (
    *(f"a_{w}" for w in OPERAND),
    *(f"b_{w}" for w in OPERAND),
    *("k", "steps", "columns_of_tasks", "rows_of_tasks", "by_rows", "a_per_task", "b_per_task"),
    *("a_row", "a_step", "b_step", "a_now", "columns_at_once"),
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


def _pack(f: Function, side: str, source: str, lines: str, k: str, to: str) -> None:
    """Packs so many lines and k of an operand into panels."""
    line_step, k_step, panel_bytes, pack = words(
        f, *(f"{side}_{w}" for w in ("line_step", "k_step", "panel_bytes", "pack"))
    )
    f.do(
        f"call void {_pointer(f, pack)}(ptr {source}, i64 {line_step}, i64 {k_step}, i64 {lines}, i64 {k}, ptr {to}, "
        f"i64 {panel_bytes})"
    )


def _pack_pass(form: Format) -> Function:
    """Items are groups of panels, or blocks of k of them, a's then b's, batch after batch: packs groups lo to hi."""
    f = Function("pack_pass", "ptr %block, i64 %lo, i64 %hi")
    a_groups, b_groups, k = words(f, "a_groups", "b_groups", "k")
    each = f.add(a_groups, b_groups)
    with f.loop("%lo", "%hi") as item:
        batch, at = f.div(item, each), f.rem(item, each)
        is_a = f.is_("slt", at, a_groups)
        for side, width, condition in (("a", form.rows, is_a), ("b", form.columns, f.let(f"xor i1 {is_a}, true"))):
            with f.when(condition):
                group = at if side == "a" else f.sub(at, a_groups)
                source, line_step, k_step, lines, per, k_per, k_groups, packed, panel, batch_bytes, offsets = words(
                    f, *(f"{side}_{w}" for w in OPERAND if w not in ("groups", "pack"))
                )
                first = f.mul(f.div(group, k_groups), per)  # panel
                line, k0 = f.mul(first, width), f.mul(f.rem(group, k_groups), k_per)
                offset = f.load("i64", f.at(_pointer(f, offsets), f.mul(batch, 8)), 8)
                here = f.at(f.at(_pointer(f, source), offset), f.add(f.mul(line, line_step), f.mul(k0, k_step)))
                count = f.least(f.mul(per, width), f.sub(lines, line))
                to = f.at(f.at(_pointer(f, packed), f.mul(batch, batch_bytes)), f.mul(first, panel))
                to = f.at(to, f.mul(f.div(k0, form.per_step), width * SIZE[form.unit]))
                _pack(f, side, here, count, f.least(k_per, f.sub(k, k0)), to)
    return f


def _multiply_pass(v: Vectors, form: Format, direct: bool) -> Function:
    """Items are blocks of tiles, row after row or column after column, batch after batch: multiplies panels into blocks
    lo to hi. An a that is to be packed `now` is by the item that multiplies it.

    In a direct pass an operand may be unpacked: `packed` is then its own address, `panel_bytes` its step from panel to
    panel, and its batches lie at `offsets`.
    """
    f = Function("multiply_pass", "ptr %block, i64 %lo, i64 %hi")
    down, across, by_rows, per_a, per_b, rows, columns = words(
        f, "rows_of_tasks", "columns_of_tasks", "by_rows", "a_per_task", "b_per_task", "a_lines", "b_lines"
    )
    if form.name == "tiles":
        tiles_ir.begin(f)
    each, along_rows = f.mul(down, across), f.is_("ne", by_rows, 0)
    inner = f.let(f"select i1 {along_rows}, i64 {across}, i64 {down}")
    with f.loop("%lo", "%hi") as item:
        batch, at = f.div(item, each), f.rem(item, each)
        first, then = f.div(at, inner), f.rem(at, inner)
        row, column = (f.let(f"select i1 {along_rows}, i64 {x}, i64 {y}") for x, y in ((first, then), (then, first)))
        row0 = f.mul(f.mul(row, per_a), form.rows)
        column0 = f.mul(f.mul(column, per_b), form.columns)
        row1 = f.least(rows, f.add(row0, f.mul(per_a, form.rows)))
        column1 = f.least(columns, f.add(column0, f.mul(per_b, form.columns)))
        now, a_source, line_step, panel, k = words(f, "a_now", "a_source", "a_line_step", "a_panel_bytes", "k")
        with f.when(f.is_("ne", now, 0)):
            lines = f.at(_pointer(f, a_source), f.mul(row0, line_step))
            (packed,) = pointers(f, "a_packed")
            _pack(f, "a", lines, f.sub(row1, row0), k, f.at(packed, f.mul(f.div(row0, form.rows), panel)))
        _multiply(v, f, form, direct, batch, (row0, row1), (column0, column1))
    if form.name == "tiles":
        tiles_ir.end(f)
    return f


def _multiply(
    v: Vectors, f: Function, form: Format, direct: bool, batch: str, rows: tuple[str, str], columns: tuple[str, str]
) -> None:
    """Tile after tile, row by row, each over all steps; in tile registers over some steps of a few tiles at once: a
    panel of a, used by tile after tile, and the next one of b are in the first cache level then. Sums wait in memory
    meanwhile."""
    steps, a_lines, b_lines, a_panel, b_panel, a_row, a_step, b_step = words(
        f, "steps", "a_lines", "b_lines", "a_panel_bytes", "b_panel_bytes", "a_row", "a_step", "b_step"
    )
    c_row, c_column, init, init_row, init_column, result = words(
        f, "c_row", "c_column", "init", "init_row", "init_column", "result"
    )
    a, b, c, start = (
        f.at(_pointer(f, place), f.mul(batch, each))
        for place, each in (
            words(f, "a_packed", "a_batch_bytes"),
            words(f, "b_packed", "b_batch_bytes"),
            words(f, "c", "c_batch"),
            words(f, "init", "init_batch"),
        )
    )
    a_bytes, b_bytes, unpacked = form.rows * SIZE[form.unit], form.columns * SIZE[form.unit], ""
    if direct:
        offsets = (f.load("i64", f.at(of, f.mul(batch, 8)), 8) for of in pointers(f, "a_offsets", "b_offsets"))
        a, b = (f.at(x, offset) for x, offset in zip((a, b), offsets, strict=True))
        a_bytes, b_bytes, unpacked = a_step, b_step, f", i64 {a_row}, i64 {a_step}, i64 {b_step}"
    sums_row = form.columns * SIZE[form.accumulator]
    piece = some = f.add(steps, f.let(f"zext i1 {f.is_('eq', steps, 0)} to i64"))  # over no steps, sums are stored too
    (at_once,), sums = words(f, "columns_at_once"), "null"
    if form.name == "tiles":
        pieces = f.div(f.add(some, _PIECE - 1), _PIECE)
        piece = f.div(f.add(some, f.sub(pieces, 1)), pieces)
        at_once, sums = str(_WAITING * form.columns), f.slot("i8", count=_WAITING * form.rows * sums_row)
    with f.loop(*columns, at_once) as j0, f.loop(*rows, form.rows) as i, f.loop(0, some, piece) as step:
        count = f.least(f.sub(steps, step), piece)
        begins, ends = f.is_("eq", step, 0), f.is_("sge", f.add(step, piece), steps)
        a_now = f.at(a, f.add(f.mul(f.div(i, form.rows), a_panel), f.mul(step, a_bytes)))
        m = f.least(f.sub(a_lines, i), form.rows)
        from_row = f.let(f"select i1 {begins}, i64 {init_row}, i64 {sums_row}")
        to_row = f.let(f"select i1 {ends}, i64 {c_row}, i64 {sums_row}")
        how = f.let(f"select i1 {ends}, i64 {result}, i64 {PLAIN}")
        # sums that are stored as they are: a tile's memory is asked for, to be there when they are written
        asks = f.let(f"and i1 {begins}, {f.is_('eq', result, PLAIN)}")
        reads = f.let(f"and i1 {begins}, {f.is_('ne', init_row, 0)}")
        with f.loop(j0, f.least(columns[1], f.add(j0, at_once)), form.columns) as j:
            b_now = f.at(b, f.add(f.mul(f.div(j, form.columns), b_panel), f.mul(step, b_bytes)))
            n = f.least(f.sub(b_lines, j), form.columns)
            waiting = f.at(sums, f.mul(f.div(f.sub(j, j0), form.columns), form.rows * sums_row))
            to = f.at(c, f.add(f.mul(i, c_row), f.mul(j, c_column)))
            given = f.at(start, f.add(f.mul(i, init_row), f.mul(j, init_column)))
            for wanted, tile, row, writes in ((asks, to, c_row, True), (reads, given, init_row, False)):
                with f.when(wanted), f.loop(0, m) as line:
                    for here in range(0, sums_row, 64):
                        v.prefetch(f, f.at(f.at(tile, f.mul(line, row)), here), for_writing=writes)
            given = f.let(f"select i1 {f.is_('ne', init, 0)}, ptr {given}, ptr null")
            given = f.let(f"select i1 {begins}, ptr {given}, ptr {waiting}")
            to = f.let(f"select i1 {ends}, ptr {to}, ptr {waiting}")
            f.do(
                f"call void @tile(i64 {count}, ptr {a_now}, ptr {b_now}, ptr {to}, i64 {to_row}, ptr {given}, "
                f"i64 {from_row}, i64 {m}, i64 {n}, i64 {how}{unpacked})"
            )


#: Arguments of `program`: the addresses of what its steps compute on, where the steps are, the pool's own `run`.
BASES = ("a", "b", "bias", "y", "scratch")
PROGRAM = (*BASES, "steps", "run")
#: A step in the memory of a program: what to launch, then the words of its block that begin with one of the bases, as
#: pairs of the word's number and the base's, then the block without the bases.
STEP = ("address", "items", "grain", "n_bases")
MOST_BASES = 6
STEP_WORDS = len(STEP) + 2 * MOST_BASES + len(WORDS)


def program_text() -> str:
    """IR of `program`: one item, every launch of a product, one after another, without Python in between. Its block is
    that of a launch (`launch_ir`): two words before the arguments, two for each."""
    f = Function("program", "ptr %block, i64 %lo, i64 %hi")
    places = {name: 16 + 16 * i for i, name in enumerate(PROGRAM)}
    run, steps = (_pointer(f, f.load("i64", f.at("%block", places[name]), 8)) for name in ("run", "steps"))
    block = f.slot("i64", count=len(WORDS))
    with f.loop(0, f.load("i64", steps, 8)) as i:
        here = f.at(steps, f.add(f.mul(i, 8 * STEP_WORDS), 8))
        address, items, grain, n_bases = (f.load("i64", f.at(here, 8 * j), 8) for j in range(len(STEP)))
        pairs = f.at(here, 8 * len(STEP))
        words_here = f.at(pairs, 16 * MOST_BASES)
        with f.loop(0, len(WORDS)) as w:
            f.store("i64", f.load("i64", f.at(words_here, f.mul(w, 8)), 8), f.at(block, f.mul(w, 8)), 8)
        with f.loop(0, n_bases) as p:
            pair = f.at(pairs, f.mul(p, 16))
            word, base = f.load("i64", pair, 8), f.load("i64", f.at(pair, 8), 8)
            start = f.load("i64", f.at("%block", f.add(f.mul(base, 16), 16)), 8)
            to = f.at(block, f.mul(word, 8))
            f.store("i64", f.add(f.load("i64", to, 8), start), to, 8)
        f.do(f"call void {run}(ptr {_pointer(f, address)}, ptr {block}, i64 {items}, i64 {grain})")
    return ir.module_text([f])


def product_text(form: Format) -> str:
    """IR of `tile`, `pack_pass` and `multiply_pass` for one packed format."""
    return _text(form, False)


def direct_text(form: Format) -> str:
    """IR of `tile` and `multiply_pass` for operands that nobody packed; of "pairs", for an a alone."""
    return _text(form, True)


def _text(form: Format, direct: bool) -> str:
    v = Vectors(form.isa)
    is_tiles = form.name == "tiles"
    tiles = _tile_registers(v, form, direct) if is_tiles else _tiles(v, form, direct)
    passes = [_multiply_pass(v, form, direct)] if direct else [_pack_pass(form), _multiply_pass(v, form, direct)]
    return ir.module_text([*tiles, *passes], [*sorted(v.declared), *(tiles_ir.DECLARATIONS if is_tiles else ())])
