"""Products with held matrices on every instruction path: exact where they can be, blind to what lies beside them."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.errors import DTypeError, ShapeError
from pellucid.device import Array, Buffer, cpu, pool
from pellucid.kernels.cpu import decode_token, held_linear, ir, isa, products_ir, quantize, step_ir
from pellucid.kernels.cpu.vectors_ir import Format
from pellucid.kernels.llama import Llama

Host = np.ndarray
HELD = (dtypes.int8, dtypes.bfloat16, dtypes.float32)


@pytest.fixture(params=[path.name for path in isa.available()])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> isa.Isa:
    """Makes the kernels use one instruction path."""
    chosen = isa.named(request.param)
    monkeypatch.setattr(isa, "current", lambda: chosen)
    return chosen


def array(values: object, dtype: DType = dtypes.float32) -> Array:
    return cpu.upload(np.asarray(values), dtype)


def held(rng: np.random.Generator, dtype: DType, n: int, k: int) -> tuple[Array, Array | None, Host]:
    """A matrix, its scales, and the numbers it stands for."""
    if dtype is dtypes.int8:
        values, scale = rng.integers(-127, 128, (n, k)), (rng.random(n) / 100).astype(np.float32)
        return array(values, dtype), array(scale), values * scale.astype(np.float64)[:, None]
    values = rng.normal(size=(n, k)).astype(dtype.numpy)
    return array(values, dtype), None, values.astype(np.float64)


@pytest.mark.parametrize("dtype", HELD, ids=lambda d: d.name)
@pytest.mark.parametrize("operand", [None, dtypes.bfloat16], ids=["plain", "rounded"])
def test_any_size(path: isa.Isa, dtype: DType, operand: DType | None) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in (
        (1, 1, 1),
        (1, 63, 4),
        (1, 64, 5),
        (2, 65, 17),
        (1, 576, 300),
        (3, 130, 31),
        (4, 1001, 3),
        (5, 130, 31),
        (8, 600, 50),
        (9, 70, 33),
        (16, 65, 40),
        (32, 64, 9),
        (33, 70, 33),
    ):
        matrix, scale, numbers = held(rng, dtype, n, k)
        x = rng.normal(size=(m, k)).astype(np.float32)
        bias = rng.normal(size=n).astype(np.float32)
        got = held_linear(array(x), matrix, scale, array(bias), operand_dtype=operand)
        if operand is not None:
            x = x.astype(operand.numpy).astype(np.float32)
            numbers = numbers if dtype is dtypes.int8 else numbers.astype(operand.numpy).astype(np.float64)
        want = x.astype(np.float64) @ numbers.T
        bound = 4e-7 * np.sqrt(k) * (np.abs(x).astype(np.float64) @ np.abs(numbers).T) + 3e-7 * np.abs(bias) + 1e-37
        assert (np.abs(cpu.download(got) - want - bias) <= bound).all(), (m, k, n)


def test_numbers_of_very_different_size_keep_their_places(path: isa.Isa) -> None:
    """Beside a large number small ones lose what lies below 2**-24 of it, and no more."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 256)).astype(np.float32)
    x[0, 7], x[0, 100] = 3e4, -2e4
    matrix, scale, numbers = held(rng, dtypes.int8, 64, 256)
    got = cpu.download(held_linear(array(x), matrix, scale, None, operand_dtype=None))
    want = x.astype(np.float64) @ numbers.T
    assert (np.abs(got - want) <= 2.0**-23 * np.abs(x).max() * np.abs(numbers).sum(axis=1)).all()


@pytest.mark.parametrize("dtype", HELD, ids=lambda d: d.name)
def test_special_numbers(path: isa.Isa, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    matrix, scale, numbers = held(rng, dtype, 20, 70)
    for value, rows in itertools.product((np.inf, -np.inf, np.nan, 0.0, 1e-42, 1e30), (2, 5)):
        for place in (None, 69):  # everywhere, or the last one
            x = np.full((rows, 70), value, np.float32)
            if place is not None:
                x = rng.normal(size=(rows, 70)).astype(np.float32)
                x[0, place] = value
            with np.errstate(all="ignore"):
                want = (x.astype(np.float64) @ numbers.T).astype(np.float32)
            got = cpu.download(held_linear(array(x), matrix, scale, None, operand_dtype=None))
            assert np.array_equal(np.isnan(got[1]), np.isnan(want[1]))
            if not np.isfinite(value):
                assert (np.isnan(got[0]) | np.isinf(got[0])).all()
                assert not np.isfinite(got[0]).any()
            if value in (0.0, 1e-42):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5 if place else 1e-42)


