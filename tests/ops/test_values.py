"""Results of the operations against NumPy's own functions, in float64 on the reference device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pellucid import ops
from pellucid.base import dtypes
from pellucid.base.rng import Generator
from pellucid.device import reference
from pellucid.tape import Tensor, no_grad

from .cases import CASES, Case, normal


@pytest.mark.parametrize("case", [c for c in CASES if c.numpy is not None], ids=lambda c: c.name)
@pytest.mark.parametrize("arrangement", ["plain", "views"])
def test_value(case: Case, arrangement: str) -> None:
    assert case.numpy is not None
    with no_grad():
        y = case.function(*case.arguments(reference, dtypes.float64, arrangement, grad=False))
    expected = np.asarray(case.numpy(*case.inputs))
    found = reference.download(y.array)
    assert y.dtype is dtypes.float64
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_every_case_without_numpy_has_another_check() -> None:
    """Those NumPy has no word for are held by the tests below or, for attention and rope, by the kernels' own."""
    without = {c.name.split()[0] for c in CASES if c.numpy is None}
    fused = {"rope", "attention", "self_attention", "rmsnorm", "layernorm", "swiglu", "cross_entropy", "lm_head_loss"}
    fused |= {"mixture_of_experts"}
    plain = {
        "gated_linear",
        "gelu",
        "dropout",
        "cast",
        "logsumexp",
        "reshape",
        "split",
        "linear",
        "matmul",
        "activation_checkpoint",
    }
    assert without <= fused | plain


def _up(x: np.ndarray) -> Tensor:
    return ops.tensor(x, dtype=dtypes.float64, device=reference)


def test_gelu() -> None:
    x = normal(50)
    exact = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x]
    np.testing.assert_allclose(ops.gelu(_up(x)).numpy(), exact, rtol=1e-12)
    np.testing.assert_allclose(ops.gelu(_up(x), approximate=True).numpy(), exact, atol=5e-4)


def test_dropout() -> None:
    x = _up(np.ones((100, 100)))
    y = ops.dropout(x, p=0.25, generator=Generator(1)).numpy()
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.02
    generator = Generator(1)
    first, second = (ops.dropout(x, p=0.25, generator=generator).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, y)
    assert (first != second).any()
    assert ops.dropout(x, p=0.0, generator=generator) is x


def test_attention_by_hand() -> None:
    """One query head a time, row by row, with plain loops."""
    q, k, v = normal(2, 3, 4, 2), normal(2, 5, 2, 2, seed=1), normal(2, 5, 2, 2, seed=2)
    found = ops.attention(_up(q), _up(k), _up(v)).numpy()
    for b, i, h in np.ndindex(2, 3, 4):
        seen = i + 5 - 3 + 1
        scores = k[b, :seen, h // 2] @ q[b, i, h] / math.sqrt(2)
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(found[b, i, h], weights @ v[b, :seen, h // 2], rtol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_a_rotation_by_position(interleaved: bool) -> None:
    x, rates = normal(1, 4, 1, 6), np.array([1.0, 0.3, 0.05])
    angles = np.arange(9)[:, None] * rates
    cos, sin = _up(np.cos(angles)), _up(np.sin(angles))
    y = ops.rope(_up(x), cos, sin, offset=2, interleaved=interleaved).numpy()
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + 3) for i in range(3)]
    for t in range(4):
        for (a, b), rate in zip(pairs, rates, strict=True):
            turned = complex(x[0, t, 0, a], x[0, t, 0, b]) * np.exp(1j * rate * (t + 2))
            np.testing.assert_allclose([y[0, t, 0, a], y[0, t, 0, b]], [turned.real, turned.imag], rtol=1e-12)


def test_views_share_memory() -> None:
    x = _up(normal(2, 3, 4))
    for y in (x[1], x[:, ::2], x[..., None, 1], x.T, x.reshape(6, 4), x.expand(5, 2, 3, 4), x.unsqueeze(0)):
        assert y.array.buffer is x.array.buffer
    for y in (x.clone(), x.T.contiguous(), x.T.reshape(6, 4), x[[0, 1]]):
        assert y.array.buffer is not x.array.buffer
    assert x.contiguous() is x


def test_ties_share_the_gradient() -> None:
    x = ops.tensor([2.0, 5.0, 5.0], dtype="float64", device=reference, requires_grad=True)
    x.max().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.5, 0.5]
    a = ops.tensor([1.0], dtype="float64", device=reference, requires_grad=True)
    b = ops.tensor([1.0], dtype="float64", device=reference, requires_grad=True)
    (ops.maximum(a, b) + ops.minimum(a, b)).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.item(), b.grad.item()) == (2.0, 0.0)


def test_infinities_and_nan() -> None:
    x = ops.tensor([-math.inf, 0.0, 1.0, math.inf, math.nan], dtype="float64", device=reference)
    np.testing.assert_array_equal(ops.relu(x).numpy(), [0, 0, 1, math.inf, math.nan])
    np.testing.assert_array_equal(ops.maximum(x, 0.5).numpy(), [0.5, 0.5, 1, math.inf, math.nan])
    low = ops.full((2, 3), -math.inf, dtype="float64", device=reference)
    assert ops.logsumexp(low).tolist() == [-math.inf, -math.inf]
    assert ops.logsumexp(ops.tensor([1000.0, 1000.0], dtype="float64", device=reference)).item() == pytest.approx(
        1000 + math.log(2), rel=1e-15
    )


def test_weight_zero_hides_a_row() -> None:
    logits = ops.tensor([[1.0, 2.0], [math.nan, math.inf]], dtype="float64", device=reference, requires_grad=True)
    targets = ops.tensor([1, 0], device=reference)
    loss = ops.cross_entropy(logits, targets, weights=ops.tensor([1.0, 0.0], device=reference))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-12)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.tolist()[1] == [0.0, 0.0]


def test_integers_and_bools_carry_no_gradient() -> None:
    x = ops.tensor([1.5, -2.5], device=reference, requires_grad=True)
    for y in (x.cast("int64"), x > 0, x == x, x.argmax(), x.cast("bool")):
        assert not y.requires_grad
    assert (~((x > 0) & (x < 1)) | (x != x)).tolist() == [True, True]
    assert (x.cast("int64") + 1).tolist() == [2, -1]
    assert x.cast("int64").sum().dtype is dtypes.int64
    assert (ops.tensor([1, 2], device=reference) / 2).dtype is dtypes.float32
