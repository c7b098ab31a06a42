"""Generator of the passes of a decode step between its products, and of the step as one call.

    look_up    the row of a token in the table
    rotate     rotary positions of q and k; k and v go into the cache
    attend     softmax(scale q k^T) v for one query a head, over slices of the positions
    merge      o, from what each slice found
    chain      the launches of a whole step, one after another, without Python in between

Token and position are read from memory where the program keeps them, so nothing else in it changes from token to token.
"""

from __future__ import annotations

from . import ir
from .floats_ir import Floats, pointers_of, words_of
from .ir import Function, Variable
from .vectors_ir import SIZE, STORAGE, Format

#: Words of the block of each pass, and of a launch in the block of `chain`, which begins with HEAD.
LOOK_UP = ("table", "scale", "itemsize", "width", "x", "token")
ROTATE = ("q", "k", "v", "heads", "kv_heads", "half", "cos", "sin", "keys", "values", "interleaved", "position")
ATTEND = (
    "q",
    "keys",
    "values",
    "scores",
    "scores_row",
    "sums",
    "sums_row",
    "group",
    "together",
    "d",
    "row",
    "scale",
    "position",
)
MERGE = ("sums", "sums_row", "o", "heads", "d", "position")
HEAD = ("run", "launches")
LAUNCH = ("address", "block", "items", "grain")

#: Query heads at most that read keys and values together: their sums, numbers and a key fill sixteen registers.
MOST_TOGETHER = 3
SLICES = 4  # of the positions at most: enough items for any number of threads, which get the same bits
FOUND = 64  # bytes before the sums of a slice: its largest score, and the sum of its powers
_SLICE = 192  # positions for each slice more: fewer cost less than to put together what was found in them
_SCORES = 16  # of a cache line, which no two slices share
_AHEAD = 16  # positions from the key or value that is read to the one asked of memory: those of a head lie apart
_TOGETHER = 4  # keys whose scores, or vectors of features whose sums, are made at once
_LOWEST = "0xFFF0000000000000"  # minus infinity


def _look_up(e: Floats) -> Function:
    """One item: x = table[token] scale[token] in float32; the size of the table's numbers says which they are."""
    f = Function("look_up", "ptr %block, i64 %lo, i64 %hi")
    itemsize, width = words_of(f, LOOK_UP, "itemsize", "width")
    table, scale, x, cell = pointers_of(f, LOOK_UP, "table", "scale", "x", "token")
    token, factor = f.load("i64", cell, 8), Variable(f, "float", "1.0")
    with f.when(f.let(f"icmp ne ptr {scale}, null")):
        factor.set(f.load("float", f.at(scale, f.mul(token, 4)), 4))
    row, unit = f.at(table, f.mul(f.mul(token, width), itemsize)), e.splat(f, factor.get())
    for source in ("int8", "bfloat16", "float32"):
        stored = STORAGE[source]
        with f.when(f.is_("eq", itemsize, SIZE[stored])), f.loop(0, width, e.n) as i:
            mask = e.mask(f, f.sub(width, i))
            raw = e.v.load_masked(f, stored, e.n, f.at(row, f.mul(i, SIZE[stored])), mask)
            value = e.v.widen(f, source, e.n, raw, "float")
            e.store(f, e.op(f, "fmul", value, unit), x, i, mask)
    return f


