"""Generator of the packing of operands: from any strides and any float dtype to the panels the tile kernels read.

    packed a   [panel][step][rows]        packed b   [panel][step][columns]

A panel is `rows` (a) or `columns` (b) lines side by side, one step after another. A step is one k, or for "pairs" two
neighbouring k as two bfloat16 in 32 bits, which is what the bf16 instruction multiplies; rounding happens here. What a
panel with fewer lines has in their place (its last one again, or zeros where the source's lines lie side by side) gives
results that are never stored, so padding never meets real numbers. The missing half of an odd last pair is zero in both
operands.
"""

from __future__ import annotations

import math

from . import ir
from .ir import Function, Variable
from .vectors_ir import SIZE, STORAGE, Format, Vectors, shuffle

PACK_PARAMS = "ptr %source, i64 %line_step, i64 %k_step, i64 %lines, i64 %k, ptr %packed, i64 %panel_bytes"
K_BLOCK = 8  # steps of line-contiguous sources packed for all panels of a group before the next: they share pages and
# cache lines, and rows some power of two apart share places in the first level, of which there are eight or twelve


def _is_narrow(form: Format, width: int) -> bool:
    """Whether a step of a panel is less than a vector."""
    return width < form.lanes and form.per_step == 1


def overlaps(form: Format, width: int) -> bool:
    """Whether a step of a panel is written as a whole vector, its last lanes to be written over by the next step: one
    store in place of two. Behind the last step of a panel there is room for them. Vectors of a cache line would lie
    across two every time."""
    return _is_narrow(form, width) and form.isa.vector < 64


def _is_woven(form: Format, width: int) -> bool:
    """Whether neighbouring steps of a panel are put together in registers and written as whole vectors, which are cache
    lines then."""
    return _is_narrow(form, width) and form.isa.vector == 64


def element(v: Vectors, f: Function, form: Format, source: str, n: int, raw: str) -> str:
    """n stored elements in the packed format's element: accumulator values, or bfloat16 bits. Whole numbers of 8 bits
    are bfloat16's as they are."""
    as_bits = form.name in ("pairs", "tiles")
    if form.name in ("float32", "float64") or (source == "int8" and not as_bits):
        return v.widen(f, source, n, raw, form.accumulator)
    bits = raw if source == "bfloat16" else v.to_bfloat16(f, n, v.widen(f, source, n, raw, "float"))
    return bits if as_bits else v.widen(f, "bfloat16", n, bits, form.accumulator)


def _pack_some(v: Vectors, form: Format, source: str, width: int, side: str) -> Function:
    """One panel from step `first` on, element by element: any strides, and what the vector loops leave."""
    params = PACK_PARAMS.replace("i64 %panel_bytes", "i64 %first")
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


def transposed(f: Function, unit: str, n: int, rows: list[str]) -> list[str]:
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


