"""What a tensor looks like when it is printed."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import cpu, reference

from .toy import Exponential, leaf


@pytest.mark.parametrize(
    ("value", "dtype", "shown"),
    [
        (1.5, dtypes.float32, "Tensor(1.5, shape=(), dtype=float32)"),
        ([1, 2, 3], dtypes.int64, "Tensor([1, 2, 3], shape=(3,), dtype=int64)"),
        ([[0.25, -1]], dtypes.bfloat16, "Tensor([[ 0.25, -1.  ]], shape=(1, 2), dtype=bfloat16)"),
        ([True, False], dtypes.bool_, "Tensor([ True, False], shape=(2,), dtype=bool)"),
        (np.zeros((0, 3)), dtypes.float32, "Tensor([], shape=(0, 3), dtype=float32)"),
        ([np.nan, np.inf], dtypes.float64, "Tensor([nan, inf], shape=(2,), dtype=float64)"),
    ],
)
def test_repr(value: object, dtype: dtypes.DType, shown: str) -> None:
    assert repr(leaf(value, dtype=dtype, device=cpu, grad=False)) == shown


def test_rows_line_up() -> None:
    assert repr(leaf([[1, 2], [30, 4]], dtype=dtypes.int32, device=cpu, grad=False)) == (
        "Tensor([[ 1,  2],\n        [30,  4]], shape=(2, 2), dtype=int32)"
    )


def test_facts() -> None:
    a = leaf(2.0, device=cpu)
    assert repr(a) == "Tensor(2., shape=(), dtype=float64, requires_grad=True)"
    assert repr(leaf(2.0, device=reference, grad=False)) == "Tensor(2., shape=(), dtype=float64, device='reference')"
    assert (
        repr(Exponential.apply(leaf(0.0))) == "Tensor(1., shape=(), dtype=float64, device='reference', op=Exponential)"
    )


def test_long_tensors_are_shortened() -> None:
    shown = repr(leaf(np.arange(100_000), dtype=dtypes.int64, device=cpu, grad=False))
    assert shown == "Tensor([    0,     1,     2, ..., 99997, 99998, 99999], shape=(100000,), dtype=int64)"
