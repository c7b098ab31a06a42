"""Low-rank changes of linear maps   (Hu et al. 2021): y = x W^T + low change^T with low = x A^T and change = s B.

Projections that read the same input are one product, and so are their changes: `low` holds x A^T of all of them side by
side, `change` is their s B placed so that each reads its own part of `low`. The zeros between them cost less than a
product for each would. The product with the weights comes first and is what it would be without the change, which is
then added: a change of zero leaves every bit as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..base.dtypes import DType
from ..base.errors import ShapeError
from ..device import Array
from ..kernels.views import reshaped
from ..tape import Op, Tensor, constant
from .common import narrow, zeros_like

LowRank = tuple[Tensor, Tensor]  # low, change


class Placed(Op):
    """y = s B_i in rows starts[i] on, each B_i right of the one before, 0 elsewhere.   dB_i = s times its part of dy"""

    def forward(self, *parts: Array, starts: Sequence[int], rows: int, scale: float) -> Array:
        self.scale, self.at, column = scale, [], 0
        y = zeros_like(self.kernels, parts[0], (rows, sum(part.shape[1] for part in parts)))
        for part, start in zip(parts, starts, strict=True):
            self.at.append(((start, start + part.shape[0]), (column, column + part.shape[1])))
            self.kernels.assign_(self._part(y, -1), self._scaled(part))
            column += part.shape[1]
        return y

    def backward(self, dy: Array) -> dict[str, list[Array | None]]:
        wanted = [x is not None and x.requires_grad for x in self.inputs]
        return {"parts": [self._scaled(self._part(dy, i)) if need else None for i, need in enumerate(wanted)]}

    def _part(self, y: Array, i: int) -> Array:
        (top, bottom), (left, right) = self.at[i]
        return y.slice(0, top, bottom).slice(1, left, right)

    def _scaled(self, x: Array) -> Array:
        if self.scale == 1:
            return x
        return self.kernels.mul(x, constant(x.device, self.scale, x.dtype))


def placed(parts: Sequence[Tensor], *, starts: Sequence[int], rows: int, scale: float) -> Tensor:
    """y[starts[i] : starts[i] + N_i, R_0 + ... + R_(i-1) :][:, :R_i] = scale parts[i], 0 elsewhere.

    parts: (N_i, R_i) each, y: (rows, sum R_i). Raises ShapeError where a part does not fit the rows.
    """
    for part, start in zip(parts, starts, strict=True):
        if part.ndim != 2 or not 0 <= start <= start + part.shape[0] <= rows:
            raise ShapeError("placed", "a part does not fit", got=f"{part.shape} from row {start}", expected=rows)
    return Placed.apply(*parts, starts=tuple(starts), rows=rows, scale=float(scale))


def check_low_rank(where: str, x: Tensor, outputs: int, given: LowRank | None) -> tuple[Tensor | None, Tensor | None]:
    """low: (..., R) with the axes of x, and change: (outputs, R). Raises ShapeError for others."""
    if given is None:
        return None, None
    low, change = given
    if low.shape[:-1] != x.shape[:-1] or change.shape != (outputs, low.shape[-1]):
        got, expected = f"{low.shape} and {change.shape}", f"{(*x.shape[:-1], 'R')} and ({outputs}, R)"
        raise ShapeError(where, "the low-rank change does not fit", got=got, expected=expected)
    return low, change


def projected(
    kernels: Any,
    rows: Array,
    weight: Array,
    bias: Array | None,
    low: Array | None,
    change: Array | None,
    *,
    operand_dtype: DType | None,
) -> Array:
    """y = rows weight^T + bias, + low change^T where there is one, in the dtype of operands."""
    how = {"operand_dtype": operand_dtype}
    last = narrow(rows, operand_dtype)
    if low is None or change is None:
        return kernels.matmul(rows, weight.transpose(), bias, **how, result_dtype=last)
    y = kernels.matmul(rows, weight.transpose(), bias, **how)
    return kernels.matmul(_matrix(kernels, low), change.transpose(), y, **how, result_dtype=last)


def low_gradients(
    kernels: Any, u: Array, low: Array, change: Array, *, operand_dtype: DType | None
) -> tuple[Array, Array]:
    """dlow = u change, dchange = u^T low.   u: (M, N), low: (..., R), change: (N, R)"""
    how: dict[str, Any] = {"operand_dtype": operand_dtype, "for_x": True, "for_weight": True, "for_bias": False}
    dlow, dchange, _ = kernels.linear_backward(u, _matrix(kernels, low), change, **how)
    return reshaped(kernels, dlow, low.shape), dchange


def _matrix(kernels: Any, x: Array) -> Array:
    return reshaped(kernels, x, (prod(x.shape[:-1]), x.shape[-1]))
