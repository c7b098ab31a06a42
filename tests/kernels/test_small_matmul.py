"""Small products: the very bits of tiles, which they replace, and gradients of a linear map in one launch."""

from __future__ import annotations

import platform
from itertools import product

import llvmlite.binding as llvm
import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import Array, cpu
from pellucid.kernels.cpu import isa, linear_backward, matmul
from pellucid.kernels.cpu import sum as sum_of
from pellucid.kernels.cpu.small_matmul import SmallPlan, gradient_plan, small_plan

SIZES = ((2, 1, 2), (4, 2, 8), (7, 5, 3), (8, 8, 8), (3, 17, 5))


def numbers(shape: tuple[int, ...], dtype: DType, *, turned: bool, seed: int) -> Array:
    host = np.random.default_rng(seed).standard_normal(shape[::-1] if turned else shape).astype(dtype.numpy)
    x = cpu.upload(host, dtype)
    return x.transpose() if turned else x


def tiled(a: Array, b: Array, bias: Array | None) -> np.ndarray:
    """The product through tiles, by way of a batch of two, which is never small."""
    both = np.stack([cpu.download(a)] * 2)
    return cpu.download(matmul(cpu.upload(both, a.dtype), b, bias))[0]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_the_bits_of_tiles(dtype: DType) -> None:
    if isa.current().fused != (
        platform.machine() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("fma"))
    ):
        pytest.skip("loops are compiled for this processor, which rounds once where the forced path rounds twice")
    for (m, k, n), left, right, biased in product(SIZES, (False, True), (False, True), (False, True)):
        a, b = numbers((m, k), dtype, turned=left, seed=1), numbers((k, n), dtype, turned=right, seed=2)
        bias = numbers((n,), dtype, turned=False, seed=3) if biased else None
        assert small_plan(a, b, bias, None, None) is not None
        assert cpu.download(matmul(a, b, bias)).tobytes() == tiled(a, b, bias).tobytes()


def test_what_is_not_small() -> None:
    x, wide = (
        numbers((16, 16), dtypes.float32, turned=False, seed=1),
        numbers((16, 16), dtypes.float64, turned=False, seed=1),
    )
    half = numbers((4, 4), dtypes.bfloat16, turned=False, seed=1)
    little = numbers((4, 4), dtypes.float32, turned=False, seed=1)
    empty = numbers((4, 0), dtypes.float32, turned=False, seed=1)
    assert small_plan(x, x, None, None, None) is None
    assert small_plan(little, little, None, dtypes.bfloat16, None) is None
    assert small_plan(little, little, None, None, dtypes.bfloat16) is None
    assert small_plan(little, little, little, None, None) is None
    assert small_plan(half, half, None, None, None) is None
    assert small_plan(little, empty, None, None, None) is None
    assert small_plan(little.unsqueeze(0), little, None, None, None) is None
    assert isinstance(small_plan(little, little, None, None, None), SmallPlan)
    assert gradient_plan(x, x, x, True, True, True) is None
    assert gradient_plan(half, half, half, True, True, True) is None
    assert gradient_plan(little, little, wide, True, True, True) is None


def test_gradients_of_a_linear_map() -> None:
    dy, x = numbers((4, 8), dtypes.float32, turned=True, seed=1), numbers((4, 3), dtypes.float32, turned=False, seed=2)
    weight = numbers((8, 3), dtypes.float32, turned=True, seed=3)
    for wanted in product((False, True), repeat=3):
        options = dict(zip(("for_x", "for_weight", "for_bias"), wanted, strict=True))
        found = linear_backward(dy, x, weight, operand_dtype=None, **options)
        assert [f is not None for f in found] == list(wanted)
        whole = matmul(dy, weight), matmul(dy.transpose(), x), sum_of(dy, axes=(0,), keepdims=False)
        for got, want in zip(found, whole, strict=True):
            if got is not None:
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(cpu.download(got), cpu.download(want), rtol=1e-6, atol=1e-6)
