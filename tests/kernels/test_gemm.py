"""The CPU's matrix product: every instruction path the host can run against float64 NumPy.

Tolerances follow the probabilistic bound of a sum of K rounded products, eps * sqrt(K) * (|a| @ |b|) (Higham & Mary
2019), plus one rounding of the result to its own dtype.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.errors import DeviceError, DTypeError, ShapeError
from pellucid.base.settings import settings
from pellucid.device import Array, Buffer, HostDevice, cpu, pool
from pellucid.device.cpu import view
from pellucid.kernels.cpu import cache, gemm_ir, gemm_plan, gemv_ir, ir, isa, pack_ir, tiles_ir
from pellucid.kernels.cpu.matmul import matmul
from pellucid.kernels.cpu.memory import cast, copy
from pellucid.kernels.cpu.vectors_ir import Format

Host = np.ndarray[Any, Any]
module = importlib.import_module("pellucid.kernels.cpu.matmul")  # the package shows its function under this name
BF16 = dtypes.bfloat16
#: Of the sums, and of one rounding of the result.
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-23, "float16": 2.0**-23}
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}
TINY = {"float32": 1e-37, "float64": 1e-300, "bfloat16": 1e-37, "float16": 2.0**-25}


@pytest.fixture(params=[path.name for path in isa.available()])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> isa.Isa:
    """Makes the product use one instruction path."""
    chosen = isa.named(request.param)
    monkeypatch.setattr(isa, "current", lambda: chosen)
    return chosen


@pytest.fixture(params=[True, False], ids=["direct", "packed"])
def packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small operands be read where they lie, or has every operand packed."""
    monkeypatch.setattr(module, "_plans", {})
    if not request.param:
        monkeypatch.setattr(gemm_plan._Planner, "_is_direct", lambda *_: False)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    return cpu.upload(rng.standard_normal(shape), dtype)


def wide(x: Array, operand: DType | None = None) -> Host:
    """The numbers of an Array in float64, as the product reads them."""
    host = view(x)
    return (host if operand is None else host.astype(np.float32).astype(operand.numpy)).astype(np.float64)


def check(a: Array, b: Array, bias: Array | None = None, operand: DType | None = None) -> Array:
    """Runs the product and compares it with float64 NumPy."""
    y = matmul(a, b, bias, operand_dtype=operand)
    left, right = wide(a, operand), wide(b, operand)
    want, size = left @ right, np.abs(left) @ np.abs(right)
    if bias is not None:
        want, size = want + wide(bias), size + np.abs(wide(bias))
    name = y.dtype.name
    sums = EPS["float32" if operand else name] * max(1.0, left.shape[-1]) ** 0.5 * size
    allowed = sums + ROUNDING[name] * np.abs(want) + TINY[name]
    assert y.shape == want.shape
    assert y.is_contiguous
    error = np.abs(wide(y) - want)
    assert np.all(error <= allowed), f"worst error {np.max(error / allowed):.2f} of the allowed"
    return y


# --- shapes, strides, dtypes ------------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 63, 64, 65, 100, 127, 513)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_odd_sizes(path: isa.Isa, packing: None, rng: np.random.Generator, dtype: DType) -> None:
    for m, k, n in itertools.product(SIZES[::2], SIZES[1::2], SIZES[::2]):
        check(numbers(rng, (m, k), dtype), numbers(rng, (k, n), dtype))
    for m, k, n in zip(SIZES, SIZES[::-1], SIZES[3:] + SIZES[:3], strict=True):
        check(numbers(rng, (m, k), dtype), numbers(rng, (k, n), dtype))


