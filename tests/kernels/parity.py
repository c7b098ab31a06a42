"""Running a kernel case on the CPU backend and on the reference, and comparing.

A case makes its arguments from a `Data`: random numbers of the dtype under test, laid out in memory as the test wants.
The reference computes in float64 from the very numbers the kernel sees; tolerances come from `kernels/spec.py` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import Array, Buffer, Device, cpu, reference
from pellucid.kernels import spec
from pellucid.kernels.llama import Llama

LAYOUTS = ("plain", "transposed", "negative", "gaps", "offset", "stretched")

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """Numbers, the dtype the kernel gets them in, and whether they are laid out as the test wants."""

    numbers: Host
    dtype: DType
    laid_out: bool = True


class Data:
    """Random arguments for one run of a case."""

    def __init__(self, dtype: DType, layout: str = "plain", seed: int = 0) -> None:
        self.dtype, self.layout = dtype, layout
        self.random = np.random.default_rng(seed)

    @property
    def statistics(self) -> DType:
        """The dtype in which lse, rstd, ... are kept."""
        return dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32

    def normal(self, *shape: int) -> Value:
        """Normal numbers; integers around 0; either bool."""
        if self.dtype.kind == "bool":
            return self.value(self.random.random(shape) < 0.5)
        if self.dtype.kind == "int":
            low = 0 if self.dtype is dtypes.uint8 else -50
            return self.value(self.random.integers(low, 50, shape))
        return self.value(self.random.normal(size=shape))

    def positive(self, *shape: int) -> Value:
        """Numbers from 0.1 to 2.1."""
        return self.value(self.random.random(shape) * 2 + 0.1)

    def rows(self, *shape: int) -> Value:
        """Rows of a softmax."""
        e = np.exp(self.random.normal(size=shape))
        return self.value(e / e.sum(axis=-1, keepdims=True) if e.size else e)

    def value(self, numbers: Any) -> Value:
        """Given numbers in the dtype under test."""
        numbers = np.asarray(numbers)
        if self.layout == "stretched" and numbers.ndim:
            numbers = np.broadcast_to(numbers[:1], numbers.shape)
        return Value(numbers, self.dtype)

    def statistic(self, *shape: int) -> Value:
        """Numbers from 0.5 to 1.5 in the dtype of statistics."""
        return Value(self.random.random(shape) + 0.5, self.statistics, False)

    def plain(self, numbers: Any, dtype: DType) -> Value:
        """Given numbers in a dtype of their own, contiguous."""
        return Value(np.asarray(numbers), dtype, False)

    def index(self, high: int, *shape: int, dtype: DType = dtypes.int64) -> Value:
        return Value(self.random.integers(0, high, shape), dtype, False)

    def mask(self, *shape: int) -> Value:
        return Value(self.random.random(shape) < 0.5, dtypes.bool_)


@dataclass(frozen=True)
class Case:
    """One way to call a kernel. `make` returns positional arguments and keywords for a shape."""

    kernel: str
    label: str
    make: Callable[..., tuple[list[Any], dict[str, Any]]]
    shapes: tuple[tuple[int, ...], ...]
    tolerance: str
    layouts: tuple[str, ...]
    dtypes: tuple[DType, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel}-{self.label}" if self.label else self.kernel


def place(value: Any, device: Device, layout: str, *, wide: bool = False) -> Any:
    """A Value (or a list of them, or anything else as it is) on a device. wide: floats as float64."""
    if isinstance(value, list):
        return [place(v, device, layout, wide=wide) for v in value]
    if isinstance(value, Llama):
        parts = {f.name: place(getattr(value, f.name), device, layout, wide=wide) for f in fields(value)}
        return Llama(**parts)
    if not isinstance(value, Value):
        return value
    with np.errstate(all="ignore"):
        numbers = value.numbers.astype(value.dtype.numpy)
        dtype = value.dtype
        if wide and dtype.is_float:
            numbers, dtype = numbers.astype(np.float64), dtypes.float64
    rank, n = numbers.ndim, numbers.shape[-1] if numbers.ndim else 0
    if layout == "plain" or not value.laid_out or rank == 0:
        return device.upload(numbers, dtype)
    if layout == "transposed":
        return device.upload(numbers.transpose(), dtype).permute(tuple(range(rank - 1, -1, -1)))
    if layout == "negative":
        return device.upload(numbers[..., ::-1], dtype).slice(rank - 1, n - 1, -1, -1)
    if layout == "gaps":
        return device.upload(np.repeat(numbers, 2, axis=-1), dtype).slice(rank - 1, 0, 2 * n, 2)
    if layout == "offset":
        longer = np.concatenate([numbers[:1], numbers])
        return device.upload(longer, dtype).slice(0, len(longer) - len(numbers), len(longer))
    assert layout == "stretched"
    return device.upload(numbers[:1], dtype).expand(numbers.shape) if n else device.upload(numbers, dtype)


def run(case: Case, shape: tuple[int, ...], data: Data, device: Device, *, wide: bool = False) -> list[Array]:
    """Arrays a call gives: its results, or where there are none the arguments it writes."""
    positional, keyword = case.make(data, shape)
    arguments = [place(p, device, data.layout, wide=wide) for p in positional]
    result = getattr(device.kernels, case.kernel)(*arguments, **keyword)
    if result is None:
        bound = spec.KERNELS[case.kernel].bind(*arguments, **keyword)
        written = [bound[name] for name in spec.KERNELS[case.kernel].writes]
        result = [x for value in written for x in (value if isinstance(value, list) else [value]) if x is not None]
    if isinstance(result, Array):
        return [result]
    return [r for r in result if r is not None]


def numbers(array: Array) -> Host:
    return array.device.download(array).astype(np.float64)


def compare(case: Case, got: list[Array], want: list[Array], context: str) -> None:
    """Asserts that every result agrees within the case's tolerance."""
    assert len(got) == len(want), context
    for position, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{case.name} result {position} {context}"
        a, b = numbers(g), numbers(w)
        assert a.shape == b.shape, f"{where}: shape {a.shape}, expected {b.shape}"
        bounds = spec.tolerance(case.tolerance, g.dtype)
        wrong = mismatch(a, b, bounds, where)
        assert not wrong, wrong


