"""How a matrix product is cut into passes: between `matmul.py`, which launches, and `gemm_ir.py`, which computes.

A product runs as pairs of parallel passes: pack both operands into panels, then multiply panels into tiles of the
result. A small operand that already is in the right format and order is read where it lies instead. The packed
operands of a block stay in the last-level cache; k is cut first, then the larger operand, while the smaller one stays
packed. Nothing here depends on addresses, so a plan is made once for a combination of shapes, strides and dtypes; the
number of threads decides how many tasks there are and nothing else: every sum runs over k in one order, whoever
computes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array, Buffer, cpu, pool
from . import gemm_ir, gemv_ir, ir, pack_ir, tiles_ir
from .gemm_ir import BASES, MOST_BASES, WORD, WORDS
from .isa import current
from .vectors_ir import SIZE, TILE_LINES, Format

_K_BYTES = 3072  # of one line in a block of k: a panel of each operand stays in the first two cache levels
_PACKED_BYTES = 6 << 20  # of packed operands in a block: they stay in the last cache level
_GROUP_BYTES = 256 << 10  # of b's panels in a task: they stay in the second cache level
_LARGE_GROUP_BYTES = 512 << 10  # the same where there is more of that level
_TILES_GROUP_BYTES = 1 << 20  # the same in tile registers
_DIRECT_BYTES = 128 << 10  # of an operand that is read where it lies: once a tile, so it has to be near
_WIDE_DIRECT_BYTES = 2 << 20  # the same in vectors of a cache line, whose larger tiles read it less often
_DIRECT_PRODUCTS = 1 << 27  # multiplications, in tiles of four vectors: more of them pay for packing
_LINES_DIRECT_BYTES = 5 << 18  # there, of a b, and of an a whose neighbours in memory are rows
_WAY_BYTES = 4096  # lines a multiple of this apart compete for the same few places in the first cache level
_TASKS = 24  # wanted in a pass, so that threads finish together
_TASKS_A_THREAD = 4  # at least, on many
_LARGE_TASKS = 12  # the same where larger ones count for more: in tile registers, and where a task packs an operand
_TASK_FLOPS = 1 << 19  # a smaller task is not worth its launch
_PACK_VALUES = 1 << 14  # the same for packing, in elements
_ROW_BYTES = 1024  # of neighbouring lines packed together that are contiguous in memory, where k can't be cut

_VECTOR_VALUES = 1 << 16  # the same for a matrix-vector product
_NO_OFFSET = array("q", [0])

Cut = tuple[int, int]
Place = tuple[str | None, int]  # what memory is relative to ("bias", "scratch", ...), and bytes from there


@dataclass(frozen=True)
class Native:
    """Addresses of one packed format's code."""

    tile: int
    pack_pass: int
    multiply_pass: int


@cache
def native(form: Format) -> Native:
    """Compiles (or loads) the tile kernels and passes of a packed format.

    `native(form).tile` is the building block for other kernels that multiply packed panels, a native function

        void(i64 steps, ptr a, ptr b, ptr c, i64 c_row, ptr init, i64 init_row, i64 rows, i64 columns, i64 result)

    c[i, j] = init[i, j] + sum over steps of a[step, i] * b[step, j],   i < rows, j < columns.

    1 <= rows <= form.rows, 1 <= columns <= form.columns. a, b: one packed panel each, (steps, form.rows) and
    (steps, form.columns) of `form.unit`; b at a multiple of 64 bytes. init: float32 (float64 where sums are), may be
    c itself, 0 for none. c_row, init_row: bytes from row to row.
    result: gemm_ir.PLAIN (as accumulated), BFLOAT16 or FLOAT16. Never writes outside rows x columns.
    """
    engine = ir.compile_functions(gemm_ir.product_text(form), form.isa)
    return Native(*(engine.get_function_address(name) for name in ("tile", "pack_pass", "multiply_pass")))


@cache
def direct_pass(form: Format) -> int:
    """Address of the multiply pass that reads unpacked operands: "float32", "float64", or the a of "pairs"."""
    return ir.compile_functions(gemm_ir.direct_text(form), form.isa).get_function_address("multiply_pass")


