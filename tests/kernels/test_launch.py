"""Kernels as a caller sees them: results over types and sizes, chunks, strided memory, errors, one result for any
number of threads."""

from __future__ import annotations

import gc
import math
import sys
import threading

import numba
import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import KernelError
from pellucid.device import Array, Buffer, Device, cpu, pool
from pellucid.kernels.cpu.formats import array_at, element, load, put, store
from pellucid.kernels.cpu.launch import kernel
from pellucid.kernels.cpu.matmul import matmul

SIZES = (0, 1, 63, 100, 1000)


@kernel
def add(lo, hi, x, y, z):
    for i in range(lo, hi):
        store(z, i, load(x, i) + load(y, i))


@kernel
def copy(lo, hi, x, y):
    for i in range(lo, hi):
        y[i] = x[i]


@kernel
def copy_bits(lo, hi, x, y):
    for i in range(lo, hi):
        put(y, i, element(x, i))


@kernel
def scalars(lo, hi, y, a, b, c):
    for i in range(lo, hi):
        y[i] = a + (b if c else -b)


@kernel(fastmath={"contract", "nsz", "reassoc"})
def row_sums(lo, hi, x, y, columns):
    for i in range(lo, hi):
        total = np.float32(0)
        for j in range(columns):
            total += load(x, i * columns + j)
        y[i] = total


@kernel
def chunk_sums(lo, hi, x, y, grain):
    total = np.float32(0)
    for i in range(lo, hi):
        total += x[i]
    y[lo // grain] = total


@kernel
def facts(lo, hi, x, y):
    y[0], y[1], y[2], y[3], y[4] = x.ndim, x.size, x.itemsize, x.shape[0], x.strides[0]
    y[5] = lo * 1000 + hi


@kernel
def scratch(lo, hi, x, y):
    buffer = np.empty(hi - lo, np.float64)
    for i in range(lo, hi):
        buffer[i - lo] = x[i]
    for i in range(lo, hi):
        y[i] = buffer[hi - 1 - i]


@kernel
def transpose(lo, hi, x, y, step_row, step_column, columns):
    for i in range(lo, hi):
        for j in range(columns):
            store(y, i * columns + j, load(x, i * step_row + j * step_column))


def up(values: object, dtype: dtypes.DType = dtypes.float32) -> Array:
    return cpu.upload(np.asarray(values).astype(dtype.numpy), dtype)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest):
    before = pool.threads()
    pool.set_threads(request.param)
    yield request.param
    pool.set_threads(before)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_floats(threads: int, dtype: dtypes.DType, n: int) -> None:
    values = np.random.default_rng(n)
    a, b = values.standard_normal((2, n)).astype(dtype.numpy)
    c = cpu.empty((n,), dtype)
    add(n, 64, up(a, dtype), up(b, dtype), c)
    np.testing.assert_array_equal(cpu.download(c).view(np.uint8), (a + b).view(np.uint8))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("n", SIZES)
def test_every_type_is_copied(dtype: dtypes.DType, n: int) -> None:
    source = np.random.default_rng(n).integers(0, 256, n * dtype.itemsize).astype(np.uint8)
    a = source % 2 == 1 if dtype is dtypes.bool_ else source.view(dtype.numpy)
    a = a.view(dtype.numpy)[:n]
    b, c = cpu.empty((n,), dtype), cpu.empty((n, 1), dtype)
    copy(n, 16, up(a, dtype), b)
    copy_bits(n, 16, up(a.reshape(n, 1), dtype), c)
    assert cpu.download(b).tobytes() == a.tobytes() == cpu.download(c).tobytes()


def test_int16_is_not_float16() -> None:
    a, c = up([3, -5, 32767], dtypes.int16), cpu.empty((3,), dtypes.int16)
    add(3, 3, a, up([1, 1, 0], dtypes.int16), c)
    assert cpu.download(c).tolist() == [4, -4, 32767]


def test_scalars() -> None:
    y = cpu.empty((3,), dtypes.float64)
    for a, b, c in ((1, 2.5, True), (-(2**62), 1e-3, False), (2.5, 7, True), (True, 1.0, False)):
        scalars(3, 3, y, a, b, c)
        assert cpu.download(y).tolist() == [a + (b if c else -b)] * 3


def test_array_facts() -> None:
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float64):
        y, n = cpu.empty((6,), dtypes.int64), dtype.itemsize
        facts(5, 9, cpu.empty((2, 3, 5), dtype), y)
        assert cpu.download(y).tolist() == [1, 1, n, 1, n, 5]


def test_views_with_an_offset() -> None:
    x, y = up(np.arange(12.0).reshape(3, 4)), up(np.zeros((3, 4)))
    copy(4, 2, x.select(0, 2), y.select(0, 1))
    assert cpu.download(y).tolist() == [[0] * 4, [8, 9, 10, 11], [0] * 4]


