"""Every differentiable operation against central differences in float64, and a count that misses none of them."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pl
from pellucid.base import dtypes
from pellucid.device import reference
from pellucid.tape import Op, gradcheck, tape

from .cases import ARRANGEMENTS, CASES, Case

_SMOOTH = [c for c in CASES if c.smooth]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("case", _SMOOTH, ids=lambda c: c.name)
def test_gradient(case: Case, arrangement: str) -> None:
    inputs = case.arguments(reference, dtypes.float64, arrangement)
    gradcheck(lambda *x: case.run(*x, arrangement=arrangement), inputs, seed=len(case.name))


def _operations(base: type[Op] = Op) -> set[type[Op]]:
    """Every operation of the library that runs under its own name."""
    found = set()
    for op in base.__subclasses__():
        found |= _operations(op)
        if op.__module__.startswith("pellucid.") and not op.__name__.startswith("_"):
            found.add(op)
    return found


def test_every_operation_is_checked() -> None:
    """By what the cases really record, so that a new operation without a case fails here."""
    recorded: set[type[Op]] = set()
    for case in CASES:
        y = case.run(*case.arguments(reference, dtypes.float64, "plain"), arrangement="plain")
        recorded |= {type(op) for op in tape(y)}
    every = _operations()
    assert {op.__name__ for op in every - recorded} == set()
    assert len(every) >= 32


@pytest.mark.parametrize("op", sorted(_operations(), key=lambda op: op.__name__), ids=lambda op: op.__name__)
def test_operations_explain_themselves(op: type[Op]) -> None:
    assert op.__doc__
    assert op.backward is not Op.backward
    assert set(op.saves).isdisjoint(dir(Op))


def test_names_of_cases_are_unique() -> None:
    names = [c.name for c in CASES]
    assert len(set(names)) == len(names)


def test_a_table_used_twice_adds_its_rows_to_the_gradient_that_is_there() -> None:
    """Tied embeddings: the head's gradient comes first, and the rows that were looked up are added to it."""
    rng = np.random.default_rng(3)
    w, x, i = rng.standard_normal((7, 3)), rng.standard_normal((3, 7)), np.array([[2, 5, 2]])
    table = pl.tensor(w, requires_grad=True)
    looked_up = pl.embedding(table, pl.tensor(i))
    y = (looked_up @ table.transpose(0, 1) * pl.tensor(x)).sum()
    table.grad = held = pl.tensor(np.ones((7, 3)))
    y.backward()
    dy = x.reshape(1, 3, 7)
    want = np.ones((7, 3)) + np.einsum("bik,bil->kl", dy, w[i])
    np.add.at(want, i, dy @ w)
    assert table.grad is not None
    np.testing.assert_allclose(table.grad.numpy(), want, rtol=1e-12)
    assert np.array_equal(held.numpy(), np.ones((7, 3)))  # somebody else's memory
