"""What operations remember by shapes, keys and numbers serves the next call only where it means the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pellucid import ops
from pellucid.tape import Tensor, constant, number_tensor

_HOST = np.arange(24, dtype=np.float32).reshape(4, 6)


def _x() -> Tensor:
    return ops.tensor(_HOST, requires_grad=True)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (lambda x: x.reshape(2, 12), lambda x: x.reshape(2.0, 12)),
        (lambda x: x.permute(1, 0), lambda x: x.permute(1.0, 0)),
        (lambda x: x.transpose(1, 0), lambda x: x.transpose(1.0, 0)),
        (lambda x: x.sum(1), lambda x: x.sum(1.0)),
        (lambda x: x[1], lambda x: x[True]),
        (lambda x: x[1], lambda x: x[1.0]),
        (lambda x: x[1:3], lambda x: x[1.0:3]),
        (lambda x: x[:, 1], lambda x: x[:, True]),
    ],
)
def test_what_equals_a_good_argument_is_still_refused(
    good: Callable[[Tensor], Any], bad: Callable[[Tensor], Any]
) -> None:
    good(_x())
    with pytest.raises((TypeError, ValueError)):
        bad(_x())


@pytest.mark.parametrize(
    "key",
    [
        1,
        -1,
        np.int64(2),
        slice(1, 3),
        slice(None, None, -2),
        slice(3, 1),
        (slice(None), 2),
        (None, 1),
        (..., slice(1, 4)),
    ],
)
def test_one_key_on_other_strides(key: Any) -> None:
    for again in range(2):
        x = _x()
        turned, slid = x.T, x[:, 1:]
        for view, host in ((x, _HOST), (turned, _HOST.T), (slid, _HOST[:, 1:])):
            assert np.array_equal(np.asarray(view[key]), host[key]), again
        (turned[key] * 3).sum().backward()
        expected = np.zeros_like(_HOST)
        expected.T[key] = 3
        assert x.grad is not None
        assert np.array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "mean"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_second_reduction_reads_its_own_numbers(name: str, axis: int) -> None:
    for factor in (1, -1, 5):
        host = np.ascontiguousarray(_HOST[:, ::factor]) * factor
        for x, expected in ((ops.tensor(host), host), (ops.tensor(host).T, host.T)):
            assert np.array_equal(np.asarray(getattr(x, name)(axis)), getattr(expected, name)(axis))


def test_a_second_small_product_reads_its_own_numbers() -> None:
    for factor in (1, 2):
        host = _HOST * factor
        assert np.array_equal(np.asarray(ops.tensor(host) @ ops.tensor(host).T), host @ host.T)
        square = np.ascontiguousarray(host[:, :4])
        assert np.array_equal(np.asarray(ops.tensor(square) @ ops.tensor(square)), square @ square)


def test_numbers_that_are_equal_and_not_the_same() -> None:
    zeros = ops.zeros((3,))
    assert not np.signbit(np.asarray(zeros * 0.0)).any()
    assert np.signbit(np.asarray(zeros * -0.0)).all()
    assert not np.signbit(np.asarray(zeros * 0.0)).any()
    truth = zeros == 0
    assert ((truth * True).dtype.name, (truth * 1).dtype.name, (truth * 1.0).dtype.name) == ("bool", "int64", "float32")
    assert ((zeros * True).dtype.name, (ops.zeros((3,), dtype="int32") * 1.0).dtype.name) == ("float32", "float32")


def test_a_number_is_made_once() -> None:
    x = _x()
    made = number_tensor(x.device, 2.5, x.dtype)
    assert (x * 2.5).op.inputs[1] is made  # type: ignore[union-attr]
    assert made.array is constant(x.device, 2.5, x.dtype)
    assert not made.requires_grad
