"""bfloat16 and float16 elements against ml_dtypes and NumPy, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import cpu
from pellucid.kernels.cpu.formats import load, store
from pellucid.kernels.cpu.launch import kernel

HALVES = (dtypes.bfloat16, dtypes.float16)
EVERY = np.arange(65536, dtype=np.uint16)


@kernel
def convert(lo, hi, x, y):
    for i in range(lo, hi):
        store(y, i, load(x, i))


def _convert(values: np.ndarray, to: dtypes.DType) -> np.ndarray:
    source = cpu.upload(values, dtypes.dtype(values.dtype))
    result = cpu.empty(values.shape, to)
    convert(values.size, 1000, source, result)
    return cpu.download(result)


def _same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, except that any NaN equals any NaN of the same sign."""
    word = np.dtype(f"u{found.itemsize}")
    with np.errstate(invalid="ignore"):
        nan, expected_nan = np.isnan(found), np.isnan(expected)
    np.testing.assert_array_equal(nan, expected_nan)
    np.testing.assert_array_equal(found.view(word)[~nan], expected.view(word)[~nan])
    top = 8 * found.itemsize - 1
    np.testing.assert_array_equal(found.view(word)[nan] >> top, expected.view(word)[nan] >> top)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_load_is_exact_for_every_pattern(dtype: dtypes.DType) -> None:
    values = EVERY.view(dtype.numpy)
    _same_bits(_convert(values, dtypes.float32), values.astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_round_trip_of_every_pattern(dtype: dtypes.DType) -> None:
    values = EVERY.view(dtype.numpy)
    found = _convert(_convert(values, dtypes.float32), dtype)
    _same_bits(found, values)


def _awkward_floats() -> np.ndarray:
    """Random patterns, and every pattern half way between two bfloat16 or float16, with its neighbours."""
    values = np.random.default_rng(0)
    patterns = values.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties16 = (EVERY.astype(np.uint32) << 16) + np.uint32(0x8000)
    ties10 = np.float32(EVERY.view(np.float16)).view(np.uint32) + np.uint32(0x1000)
    small = values.standard_normal(50_000).astype(np.float32) * np.float32(1e-6)
    tiny = (values.standard_normal(50_000) * 1e-39).astype(np.float32)
    near = np.concatenate(
        [t + d for t in (ties16, ties10) for d in (np.uint32(-1 % 2**32), np.uint32(0), np.uint32(1))]
    )
    return np.concatenate([patterns, near, small.view(np.uint32), tiny.view(np.uint32)]).view(np.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_store_rounds_to_nearest_even(dtype: dtypes.DType) -> None:
    values = _awkward_floats()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype.numpy)
    _same_bits(_convert(values, dtype), expected)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_nan_is_quiet(dtype: dtypes.DType) -> None:
    quiet = 0x40 if dtype is dtypes.bfloat16 else 0x200
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7F80FFFF], np.uint32).view(np.float32)
    assert (_convert(signalling, dtype).view(np.uint16) & quiet).all()


@pytest.mark.parametrize("wide", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_plain_formats_are_untouched(wide: dtypes.DType) -> None:
    values = np.random.default_rng(0).integers(0, 256, 8000).astype(np.uint8).view(wide.numpy)
    assert _convert(values, wide).tobytes() == values.tobytes()


def test_numbers_are_cast() -> None:
    values = np.array([1.5, -2.75, 100.0])
    assert _convert(values, dtypes.float32).tolist() == [1.5, -2.75, 100]
    assert _convert(values, dtypes.int32).tolist() == [1, -2, 100]
    assert _convert(values, dtypes.bfloat16).astype(float).tolist() == [1.5, -2.75, 100]
    assert _convert(np.array([0, 3], np.int64), dtypes.bool_).tolist() == [False, True]
    assert _convert(np.array([True, False]), dtypes.float16).tolist() == [1, 0]
