"""The same function in Pellucid and in PyTorch: results and gradients, compared within the table of tolerances.

PyTorch computes in float64 from the same float32 numbers, so what is compared is our rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pellucid as pl
from pellucid.base import dtypes
from pellucid.kernels.spec import tolerance

torch = pytest.importorskip("torch")

Host = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Host:
    """Standard normal float32, times `scale`."""
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def integers(below: int, *shape: int, seed: int = 0) -> Host:
    return np.random.default_rng([seed, *shape]).integers(below, size=shape)


def close(got: Any, want: Any, kind: str, what: str = "") -> None:
    """Compares within the tolerance of a class for float32 results."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, what
    allowed = tolerance(kind, dtypes.float32)
    bound = allowed.relative * np.abs(want) + allowed.absolute * max(1.0, np.abs(want).max(initial=0.0))
    excess = np.abs(got - want) - bound
    assert (excess <= 0).all(), f"{what}: off by {np.abs(got - want).max()}, {excess.max()} too much"


def compare(
    ours: Callable[..., pl.Tensor],
    theirs: Callable[..., Any],
    inputs: Sequence[Host],
    *,
    kind: str = "accumulate",
    device: str = "cpu",
    autocast: bool = False,
) -> None:
    """Runs both on the inputs and backward from one random gradient; floats get gradients, integers none.

    autocast: PyTorch computes in its own mixed precision from float32 instead of in float64.
    """
    mine = [pl.tensor(x, device=device, requires_grad=x.dtype.kind == "f") for x in inputs]
    wide = torch.float32 if autocast else torch.float64
    other = [
        torch.tensor(x, dtype=wide, requires_grad=True) if x.dtype.kind == "f" else torch.tensor(x) for x in inputs
    ]
    y = ours(*mine)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        z = theirs(*other)
    close(y.detach().numpy(), z.detach().double().numpy(), kind, "result")
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    y.backward(pl.tensor(dy, device=device))
    z.backward(torch.tensor(dy).to(z.dtype))
    for number, (a, b) in enumerate(zip(mine, other, strict=True)):
        if b.requires_grad:
            assert a.grad is not None
            close(a.grad.numpy(), b.grad.double().numpy(), kind, f"gradient of input {number}")
