"""What is written out for each Op does what the loops of `Op` do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.device import Array
from pellucid.tape import Op, Tensor

from .toy import Stack, leaf, numbers


class Scaled(Op):
    """y = x w factor, or x factor without w; `also` is never looked at"""

    saves = ("x", "w")

    def forward(self, x: Array, w: Array | None, also: Array | None = None, *, factor: int = 1) -> Array:
        self.save(x=x, w=w)
        y = x if w is None else self.kernels.mul(x, w)
        for _ in range(factor - 1):
            y = self.kernels.add(y, x)
        return y

    def backward(self, dy: Array) -> dict[str, Any]:
        dx = dy if self.w is None else self.kernels.mul(dy, self.w)
        return {"x": dx, "w": None if self.w is None else self.kernels.mul(dy, self.x)}


class Careless(Op):
    """Keeps what it did not declare, or not all it did."""

    saves = ("x", "y")

    def forward(self, x: Array, *, wrong: str) -> Array:
        self.save(**{"more": {"x": x, "y": x, "z": x}, "less": {"x": x}}[wrong])
        return x


def general(op: type[Op], *inputs: Tensor | None, **attributes: Any) -> Tensor:
    """The loop of `Op.apply`, for an Op that has its own."""
    return Op.apply.__func__(op, *inputs, **attributes)  # type: ignore[attr-defined]


@pytest.mark.parametrize("apply", [Scaled.apply, lambda *a, **k: general(Scaled, *a, **k)], ids=["written", "general"])
def test_both_ways_to_apply(apply: Any) -> None:
    Scaled.apply(leaf([1.0]), None)  # writes them out
    x, w, fixed = leaf([1.0, 2.0]), leaf([3.0, 5.0]), leaf([7.0, 7.0], grad=False)
    y = apply(x, w)
    assert y.requires_grad
    assert y.op.inputs == (x, w, None)[: len(y.op.inputs)]
    apply(y, fixed).backward(leaf([1.0, 1.0], grad=False))
    assert numbers(x.grad).tolist() == [21.0, 35.0]
    assert numbers(w.grad).tolist() == [7.0, 14.0]
    assert fixed.grad is None
    assert not apply(fixed, None, factor=3).requires_grad
    assert numbers(apply(fixed, None, factor=3)).tolist() == [21.0, 21.0]
    assert apply(fixed, None, always=True).requires_grad


def test_an_op_of_any_number_of_inputs_is_applied_by_the_loop() -> None:
    assert numbers(Stack.apply(leaf([1.0]), leaf([2.0, 3.0]))).tolist() == [1.0, 2.0, 3.0]
    assert Stack.apply.__func__ is Op.apply.__func__  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", ["more", "less"])
def test_what_is_kept_must_be_what_was_declared(wrong: str) -> None:
    with pytest.raises(TypeError, match="save"):
        Careless.apply(leaf([1.0]), wrong=wrong)


def test_released_ops_hold_nothing() -> None:
    x = leaf([1.0, 2.0])
    y = Scaled.apply(x, x)
    op = y.op
    assert op is not None
    assert len(op.kept()) == 2
    y.backward(leaf(np.ones(2), grad=False))
    assert (op.kept(), op.inputs, op.released) == ([], (), True)
