"""Gradient check: backward against central differences, in float64, with a random cotangent.

The numbers travel through `upload` and `download` only, so the check runs on any device that has float64 kernels. A
random cotangent weighs every element of the output differently, so that errors which cancel in a plain sum show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.errors import DTypeError, GradientError
from ..base.rng import Generator
from .op import backward
from .state import enable_grad, no_grad
from .tensor import Tensor

Host = np.ndarray[Any, Any]


def gradcheck(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    *,
    seed: int = 0,
    eps: float = 1e-6,
    rtol: float = 1e-6,
    atol: float = 1e-7,
) -> float:
    """Compares every element of every gradient with (f(x + eps) - f(x - eps)) / 2 eps,  f(x) = sum(c function(x)),
    c standard normal from `seed`. Returns the largest absolute difference.

    function: from the inputs to one float64 Tensor, the same result at every call. inputs: float64 Tensors are checked,
    with the strides they have, and left untouched; integer and bool Tensors and None are handed through.

    Raises:
        GradientError: |difference| > atol + rtol |central difference|, naming the first such input and element.
        DTypeError: an input or the output is a float of another width.
    """
    for number, x in enumerate(inputs):
        if x is not None and x.dtype.is_float and x.dtype is not dtypes.float64:
            raise DTypeError("gradcheck", f"input {number} is too narrow", got=x.dtype.name, expected="float64")
    checked = [i for i, x in enumerate(inputs) if x is not None and x.dtype is dtypes.float64]
    leaves = [Tensor(x.array, True) if x is not None and i in checked else x for i, x in enumerate(inputs)]
    with enable_grad():
        y = function(*leaves)
    if y.dtype is not dtypes.float64:
        raise DTypeError("gradcheck", "the result is too narrow", got=y.dtype.name, expected="float64")
    generator = Generator(seed)
    cotangent = generator.normal(y.shape).astype(np.float64)
    backward(y, Tensor(y.device.upload(cotangent, dtypes.float64)))
    worst = 0.0
    for number in checked:
        leaf = leaves[number]
        assert leaf is not None
        found = np.zeros(leaf.shape) if leaf.grad is None else _host(leaf.grad)
        expected = _central(function, leaves, number, cotangent, eps)
        difference = np.abs(found - expected)
        # Negated, so that a NaN on either side counts as wrong.
        wrong = np.argwhere(~(difference <= atol + rtol * np.abs(expected)))
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            raise GradientError(
                "gradcheck",
                f"backward disagrees with central differences for input {number} at index {index}, "
                f"{len(wrong)} of {found.size} elements in all",
                got=f"{found[index]:.10g}",
                expected=f"{expected[index]:.10g}",
            )
        worst = max(worst, float(difference.max(initial=0.0)))
    return worst


def _central(
    function: Callable[..., Tensor], leaves: Sequence[Tensor | None], number: int, cotangent: Host, eps: float
) -> Host:
    """d sum(cotangent function) / d input `number`, element by element."""
    leaf = leaves[number]
    assert leaf is not None
    start, result = _host(leaf), np.empty(leaf.shape)
    for index in np.ndindex(*leaf.shape):
        ends = []
        for step in (eps, -eps):
            moved = start.copy()
            moved[index] += step
            arguments = list(leaves)
            arguments[number] = Tensor(leaf.device.upload(moved, dtypes.float64))
            with no_grad():
                ends.append(_host(function(*arguments)))
        # The difference comes first: summing before it would cancel digits.
        result[index] = np.sum(cotangent * (ends[0] - ends[1])) / (2 * eps)
    return result


def _host(x: Tensor) -> Host:
    return x.device.download(x.array)
