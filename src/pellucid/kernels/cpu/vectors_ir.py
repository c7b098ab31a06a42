"""Vectors of the generated matrix product: packed formats, number formats, masks.

Shared by the generators of the tile kernels (`gemm_ir`), of packing (`pack_ir`) and of the matrix-vector product
(`gemv_ir`). `Vectors` emits operations on vectors through an `ir.Function`, for one instruction path: where a path
lacks a conversion, integer arithmetic that gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .ir import Function
from .isa import Isa

#: Storage of a source element in IR; narrow floats are handled as bits.
STORAGE = {"float32": "float", "float64": "double", "bfloat16": "i16", "float16": "i16", "int8": "i8"}
SIZE = {"float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "<16 x i32>": 64}

#: Lines in a tile register, and registers in a block of the result, down and across.
TILE_LINES, TILE_ROWS, TILE_COLUMNS = 16, 2, 2


@dataclass(frozen=True)
class Format:
    """How packed operands look.

    name: "float32", "float64", "pairs" (of bfloat16), "tiles" (the same for tile registers), or, for values rounded to
    bfloat16 where neither applies, "rounded" (kept as float32) and "rounded64" (kept as float64).
    """

    name: str
    isa: Isa

    @property
    def accumulator(self) -> str:
        return "double" if self.name in ("float64", "rounded64") else "float"

    @property
    def unit(self) -> str:
        """IR type of one line's share of a step."""
        return {"pairs": "i32", "tiles": "<16 x i32>"}.get(self.name, self.accumulator)

    @property
    def per_step(self) -> int:
        """Values of k in a step."""
        return {"pairs": 2, "tiles": 32}.get(self.name, 1)

    @property
    def lanes(self) -> int:
        return self.isa.vector // SIZE[self.accumulator]

    @property
    def rows(self) -> int:
        return TILE_LINES * TILE_ROWS if self.name == "tiles" else self.isa.rows

    @property
    def columns(self) -> int:
        return TILE_LINES * TILE_COLUMNS if self.name == "tiles" else self.isa.vectors * self.lanes


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
        return f.let(
            f"call {vector} @{name}(ptr {address}, i32 {SIZE[kind]}, <{n} x i1> {mask}, {vector} zeroinitializer)"
        )

    def store_masked(self, f: Function, kind: str, n: int, value: str, address: str, mask: str) -> None:
        name, vector = f"llvm.masked.store.v{n}{suffix(kind)}.p0", f"<{n} x {kind}>"
        self.declared.add(f"declare void @{name}({vector}, ptr, i32, <{n} x i1>)")
        f.do(f"call void @{name}({vector} {value}, ptr {address}, i32 {SIZE[kind]}, <{n} x i1> {mask})")

    def prefetch(self, f: Function, address: str, *, for_writing: bool = False) -> None:
        """Asks for the cache line of an address, which need not exist: into the second cache level to be read, or into
        the first to be written."""
        self.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        f.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 {'1, i32 3' if for_writing else '0, i32 2'}, i32 1)")

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
        elif source == "int8":
            value, stored = f.let(f"sitofp <{n} x i8> {value} to <{n} x float>"), "float"
        else:
            stored = STORAGE[source]
        if stored == kind:
            return value
        return f.let(f"{'fpext' if kind == 'double' else 'fptrunc'} <{n} x {stored}> {value} to <{n} x {kind}>")

    def widen_pairs(self, f: Function, n: int, pairs: str) -> list[str]:
        """2n bfloat16, loaded as <n x i32>: those with even numbers and those with odd ones, as floats. An operation
        each, where `widen` takes two."""
        even = self._same(f, "shl", "i32", n, pairs, 16)
        return [self._float(f, n, bits) for bits in (even, self._same(f, "and", "i32", n, pairs, -(1 << 16)))]

    def to_bfloat16(self, f: Function, n: int, value: str) -> str:
        """<n x float> to bits, nearest even. The instruction reads and writes denormals as zero, like the product's."""
        if self.isa.bf16:
            return f.let(
                f"bitcast <{n} x bfloat> {f.let(f'fptrunc <{n} x float> {value} to <{n} x bfloat>')} to <{n} x i16>"
            )
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
            return f.let(
                f"bitcast <{n} x half> {f.let(f'fptrunc <{n} x float> {value} to <{n} x half>')} to <{n} x i16>"
            )
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
        scale = constant(
            "float", ["0x46F0000000000000"] * n
        )  # 2**112: the exponents' biases differ by that, denormals too
        scaled = f.let(
            f"bitcast <{n} x float> {f.let(f'fmul <{n} x float> {self._float(f, n, size)}, {scale}')} to <{n} x i32>"
        )
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