def mismatch(got: Host, want: Host, bounds: spec.Tolerance, where: str) -> str:
    """What disagrees most, or an empty string."""
    finite = np.isfinite(want)
    if not np.array_equal(np.where(finite, 0, want), np.where(finite, 0, got), equal_nan=True):
        return f"{where}: non-finite numbers differ: {got[~finite][:5]}, expected {want[~finite][:5]}"
    a, b = got[finite], want[finite]
    if not a.size:
        return ""
    allowed = bounds.relative * np.abs(b) + bounds.absolute * max(1.0, float(np.abs(b).max()))
    with np.errstate(all="ignore"):
        excess = np.where(a == b, 0, np.abs(a - b) - allowed)
    i = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    if excess[i] <= 0:
        return ""
    return f"{where}: got {a[i]!r}, expected {b[i]!r}: off by {abs(a[i] - b[i]):.3g}, allowed {allowed[i]:.3g}"


def bits(arrays: list[Array]) -> list[bytes]:
    """The very bytes of results."""
    return [cpu.download(a).tobytes() for a in arrays]


@contextmanager
def guarded(monkeypatch: Any) -> Iterator[None]:
    """Buffers full of NaN with a guard before and behind each; asserts at the end that no guard was written."""
    made: list[tuple[Host, int, int]] = []
    guard = 192

    def allocate(nbytes: int) -> Buffer:
        block = np.full(nbytes + 2 * guard + 64, 0xFF, np.uint8)
        start = guard + -(block.ctypes.data + guard) % 64
        made.append((block, start, nbytes))
        return Buffer(cpu, block.ctypes.data + start, nbytes, block)

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "allocate", allocate)
        yield
    for block, start, nbytes in made:
        assert (block[:start] == 0xFF).all(), f"bytes before a buffer of {nbytes} were written"
        assert (block[start + nbytes :] == 0xFF).all(), f"bytes behind a buffer of {nbytes} were written"


def oracle(case: Case, shape: tuple[int, ...], data: Data) -> list[Array]:
    """The reference's results in float64 from the same numbers."""
    return run(case, shape, data, reference, wide=True)