def test_a_row_that_is_not_finite_has_no_scale() -> None:
    values, scale = quantize(array([[1.0, np.nan], [0.0, 0.0], [2.0, -4.0]]))
    assert np.isnan(cpu.download(scale)[0])
    assert cpu.download(scale)[1:].tolist() == [0.0, np.float32(4 / 127)]
    assert cpu.download(values).tolist() == [[0, 0], [0, 0], [64, -127]]


class Guarded:
    """Arrays that end where a page begins that nobody may read."""

    def __init__(self) -> None:
        self._maps: list[tuple[mmap.mmap, int]] = []
        self._protect = ctypes.CDLL(None).mprotect

    def place(self, source: Array) -> Array:
        page = mmap.PAGESIZE
        inside = -(-max(1, source.nbytes) // page) * page
        memory = mmap.mmap(-1, inside + page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._maps.append((memory, start + inside))
        host = np.frombuffer(memory, np.uint8)[inside - source.nbytes : inside]
        host[...] = np.frombuffer(cpu.download(source).tobytes(), np.uint8)
        assert self._protect(ctypes.c_void_p(start + inside), page, 0) == 0
        return Array(Buffer(cpu, start + inside - source.nbytes, source.nbytes, host), source.shape, source.dtype)

    def open(self) -> None:
        for _, address in self._maps:
            self._protect(ctypes.c_void_p(address), mmap.PAGESIZE, 3)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    if not hasattr(ctypes.CDLL(None), "mprotect"):
        pytest.skip("memory can't be protected here")
    found = Guarded()
    yield found
    found.open()


@pytest.mark.parametrize("dtype", HELD, ids=lambda d: d.name)
def test_nothing_behind_the_arrays_is_read(path: isa.Isa, guarded: Guarded, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    for rows, (k, n) in itertools.product((1, 6), ((1, 1), (65, 3), (100, 18), (127, 33))):
        matrix, scale, _ = held(rng, dtype, n, k)
        x, bias = array(rng.normal(size=(rows, k))), array(rng.normal(size=n))
        want = cpu.download(held_linear(x, matrix, scale, bias, operand_dtype=None))
        scale = None if scale is None else guarded.place(scale)
        parts = (guarded.place(x), guarded.place(matrix), scale, guarded.place(bias))
        assert np.array_equal(cpu.download(held_linear(*parts, operand_dtype=None)), want)


def llama_of(rng: np.random.Generator, dtype: DType, room: int = 20) -> Llama:
    width, heads, kv_heads, size, hidden = 40, 6, 2, 10, 70
    q, kv = heads * size, kv_heads * size
    shapes = ((q, width), (kv, width), (kv, width), (width, q), *[(hidden, width)] * 2, (width, hidden))
    matrices = [held(rng, dtype, *shape) for shape in (*shapes * 2, (30, width))]
    caches = [array(rng.normal(size=(room, kv_heads, size))) for _ in range(4)]
    return Llama(
        table=matrices[-1][0],
        table_scale=matrices[-1][1],
        norms=[array(rng.random(width)) for _ in range(5)],
        weights=[m for m, _, _ in matrices],
        scales=[s for _, s, _ in matrices if s is not None],
        keys=caches[:2],
        values=caches[2:],
        cos=array(rng.random((room, size // 2))),
        sin=array(rng.random((room, size // 2))),
        eps=1e-5,
        interleaved=False,
        operand_dtype=None,
    )


@pytest.mark.parametrize("dtype", HELD, ids=lambda d: d.name)
def test_a_step_has_the_same_bits_on_any_number_of_threads(path: isa.Isa, dtype: DType) -> None:
    before, found = pool.threads(), []
    try:
        for count in (1, 2, 4, 6):  # with more, fewer query heads read a key together
            pool.set_threads(count)
            llama = llama_of(np.random.default_rng(4), dtype, 700)
            y = [decode_token(llama, token=position % 30, position=position) for position in (6, 7, 191, 400, 699)]
            found.append([cpu.download(a).tobytes() for a in (*y, *llama.keys, *llama.values)])
    finally:
        pool.set_threads(before)
    assert found.count(found[0]) == len(found)


@pytest.mark.parametrize("dtype", HELD, ids=lambda d: d.name)
def test_rows_have_the_same_bits_beside_others_and_on_any_number_of_threads(path: isa.Isa, dtype: DType) -> None:
    """One row of int8 apart, which is multiplied as digits where there are instructions for them."""
    rng, before = np.random.default_rng(5), pool.threads()
    matrix, scale, _ = held(rng, dtype, 300, 200)
    x, least = rng.normal(size=(16, 200)), products_ir.rows_together(path) if dtype is dtypes.int8 else 1
    try:
        found = []
        for count in (1, 2, 5):
            pool.set_threads(count)
            found.append(cpu.download(held_linear(array(x), matrix, scale, operand_dtype=None)))
    finally:
        pool.set_threads(before)
    for other in found[1:]:
        assert np.array_equal(other, found[0])
    for rows in range(least, 16):
        got = cpu.download(held_linear(array(x[:rows]), matrix, scale, operand_dtype=None))
        assert np.array_equal(got, found[0][:rows])


def test_what_does_not_fit() -> None:
    llama = llama_of(np.random.default_rng(4), dtypes.int8)
    for token, position in ((0, 20), (30, 0), (-1, 0)):
        with pytest.raises(ShapeError) as caught:
            decode_token(llama, token=token, position=position)
        assert str(caught.value) == (
            f"decode_token: no place for this token; got {token} at {position}, expected 0 to 29 at 0 to 19"
        )
    with pytest.raises(ShapeError, match="decode_token: scales that do not fit"):
        decode_token(replace(llama, scales=llama.scales[1:]), token=0, position=0)
    with pytest.raises(ShapeError, match="decode_token: scales of the table that do not fit"):
        decode_token(replace(llama, table_scale=llama.scales[0]), token=0, position=0)
    with pytest.raises(DTypeError, match="no table of a Llama; got float16, expected int8, bfloat16 or float32"):
        decode_token(replace(llama, table=array(np.ones((30, 40)), dtypes.float16)), token=0, position=0)
    other = array(np.ones(llama.weights[3].shape), dtypes.bfloat16)
    mixed = replace(llama, weights=[*llama.weights[:3], other, *llama.weights[4:]])
    with pytest.raises(ShapeError, match="decode_token: weights that do not lie as they should; got bfloat16"):
        decode_token(mixed, token=0, position=0)
    short = replace(llama, cos=llama.cos.slice(0, 0, 19), sin=llama.sin.slice(0, 0, 19))
    decode_token(short, token=0, position=18)
    with pytest.raises(ShapeError, match="no place for this token; got 0 at 19, expected 0 to 29 at 0 to 18"):
        decode_token(short, token=0, position=19)
    with pytest.raises(ShapeError) as caught:
        held_linear(array(np.ones((1, 3))), array(np.ones((2, 4))), None, None, operand_dtype=None)
    assert str(caught.value) == (
        "held_linear: the weight does not fit x; got x (1, 3), weight (2, 4), expected (M, K) and (N, K)"
    )
    with pytest.raises(ShapeError, match=r"the residual does not fit the result; got \(1, 3\), expected \(1, 2\)"):
        held_linear(
            array(np.ones((1, 4))), array(np.ones((2, 4))), None, None, array(np.ones((1, 3))), operand_dtype=None
        )
    with pytest.raises(DTypeError, match="held_linear: not what it is computed in; got float64, expected float32"):
        held_linear(array(np.ones((1, 4)), dtypes.float64), array(np.ones((2, 4))), None, None, operand_dtype=None)
    with pytest.raises(DTypeError, match="can't be held; got float16, expected int8, bfloat16 or float32"):
        held_linear(array(np.ones((1, 4))), array(np.ones((2, 4)), dtypes.float16), None, None, operand_dtype=None)


def test_neon_code_is_vectors() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    neon = next(p for p in isa.ALL if p.name == "neon")
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=neon.cpu, features=neon.features, opt=3)
    form = Format("float32", neon)
    for source in ("int8", "bfloat16", "float32"):
        assembly = machine.emit_assembly(ir.optimise(products_ir.passes_text(form, source), machine))
        assert "fmla\t" in assembly
        assert "bl\tfma" not in assembly
    assert "fmla\t" in machine.emit_assembly(ir.optimise(step_ir.step_text(form), machine))
