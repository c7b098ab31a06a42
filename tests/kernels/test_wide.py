"""Blocks of several vectors: the same bits as one number at a time, the same for a row whatever stands beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import Array, cpu, reference

from .parity import numbers

Host = np.ndarray[Any, Any]

HALVES = (dtypes.bfloat16, dtypes.float16)
SINGLE = (dtypes.float32, *HALVES)
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-39, 3e38, -3e38, 20.0, -20.0, 88.5, -88.5, 1.0, -1.0, 0.5]


def spread(values: Host, dtype: DType) -> tuple[Array, Array]:
    """The same numbers side by side, and with others between them."""
    with np.errstate(all="ignore"):
        values = values.astype(dtype.numpy)
    between = np.repeat(values, 3)
    between[1::3] = 7
    return cpu.upload(values, dtype), cpu.upload(between, dtype).slice(0, 0, len(between), 3)


def bits(x: Array) -> list[int]:
    found = cpu.download(cpu.kernels.cast(x, dtype=dtypes.float32)).reshape(-1).view(np.uint32)
    return np.where(np.isnan(found.view(np.float32)), np.uint32(0x7FC00000), found & 0x7FFFFFFF).tolist()  # nsz


@pytest.mark.parametrize("dtype", SINGLE, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "relu", "silu", "gelu"])
def test_blocks_and_numbers_agree(name: str, dtype: DType) -> None:
    keyword = {"approximate": False} if name == "gelu" else {}
    values = np.concatenate([np.array(ODD * 9), np.random.default_rng(0).normal(0, 4, 300)])
    near, far = (getattr(cpu.kernels, name)(x, **keyword) for x in spread(values, dtype))
    assert bits(near) == bits(far)


@pytest.mark.parametrize("dtype", SINGLE, ids=lambda d: d.name)
@pytest.mark.parametrize("approximate", [True, False])
def test_blocks_and_numbers_of_two_results_agree(approximate: bool, dtype: DType) -> None:
    values = np.concatenate([np.array(ODD * 9), np.random.default_rng(0).normal(0, 4, 300)])
    near, far = (cpu.kernels.gelu_with_slope(x, approximate=approximate) for x in spread(values, dtype))
    assert [bits(a) for a in near] == [bits(a) for a in far]
    assert bits(near[0]) == bits(cpu.kernels.gelu(spread(values, dtype)[0], approximate=approximate))


@pytest.mark.parametrize("dtype", SINGLE, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["add", "mul", "maximum", "relu_backward", "silu_backward"])
def test_blocks_and_numbers_of_two_arrays_agree(name: str, dtype: DType) -> None:
    generator = np.random.default_rng(0)
    values = [np.concatenate([generator.permutation(ODD * 9), generator.normal(0, 4, 300)]) for _ in range(2)]
    pairs = [spread(v, dtype) for v in values]
    near, far = (getattr(cpu.kernels, name)(*arrays) for arrays in zip(*pairs, strict=True))
    assert bits(near) == bits(far)


@pytest.mark.parametrize("dtype", SINGLE, ids=lambda d: d.name)
def test_swiglu_of_halves_of_rows(dtype: DType) -> None:
    generator = np.random.default_rng(0)
    both = generator.normal(0, 2, (5, 2 * 150)).astype(dtype.numpy)
    dy = generator.normal(0, 1, (5, 150)).astype(dtype.numpy)
    both[0, :2], dy[1, 0] = np.nan, np.inf
    got = cpu.kernels.swiglu_joint_backward(cpu.upload(dy, dtype), cpu.upload(both, dtype))
    gate, up = (cpu.upload(np.asfortranarray(half), dtype) for half in (both[:, :150], both[:, 150:]))
    want = cpu.kernels.swiglu_backward(cpu.upload(dy, dtype), gate, up)
    assert bits(got) == bits(cpu.kernels.concatenate(list(want), axis=1))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("width", [64, 192])
def test_a_row_is_normalised_alike_beside_any_other(name: str, width: int) -> None:
    x = np.random.default_rng(0).normal(3, 2, (11, width)).astype(np.float32)
    weight = cpu.upload(np.linspace(-1, 1, width), dtypes.float32)
    arguments = [weight, None] if name == "layernorm" else [weight]
    for result in (dtypes.float32, dtypes.bfloat16):
        whole = getattr(cpu.kernels, name)(cpu.upload(x, dtypes.float32), *arguments, eps=1e-5, result_dtype=result)
        for row in range(len(x)):
            one = cpu.upload(x[row : row + 1], dtypes.float32)
            alone = getattr(cpu.kernels, name)(one, *arguments, eps=1e-5, result_dtype=result)
            for a, b in zip(whole, alone, strict=True):
                assert bits(a.slice(0, row, row + 1)) == bits(b)


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 18, 1030])
@pytest.mark.parametrize("dtype", SINGLE, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_gradients_of_norms_over_any_number_of_rows(name: str, dtype: DType, rows: int) -> None:
    generator = np.random.default_rng(rows)
    x, dy = (generator.normal(1, 2, (rows, 128)).astype(dtype.numpy) for _ in range(2))
    weight = generator.normal(0, 1, 128).astype(np.float32)
    results = []
    for device, kind in ((cpu, dtype), (reference, dtypes.float64)):
        given = [device.upload(a.astype(np.float64), kind) for a in (dy, x)]
        w = device.upload(weight, dtypes.float64 if device is reference else dtypes.float32)
        arguments = (None,) if name == "layernorm" else ()
        saved = getattr(device.kernels, name)(given[1], w, *arguments, eps=1e-5)[1:]
        results.append(getattr(device.kernels, f"{name}_backward")(*given, w, *saved))
    allowed = {dtypes.float32: 2e-6, dtypes.bfloat16: 4e-3, dtypes.float16: 5e-4}[dtype]
    for got, want in zip(*results, strict=True):
        a, b = numbers(got), numbers(want)
        assert np.abs(a - b).max() <= allowed * np.abs(b).max()


def test_a_row_that_holds_something_else_than_numbers_stays_alone() -> None:
    x = np.random.default_rng(0).normal(0, 1, (9, 128)).astype(np.float32)
    x[2, 100], x[5, 3] = np.nan, np.inf
    weight = cpu.upload(np.ones(128), dtypes.float32)
    for name, rest in (("layernorm", [weight, None]), ("rmsnorm", [weight]), ("softmax", []), ("log_softmax", [])):
        keyword = {"eps": 1e-5} if "norm" in name else {}
        y = getattr(cpu.kernels, name)(cpu.upload(x, dtypes.float32), *rest, **keyword)
        found = numbers(y[0] if isinstance(y, tuple) else y)
        assert np.isnan(found[2]).all()
        assert np.isnan(found[5]).any()
        assert np.isfinite(np.delete(found, [2, 5], 0)).all()


@pytest.mark.parametrize("width", [64, 65, 200, 256])
def test_the_loss_of_rows_of_any_width(width: int) -> None:
    generator = np.random.default_rng(0)
    x, weight = generator.normal(0, 1, (6, 8)), generator.normal(0, 2, (width, 8))
    targets, weights = generator.integers(0, width, 6), np.array([0.5, 0, 1, 0.25, 2, 1])
    results = []
    for device, kind in ((cpu, dtypes.float32), (reference, dtypes.float64)):
        arrays = [device.upload(x, kind), device.upload(weight, kind), device.upload(targets, dtypes.int64)]
        weighted = device.upload(weights, kind)
        results.append(
            device.kernels.lm_head_loss(*arrays, weighted, operand_dtype=None, gradients=True, for_weight=True)
        )
    for got, want in zip(*results, strict=True):
        a, b = numbers(got), numbers(want)
        assert np.abs(a - b).max() <= 3e-6 * np.abs(b).max()
