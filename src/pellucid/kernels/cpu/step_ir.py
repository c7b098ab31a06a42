"""Generator of the passes of a decode step between its products, and of the step as one call.

    look_up    the row of a token in the table
    rotate     rotary positions of q and k; k and v go into the cache
    attend     o = softmax(scale q k^T) v for one query a head
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
ATTEND = ("q", "keys", "values", "scores", "scores_row", "o", "group", "together", "d", "row", "scale", "position")
HEAD = ("run", "launches")
LAUNCH = ("address", "block", "items", "grain")

#: Query heads at most that read keys and values together: their sums, numbers and a key fill sixteen registers.
MOST_TOGETHER = 3
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
            if source == "int8":
                value = f.let(f"sitofp <{e.n} x i8> {raw} to {e.vector}")
            else:
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
    """Items are key/value heads with `together` of the `group` query heads that read them, positions 0 to `position`.

    Scores lie in a row of memory for each query head, in units of log 2: `scale` has log2(e) in it. Keys have d
    features, `row` floats from position to position.
    """
    f = Function("attend", "ptr %block, i64 %lo, i64 %hi")
    scores_row, group, together, d, row = words_of(f, ATTEND, "scores_row", "group", "together", "d", "row")
    q, keys, values, scores, o, cell = pointers_of(f, ATTEND, "q", "keys", "values", "scores", "o", "position")
    scale = e.splat(f, f.load("float", f.at("%block", 8 * ATTEND.index("scale")), 8))
    count, row = f.add(f.load("i64", cell, 8), 1), f.mul(row, 4)
    parts = f.div(f.add(group, f.sub(together, 1)), together)
    with f.loop("%lo", "%hi") as item:
        shared, begin = f.div(item, parts), f.mul(f.rem(item, parts), together)
        first, heads = f.add(f.mul(shared, group), begin), f.least(together, f.sub(group, begin))
        here = f.mul(f.mul(shared, d), 4)
        for n in range(1, MOST_TOGETHER + 1):
            with f.when(f.is_("eq", heads, n)):
                own = [f.mul(f.mul(f.add(first, h), d), 4) for h in range(n)]
                s = [f.at(scores, f.mul(f.add(first, h), scores_row)) for h in range(n)]
                _score(e, f, [f.at(q, at) for at in own], f.at(keys, here), row, count, d, s)
                shares = [_soften(e, f, of, count, scale) for of in s]
                _weigh(e, f, s, f.at(values, here), row, count, d, shares, [f.at(o, at) for at in own])
    return f


def _soften(e: Floats, f: Function, s: str, count: str, scale: str) -> str:
    """s = 2**(scale s - the largest of them); returns 1 / their sum in every lane."""
    highest = Variable(f, e.vector, e.number(_LOWEST))
    with f.loop(0, count, e.n) as j:
        mask = e.mask(f, f.sub(count, j))
        value = e.op(f, "fmul", e.load(f, s, j, mask), scale)
        e.store(f, value, s, j, mask)
        value = f.let(f"select <{e.n} x i1> {mask}, {e.vector} {value}, {e.vector} {e.number(_LOWEST)}")
        larger = f.let(f"fcmp ogt {e.vector} {value}, {highest.get()}")
        highest.set(f.let(f"select <{e.n} x i1> {larger}, {e.vector} {value}, {e.vector} {highest.get()}"))
    call = e.declare("float", f"llvm.vector.reduce.fmax.v{e.n}f32", e.vector)
    top = e.splat(f, f.let(f"{call}({e.vector} {highest.get()})"))
    total = Variable(f, e.vector, "zeroinitializer")
    with f.loop(0, count, e.n) as j:
        mask = e.mask(f, f.sub(count, j))
        power = e.exp2(f, e.op(f, "fsub", e.load(f, s, j, mask), top))
        e.store(f, power, s, j, mask)
        inside = f.let(f"select <{e.n} x i1> {mask}, {e.vector} {power}, {e.vector} zeroinitializer")
        total.set(e.op(f, "fadd", total.get(), inside))
    return e.splat(f, f.let(f"fdiv float 1.0, {e.total(f, total.get())}"))


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


def _weigh(
    e: Floats, f: Function, s: list[str], values: str, row: str, count: str, d: str, shares: list[str], o: list[str]
) -> None:
    """o = share s v of each head for `count` positions, a few vectors of features at once."""
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
                for head, of, share in zip(o, sums, shares, strict=True):
                    value, to = e.op(f, "fmul", of.get(), share), f.at(f.at(head, f.mul(i, 4)), 4 * u * e.n)
                    if vectors > 1:
                        f.store(e.vector, value, to, 4)
                    else:
                        e.store(f, value, to, "0", mask)


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
    functions = [_look_up(e), _rotate(e), _attend(e), _chain()]
    return ir.module_text(functions, sorted(e.v.declared))