def _woven_lines(f: Function, unit: str, n: int, lines: list[str]) -> list[str]:
    """What n steps of so many lines are in a panel, vector after vector; lines: vectors of n steps, an even number."""
    width, half = len(lines), n // 2
    pairs = [  # two lines, step by step, for the first and the second half of the steps
        [shuffle(f, unit, n, a, b, [first + i // 2 + n * (i % 2) for i in range(n)]) for first in (0, half)]
        for a, b in zip(lines[::2], lines[1::2], strict=True)
    ]
    found = []
    for j in range(width):
        places = [divmod(j * n + i, width) for i in range(n)]  # step and line of each lane
        late = places[0][0] // half
        lanes = [(line // 2, 2 * (step - late * half) + line % 2) for step, line in places]
        vector = pairs[0][late]
        for p in range(1, len(pairs)):
            order = [n + at if of == p else at if p == 1 else i for i, (of, at) in enumerate(lanes)]
            vector = shuffle(f, unit, n, vector, pairs[p][late], order)
        found.append(vector)
    return found


def _woven_steps(f: Function, stored: str, n: int, width: int, steps: list[str]) -> list[str]:
    """What steps of `width` lines are in a panel, as vectors of n elements that are not converted yet; steps: vectors
    of more lines than that, as many steps as fill whole vectors."""
    taken = _lines_taken(width)
    register = min(64 // SIZE[stored], len(steps) * taken)
    each = register // taken  # steps in a register
    joined, count = steps, taken
    while count < register:
        joined = [
            shuffle(f, stored, count, a, b, range(2 * count)) for a, b in zip(joined[::2], joined[1::2], strict=True)
        ]
        count *= 2
    found = []
    for j in range(len(steps) * width // n):
        places = [divmod(j * n + i, width) for i in range(n)]
        first = places[0][0] // each
        order = [(step // each - first) * register + step % each * taken + line for step, line in places]
        second = joined[min(first + 1, len(joined) - 1)]
        found.append(shuffle(f, stored, register, joined[first], second, order))
    return found


def _lines_taken(width: int) -> int:
    """Lines read at once of a step that is woven: a power of two."""
    return 1 << (width - 1).bit_length()


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
                if _is_woven(form, width) and 2 * width <= n:
                    for j, vector in enumerate(_woven_lines(f, unit, n, rows)):
                        to = f.at(panel, f.mul(s, width * out))
                        f.store(f"<{n} x {unit}>", vector, f.at(to, j * n * out), out)
                    continue
                rows += ["poison"] * (n - used)
                stored_lanes = n if overlaps(form, width) else used
                for u, column in enumerate(transposed(f, unit, n, rows)):
                    to = f.at(panel, f.mul(f.add(s, u), width * out))
                    kept = column if stored_lanes == n else shuffle(f, unit, n, column, "poison", range(used))
                    f.store(f"<{stored_lanes} x {unit}>", kept, f.at(to, group * out), out)
        f.do(
            f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {f.least(lines, width)}, "
            f"i64 %k, ptr {panel}, i64 {whole})"
        )


def _pack_line_contiguous(v: Vectors, f: Function, form: Format, source: str, width: int, some: Function) -> None:
    """Panels whose steps run along the lines: each step is a load and a store; pairs interleave two rows."""
    stored, unit, per = STORAGE[source], form.unit, form.per_step
    size = SIZE[stored]
    whole = f.div("%k", per)
    with f.loop(0, whole, K_BLOCK) as s0, f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, size))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.sub("%lines", first)
        stop = f.least(f.add(s0, K_BLOCK), whole)
        taken = form.lanes if overlaps(form, width) else width  # lanes of a load and a store
        full = f.is_("sge", lines, taken)
        mask = v.mask(f, taken, lines)

        def place(s: str, p: int) -> str:
            return f.at(here, f.mul(f.add(f.mul(s, per), p), "%k_step"))

        def ask(at: str) -> None:
            """A block ahead: hardware doesn't guess that the rows of the next one follow."""
            v.prefetch(f, f.at(at, f.mul("%k_step", K_BLOCK * per)))

        def write(s: str, within: str | None) -> None:
            values = []
            for p in range(per):
                at = place(s, p)
                if within is None:
                    ask(at)
                    raw = f.load(f"<{taken} x {stored}>", at, size)
                else:
                    raw = v.load_masked(f, stored, taken, at, within)
                values.append(element(v, f, form, source, taken, raw))
            to = f.at(panel, f.mul(s, width * SIZE[unit]))
            if per == 1:
                f.store(f"<{taken} x {unit}>", values[0], to, SIZE[unit])
            else:
                zipped = [lane // 2 + width * (lane % 2) for lane in range(2 * width)]
                f.store(f"<{2 * width} x i16>", shuffle(f, "i16", width, values[0], values[1], zipped), to, SIZE[unit])

        start = Variable(f, "i64", s0)
        if _is_woven(form, width):
            whole_block = f.is_("eq", f.sub(stop, s0), K_BLOCK)
            with f.when(f.let(f"and i1 {whole_block}, {f.is_('sge', lines, _lines_taken(width))}")):
                in_line = f.let(f"and i64 {f.mul(first, size)}, 63")
                with f.when(f.is_("slt", in_line, width * size)):  # of the panels that share a cache line, one asks
                    for i in range(K_BLOCK):
                        ask(place(f.add(s0, i), 0))
                at_once = form.lanes // math.gcd(form.lanes, width)
                with f.loop(s0, stop, at_once) as s:
                    kind = f"<{_lines_taken(width)} x {stored}>"
                    rows = [f.load(kind, place(f.add(s, i), 0), size) for i in range(at_once)]
                    for j, raw in enumerate(_woven_steps(f, stored, form.lanes, width, rows)):
                        to = f.at(panel, f.mul(s, width * SIZE[unit]))
                        value = element(v, f, form, source, form.lanes, raw)
                        f.store(f"<{form.lanes} x {unit}>", value, f.at(to, j * form.isa.vector), SIZE[unit])
                start.set(stop)
        for within, condition in ((None, full), (mask, f.let(f"xor i1 {full}, true"))):
            with f.when(condition), f.loop(start.get(), stop) as s:
                write(s, within)
    with f.when(f.is_("ne", f.mul(whole, per), "%k")), f.loop(0, "%lines", width) as first:
        here = f.at("%source", f.mul(first, size))
        panel = f.at("%packed", f.mul(f.div(first, width), "%panel_bytes"))
        lines = f.least(f.sub("%lines", first), width)
        f.do(
            f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {lines}, "
            f"i64 %k, ptr {panel}, i64 {whole})"
        )


def _pack(v: Vectors, form: Format, source: str, width: int, side: str) -> list[Function]:
    some = _pack_some(v, form, source, width, side)
    f = Function(f"pack_{side}", PACK_PARAMS)
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
        f.do(
            f"call void @{some.name}(ptr {here}, i64 %line_step, i64 %k_step, i64 {lines}, i64 %k, ptr {panel}, i64 0)"
        )
    return [some, f]


def packing_text(form: Format, source: str) -> str:
    """IR of `pack_a` and `pack_b` from one source dtype to one packed format."""
    v = Vectors(form.isa)
    functions = [*_pack(v, form, source, form.rows, "a"), *_pack(v, form, source, form.columns, "b")]
    return ir.module_text(functions, sorted(v.declared))
