"""Numbers at the edges: infinities, NaN, denormals, overflow, signed zero, ties, and arrays full of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import Array, cpu, reference
from pellucid.kernels import spec

from .parity import mismatch, numbers

EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-39, 1.2e-38, 3.4e38, -3.4e38, 1e19, -1e19]
EDGES += [1.0, -1.0, 0.5, 2.0, 88.0, -88.0, 89.5, -89.5, 103.0, -103.0, 105.0, -105.0, 20.0, -20.0, 1e-4, -1e-4]

UNARY = ["copy", "neg", "abs", "sign", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu", "silu"]
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]
BACKWARD = ["tanh_backward", "sigmoid_backward", "relu_backward", "silu_backward"]


def both(name: str, arguments: list[Any], dtype: DType, **keyword: Any) -> list[tuple[Array, Array]]:
    """Results of the CPU backend and of the reference, in the same dtype."""
    results = []
    for device in (cpu, reference):
        with np.errstate(all="ignore"):
            given = [device.upload(a.astype(dtype.numpy), dtype) for a in arguments]
            made = getattr(device.kernels, name)(*given, **keyword)
        results.append(made if isinstance(made, tuple) else (made,))
    return list(zip(*results, strict=True))


def check(name: str, arguments: list[Any], dtype: DType, **keyword: Any) -> None:
    for got, want in both(name, arguments, dtype, **keyword):
        # The reference in the same dtype has errors of its own: twice the bounds, for each number alone.
        bounds = spec.tolerance(spec.KERNELS[name].tolerance, got.dtype)
        a, b = numbers(got), numbers(want)
        for i in np.ndindex(a.shape):
            wrong = mismatch(a[i], b[i], spec.Tolerance(2 * bounds.relative, 2 * bounds.absolute), name)
            assert not wrong, f"{wrong} at {[x[i] for x in arguments]}"


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", UNARY)
def test_one_argument(name: str, dtype: DType) -> None:
    check(name, [np.array(EDGES)], dtype)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", BINARY + BACKWARD)
def test_two_arguments(name: str, dtype: DType) -> None:
    a, b = (m.reshape(-1) for m in np.meshgrid(EDGES, EDGES))
    if name.endswith("_backward"):
        a = np.where(np.abs(a) > 1e18, 1.0, a)  # products that overflow depend on the order of multiplication
    check(name, [a, b], dtype)


@pytest.mark.parametrize("approximate", [True, False])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_gelu(dtype: DType, approximate: bool) -> None:
    x = np.array(EDGES)
    check("gelu", [x], dtype, approximate=approximate)
    moderate = np.where(np.abs(x) > 1e18, 9.0, x)  # x**2 overflows: 0 times infinity in either order
    check("gelu_with_slope", [moderate], dtype, approximate=approximate)


def test_denormals_come_out_of_exp() -> None:
    x = np.linspace(-103.5, -87, 100)
    got = numbers(cpu.kernels.exp(cpu.upload(x.astype(np.float32), dtypes.float32)))
    want = np.exp(x.astype(np.float32).astype(np.float64))
    assert (got > 0).all()
    assert np.abs(got - want).max() <= 1.5 * 2.0**-149


@pytest.mark.parametrize("name", ["copy", "where", "concatenate", "pick", "embedding"])
def test_moving_keeps_every_bit(name: str) -> None:
    payloads = np.array([0x7FC12345, 0xFF812345, 0x80000000, 0x00000001, 0xFFFFFFFF, 0x7F800000], np.uint32)
    x = cpu.upload(payloads.view(np.float32), dtypes.float32)
    zero = cpu.upload(np.zeros(6, np.int64), dtypes.int64)
    calls = {
        "copy": lambda k: k.copy(x),
        "where": lambda k: k.where(cpu.upload(np.ones(6, bool), dtypes.bool_), x, x),
        "concatenate": lambda k: k.concatenate([x], axis=0),
        "pick": lambda k: k.pick(x.reshape((6, 1)), zero),
        "embedding": lambda k: k.embedding(x, cpu.upload(np.arange(6), dtypes.int64)),
    }
    got = cpu.download(calls[name](cpu.kernels))
    assert got.view(np.uint32).tolist() == payloads.tolist()


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("row", [[1, np.nan, 2], [1, np.inf, 2], [-np.inf, 1, 2], [-np.inf] * 3, [3e38, -3e38, 0]])
def test_rows(row: list[float], dtype: DType) -> None:
    x = np.array([row * 21, [0.5] * 63])
    for name in ("softmax", "log_softmax"):
        check(name, [x], dtype)
    for name in ("max", "min"):
        check(name, [x], dtype, axes=(1,), keepdims=False)
        check(name, [x], dtype, axes=(0,), keepdims=False)
    check("argmax", [x], dtype, axis=1)
    check("argmax", [x], dtype, axis=0)
    check("all_finite", [x], dtype)


def test_argmax_takes_the_first_of_equals() -> None:
    x = np.array([[1.0, 3, 3, 2], [3, 3, 3, 3], [np.nan, 9, np.nan, 9], [0, 9, np.nan, 9]])
    got = cpu.kernels.argmax(cpu.upload(x, dtypes.float32), axis=1)
    assert numbers(got).tolist() == [1, 0, 0, 2]


def test_a_row_of_weight_zero_may_hold_anything() -> None:
    logits = np.array([[1.0, 2.0], [np.nan, np.inf]])
    arrays = [
        cpu.upload(logits, dtypes.float32),
        cpu.upload(np.array([1, 0]), dtypes.int64),
        cpu.upload(np.array([1.0, 0.0]), dtypes.float32),
    ]
    loss, lse = cpu.kernels.cross_entropy(*arrays)
    assert numbers(loss) == pytest.approx(np.log1p(np.exp(-1.0)), rel=1e-6)
    one = cpu.upload(np.ones(()), dtypes.float32)
    dlogits = numbers(cpu.kernels.cross_entropy_backward(one, *arrays, lse))
    assert dlogits[1].tolist() == [0, 0]
    assert np.isfinite(dlogits).all()
    x, weight = cpu.upload(logits, dtypes.float32), cpu.upload(np.eye(2), dtypes.float32)
    _, dx, _ = cpu.kernels.lm_head_loss(x, weight, *arrays[1:], operand_dtype=None, gradients=True, for_weight=True)
    assert numbers(dx)[1].tolist() == [0, 0]


def test_infinite_gradients_give_an_infinite_norm_and_clip_to_zero() -> None:
    parts = [cpu.upload(np.array([1.0, np.inf]), dtypes.float32)]
    norm = cpu.kernels.global_norm(parts)
    assert numbers(norm) == np.inf
    assert numbers(cpu.kernels.clip_scale(norm, max_norm=1.0)) == 0


def test_a_norm_beyond_the_range_of_float32_squares() -> None:
    parts = [cpu.upload(np.full(3, 1e30), dtypes.float32)]
    assert numbers(cpu.kernels.global_norm(parts)) == pytest.approx(3**0.5 * 1e30, rel=1e-6)