@pytest.mark.parametrize("operand", [None, BF16], ids=["plain", "rounded"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_whole_numbers_are_what_they_are_as_floats(
    path: isa.Isa, packing: None, rng: np.random.Generator, dtype: DType, operand: DType | None
) -> None:
    for m, k, n in ((1, 70, 65), (7, 65, 1), (6, 13, 17), (65, 100, 130), (33, 0, 5), (20, 1600, 70)):
        a, whole = numbers(rng, (m, k), dtype), cpu.upload(rng.integers(-127, 128, (n, k)), dtypes.int8)
        for b in (whole.transpose(), copy(whole.transpose())):
            found, wanted = check(a, b, operand=operand), matmul(a, cast(b, dtype=dtype), operand_dtype=operand)
            assert found.dtype is wanted.dtype
            if min(m, n) > 1:  # a vector's sums are made in another order from each dtype
                assert view(found).tobytes() == view(wanted).tobytes()


@pytest.mark.parametrize("operand", [None, BF16], ids=["plain", "rounded"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_every_layout(
    path: isa.Isa, packing: None, rng: np.random.Generator, dtype: DType, operand: DType | None
) -> None:
    """Transposes, negative steps, gaps and repeated lines; also for one row and for one column."""

    def layouts(rows: int, columns: int) -> Iterator[Array]:
        yield numbers(rng, (rows, columns), dtype)
        yield numbers(rng, (columns, rows), dtype).transpose()
        yield numbers(rng, (rows, columns), dtype).slice(0, rows - 1, -1, -1).slice(1, columns - 1, -1, -1)
        yield numbers(rng, (2 * rows, 3 * columns), dtype).slice(0, 1, 2 * rows, 2).slice(1, 0, 3 * columns, 3)
        yield (
            numbers(rng, (2 * columns, rows + 5), dtype)
            .slice(0, 0, 2 * columns, 2)
            .slice(1, 2, rows + 2, 1)
            .transpose()
        )
        yield numbers(rng, (1, columns), dtype).expand((rows, columns))

    for m, k, n in ((37, 71, 45), (1, 130, 77), (77, 130, 1)):
        for a, b in itertools.product(layouts(m, k), layouts(k, n)):
            check(a, b, operand=operand)


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(dtypes.FLOATS, 2)), ids=lambda d: d.name)
def test_mixed_dtypes(path: isa.Isa, rng: np.random.Generator, left: DType, right: DType) -> None:
    y = check(numbers(rng, (33, 70), left), numbers(rng, (70, 50), right))
    assert y.dtype is dtypes.promote(left, right)
    check(numbers(rng, (1, 70), left), numbers(rng, (50, 70), right).transpose())


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_bias(path: isa.Isa, rng: np.random.Generator, dtype: DType) -> None:
    plain = numbers(rng, (45,), dtype)
    stretched = numbers(rng, (1,), dtype).expand((45,))
    reverse = numbers(rng, (90,), dtype).slice(0, 88, -1, -2)
    for bias, m in itertools.product((plain, stretched, reverse, numbers(rng, (45,), dtypes.float32)), (1, 20)):
        check(numbers(rng, (m, 33), dtype), numbers(rng, (33, 45), dtype), bias)
    for m, k in ((1, 33), (20, 33), (1, 0), (40, 3000)):
        for matrix in (numbers(rng, (m, 45), dtype), numbers(rng, (45, m), dtypes.float32).transpose()):
            check(numbers(rng, (m, k), dtype), numbers(rng, (k, 45), dtype), matrix)
    check(numbers(rng, (20, 33), dtype), numbers(rng, (33, 1), dtype), numbers(rng, (1,), dtype))


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_batches(path: isa.Isa, packing: None, rng: np.random.Generator, dtype: DType) -> None:
    def check_pair(a: tuple[int, ...], b: tuple[int, ...]) -> None:
        check(numbers(rng, a, dtype), numbers(rng, b, dtype), numbers(rng, b[-1:], dtype))

    check_pair((3, 4, 17, 20), (3, 4, 20, 33))
    check_pair((3, 1, 17, 20), (4, 20, 33))
    check_pair((17, 20), (5, 20, 33))
    check_pair((5, 7, 17, 20), (20, 33))
    check_pair((5, 1, 20), (20, 33))
    check_pair((6, 1, 20), (6, 20, 9))
    heads = numbers(rng, (2, 30, 4, 16), dtype).permute((0, 2, 1, 3))
    check(heads, numbers(rng, (2, 30, 4, 16), dtype).permute((0, 2, 3, 1)))
    check(heads, numbers(rng, (16, 5), dtype))


def test_blocks(path: isa.Isa, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products cut along every axis, as large ones are: with small limits, so that the test is not large."""
    monkeypatch.setattr(gemm_plan, "_K_BYTES", 256)
    monkeypatch.setattr(gemm_plan, "_PACKED_BYTES", 24 << 10)
    monkeypatch.setattr(module, "_plans", {})
    for dtype, (m, k, n) in itertools.product(dtypes.FLOATS, ((200, 300, 90), (90, 301, 200), (7, 500, 1000))):
        a, b, bias = numbers(rng, (m, k), dtype), numbers(rng, (n, k), dtype).transpose(), numbers(rng, (n,), dtype)
        check(a, b, bias)
        check(a, b, operand=BF16)
    check(numbers(rng, (40, 30, 70), BF16), numbers(rng, (40, 70, 30), BF16))


def test_some_steps_at_a_time(packing: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of tile registers that wait in memory between pieces of the steps (`gemm_ir._PIECE`) are those of a product
    for each piece, added up: with partial tiles, a start and a rounded result."""
    paths = [path for path in isa.available() if path.tiles]
    if not paths:
        pytest.skip("no tile registers here")
    monkeypatch.setattr(isa, "current", lambda: paths[0])
    piece = gemm_ir._PIECE * Format("tiles", paths[0]).per_step
    for m, k, n in ((70, 3 * piece, 300), (33, 4 * piece, 31), (16, 2 * piece, 290)):
        a, b, start = numbers(rng, (m, k), BF16), numbers(rng, (k, n), BF16), numbers(rng, (m, n), dtypes.float32)
        sums = start
        for k0 in range(0, k, piece):
            part = a.slice(1, k0, k0 + piece, 1), b.slice(0, k0, k0 + piece, 1)
            sums = matmul(*part, sums, result_dtype=dtypes.float32)
        assert np.array_equal(view(sums), view(matmul(a, b, start, result_dtype=dtypes.float32)))
        assert np.array_equal(view(cpu.upload(view(sums), BF16)), view(matmul(a, b, start)))


def test_empty(path: isa.Isa, rng: np.random.Generator) -> None:
    for dtype in dtypes.FLOATS:
        bias = numbers(rng, (5,), dtype)
        for m in (1, 4):
            y = matmul(numbers(rng, (m, 0), dtype), numbers(rng, (0, 5), dtype))
            assert np.array_equal(wide(y), np.zeros((m, 5)))
            y = matmul(numbers(rng, (m, 0), dtype), numbers(rng, (0, 5), dtype), bias)
            assert np.array_equal(wide(y), np.broadcast_to(wide(bias), (m, 5)))
        assert matmul(numbers(rng, (0, 3), dtype), numbers(rng, (3, 5), dtype)).shape == (0, 5)
        assert matmul(numbers(rng, (2, 3), dtype), numbers(rng, (3, 0), dtype)).shape == (2, 0)
        assert matmul(numbers(rng, (0, 2, 3), dtype), numbers(rng, (3, 4), dtype)).shape == (0, 2, 4)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_infinities_and_nans_stay_in_their_rows_and_columns(path: isa.Isa, packing: None, dtype: DType) -> None:
    for m, k, n in ((13, 35, 33), (1, 35, 33), (13, 35, 1)):
        a, b = np.ones((m, k)), np.ones((k, n))
        a[0, -1], b[3, n - 1] = np.inf, np.nan
        y = wide(matmul(cpu.upload(a, dtype), cpu.upload(b, dtype)))
        with np.errstate(all="ignore"):
            assert np.array_equal(y, a @ b, equal_nan=True)
        b[3, n - 1], b[-1, 0] = 1.0, 0.0  # inf * 0
        y = wide(matmul(cpu.upload(a, dtype), cpu.upload(b, dtype)))
        with np.errstate(all="ignore"):
            assert np.array_equal(y, a @ b, equal_nan=True)


def test_rounding_of_narrow_numbers(path: isa.Isa) -> None:
    """Products with one, and sums with zero, show how elements are read and results rounded: as NumPy does."""
    bits = np.arange(65536, dtype=np.uint16)
    one = {d: cpu.upload(np.ones((1, 1)), d) for d in (BF16, dtypes.float16, dtypes.float32)}
    for dtype in (BF16, dtypes.float16):
        values = bits.view(dtype.numpy)
        x = cpu.upload(values.reshape(-1, 1), dtype)
        widened = view(matmul(x, one[dtypes.float32]))[:, 0]
        assert np.array_equal(widened, values.astype(np.float32), equal_nan=True)
    spread = np.exp2(np.linspace(-14, 15, 4000)) * np.linspace(1, 2, 4000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 65519.9, 65520.0, 1e9, 1.00390625, 1.01171875]
    small = [6e-8, 2.9e-8, 3e-8, 1e-7, 6.1e-5, 5.96e-5]
    f32 = np.concatenate([spread, -spread, special, small]).astype(np.float32)
    with np.errstate(all="ignore"):
        rounded = f32.astype(BF16.numpy).astype(np.float32)
        y = matmul(cpu.upload(f32.reshape(-1, 1), dtypes.float32), one[dtypes.float32], operand_dtype=BF16)
        assert np.array_equal(view(y)[:, 0], rounded, equal_nan=True)
        wide_sum = matmul(
            cpu.upload(np.zeros((1, 1)), dtypes.float16),
            cpu.upload(np.zeros((1, f32.size)), dtypes.float16),
            cpu.upload(f32, dtypes.float32),
        )
        assert np.array_equal(view(wide_sum)[0], f32.astype(np.float16), equal_nan=True)
        wide_sum = matmul(
            cpu.upload(np.zeros((1, 1)), BF16),
            cpu.upload(np.zeros((1, f32.size)), BF16),
            cpu.upload(f32, dtypes.float32),
        )
        assert np.array_equal(wide(wide_sum)[0], f32.astype(BF16.numpy).astype(np.float64), equal_nan=True)


@pytest.fixture
def thread_counts() -> Iterator[Callable[[int], None]]:
    before = pool.threads()
    yield pool.set_threads
    pool.set_threads(before)


@pytest.mark.parametrize("operand", [None, BF16], ids=["plain", "rounded"])
def test_threads_do_not_change_a_bit(
    path: isa.Isa, packing: None, rng: np.random.Generator, thread_counts: Callable[[int], None], operand: DType | None
) -> None:
    shapes = ((300, 1300, 200), (64, 5000, 96), (1, 900, 3000), (2000, 700, 1))
    pairs = [
        (numbers(rng, (m, k), dtypes.float32), numbers(rng, (n, k), dtypes.float32).transpose()) for m, k, n in shapes
    ]
    pairs.append((numbers(rng, (12, 64, 40), dtypes.float32), numbers(rng, (12, 40, 64), dtypes.float32)))
    for m, k, n in ((500, 1301, 200), (90, 700, 600)):  # as gradients of weights
        pairs.append((numbers(rng, (k, m), dtypes.float32).transpose(), numbers(rng, (k, n), dtypes.float32)))
    results = []
    for count in (1, 2, 3):
        thread_counts(count)
        results.append([view(matmul(a, b, operand_dtype=operand)).tobytes() for a, b in pairs])
    assert results[0] == results[1] == results[2]


def test_two_python_threads(rng: np.random.Generator) -> None:
    a, b = numbers(rng, (200, 300), dtypes.float32), numbers(rng, (300, 250), dtypes.float32)
    want, failures = view(matmul(a, b)).tobytes(), []

    def work() -> None:
        for _ in range(50):
            if view(matmul(a, b)).tobytes() != want:
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- memory -----------------------------------------------------------------------------------------------------------


class Fenced(HostDevice):
    """Memory that ends, or begins, at a page nobody may touch: a read or write outside ends the process."""

    def __init__(self, *, behind: bool) -> None:
        super().__init__("fenced", "")
        self._behind = behind
        self._maps: list[mmap.mmap] = []
        self._protect = ctypes.CDLL(None).mprotect

    def allocate(self, nbytes: int) -> Buffer:
        page = mmap.PAGESIZE
        inside = max(page, -(-nbytes // page) * page)
        memory = mmap.mmap(-1, inside + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for fence in (start, start + page + inside):
            assert self._protect(ctypes.c_void_p(fence), page, 0) == 0
        self._maps.append(memory)
        return Buffer(self, start + page + (inside - nbytes if self._behind else 0), nbytes, memory)


@pytest.mark.parametrize("behind", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_nothing_outside_is_touched(
    path: isa.Isa, packing: None, rng: np.random.Generator, dtype: DType, behind: bool
) -> None:
    if not hasattr(ctypes.CDLL(None), "mprotect"):
        pytest.skip("no page protection on this system")
    device = Fenced(behind=behind)

    def place(shape: tuple[int, ...]) -> Array:
        return device.upload(rng.standard_normal(shape), dtype)

    for m, k, n in (
        (1, 1, 1),
        (13, 35, 33),
        (25, 31, 47),
        (64, 64, 64),
        (1, 35, 77),
        (77, 35, 1),
        (5, 3, 65),
        (48, 96, 41),
        (41, 530, 75),
    ):
        for at, bt in itertools.product((False, True), (False, True)):
            a = place((k, m)).transpose() if at else place((m, k))
            b = place((n, k)).transpose() if bt else place((k, n))
            check(a, b, place((n,)))
            check(a, b)
            check(a, b, operand=BF16)


def test_rows_beside_the_result_stay(path: isa.Isa, rng: np.random.Generator) -> None:
    """The tile kernel writes rows x columns and nothing else, in every result format."""
    form = Format("float32", path)
    k, tile = 9, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(gemm_plan.native(form).tile)
    packed_a, packed_b = numbers(rng, (k, form.rows), dtypes.float32), numbers(rng, (k, form.columns), dtypes.float32)
    init = numbers(rng, (form.rows, form.columns), dtypes.float32)
    want = wide(packed_a).T @ wide(packed_b) + wide(init)
    for result, dtype in ((gemm_ir.PLAIN, dtypes.float32), (gemm_ir.BFLOAT16, BF16), (gemm_ir.FLOAT16, dtypes.float16)):
        for rows, columns in itertools.product(range(1, form.rows + 1), range(1, form.columns + 1)):
            c = cpu.upload(np.full((form.rows, form.columns + 3), 7.0), dtype)
            row = (form.columns + 3) * dtype.itemsize
            tile(
                k,
                packed_a.address,
                packed_b.address,
                c.address,
                row,
                init.address,
                form.columns * 4,
                rows,
                columns,
                result,
            )
            got = wide(c)
            assert np.allclose(got[:rows, :columns], want[:rows, :columns], rtol=1e-2, atol=1e-2)
            got[:rows, :columns] = 7.0
            assert np.all(got == 7.0)


def test_a_repeated_product_asks_the_system_for_nothing(rng: np.random.Generator) -> None:
    a, b = numbers(rng, (100, 300), dtypes.float32), numbers(rng, (300, 250), dtypes.float32)
    matmul(a, b)
    in_use, held = cpu.bytes_in_use, cpu.bytes_cached
    for _ in range(3):
        matmul(a, b)
    assert (cpu.bytes_in_use, cpu.bytes_cached) == (in_use, held)


# --- paths and compilation --------------------------------------------------------------------------------------------


def test_a_path_the_host_lacks_is_refused() -> None:
    missing = next(p.name for p in isa.ALL if not isa.runs_here(p))
    with pytest.raises(DeviceError) as error:
        isa.named(missing)
    names = ", ".join(p.name for p in isa.available())
    assert str(error.value) == (
        f"PELLUCID_ISA: this processor does not have the instruction path; got '{missing}', expected one of {names}. "
        "hint: unset PELLUCID_ISA to use the best one"
    )


def test_forced_path(switches: Callable[..., None]) -> None:
    switches(isa="portable")
    isa.current.cache_clear()
    try:
        assert isa.current().name == "portable"
        switches(isa=None)
        isa.current.cache_clear()
        assert isa.current() is isa.available()[0]
    finally:
        isa.current.cache_clear()


def test_neon_code_multiplies_and_adds_in_one_instruction() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    neon = next(p for p in isa.ALL if p.name == "neon")
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=neon.cpu, features=neon.features, opt=3)
    form = Format("float32", neon)
    assembly = machine.emit_assembly(ir.optimise(gemm_ir.product_text(form), machine))
    body = assembly.split("tile_12x2:")[1].split(".cfi_endproc")[0]
    assert body.count("fmla\t") >= form.rows * neon.vectors
    assert "bl\tfma" not in assembly
    assert "fmla\t" in machine.emit_assembly(ir.optimise(gemm_ir.direct_text(form), machine))
    for source, name in itertools.product(("float32", "bfloat16", "float16", "int8"), ("float32", "rounded")):
        form = Format(name, neon)
        for text in (pack_ir.packing_text(form, source), gemv_ir.vector_text(form, source)):
            assert ".globl" in machine.emit_assembly(ir.optimise(text, machine))


def test_code_for_tile_registers_multiplies_in_one_instruction() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    amx = next(p for p in isa.ALL if p.tiles)
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=amx.cpu, features=amx.features, opt=3)
    form = Format("tiles", amx)
    assembly = machine.emit_assembly(ir.optimise(gemm_ir.product_text(form), machine))
    body = assembly.split("tile_2x2:")[1].split(".cfi_endproc")[0]
    assert body.count("tdpbf16ps\t") == 4
    assert assembly.count("ldtilecfg\t") == assembly.count("tilerelease") == 1
    direct = machine.emit_assembly(ir.optimise(gemm_ir.direct_text(form), machine))
    assert direct.split("tile_2x2:")[1].split(".cfi_endproc")[0].count("tdpbf16ps\t") == 4
    for source in ("float32", "bfloat16", "float16", "int8"):
        assert ".globl" in machine.emit_assembly(ir.optimise(tiles_ir.packing_text(form, source), machine))


def test_tile_registers_are_for_those_whom_the_system_lets_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    amx = next(p for p in isa.ALL if p.tiles)
    monkeypatch.setattr(isa, "_host", lambda: ("x86_64", frozenset(amx.needs)))
    for allowed in (True, False):
        monkeypatch.setattr(isa, "_may_use_tiles", lambda answer=allowed: answer)
        assert isa.runs_here(amx) is allowed
        assert isa.available()[0].name == ("amx" if allowed else "avx512bf16")


def test_pairs_are_not_multiplied_where_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    amx = next(p for p in isa.ALL if p.tiles)
    for more, order in (
        (["avx512fp16"], ["amx", "avx512fma", "avx512bf16", "avx512"]),  # Intel's
        (["avx512fp16", "sse4a"], ["amx", "avx512bf16", "avx512fma", "avx512"]),  # AMD's
        ([], ["amx", "avx512bf16", "avx512fma", "avx512"]),
    ):
        monkeypatch.setattr(isa, "_host", lambda more=more: ("x86_64", frozenset([*amx.needs, *more])))
        for allowed in (True, False):
            monkeypatch.setattr(isa, "_may_use_tiles", lambda answer=allowed: answer)
            assert [path.name for path in isa.available()][: 3 + allowed] == order[not allowed :]


@pytest.mark.parametrize("along", ["lines", "k", "neither"])
@pytest.mark.parametrize("source", [*dtypes.FLOATS, dtypes.int8], ids=lambda d: d.name)
def test_panels(path: isa.Isa, rng: np.random.Generator, source: DType, along: str) -> None:
    """A packed panel holds its lines side by side, step after step, whatever way they lie, and nothing outside of the
    panels is written."""
    name = "float64" if source is dtypes.float64 else "rounded" if source is BF16 else "float32"
    form = Format(name, path)
    kind = np.float64 if form.accumulator == "double" else np.float32
    for side, width in (("a", form.rows), ("b", form.columns)):
        for lines, k in ((width, 16), (3 * width + 1, 41), (2 * width - 1, 8), (width + 8, 24), (1, 3)):
            x = (9 * rng.standard_normal((lines, k))).astype(source.numpy)
            held = {"lines": x.T.copy().T, "k": x, "neither": np.repeat(x, 2, axis=1).repeat(2, axis=0)[::2, ::2]}[
                along
            ]
            nbytes = gemm_plan.panel_bytes(form, width, k)
            assert nbytes % 128 == 64
            panels = -(-lines // width)
            room = np.full(panels * nbytes + 64, 0xFF, np.uint8)
            start = -room.ctypes.data % 64
            pack = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(gemm_plan.packers(form, source)[side])
            pack(held.ctypes.data, *held.strides, lines, k, room.ctypes.data + start, nbytes)
            for p in range(panels):
                panel = room[start + p * nbytes :][: k * width * kind().itemsize].view(kind).reshape(k, width)
                wanted = x[p * width :][:width].astype(kind)
                assert np.array_equal(panel.T[: len(wanted)], wanted), (side, lines, k)
            assert (np.delete(room, np.s_[start : start + panels * nbytes]) == 0xFF).all()


def test_machine_code_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "settings", lambda: replace(settings(), cache=tmp_path))
    form = Format("float32", isa.named("portable"))
    text = pack_ir.packing_text(form, "float32")
    first = ir.compile_functions(text, form.isa)
    (file,) = tmp_path.rglob("*.o")
    code = file.read_bytes()
    monkeypatch.setattr(ir, "optimise", lambda *_: pytest.fail("compiled twice"))
    second = ir.compile_functions(text, form.isa)
    assert file.read_bytes() == code
    assert first.get_function_address("pack_a") != second.get_function_address("pack_a") != 0


def test_refusals(rng: np.random.Generator) -> None:
    x, w = numbers(rng, (2, 3), dtypes.float32), numbers(rng, (4, 5), dtypes.float32)
    whole = numbers(rng, (3, 4), dtypes.int64)
    with pytest.raises(ShapeError) as error:
        matmul(x, w)
    assert str(error.value) == (
        "matmul: shapes do not multiply; got (2, 3) @ (4, 5), expected (..., M, K) @ (..., K, N)"
    )
    with pytest.raises(ShapeError) as error:
        matmul(x, w.transpose().slice(0, 0, 3, 1), numbers(rng, (5,), dtypes.float32))
    assert str(error.value) == "matmul: the bias does not fit; got (5,), expected (4,) or (2, 4)"
    with pytest.raises(DTypeError) as error:
        matmul(x, whole)
    assert str(error.value) == (
        "matmul: not a number format of matrix products; got int64, expected one of float16, bfloat16, float32, float64"
    )
    with pytest.raises(DTypeError) as error:
        matmul(x, x.transpose(), operand_dtype=dtypes.float16)
    assert str(error.value) == (
        "matmul: operands can't be rounded to this; got pellucid.float16, expected bfloat16 or None"
    )