def test_scratch_memory(threads: int) -> None:
    x, y = up(np.arange(100)), cpu.empty((100,), dtypes.float32)
    scratch(100, 30, x, y)
    expected = [v for lo in range(0, 100, 30) for v in reversed(range(lo, min(lo + 30, 100)))]
    assert cpu.download(y).tolist() == expected


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda d: d.name)
def test_strided_memory(dtype: dtypes.DType) -> None:
    host = np.arange(30).reshape(5, 6).astype(dtype.numpy)
    x = up(host, dtype)
    for view, expected in (
        (x.transpose(), host.T),
        (x.slice(0, 4, -1, -1), host[::-1]),
        (x.slice(0, 4, -1, -1).slice(1, 5, -1, -2), host[::-1, ::-2]),
        (x.select(0, 2).unsqueeze(0).expand((4, 6)), np.broadcast_to(host[2], (4, 6))),
    ):
        y, (rows, columns) = cpu.empty((view.size,), dtype), view.shape
        transpose(rows, 2, view, y, *view.strides, columns)
        np.testing.assert_array_equal(cpu.download(y).reshape(rows, columns), expected)


def test_chunks_are_the_same_for_any_thread_count() -> None:
    x = up(np.random.default_rng(0).standard_normal(10007))
    found: list[bytes] = []
    before = pool.threads()
    for count in (1, 2, 3):
        pool.set_threads(count)
        for _ in range(20):
            y = up(np.zeros(102))
            chunk_sums(10007, 100, x, y, 100)
            found.append(cpu.download(y).tobytes())
    pool.set_threads(before)
    assert len(set(found)) == 1


def test_reduction_that_may_reassociate(threads: int) -> None:
    host = np.random.default_rng(1).standard_normal((63, 1000)).astype(np.float32)
    y = cpu.empty((63,), dtypes.float32)
    row_sums(63, 7, up(host), y, 1000)
    np.testing.assert_allclose(cpu.download(y), host.sum(-1, dtype=np.float64), rtol=0, atol=1e-3)


def test_two_python_threads() -> None:
    failures: list[BaseException] = []

    def hammer(seed: int) -> None:
        try:
            values = np.random.default_rng(seed)
            for n in (1, 63, 1000, 5000):
                a, b = values.standard_normal((2, n)).astype(np.float32)
                x, y, z = up(a), up(b), cpu.empty((n,), dtypes.float32)
                for _ in range(50):
                    add(n, 64, x, y, z)
                np.testing.assert_array_equal(cpu.download(z), a + b)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=hammer, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_indexing_costs_no_test_for_negative_indices() -> None:
    @kernel
    def plain(lo, hi, x, y):
        for i in range(lo, hi):
            y[i] = x[i] * x[i]

    kind = numba.types.Array(numba.types.float32, 1, "C")
    types = (numba.types.int64, numba.types.int64, kind, kind)
    plain._jit.compile(types)
    code = plain._jit.overloads[types].library.get_llvm_str()
    assert "<4 x float>" in code or "<8 x float>" in code or "<16 x float>" in code
    assert "gather" not in code


def test_infinities_and_nan_stay() -> None:
    a = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45]
    z = cpu.empty((6,), dtypes.float32)
    add(6, 6, up(a), up([0.0, math.inf, 1.0, 0.0, -0.0, 0.0]), z)
    np.testing.assert_array_equal(cpu.download(z), np.float32([math.inf, math.nan, math.nan, 0, 0, 1e-45]))


# --- lists ------------------------------------------------------------------------------------------------------------


@kernel
def total_each(lo, hi, parts, part_like, sizes, y):
    for i in range(lo, hi):
        x, total = array_at(parts, i, part_like), 0.0
        for k in range(load(sizes, i)):
            total += load(x, k)
        store(y, i, total)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int8], ids=lambda d: d.name)
def test_a_list_of_arrays(threads: int, dtype: dtypes.DType) -> None:
    hosts = [np.arange(n) % 7 for n in (1, 5, 100, 3)]
    whole = up(np.concatenate([[50, 50], *hosts]), dtype)  # all but the last in one buffer, at offsets
    starts = [2, 3, 8, 108]
    parts = [whole.slice(0, s, s + len(h)) for s, h in zip(starts[:3], hosts[:3], strict=True)] + [up(hosts[3], dtype)]
    sizes, y = up([len(h) for h in hosts], dtypes.int64), cpu.empty((4,), dtypes.float64)
    total_each(4, 1, parts, parts[0], sizes, y)
    assert cpu.download(y).tolist() == [h.sum() for h in hosts]


def test_lists_that_are_refused() -> None:
    x, y = up(np.zeros(3)), cpu.empty((3,), dtypes.float64)
    for parts in ([x, up([1], dtypes.int8)], [x, 3], [x, None]):
        with pytest.raises(
            KernelError, match="total_each: a list of different things; got argument 0, expected Arrays"
        ):
            total_each(1, 1, parts, x, x, y)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="total_each: not an argument of a kernel; got argument 0, list"):
        total_each(1, 1, [], x, x, y)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="total_each: too many arrays in a list; got 1025, expected at most 1024"):
        total_each(1, 1, [x] * 1025, x, x, y)  # type: ignore[arg-type]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments() -> None:
    x = up(np.zeros(3))
    for arguments in (("text",), (None,), (np.zeros(3),), (np.float32(1),)):
        with pytest.raises(KernelError, match="copy: not an argument of a kernel; got argument 1, "):
            copy(3, 3, x, *arguments)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="copy: wrong number of arguments; got 1, expected 2"):
        copy(3, 3, x)
    for n, grain in ((3, 0), (3, -1), (2.0, 1), (None, 1)):
        with pytest.raises(KernelError, match="copy: not a number of items and a chunk size"):
            copy(n, grain, x, x)  # type: ignore[arg-type]
    y = cpu.empty((3,), dtypes.float64)
    scalars(3, 3, y, 1, 2, True)
    for big in (2**63, -(2**63) - 1):
        with pytest.raises(KernelError, match="scalars: a number that does not fit"):
            scalars(3, 3, y, big, 2, True)


