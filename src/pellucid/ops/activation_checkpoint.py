"""Activation checkpointing: keep a block's inputs, run it again in backward   (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base.rng import Generator
from ..device import Array
from ..tape import Op, Tensor, backward, enable_grad, no_grad


class Checkpoint(Op):
    """y = function(*inputs), nothing of its inside kept.   Backward runs it again, recorded, and replays that."""

    saves = ("kept_inputs",)

    def forward(self, *arrays: Array, function: Callable[..., Tensor], generators: Sequence[Generator]) -> Array:
        self.function, self.generators = function, list(generators)
        self.states = [g.counter for g in self.generators]
        self.save(kept_inputs=list(arrays))
        with no_grad():
            return function(*(Tensor(a) for a in arrays)).array

    def backward(self, dy: Array) -> dict[str, list[Array | None]]:
        after = [g.counter for g in self.generators]
        for g, counter in zip(self.generators, self.states, strict=True):
            g.counter = counter
        wanted = [x is not None and x.requires_grad for x in self.inputs]
        inputs = [Tensor(a, need) for a, need in zip(self.kept_inputs, wanted, strict=True)]
        with enable_grad():
            y = self.function(*inputs)
        for g, counter in zip(self.generators, after, strict=True):
            g.counter = counter
        if y.requires_grad:
            backward(y, Tensor(dy))
        return {"arrays": [None if x.grad is None else x.grad.array for x in inputs]}


def activation_checkpoint(
    function: Callable[..., Tensor], *inputs: Tensor, generators: Sequence[Generator] = ()
) -> Tensor:
    """function(*inputs), keeping only the inputs for backward and computing the rest a second time there.

    function: from tensors to one tensor; parameters it reaches get their gradients too. generators: those it draws
    from; their counters are set back for the second run, so results and gradients are those of the plain run.
    """
    options: dict[str, Any] = {"function": function, "generators": generators}
    return Checkpoint.apply(*inputs, always=True, **options)