def _rotate(e: Floats) -> Function:
    """One item: q rotated in place, k rotated into the cache, v copied into it."""
    f = Function("rotate", "ptr %block, i64 %lo, i64 %hi")
    heads, kv_heads, half, interleaved = words_of(f, ROTATE, "heads", "kv_heads", "half", "interleaved")
    q, k, v, cos, sin, keys, values, cell = pointers_of(
        f, ROTATE, "q", "k", "v", "cos", "sin", "keys", "values", "position"
    )
    position, row = f.load("i64", cell, 8), f.mul(f.mul(kv_heads, half), 8)
    cos, sin = (f.at(table, f.mul(f.mul(position, half), 4)) for table in (cos, sin))
    keys, values = (f.at(cache, f.mul(position, row)) for cache in (keys, values))
    width, in_pairs = f.mul(half, 2), f.is_("ne", interleaved, 0)
    apart = f.let(f"xor i1 {in_pairs}, true")
    for source, to, count in ((q, q, heads), (k, keys, kv_heads)):
        with f.loop(0, count) as head:
            start = f.mul(head, width)
            with f.when(apart), f.loop(0, half, e.n) as i:
                mask = e.mask(f, f.sub(half, i))
                one, two = f.add(start, i), f.add(f.add(start, half), i)
                a, b = e.load(f, source, one, mask), e.load(f, source, two, mask)
                c, s = e.load(f, cos, i, mask), e.load(f, sin, i, mask)
                first = e.op(f, "fsub", e.op(f, "fmul", a, c), e.op(f, "fmul", b, s))
                second = e.op(f, "fadd", e.op(f, "fmul", b, c), e.op(f, "fmul", a, s))
                e.store(f, first, to, one, mask)
                e.store(f, second, to, two, mask)
            with f.when(in_pairs), f.loop(0, half) as i:
                at = f.mul(f.add(start, f.mul(i, 2)), 4)
                a, b = (f.load("float", f.at(f.at(source, at), 4 * j), 4) for j in range(2))
                c, s = (f.load("float", f.at(table, f.mul(i, 4)), 4) for table in (cos, sin))
                products = [f.let(f"fmul float {x}, {y}") for x, y in ((a, c), (b, s), (b, c), (a, s))]
                f.store("float", f.let(f"fsub float {products[0]}, {products[1]}"), f.at(to, at), 4)
                f.store("float", f.let(f"fadd float {products[2]}, {products[3]}"), f.at(f.at(to, at), 4), 4)
    total = f.mul(kv_heads, width)
    with f.loop(0, total, e.n) as i:
        mask = e.mask(f, f.sub(total, i))
        e.store(f, e.load(f, v, i, mask), values, i, mask)
    return f


def _attend(e: Floats) -> Function:
    """Items are key/value heads with `together` of the `group` query heads that read them, and of these the slices of
    the positions 0 to `position`: the sums of 2**(score - largest) value, and what they are to be put together with.

    Scores lie in a row of memory for each query head, in units of log 2: `scale` has log2(e) in it. Keys have d
    features, `row` floats from position to position.
    """
    f = Function("attend", "ptr %block, i64 %lo, i64 %hi")
    scores_row, sums_row, group, together, d, row = words_of(
        f, ATTEND, "scores_row", "sums_row", "group", "together", "d", "row"
    )
    q, keys, values, scores, sums, cell = pointers_of(f, ATTEND, "q", "keys", "values", "scores", "sums", "position")
    scale = e.splat(f, f.load("float", f.at("%block", 8 * ATTEND.index("scale")), 8))
    filled, row = f.add(f.load("i64", cell, 8), 1), f.mul(row, 4)
    size, parts = _slice_size(f, filled), f.div(f.add(group, f.sub(together, 1)), together)
    with f.loop("%lo", "%hi") as item:
        piece, some = f.rem(item, SLICES), f.div(item, SLICES)
        start = f.mul(piece, size)
        count = f.least(size, f.sub(filled, start))
        shared, begin = f.div(some, parts), f.mul(f.rem(some, parts), together)
        first, heads = f.add(f.mul(shared, group), begin), f.least(together, f.sub(group, begin))
        here = f.add(f.mul(f.mul(shared, d), 4), f.mul(start, row))
        for n in range(1, MOST_TOGETHER + 1):
            wanted = f.let(f"and i1 {f.is_('eq', heads, n)}, {f.is_('sgt', count, 0)}")
            with f.when(wanted):
                own = [f.add(first, h) for h in range(n)]
                s = [f.at(f.at(scores, f.mul(h, scores_row)), f.mul(start, 4)) for h in own]
                to = [f.at(sums, f.mul(f.add(f.mul(h, SLICES), piece), sums_row)) for h in own]
                _score(e, f, [f.at(q, f.mul(f.mul(h, d), 4)) for h in own], f.at(keys, here), row, count, d, s)
                for found, of in zip(to, s, strict=True):
                    _soften(e, f, of, count, scale, found)
                _weigh(e, f, s, f.at(values, here), row, count, d, [f.at(found, FOUND) for found in to])
    return f


def _slice_size(f: Function, filled: str) -> str:
    """Positions of a slice: the same for any number of threads."""
    unit = f.mul(f.add(f.least(f.div(filled, _SLICE), SLICES - 1), 1), _SCORES)
    return f.mul(f.div(f.add(filled, f.sub(unit, 1)), unit), _SCORES)