def test_grain_is_checked_when_everything_is_known() -> None:
    x = up(np.zeros(3))
    copy(3, 3, x, x)
    with pytest.raises(KernelError, match=r"got \(3, 0\)"):
        copy(3, 0, x, x)


def test_memory_of_another_device() -> None:
    class Elsewhere(Device):
        name = "elsewhere"

        def allocate(self, nbytes):
            return Buffer(self, 64, nbytes, None)

        upload = download = synchronize = None  # type: ignore[assignment]

    Elsewhere.__abstractmethods__ = frozenset()
    array = Elsewhere().empty((7,), dtypes.float32)  # type: ignore[abstract]
    with pytest.raises(KernelError, match="copy: an array that is not in host memory; got argument 0 on Device"):
        copy(7, 7, array, array)
    with pytest.raises(KernelError, match="matmul: an array that is not in host memory; got argument 0 on Device"):
        matmul(array.reshape((7, 1)), cpu.empty((1, 300), dtypes.float32))  # type: ignore[arg-type]


def _emptied(name: str) -> Array:
    """An Array one of whose slots, or of its Buffer, was deleted."""
    array = up(np.zeros(3))
    delattr(array if name in Array.__slots__ else array.buffer, name)
    return array


def test_an_array_that_holds_no_place() -> None:
    x = up(np.zeros(3))
    copy(3, 3, x, x)
    nine = 1 << 70
    wrong = [_emptied(name) for name in ("buffer", "dtype", "offset", "address", "device")]
    wrong += [Array(b, (3,), dtypes.float32, (1,), 0) for b in (object(), 3, None)]  # type: ignore[arg-type]
    wrong += [Array(x.buffer, (3,), dtypes.float32, (1,), o) for o in (1.0, None, nine, -1)]  # type: ignore[arg-type]
    wrong += [Array(Buffer(cpu, a, 12, None), (3,), dtypes.float32) for a in (None, nine, -1)]  # type: ignore[arg-type]
    wrong.append(Array(x.buffer, (3,), "float32"))  # type: ignore[arg-type]
    for array in wrong:
        for argument in (array, [array], [x, array]):
            with pytest.raises(KernelError, match="copy: an array that holds no place in memory; got argument 1"):
                copy(3, 3, x, argument)
    copy(3, 3, x, Array(x.buffer, (3,), dtypes.float32, (1,), np.int64(0)))  # type: ignore[arg-type]


def test_refused_launches_leave_the_references_of_their_arguments() -> None:
    x, array = up(np.zeros(3)), _emptied("offset")
    things = [x, x.buffer, array, array.buffer, "text", np.float32(1), 1 << 70, [x, None], cpu, Array]
    gc.collect()  # what others left refers to the device too
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        for thing in things[2:]:
            with pytest.raises(KernelError):
                copy(3, 3, x, thing)  # type: ignore[arg-type]
            with pytest.raises(KernelError):
                copy(3, thing, x, x)  # type: ignore[arg-type]
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    assert [thing for thing, a, b in zip(things, after, before, strict=True) if abs(a - b) > 9] == []


def test_does_not_compile() -> None:
    @kernel
    def wrong(lo, hi, x):
        for i in range(lo, hi):
            x[i] = x[i].nonsense

    with pytest.raises(KernelError, match=r"wrong: does not compile; got array\(float32, 1d, C\)\. hint: "):
        wrong(3, 3, up(np.zeros(3)))


def test_halves_have_no_arithmetic_of_their_own() -> None:
    @kernel
    def doubled(lo, hi, x):
        for i in range(lo, hi):
            x[i] = x[i] * 2

    with pytest.raises(KernelError, match="doubled: does not compile"):
        doubled(3, 3, up(np.zeros(3), dtypes.bfloat16))


def test_exception_in_compiled_code(threads: int) -> None:
    @kernel
    def raises(lo, hi, x):
        if lo == 2:
            raise ValueError("two")

    for _ in range(3):
        with pytest.raises(KernelError, match="raises: raised an exception in compiled code"):
            raises(5, 1, up(np.zeros(3)))
    raises(2, 1, up(np.zeros(3)))


def test_flags_that_hide_non_finite_numbers() -> None:
    for flags in ({"nnan"}, {"ninf", "contract"}, {"fast"}):
        with pytest.raises(KernelError, match="fast-math flags that are not allowed"):
            kernel(fastmath=flags)(lambda lo, hi, x: None)
