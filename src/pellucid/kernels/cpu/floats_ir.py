"""Vectors of float32 in generated code: what the passes of a decode step have in common.

`Floats` emits one operation a method through an `ir.Function`, at the width of one instruction path. Indices count
elements, masks say which lanes are inside; exponentials and sums across lanes are those of `lanes_math`.
"""

from __future__ import annotations

import struct

from .ir import Function
from .lanes_math import POWERS
from .vectors_ir import Format, Vectors, constant, shuffle, splat


def words_of(f: Function, layout: tuple[str, ...], *names: str, block: str = "%block") -> list[str]:
    """Words of a block whose words have the names of `layout`."""
    return [f.load("i64", f.at(block, 8 * layout.index(name)), 8) for name in names]


def pointer_to(f: Function, value: str) -> str:
    return f.let(f"inttoptr i64 {value} to ptr")


def pointers_of(f: Function, layout: tuple[str, ...], *names: str, block: str = "%block") -> list[str]:
    """The same, as pointers."""
    return [pointer_to(f, word) for word in words_of(f, layout, *names, block=block)]


class Floats:
    """Operations on vectors of float32, for one path."""

    def __init__(self, form: Format) -> None:
        self.form, self.v, self.n = form, Vectors(form.isa), form.lanes
        self.vector = f"<{self.n} x float>"

    def declare(self, result: str, name: str, *arguments: str) -> str:
        self.v.declared.add(f"declare {result} @{name}({', '.join(arguments)})")
        return f"call {result} @{name}"

    def splat(self, f: Function, value: str) -> str:
        return splat(f, "float", value, self.n)

    def mask(self, f: Function, valid: str) -> str:
        return self.v.mask(f, self.n, valid)

    def load(self, f: Function, base: str, index: str, mask: str) -> str:
        return self.v.load_masked(f, "float", self.n, f.at(base, f.mul(index, 4)), mask)

    def store(self, f: Function, value: str, base: str, index: str, mask: str) -> None:
        self.v.store_masked(f, "float", self.n, value, f.at(base, f.mul(index, 4)), mask)

    def op(self, f: Function, name: str, a: str, b: str) -> str:
        return f.let(f"{name} {self.vector} {a}, {b}")

    def multiply_add(self, f: Function, a: str, b: str, c: str) -> str:
        return self.v.multiply_add(f, "float", self.n, a, b, c)

    def unary(self, f: Function, name: str, x: str) -> str:
        call = self.declare(self.vector, f"llvm.{name}.v{self.n}f32", self.vector)
        return f.let(f"{call}({self.vector} {x})")

    def prefetch(self, f: Function, address: str) -> None:
        """Asks for a cache line that will be read; one that is not there does no harm."""
        call = self.declare("void", "llvm.prefetch.p0", "ptr", "i32", "i32", "i32")
        f.do(f"{call}(ptr {address}, i32 0, i32 3, i32 1)")

    def number(self, value: float | str) -> str:
        return constant("float", [value if isinstance(value, str) else f"{value!r}"] * self.n)

    def total(self, f: Function, x: str) -> str:
        call = self.declare("float", f"llvm.vector.reduce.fadd.v{self.n}f32", "float", self.vector)
        return f.let(f"{call.replace('call', 'call reassoc')}(float 0.0, {self.vector} {x})")

    def exp2(self, f: Function, x: str) -> str:
        """As `lanes_math.vexp2`."""
        words = f"<{self.n} x i32>"
        for relation, limit in (("olt", -127.0), ("ogt", 128.0)):
            test = f.let(f"fcmp {relation} {self.vector} {x}, {self.number(limit)}")
            x = f.let(f"select <{self.n} x i1> {test}, {self.vector} {self.number(limit)}, {self.vector} {x}")
        rounding = self.number(1.5 * 2.0**23)
        shifted = self.op(f, "fadd", x, rounding)
        r = self.op(f, "fsub", x, self.op(f, "fsub", shifted, rounding))
        first, *others = reversed(POWERS[32])
        p = self.number(float_constant(first))
        for c in (*others, 1.0):
            p = self.multiply_add(f, p, r, self.number(float_constant(c)))
        n = f.let(
            f"shl {words} {f.let(f'bitcast {self.vector} {shifted} to {words}')}, {constant('i32', [23] * self.n)}"
        )
        scale = f.let(f"add {words} {n}, {constant('i32', [127 << 23] * self.n)}")
        return self.op(f, "fmul", p, f.let(f"bitcast {words} {scale} to {self.vector}"))

    def four_sums(self, f: Function, vectors: list[str]) -> str:
        """<4 x float>: the sums of the lanes of four vectors."""

        def joined(a: str, b: str, count: int, low: list[int], high: list[int]) -> str:
            parts = [shuffle(f, "float", count, a, b, lanes) for lanes in (low, high)]
            return f.let(f"fadd <{len(low)} x float> {parts[0]}, {parts[1]}")

        n = self.n
        even = [i + n * second for i in range(0, n, 2) for second in (0, 1)]
        odd = [i + 1 for i in even]
        ab, cd = (joined(vectors[i], vectors[i + 1], n, even, odd) for i in (0, 2))
        pairs = [i + e + n * second for i in range(0, n, 4) for second in (0, 1) for e in (0, 1)]
        vector = joined(ab, cd, n, pairs, [i + 2 for i in pairs])
        while n > 4:
            half = n // 2
            vector = joined(vector, vector, n, list(range(half)), list(range(half, n)))
            n = half
        return vector


def float_constant(value: float) -> str:
    """A float32 constant as IR wants it: the bits of the double it equals."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    (bits,) = struct.unpack("<q", struct.pack("<d", rounded))
    return f"0x{bits & 0xFFFFFFFFFFFFFFFF:016X}"