def _soften(e: Floats, f: Function, s: str, count: str, scale: str, found: str) -> None:
    """s = 2**(scale s - the largest of them); the largest and their sum are what is found."""
    highest = Variable(f, e.vector, e.number(_LOWEST))
    with f.loop(0, count, e.n) as j:
        mask = e.mask(f, f.sub(count, j))
        value = e.op(f, "fmul", e.load(f, s, j, mask), scale)
        e.store(f, value, s, j, mask)
        value = f.let(f"select <{e.n} x i1> {mask}, {e.vector} {value}, {e.vector} {e.number(_LOWEST)}")
        larger = f.let(f"fcmp ogt {e.vector} {value}, {highest.get()}")
        highest.set(f.let(f"select <{e.n} x i1> {larger}, {e.vector} {value}, {e.vector} {highest.get()}"))
    call = e.declare("float", f"llvm.vector.reduce.fmax.v{e.n}f32", e.vector)
    largest = f.let(f"{call}({e.vector} {highest.get()})")
    top, total = e.splat(f, largest), Variable(f, e.vector, "zeroinitializer")
    with f.loop(0, count, e.n) as j:
        mask = e.mask(f, f.sub(count, j))
        power = e.exp2(f, e.op(f, "fsub", e.load(f, s, j, mask), top))
        e.store(f, power, s, j, mask)
        inside = f.let(f"select <{e.n} x i1> {mask}, {e.vector} {power}, {e.vector} zeroinitializer")
        total.set(e.op(f, "fadd", total.get(), inside))
    f.store("float", largest, found, 4)
    f.store("float", e.total(f, total.get()), f.at(found, 4), 4)


def _merge(e: Floats) -> Function:
    """One item: o = sum of 2**(top_s - top) sums_s over the slices s of each query head, over the same sum of their
    powers; top_s is the largest score of a slice   (Milakov & Gimelshein 2018)."""
    f = Function("merge", "ptr %block, i64 %lo, i64 %hi")
    sums_row, heads, d = words_of(f, MERGE, "sums_row", "heads", "d")
    sums, o, cell = pointers_of(f, MERGE, "sums", "o", "position")
    filled = f.add(f.load("i64", cell, 8), 1)
    size = _slice_size(f, filled)
    slices, factors = f.div(f.add(filled, f.sub(size, 1)), size), f.slot("float", count=SLICES * e.n)
    with f.loop(0, heads) as head:
        first, to = f.at(sums, f.mul(f.mul(head, SLICES), sums_row)), f.at(o, f.mul(f.mul(head, d), 4))
        top, total = Variable(f, "float", _LOWEST), Variable(f, e.vector, "zeroinitializer")
        with f.loop(0, slices) as j:
            value = f.load("float", f.at(first, f.mul(j, sums_row)), 4)
            larger = f.let(f"fcmp ogt float {value}, {top.get()}")
            top.set(f.let(f"select i1 {larger}, float {value}, float {top.get()}"))
        with f.loop(0, slices) as j:
            found = f.at(first, f.mul(j, sums_row))
            below, powers = (e.splat(f, f.load("float", f.at(found, i), 4)) for i in (0, 4))
            factor = e.exp2(f, e.op(f, "fsub", below, e.splat(f, top.get())))
            f.store(e.vector, factor, f.at(factors, f.mul(j, 4 * e.n)), 4)
            total.set(e.multiply_add(f, factor, powers, total.get()))
        share = e.op(f, "fdiv", e.number(1.0), total.get())
        with f.loop(0, d, e.n) as i:
            mask, value = e.mask(f, f.sub(d, i)), Variable(f, e.vector, "zeroinitializer")
            with f.loop(0, slices) as j:
                factor = f.load(e.vector, f.at(factors, f.mul(j, 4 * e.n)), 4)
                of = e.load(f, f.at(first, f.add(f.mul(j, sums_row), FOUND)), i, mask)
                value.set(e.multiply_add(f, factor, of, value.get()))
            e.store(f, e.op(f, "fmul", value.get(), share), to, i, mask)
    return f


