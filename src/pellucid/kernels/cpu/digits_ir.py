"""Generator of sums over int8 weights in whole numbers, for paths whose instructions add products of integers.

x is written as a fixed-point number of a few digits, x = unit (d0 + base d1 + base**2 d2), 24 bits in all, and the sums
of weight times digit are exact integers until the last step: the result is as precise as in float32, whatever the
order. There are two ways:

    bytes    three digits of 8 bits, one instruction on 64 weights a digit (`isa.dot8`). It wants one factor without a
             sign, so the weights are moved up by 128, and the sums start at -128 times the sum of the digits
    halves   two digits of 12 bits in 16, for one on 32 weights, or 16 in shorter vectors (`isa.dot16`)

What has no such numbers (infinite, NaN, all tiny) is left to floats; the digits say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .floats_ir import Floats
from .ir import Function, Variable
from .isa import Isa
from .streams_ir import STREAMS, ask_ahead, line_sums
from .vectors_ir import SIZE, constant, splat

_BLOCK = 64  # weights whose digits of one kind lie side by side
_HEAD = 64 * 4  # bytes before the digits: unit and whether they are there, then where the sums start
_SMALLEST = "0x39B4484C00000000"  # 1e-30: smaller ones have no fixed-point numbers


@dataclass(frozen=True)
class Digits:
    """How many digits a number has, bits of one, and the IR type in which it is stored."""

    count: int
    bits: int
    stored: str

    @property
    def largest(self) -> int:
        """The fixed-point number with the largest first digit, and nothing behind it."""
        return ((1 << (self.bits - 1)) - 1) << (self.bits * (self.count - 1))

    @property
    def block_bytes(self) -> int:
        """Bytes of one kind of digits in a block."""
        return _BLOCK * SIZE[self.stored]


_BYTES, _HALVES = Digits(3, 8, "i8"), Digits(2, 12, "i16")


def digits_of(isa: Isa) -> Digits | None:
    """The digits of a path, if it has any."""
    return _BYTES if isa.dot8 else _HALVES if isa.dot16 else None


def digits_bytes(k: int) -> int:
    """Bytes of the digits of a row of k numbers, on any path."""
    return _HEAD + 4 * -(-k // _BLOCK) * _BLOCK


def fits_digits(k: int) -> bool:
    """Whether sums over k digits stay within 32 bits."""
    return k <= (1 << 16) - 64


def _dot8(e: Floats, f: Function, total: str, unsigned: str, signed: str) -> str:
    """total + the sums of four products of bytes; all <16 x i32>."""
    kind = "<16 x i32>"
    call = e.declare(kind, "llvm.x86.avx512.vpdpbusd.512", kind, kind, kind)
    return f.let(f"{call}({kind} {total}, {kind} {unsigned}, {kind} {signed})")


def _dot16(e: Floats, f: Function, total: str, a: str, b: str) -> str:
    """total + the sums of two products of 16 bits; total: <n x i32>, a, b: <2n x i16>."""
    name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}[e.n]
    kind, halves = f"<{e.n} x i32>", f"<{2 * e.n} x i16>"
    call = e.declare(kind, name, halves, halves)
    return f.let(f"add {kind} {total}, {f.let(f'{call}({halves} {a}, {halves} {b})')}")


def write_digits(e: Floats, f: Function, x: str, k: str, highest: str, bad: str, digits: str) -> None:
    """Digits of x behind their unit and the sums to start from. highest: the largest |x| of each lane; bad: not zero
    where something is not finite."""
    scheme = digits_of(e.form.isa)
    assert scheme is not None
    n, words = e.n, f"<{e.n} x i32>"
    call = e.declare("float", f"llvm.vector.reduce.fmax.v{n}f32", e.vector)
    top = f.let(f"{call}({e.vector} {highest})")
    finite = f.let(f"fcmp oeq float {e.total(f, bad)}, 0.0")
    usable = f.let(f"and i1 {finite}, {f.let(f'fcmp ogt float {top}, {_SMALLEST}')}")
    f.store("i32", f.let(f"zext i1 {usable} to i32"), f.at(digits, 4), 4)
    largest, size = float(scheme.largest), SIZE[scheme.stored]
    unused = constant("i32", [32 - scheme.bits] * n)
    with f.when(usable):
        f.store("float", f.let(f"fdiv float {top}, {largest!r}"), digits, 4)
        scale = e.splat(f, f.let(f"fdiv float {largest!r}, {top}"))
        starts = [Variable(f, words, "zeroinitializer") for _ in range(scheme.count)]
        with f.loop(0, k, _BLOCK) as i:
            here = f.at(digits, f.add(f.mul(i, scheme.count * size), _HEAD))
            for part in range(0, _BLOCK, n):
                at = f.add(i, part)
                value = e.op(f, "fmul", e.load(f, x, at, e.mask(f, f.sub(k, at))), scale)
                left = f.let(f"fptosi {e.vector} {e.unary(f, 'rint', value)} to {words}")
                for d in range(scheme.count):
                    digit = f.let(f"ashr {words} {f.let(f'shl {words} {left}, {unused}')}, {unused}")
                    stored = f.let(f"trunc {words} {digit} to <{n} x {scheme.stored}>")
                    f.store(f"<{n} x {scheme.stored}>", stored, f.at(here, d * scheme.block_bytes + part * size), 16)
                    rest = f.let(f"sub {words} {left}, {digit}")
                    left = f.let(f"ashr {words} {rest}, {constant('i32', [scheme.bits] * n)}")
            if scheme is _BYTES:
                moved = constant("i32", [-0x7F7F7F80] * n)  # 128 in each byte
                for d, start in enumerate(starts):
                    start.set(_dot8(e, f, start.get(), moved, f.load(words, f.at(here, d * scheme.block_bytes), 64)))
        if scheme is _BYTES:
            for d, start in enumerate(starts):
                f.store(words, f.let(f"sub {words} zeroinitializer, {start.get()}"), f.at(digits, 64 * (1 + d)), 64)


def digit_dots(e: Floats, f: Function) -> None:
    """sums[i] = matrix[i] x for `count` lines of int8, in the parameters of `products_ir`'s dots."""
    scheme = digits_of(e.form.isa)
    assert scheme is not None
    unit = splat(f, "float", f.load("float", "%digits", 4), 4)
    sums_of, streams = (_bytes, STREAMS) if scheme is _BYTES else (_halves, STREAMS // 2)  # short vectors are few

    def in_floats(lines: list[str]) -> list[list[str]]:
        found = []
        for totals in sums_of(e, f, lines, scheme):
            value, *others = [f.let(f"sitofp <{e.n} x i32> {total} to {e.vector}") for total in totals]
            for d, digit in enumerate(others):
                value = e.multiply_add(f, digit, e.number(float(1 << (scheme.bits * (d + 1)))), value)
            found.append(value)
        return [found]

    line_sums(e, f, streams, in_floats, unit)


def _bytes(e: Floats, f: Function, lines: list[str], scheme: Digits) -> list[list[str]]:
    """The integer sums of lines for each digit."""
    words, weights = "<16 x i32>", f"<{_BLOCK} x i8>"
    starts = [f.load(words, f.at("%digits", 64 * (1 + d)), 64) for d in range(scheme.count)]
    total = [[Variable(f, words, start) for start in starts] for _ in lines]
    whole = f.let(f"and i64 %k, {-_BLOCK}")

    def step(at: str, load: Callable[[str], str]) -> None:
        here = f.at("%digits", f.add(f.mul(at, scheme.count), _HEAD))
        digits = [f.load(words, f.at(here, d * _BLOCK), 64) for d in range(scheme.count)]
        for line, sums in zip(lines, total, strict=True):
            place = f.at(line, at)
            ask_ahead(e, f, place)
            raw = f.let(f"bitcast {weights} {load(place)} to {words}")
            moved = f.let(f"xor {words} {raw}, {constant('i32', [-0x7F7F7F80] * 16)}")
            for variable, digit in zip(sums, digits, strict=True):
                variable.set(_dot8(e, f, variable.get(), moved, digit))

    with f.loop(0, whole, _BLOCK) as at:
        step(at, lambda address: f.load(weights, address, 1))
    with f.loop(whole, "%k", _BLOCK) as at:
        mask = e.v.mask(f, _BLOCK, f.sub("%k", at))
        step(at, lambda address: e.v.load_masked(f, "i8", _BLOCK, address, mask))
    return [[variable.get() for variable in sums] for sums in total]


def _halves(e: Floats, f: Function, lines: list[str], scheme: Digits) -> list[list[str]]:
    """The same: whole blocks, then whole vectors, then weight by weight."""
    per, words = 2 * e.n, f"<{e.n} x i32>"
    total = [[Variable(f, words, "zeroinitializer") for _ in range(scheme.count)] for _ in lines]
    blocks, whole = f.let(f"and i64 %k, {-_BLOCK}"), f.let(f"and i64 %k, {-per}")

    def digits_at(at: str) -> str:
        """Where the first digit of a weight is."""
        block, inside = f.let(f"and i64 {at}, {-_BLOCK}"), f.let(f"and i64 {at}, {_BLOCK - 1}")
        return f.at("%digits", f.add(f.add(f.mul(block, 2 * scheme.count), f.mul(inside, 2)), _HEAD))

    def step(at: str, here: str) -> None:
        digits = [f.load(f"<{per} x i16>", f.at(here, d * scheme.block_bytes), 2 * per) for d in range(scheme.count)]
        for line, sums in zip(lines, total, strict=True):
            narrow = f.load(f"<{per} x i8>", f.at(line, at), 1)
            weights = f.let(f"sext <{per} x i8> {narrow} to <{per} x i16>")
            for variable, digit in zip(sums, digits, strict=True):
                variable.set(_dot16(e, f, variable.get(), weights, digit))

    with f.loop(0, blocks, _BLOCK) as at:
        here = f.at("%digits", f.add(f.mul(at, 2 * scheme.count), _HEAD))
        for line in lines:
            ask_ahead(e, f, f.at(line, at))
        for part in range(0, _BLOCK, per):
            step(f.add(at, part), f.at(here, 2 * part))
    with f.loop(blocks, whole, per) as at:
        step(at, digits_at(at))
    tail = [[Variable(f, "i32", "0") for _ in sums] for sums in total]
    with f.loop(whole, "%k") as at:
        here = digits_at(at)
        for line, sums in zip(lines, tail, strict=True):
            weight = f.let(f"sext i8 {f.load('i8', f.at(line, at), 1)} to i32")
            for d, variable in enumerate(sums):
                digit = f.let(f"sext i16 {f.load('i16', f.at(here, d * scheme.block_bytes), 2)} to i32")
                variable.set(f.let(f"add i32 {variable.get()}, {f.let(f'mul i32 {weight}, {digit}')}"))
    first = f"insertelement {words} zeroinitializer, i32"
    return [
        [f.let(f"add {words} {a.get()}, {f.let(f'{first} {b.get()}, i64 0')}") for a, b in zip(sums, rest, strict=True)]
        for sums, rest in zip(total, tail, strict=True)
    ]
