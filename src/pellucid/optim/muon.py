"""Muon: hidden matrices move along the orthogonal matrix nearest to their momentum, everything else by AdamW.

A gradient of a matrix is nearly of low rank: a few directions take all of a step. Muon replaces the singular values of
the momentum by ones, without computing them, through five products of a matrix polynomial. Tables (embedding, head),
norms and biases have no such structure and are AdamW's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError
from ..device import Array
from ..ops import matmul
from ..tape import Parameter, Tensor, constant, no_grad
from .optimizer import AdamW, Group

TABLES = ("*embed_*", "*lm_head*")
"""Names of matrices that are looked up or make logits, and are left to AdamW."""

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of Jordan's polynomial
_ITERATIONS = 5
_EPS = 1e-7


def orthogonalized(x: Tensor, *, operand_dtype: DType | None = None) -> Tensor:
    """About U V^T of x = U S V^T, x: (rows, columns), by five steps of Newton and Schulz's iteration with a polynomial
    of degree five, x <- a x + (b x x^T + c (x x^T)**2) x, from x / |x|   (Jordan 2024, "Muon").

    The polynomial is steep at 0 and does not settle at 1: singular values end between 0.7 and 1.2.
    """
    tall = x.shape[0] > x.shape[1]
    y = x.T if tall else x  # the smaller of the two products with itself
    y = y / ((y * y).sum().sqrt() + _EPS)
    for _ in range(_ITERATIONS):
        square = matmul(y, y.T, operand_dtype=operand_dtype)
        inner = square * _B + matmul(square, square, operand_dtype=operand_dtype) * _C
        y = y * _A + matmul(inner, y, operand_dtype=operand_dtype)
    return y.T if tall else y


class Muon(AdamW):
    """Muon for hidden matrices, AdamW for the rest   (Jordan 2024).

    m = momentum m + (1 - momentum) g;  o = orthogonalized((1 - momentum) g + momentum m)   (Nesterov's form)
    w -= lr (weight_decay w + 0.2 max(rows, columns)**0.5 o)

    The factor gives an update the size that AdamW's usually has (root mean square 0.2), so that one learning rate and
    one decay, those one would take for AdamW, serve both (Liu et al. 2025, "Muon is scalable for LLM training").
    Parameters of two axes are Muon's unless a pattern in `tables` matches their name. operand_dtype: what the products
    of the iteration round their operands to (None: nothing).
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        learning_rate: float = 1e-3,
        momentum: float = 0.95,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        groups: Sequence[Group] = (),
        tables: Sequence[str] = TABLES,
        operand_dtype: DType | None = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ConfigError("Muon", "momentum out of range", got=momentum, expected="0 <= momentum < 1")
        self.momentum, self.tables, self.operand_dtype = momentum, tuple(tables), operand_dtype
        super().__init__(
            named_parameters,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            groups=groups,
        )

    def slots_of(self, name: str, parameter: Parameter) -> tuple[str, ...]:
        if parameter.ndim != 2 or any(fnmatchcase(name, pattern) for pattern in self.tables):
            return super().slots_of(name, parameter)
        return ("momentum",)

    def update(
        self, weights: list[Array], grads: list[Array], *state: list[Array], scale: Array, rate: float, decay: float
    ) -> None:
        if len(state) != 1:
            super().update(weights, grads, *state, scale=scale, rate=rate, decay=decay)
            return
        kernels, beta = scale.device.kernels, self.momentum
        steps: list[Array] = []
        with no_grad():
            for weight, grad, momentum in zip(weights, grads, state[0], strict=True):
                fresh = Tensor(grad) * Tensor(scale) * (1 - beta)
                moved = Tensor(momentum) * beta + fresh
                kernels.assign_(momentum, moved.array)
                step = orthogonalized(moved * beta + fresh, operand_dtype=self.operand_dtype)
                steps.append((step * (0.2 * max(weight.shape) ** 0.5)).contiguous().array)
        # SGD without momentum is the rest of the equation, for all matrices in one launch.
        one = constant(scale.device, 1.0, dtypes.float32)
        kernels.sgd_(weights, steps, None, one, lr=rate, momentum=0.0, nesterov=False, weight_decay=decay)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"momentum": self.momentum}