def _score(e: Floats, f: Function, q: list[str], keys: str, row: str, count: str, d: str, s: list[str]) -> None:
    """s = q k^T of each head for `count` keys; the last one again behind them."""
    last, whole, ahead = f.sub(count, 1), f.let(f"and i64 {d}, {-e.n}"), f.mul(row, _AHEAD)
    with f.loop(0, count, _TOGETHER) as j:
        lines = [f.at(keys, f.mul(f.least(f.add(j, i), last), row)) for i in range(_TOGETHER)]
        total = [[Variable(f, e.vector, "zeroinitializer") for _ in q] for _ in lines]
        with f.loop(0, whole, e.n) as i:
            numbers = [f.load(e.vector, f.at(head, f.mul(i, 4)), 4) for head in q]
            for line, sums in zip(lines, total, strict=True):
                e.prefetch(f, f.at(f.at(line, ahead), f.mul(i, 4)))
                key = f.load(e.vector, f.at(line, f.mul(i, 4)), 4)
                for value, of in zip(numbers, sums, strict=True):
                    of.set(e.multiply_add(f, value, key, of.get()))
        with f.loop(whole, d, e.n) as i:
            mask = e.mask(f, f.sub(d, i))
            numbers = [e.load(f, head, i, mask) for head in q]
            for line, sums in zip(lines, total, strict=True):
                key = e.load(f, line, i, mask)
                for value, of in zip(numbers, sums, strict=True):
                    of.set(e.multiply_add(f, value, key, of.get()))
        for h, to in enumerate(s):
            f.store("<4 x float>", e.four_sums(f, [sums[h].get() for sums in total]), f.at(to, f.mul(j, 4)), 4)


def _weigh(e: Floats, f: Function, s: list[str], values: str, row: str, count: str, d: str, o: list[str]) -> None:
    """o = s v of each head for `count` positions, a few vectors of features at once."""
    some, ahead = f.let(f"and i64 {d}, {-_TOGETHER * e.n}"), f.mul(row, _AHEAD)
    for start, stop, vectors in (("0", some, _TOGETHER), (some, d, 1)):
        with f.loop(start, stop, vectors * e.n) as i:
            mask = e.mask(f, f.sub(d, i)) if vectors == 1 else ""
            total = [[Variable(f, e.vector, "zeroinitializer") for _ in s] for _ in range(vectors)]
            here = f.at(values, f.mul(i, 4))
            with f.loop(0, count) as j:
                weights = [e.splat(f, f.load("float", f.at(of, f.mul(j, 4)), 4)) for of in s]
                line = f.at(here, f.mul(j, row))
                for u, sums in enumerate(total):
                    if 4 * u * e.n % 64 == 0:
                        e.prefetch(f, f.at(f.at(line, ahead), 4 * u * e.n))
                    value = f.load(e.vector, f.at(line, 4 * u * e.n), 4) if vectors > 1 else e.load(f, line, "0", mask)
                    for weight, of in zip(weights, sums, strict=True):
                        of.set(e.multiply_add(f, weight, value, of.get()))
            for u, sums in enumerate(total):
                for head, of in zip(o, sums, strict=True):
                    to = f.at(f.at(head, f.mul(i, 4)), 4 * u * e.n)
                    if vectors > 1:
                        f.store(e.vector, of.get(), to, 4)
                    else:
                        e.store(f, of.get(), to, "0", mask)


def _chain() -> Function:
    """One item: every launch of the block, by the pool's own `run`."""
    f = Function("chain", "ptr %block, i64 %lo, i64 %hi")
    (launches,) = words_of(f, HEAD, "launches")
    (run,) = pointers_of(f, HEAD, "run")
    with f.loop(0, launches) as i:
        here = f.at("%block", f.add(f.mul(i, 8 * len(LAUNCH)), 8 * len(HEAD)))
        address, block = pointers_of(f, LAUNCH, "address", "block", block=here)
        items, grain = words_of(f, LAUNCH, "items", "grain", block=here)
        f.do(f"call void {run}(ptr {address}, ptr {block}, i64 {items}, i64 {grain})")
    return f


def step_text(form: Format) -> str:
    """IR of the passes; `form` is "float32"."""
    e = Floats(form)
    functions = [_look_up(e), _rotate(e), _attend(e), _merge(e), _chain()]
    return ir.module_text(functions, sorted(e.v.declared))