@cache
def packers(form: Format, source: DType) -> dict[str, int]:
    """Addresses of the native functions that pack panels of "a" and of "b" from a dtype:

        void(ptr source, i64 line_step, i64 k_step, i64 lines, i64 k, ptr packed, i64 panel_bytes)

    Lines are rows of a or columns of b; steps in bytes; panel p of the lines goes to packed + p * panel_bytes, which
    is at least `panel_bytes(form, width, k)`.
    """
    generator = tiles_ir if form.name == "tiles" else pack_ir
    engine = ir.compile_functions(generator.packing_text(form, source.name), form.isa)
    return {side: engine.get_function_address(f"pack_{side}") for side in "ab"}


@cache
def vector_pass(form: Format, source: DType) -> int:
    """Address of the matrix-vector pass for a matrix of a dtype; "pairs" excepted."""
    return ir.compile_functions(gemv_ir.vector_text(form, source.name), form.isa).get_function_address("vector_pass")


def panel_bytes(form: Format, width: int, k: int) -> int:
    """Bytes of a packed panel of `width` lines: an odd number of cache lines, so that the same step of many panels,
    which are packed together, doesn't compete for a few places in the first cache level."""
    behind = form.lanes - width if pack_ir.overlaps(form, width) else 0
    return ((-(-k // form.per_step) * width + behind) * SIZE[form.unit] + 63) & -64 | 64


@dataclass(frozen=True)
class Step:
    """A launch of a native pass over `items` in chunks of `grain`.

    `words` is its block, with offsets where a run adds addresses: `bases` are pairs of a word's number and what it is
    relative to, one of `gemm_ir.BASES`.
    """

    address: int
    words: array[int]
    items: int
    grain: int
    bases: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Plan:
    """Everything about a product but its addresses."""

    shape: tuple[int, ...]
    dtype: DType
    steps: Array  # of its program, after their number (`gemm_ir.STEP`)
    parallel: bool  # whether a step has more than one chunk
    scratch_bytes: int


def make(a: Array, b: Array, bias: Array | None, form: Format, dtype: DType, shape: tuple[int, ...]) -> Plan:
    """The plan of a product of operands with one batch shape."""
    if not prod(shape):
        return Plan(shape, dtype, _steps(array("q", [0])), False, 0)
    planner = _Planner(*_merged(a, b), bias, form, dtype)
    steps = list(planner.steps())
    memory = array("q", [len(steps)])
    for step in steps:
        bases = [number for word, base in step.bases for number in (word, BASES.index(base))]
        memory.extend((step.address, step.items, step.grain, len(step.bases)))
        memory.extend((*bases, *[0] * (2 * MOST_BASES - len(bases)), *step.words))
    parallel = any(step.items > step.grain for step in steps)
    return Plan(shape, dtype, _steps(memory, *planner.offsets, planner.zeros), parallel, planner.scratch)


def _steps(memory: array[int], *more: array[int]) -> Array:
    """Words as an argument of a launch. more: what addresses in them point to, which lives as long."""
    address, count = memory.buffer_info()
    return Array(Buffer(cpu, address, 8 * count, (memory, *more)), (count,), dtypes.int64)


@cache
def program() -> int:
    """Address of the native function that carries out a plan's steps."""
    text = gemm_ir.program_text()
    return ir.compile_functions(text, current()).get_function_address("program")


def _merged(a: Array, b: Array) -> tuple[Array, Array]:
    """With one b for all batches, a's batches become rows where its strides allow: one large product."""
    if a.rank > 2 and all(s == 0 or n == 1 for n, s in zip(b.shape[:-2], b.strides, strict=False)):
        rows = a.reshape((prod(a.shape[:-1]), a.shape[-1]))
        if rows is not None:
            return rows, Array(b.buffer, b.shape[-2:], b.dtype, b.strides[-2:], b.offset)
    return a, b


def _batch_offsets(x: Array) -> array[int]:
    """Bytes from the first element to each batch of (..., rows, columns)."""
    found = [0]
    for n, s in zip(x.shape[:-2], x.strides, strict=False):
        found = [f + i * s * x.dtype.itemsize for f in found for i in range(n)]
    return array("q", found)


def _cuts(n: int, at_most: int, unit: int) -> list[Cut]:
    """0 to n in nearly equal blocks of at most `at_most` (at least `unit`), each but the last a multiple of `unit`."""
    pieces = max(1, -(-n // max(at_most, unit)))
    size = max(1, -(-n // pieces // unit)) * unit
    return [(i, min(i + size, n)) for i in range(0, max(n, 1), size)]


class _Planner:
    """Cuts one product into steps."""

    def __init__(self, a: Array, b: Array, bias: Array | None, form: Format, dtype: DType) -> None:
        self.bias, self.form = bias, form
        self.m, self.k, self.n = a.shape[-2], a.shape[-1], b.shape[-1]
        # the operands as the packing sees them: array, line stride, k stride, lines in a panel
        self.sides = {
            "a": (a, a.strides[-2], a.strides[-1], form.rows),
            "b": (b, b.strides[-1], b.strides[-2], form.columns),
        }
        self.sum_bytes = SIZE[form.accumulator]
        self.result = {dtypes.bfloat16: gemm_ir.BFLOAT16, dtypes.float16: gemm_ir.FLOAT16}.get(dtype, gemm_ir.PLAIN)
        self.result_bytes = dtype.itemsize
        self.offsets = (_batch_offsets(a), _batch_offsets(b))
        self.batches = len(self.offsets[0])
        self.zeros = array("q", bytes(8 * self.batches))
        self.scratch = 0
        self._cut()

    def _take(self, nbytes: int) -> int:
        """Room in scratch; returns its offset."""
        start = self.scratch
        self.scratch += (nbytes + 63) & -64
        return start

    def _packed_bytes(self, side: str, lines: int, k: int) -> int:
        width = self.sides[side][3]
        return panel_bytes(self.form, width, k) * -(-lines // width)

    def _cut(self) -> None:
        """Decides the blocks, and the room for them."""
        form = self.form
        unit = form.per_step if form.name == "tiles" else form.lanes * form.per_step
        self.k_cuts = _cuts(self.k, _K_BYTES * form.per_step // SIZE[form.unit], unit)
        k = self.k_cuts[0][1]
        lengths = {"a": self.m, "b": self.n}
        sizes = {side: self._packed_bytes(side, n, k) for side, n in lengths.items()}
        self.stays = "a" if sizes["a"] <= sizes["b"] else "b"
        self.moves = "b" if self.stays == "a" else "a"
        self.direct = frozenset(side for side, n in lengths.items() if self._is_direct(side, n))
        self.cuts = {side: [(0, n)] for side, n in lengths.items()}
        packed = [side for side in (self.stays, self.moves) if side not in self.direct]
        room = _PACKED_BYTES
        for i, side in enumerate(packed):
            lines = room // (len(packed) - i) // max(1, sizes[side] // lengths[side])
            self.cuts[side] = _cuts(lengths[side], lines, self.sides[side][3])
            room -= self._packed_bytes(side, self.cuts[side][0][1], k)
        self.at_once = max(1, min(self.batches, _PACKED_BYTES // max(1, sum(sizes.values()))))
        self.packed = {
            side: self._take(self._packed_bytes(side, self.cuts[side][0][1], k) * self.at_once)
            for side in sorted(packed)
        }
        narrow = self.result != gemm_ir.PLAIN and len(self.k_cuts) > 1
        self.partial = self._take(self.m * self.n * self.sum_bytes * self.at_once) if narrow else None

    def _is_direct(self, side: str, lines: int) -> bool:
        """Whether reading an operand where it lies beats packing it: one in the right format and order, and near."""
        x, line_stride, k_stride, _ = self.sides[side]
        size = x.dtype.itemsize
        if self.form.name == "tiles":  # whole registers only, of any size: b's are turned, a's are copied as they are
            whole = side == "a" and lines % TILE_LINES == 0 and self.k % self.form.per_step == 0
            return whole and x.dtype is dtypes.bfloat16 and k_stride == 1 and line_stride * size % _WAY_BYTES != 0
        apart = max(line_stride, k_stride) * size % _WAY_BYTES != 0
        if self.form.name == "pairs":  # which are what a row of whole ones consists of
            pairs = x.dtype is dtypes.bfloat16 and self.k % self.form.per_step == 0
            return side == "a" and k_stride == 1 and pairs and apart
        wide = self.form.isa.vector == 64
        most = _WIDE_DIRECT_BYTES if wide else _DIRECT_BYTES
        if wide and side == "a" and k_stride == 1:  # a tile's rows of it, each read through, are as near as a panel
            most = lines * self.k * size
        elif self.form.isa.is_broad:
            most = 0 if self.m * self.n * self.k > _DIRECT_PRODUCTS else _LINES_DIRECT_BYTES
        if x.dtype.name != self.form.name or lines * self.k * size > most:
            return False
        if side == "b":  # whole vectors of columns only
            return line_stride == 1 and self.n % self.form.lanes == 0 and apart
        return 1 in (line_stride, k_stride) and apart

    def steps(self) -> Iterator[Step]:
        init: Place = (None, 0)
        if self.bias is not None:
            init = ("bias", 0)
            plain = Format("float64" if self.sum_bytes == 8 else "float32", self.form.isa)
            if self.bias.rank == 1 and (
                self.bias.dtype.name != plain.name or (self.bias.strides != (1,) and self.n > 1)
            ):
                init = yield from self._contiguous("bias", self.bias, self.n, self.bias.strides[0], plain)
        if self._is_vector():
            yield from self._vector(init)
            return
        for first in range(0, self.batches, self.at_once):
            count = min(self.at_once, self.batches - first)
            for k in self.k_cuts:
                for stay in self.cuts[self.stays]:
                    for i, move in enumerate(self.cuts[self.moves]):
                        blocks = {self.stays: stay, self.moves: move}
                        yield from self._block(first, count, k, blocks, fresh=i == 0, bias=init)

    def _block(
        self, first: int, count: int, k: Cut, blocks: dict[str, Cut], *, fresh: bool, bias: Place
    ) -> Iterator[Step]:
        """Packs and multiplies a block of `count` batches from `first` on; `fresh`: the operand that stays, too."""
        words = dict.fromkeys(WORDS, 0)
        words["k"] = k[1] - k[0]
        words["steps"] = -(-words["k"] // self.form.per_step)
        groups = 0
        for side in "ab":
            self._operand(words, side, first, k, blocks[side])
            if side in self.direct or (side == self.stays and not fresh):
                words[f"{side}_groups"] = 0
            groups += words[f"{side}_groups"]
        if self._packed_in_tasks(words):
            groups -= words["a_groups"]
            words["a_groups"], words["a_now"] = 0, 1
        tasks = self._tasks(words) * count
        row, column = blocks["a"][0], blocks["b"][0]
        c: Place = ("y", 0)
        words["result"], size, batch = self.result, self.result_bytes, first
        if self.partial is not None and k[1] < self.k:
            c, words["result"], size, batch = ("scratch", self.partial), gemm_ir.PLAIN, self.sum_bytes, 0
        words["c_row"], words["c_column"], words["c_batch"] = self.n * size, size, self.m * self.n * size
        words["c"] = c[1] + batch * words["c_batch"] + row * words["c_row"] + column * size
        words["init_column"], init = self.sum_bytes, bias
        if self.bias is not None and self.bias.rank == 2:
            words["init_row"] = self.n * self.sum_bytes
        if k[0] > 0:  # go on from the sums of the blocks of k before
            words["init_row"], words["init_batch"] = self.n * self.sum_bytes, self.m * self.n * self.sum_bytes
            init = ("y", first * words["init_batch"]) if self.partial is None else ("scratch", self.partial)
        if init[0] is not None:
            words["init"] = init[1] + row * words["init_row"] + column * self.sum_bytes
        code = native(self.form)
        values = count * words["k"] * (words["a_lines"] * fresh + words["b_lines"])
        flops = 2 * count * words["k"] * words["a_lines"] * words["b_lines"]
        sources = {"a_source": "a", "b_source": "b", "a_packed": "scratch", "b_packed": "scratch"}
        if words["k"] and groups:
            yield self._launch(code.pack_pass, words, groups * count, values > _PACK_VALUES, sources)
        multiply = code.multiply_pass
        if self.direct:
            multiply = direct_pass(self.form)
            words |= self._unpacked(words)
        results = {f"{side}_packed": side if side in self.direct else "scratch" for side in "ab"}
        if words["a_now"]:
            results["a_source"] = "a"
        results |= {"c": c[0], "init": init[0]}
        yield self._launch(multiply, words, tasks, flops > _TASK_FLOPS, results)

    def _packed_in_tasks(self, words: dict[str, int]) -> bool:
        """Whether tasks pack what they multiply of a, where it is the larger operand and makes enough tasks: it is in
        the second cache level then, and no core writes what another has read, which can take it longer than to pack. In
        vectors that is where b is packed as well, as for gradients of weights; in tile registers, where all of b is
        near. (A larger b is weights there, which come from memory: a pass reads them faster.)"""
        if self.batches > 1 or self.moves != "a" or "a" in self.direct or not words["k"]:
            return False
        enough = words["a_lines"] >= self._least_tasks(large=True) * self.form.rows
        if self.form.name == "tiles":  # b is read again for each panel of a
            return enough and words["b_batch_bytes"] <= _TILES_GROUP_BYTES
        return enough and not self.direct and self.form.isa.vector == 64 and not self.form.isa.is_broad

    def _least_tasks(self, *, large: bool) -> int:
        """Tasks wanted of a block."""
        return max(_LARGE_TASKS if large else _TASKS, _TASKS_A_THREAD * pool.threads())

    def _unpacked(self, words: dict[str, int]) -> dict[str, int]:
        """The words that differ in a direct pass."""
        size = SIZE[self.form.unit]
        found = {"a_row": size, "a_step": self.form.rows * size, "b_step": self.form.columns * size}
        for side in "ab":
            if side not in self.direct:
                found[f"{side}_offsets"] = self.zeros.buffer_info()[0]
                continue
            width, line_step = self.sides[side][3], words[f"{side}_line_step"]
            found |= {f"{side}_packed": words[f"{side}_source"], f"{side}_batch_bytes": 0}
            step = words[f"{side}_k_step"] * self.form.per_step
            found |= {f"{side}_panel_bytes": width * line_step, f"{side}_step": step}
            if side == "a":
                found["a_row"] = line_step
        return found

    def _launch(
        self, address: int, words: dict[str, int], items: int, parallel: bool, bases: Mapping[str, str | None]
    ) -> Step:
        found = tuple((WORD[word], base) for word, base in bases.items() if base is not None)
        return Step(address, array("q", words.values()), items, 1 if parallel else items, found)

    def _operand(self, words: dict[str, int], side: str, first: int, k: Cut, lines: Cut) -> None:
        """The words about one operand of a block."""
        x, line_stride, k_stride, width = self.sides[side]
        size = x.dtype.itemsize
        count = lines[1] - lines[0]
        panels = -(-count // width)
        per_group, k_per_group = 1, max(1, words["k"])
        if line_stride == 1 and k_stride != 1:
            if pack_ir.overlaps(self.form, width):  # the next step writes over the end of the one before
                per_group = max(1, min(_ROW_BYTES // (width * size), panels // 8))
            else:  # whole rows of memory: what follows there is read next
                per_group, pieces = panels, _TASKS_A_THREAD * pool.threads()
                steps = max(1, -(-words["steps"] // pieces))
                if steps > pack_ir.K_BLOCK:  # whole blocks
                    steps = -(-steps // pack_ir.K_BLOCK) * pack_ir.K_BLOCK
                k_per_group = steps * self.form.per_step
        k_groups = max(1, -(-words["k"] // k_per_group))
        found = {
            "source": (lines[0] * line_stride + k[0] * k_stride) * size,
            "line_step": line_stride * size,
            "k_step": k_stride * size,
            "lines": count,
            "per_group": per_group,
            "k_per_group": k_per_group,
            "k_groups": k_groups,
            "groups": -(-panels // per_group) * k_groups,
            "packed": self.packed.get(side, 0),
            "panel_bytes": panel_bytes(self.form, width, words["k"]),
            "batch_bytes": self._packed_bytes(side, count, words["k"]),
            "offsets": self.offsets["ab".index(side)].buffer_info()[0] + 8 * first,
            "pack": packers(self.form, x.dtype)[side],
        }
        words.update({f"{side}_{name}": value for name, value in found.items()})

    def _tasks(self, words: dict[str, int]) -> int:
        """Cuts a block into tasks of panels x panels; returns their number for one batch."""
        form = self.form
        a_panels, b_panels = -(-words["a_lines"] // form.rows), -(-words["b_lines"] // form.columns)
        tile = max(1, 2 * form.rows * form.columns * words["k"])
        is_tiles = form.name == "tiles"
        tasks = self._least_tasks(large=is_tiles or words["a_now"] == 1)
        wanted = max(1, -(-_TASK_FLOPS // tile), a_panels * b_panels // tasks)
        # panels of b in a task of `wanted` tiles
        most, group = wanted, _LARGE_GROUP_BYTES if form.isa.is_broad else _GROUP_BYTES
        if is_tiles:  # square: both operands come from the last cache level, and a square of tiles reads least of them
            most, group = max(round(wanted**0.5), -(-wanted // a_panels)), _TILES_GROUP_BYTES
        b_per = max(1, min(b_panels, most, group // max(64, words["b_panel_bytes"])))
        b_per = -(-b_panels // -(-b_panels // b_per))
        a_per = max(1, min(a_panels, wanted // b_per))
        a_per = -(-a_panels // -(-a_panels // a_per))
        words["columns_at_once"] = b_per * form.columns
        if words["a_now"]:
            a_per, b_per = max(1, a_panels // tasks), b_panels
            if not is_tiles:  # tasks of one size: with so few, a small last one makes a thread wait
                a_per = -(-a_panels // tasks)
        words["a_per_task"], words["b_per_task"] = a_per, b_per
        words["rows_of_tasks"], words["columns_of_tasks"] = -(-a_panels // a_per), -(-b_panels // b_per)
        # rows of a are rows of what was computed before and of the result: a core finds those it wrote itself
        words["by_rows"] = int(self.moves == "a" and self.sides["a"][2] == 1)
        return words["rows_of_tasks"] * words["columns_of_tasks"]

    def _contiguous(self, name: str, x: Array, n: int, stride: int, form: Format) -> Generator[Step, None, Place]:
        """Packs a vector as a b of one step: contiguous and in the format's dtype. Returns where it then is."""
        row = form.columns * SIZE[form.unit]  # of one panel: its successor follows without a gap
        at = self._take(row * -(-n // form.columns))
        words = dict.fromkeys(WORDS, 0)
        found = {
            "line_step": stride * x.dtype.itemsize,
            "lines": n,
            "per_group": -(-n // form.columns),
            "k_per_group": 1,
            "k_groups": 1,
            "groups": 1,
            "packed": at,
        }
        found |= {"panel_bytes": row, "pack": packers(form, x.dtype)["b"], "offsets": _NO_OFFSET.buffer_info()[0]}
        words.update({f"b_{word}": value for word, value in found.items()})
        words["k"] = 1
        yield self._launch(native(form).pack_pass, words, 1, False, {"b_source": name, "b_packed": "scratch"})
        return "scratch", at

    def _is_vector(self) -> bool:
        """Whether this is one matrix times one vector, the matrix contiguous along an axis."""
        if self.batches > 1 or not (self.m == 1 or (self.n == 1 and self.bias is None)):
            return False
        _, line_stride, k_stride, _ = self.sides["b" if self.m == 1 else "a"]
        return line_stride == 1 or k_stride == 1

    def _vector(self, init: Place) -> Iterator[Step]:
        vector, matrix, lines = ("a", "b", self.n) if self.m == 1 else ("b", "a", self.m)
        name = "rounded" if self.form.name in ("pairs", "tiles") else self.form.name
        form = Format(name, self.form.isa)
        x, _, stride, _ = self.sides[vector]
        place: Place = (vector, 0)
        if x.dtype.name != name or (stride != 1 and self.k > 1):
            place = yield from self._contiguous(vector, x, self.k, stride, form)
        words = dict.fromkeys(WORDS, 0)
        y, line_stride, k_stride, _ = self.sides[matrix]
        size = y.dtype.itemsize
        words |= {"b_line_step": line_stride * size, "b_k_step": k_stride * size, "b_lines": lines, "k": self.k}
        per_task = min(gemv_ir.LINES, max(64, -(-lines // 512) * 64))
        words |= {"b_per_task": per_task, "a_packed": place[1], "result": self.result}
        words |= {"c_column": self.result_bytes, "init": init[1], "init_column": self.sum_bytes}
        bases = {"a_packed": place[0], "b_source": matrix, "c": "y", "init": init[0]}
        parallel = lines * self.k > _VECTOR_VALUES
        yield self._launch(vector_pass(form, y.dtype), words, -(-lines // per_task), parallel, bases)
