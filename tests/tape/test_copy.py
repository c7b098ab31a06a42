"""Copies and pickles of tensors: memory of their own."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import pellucid as pl
from pellucid.base import dtypes
from pellucid.base.errors import DeviceError, GradientError


@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_memory_of_its_own(way) -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    for x in (pl.from_numpy(host), pl.from_numpy(host).T, pl.tensor(host, dtype="bfloat16", requires_grad=True)):
        expected = x.tolist()
        made = way([x, x])
        assert made[0] is made[1]
        assert made[0].array.buffer.address != x.array.buffer.address
        assert (made[0].dtype, made[0].device, made[0].requires_grad) == (x.dtype, x.device, x.requires_grad)
        host += 1
        assert made[0].tolist() == expected
        host -= 1


def test_a_parameter_keeps_what_it_is() -> None:
    p = pl.Parameter(pl.tensor([1.0, 2.0]), decay=False)
    (p * p).sum().backward()
    made = copy.deepcopy(p)
    assert type(made) is pl.Parameter
    assert (made.decay, made.grad.tolist(), made.tolist()) == (False, [2.0, 4.0], [1.0, 2.0])  # type: ignore[union-attr]
    assert made.grad.array.buffer is not p.grad.array.buffer  # type: ignore[union-attr]


def test_a_recorded_result_is_not_copied() -> None:
    y = pl.tensor([1.0], requires_grad=True) * 2
    with pytest.raises(
        GradientError,
        match=r"copy: the tensor is part of a recorded computation; got a result of \w+\. hint: call \.detach\(\)",
    ):
        copy.deepcopy(y)
    assert copy.deepcopy(y.detach()).tolist() == [2.0]
    with pytest.raises(DeviceError, match="Buffer: memory can't be copied without a type"):
        copy.deepcopy(y.array.buffer)
    assert y.dtype is dtypes.float32
