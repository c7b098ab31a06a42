"""LowRank: the change an adapter makes to one linear map; and how layers that read the same input apply theirs at once.

The layer's own product is computed first, as if there were no adapter, and the change is added to it; so an adapter
that starts at zero predicts exactly what the model predicted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Protocol

from ..base.dtypes import DType
from ..base.rng import Generator
from ..device import Device
from ..ops import concatenate, linear, randn, zeros
from ..ops.common import narrow
from ..ops.low_rank import placed
from ..tape import Parameter, Tensor
from .held import HeldMatrix
from .module import Module


class LowRank(Module):
    """y = onto + scale (x A^T) B^T   (Hu et al. 2021).   x: (..., K), A: (r, K), B: (N, r), onto and y: (..., N).

    A starts as N(0, 1 / (3 K)), the spread of Kaiming's uniform numbers, which the layers of published adapters start
    from; B starts at zero, and with it the change.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        rank: int,
        *,
        scale: float,
        generator: Generator,
        device: str | Device = "cpu",
    ) -> None:
        self.A = Parameter(randn((rank, inputs), generator=generator, std=1 / sqrt(3 * inputs), device=device))
        self.B = Parameter(zeros((outputs, rank), device=device))
        self.scale = scale

    def __call__(
        self, x: Tensor, onto: Tensor, *, operand_dtype: DType | None = None, result_dtype: DType | None = None
    ) -> Tensor:
        low = linear(x, self.A, operand_dtype=operand_dtype, result_dtype=narrow(x.array, operand_dtype))
        change = self.change()
        return linear(low, change, residual=onto, operand_dtype=operand_dtype, result_dtype=result_dtype)

    def change(self) -> Tensor:
        """scale B, which turns x A^T into what is added: (N, r)."""
        return placed([self.B], starts=[0], rows=self.B.shape[0], scale=self.scale)


class Adapted(Protocol):
    """A layer that may have an adapter."""

    weight: Parameter | HeldMatrix
    adapter: LowRank | None


def changes(
    x: Tensor, layers: Sequence[Adapted], *, operand_dtype: DType | None = None
) -> tuple[Tensor, Tensor] | None:
    """(low, change) for layers that are one product: x A^T of all adapters side by side, and `joint_change`. None where
    no layer has one."""
    pair = joint_change(layers)
    if pair is None:
        return None
    a, change = pair
    return linear(x, a, operand_dtype=operand_dtype, result_dtype=narrow(x.array, operand_dtype)), change


def joint_change(layers: Sequence[Adapted]) -> tuple[Tensor, Tensor] | None:
    """(A, C) of layers one below the other: their weights are changed by C A. None where no layer has an adapter.
    A: (R, K), R the ranks together; C: (sum of N, R)."""
    found, starts, rows = [], [], 0
    for layer in layers:
        if layer.adapter is not None:
            found.append(layer.adapter)
            starts.append(rows)
        rows += layer.weight.shape[0]
    if not found:
        return None
    a = found[0].A if len(found) == 1 else concatenate([pair.A for pair in found])
    return a, placed([pair.B for pair in found], starts=starts, rows=rows, scale=found[0].scale)
