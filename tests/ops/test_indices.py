"""Indices in tensors: followed only inside the table, by every operation that follows them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pellucid
from pellucid import Tensor
from pellucid.base.errors import ShapeError

TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
CALLS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "embedding": (lambda x, i: pellucid.embedding(x, i), 3),
    "getitem": (lambda x, i: x[i], 3),
    "pick": (lambda x, i: pellucid.pick(x[:1], i), 2),
    "cross_entropy": (lambda x, i: pellucid.cross_entropy(x[:1], i), 2),
    "lm_head_loss": (lambda x, i: pellucid.lm_head_loss(x[:1], x, i), 3),
}


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("name", CALLS)
def test_an_index_outside_is_refused(name: str, device: str) -> None:
    call, size = CALLS[name]
    x = pellucid.tensor(TABLE, device=device)
    call(x, pellucid.tensor([size - 1], device=device))
    wrong = [size, 2**40, -(2**40)] if name == "getitem" else [size, -1, 2**40]
    for bad in wrong:
        with pytest.raises(ShapeError, match=r"index out of range; got -?\d+ at position 0, expected 0 to \d$"):
            call(x, pellucid.tensor([bad], device=device))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_negative_index_counts_from_the_end_in_brackets(device: str) -> None:
    x = pellucid.tensor(TABLE, device=device)
    for index in ([-1, 0, -3], [[-2], [2]]):
        found = x[pellucid.tensor(index, device=device)]
        assert found.tolist() == x[index].tolist() == TABLE[np.array(index)].tolist()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_the_target_of_a_row_that_does_not_count_may_be_anything(device: str) -> None:
    x = pellucid.tensor(TABLE, device=device, requires_grad=True)
    weights = pellucid.tensor([1.0, 0.0, 0.0], device=device)
    for loss in (
        lambda t: pellucid.cross_entropy(x, t, weights=weights),
        lambda t: pellucid.lm_head_loss(x, pellucid.tensor(TABLE[:2], device=device), t, weights=weights),
    ):
        found = []
        for targets in ([1, 0, 0], [1, -100, 2**40]):
            x.grad = None
            y = loss(pellucid.tensor(targets, device=device))
            y.backward()
            assert x.grad is not None
            found.append((y.item(), x.grad.tolist()))
        assert found[0] == found[1]
