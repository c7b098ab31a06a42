"""Optimizers and clipping against torch.optim, twenty steps from the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pellucid as pl
from pellucid.optim import SGD, AdamW, Muon, Optimizer

from .parity import close, numbers

torch = pytest.importorskip("torch")

SHAPES = [(33, 7), (100,), (1, 1), (3, 5, 2)]
STEPS = 20


def follow(ours: Any, theirs: Any, *, max_norm: float | None = None, rate: Any = None) -> None:
    """Steps both from equal weights; `ours` and `theirs` make an optimizer from (name, parameter) pairs and groups."""
    hosts = [numbers(*shape, seed=9) for shape in SHAPES]
    mine = {str(i): pl.Parameter(pl.tensor(host), decay=host.ndim > 1) for i, host in enumerate(hosts)}
    other = [torch.tensor(host, dtype=torch.float64, requires_grad=True) for host in hosts]
    optimizer: Optimizer = ours(mine.items())
    peer = theirs([p for p in other if p.dim() > 1], [p for p in other if p.dim() <= 1])
    for step in range(STEPS):
        if rate is not None:
            optimizer.learning_rate = rate(step)
            for group in peer.param_groups:
                group["lr"] = rate(step)
        for i, (p, q) in enumerate(zip(mine.values(), other, strict=True)):
            gradient = numbers(*SHAPES[i], seed=100 + step)
            p.grad, q.grad = pl.tensor(gradient), torch.tensor(gradient, dtype=torch.float64)
        norm = optimizer.step(max_norm=max_norm)
        if max_norm is not None:
            assert norm is not None
            close(norm.item(), torch.nn.utils.clip_grad_norm_(other, max_norm).item(), "accumulate", "norm")
        peer.step()
    for i, (p, q) in enumerate(zip(mine.values(), other, strict=True)):
        close(p.detach().numpy(), q.detach().numpy(), "accumulate", f"parameter {SHAPES[i]}")
        assert np.abs(p.detach().numpy() - hosts[i]).max() > 1e-3


def groups(decays: list[Any], others: list[Any], decay: float) -> list[dict[str, Any]]:
    return [{"params": decays, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
@pytest.mark.parametrize(("betas", "eps", "decay"), [((0.9, 0.999), 1e-8, 0.0), ((0.8, 0.95), 1e-5, 0.3)])
def test_adamw(betas: tuple[float, float], eps: float, decay: float, max_norm: float | None) -> None:
    follow(
        lambda named: AdamW(named, learning_rate=1e-2, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=decay),
        lambda a, b: torch.optim.AdamW(groups(a, b, decay), lr=1e-2, betas=betas, eps=eps),
        max_norm=max_norm,
    )


def test_adamw_with_a_schedule() -> None:
    follow(
        lambda named: AdamW(named, beta1=0.9, beta2=0.99, weight_decay=0.1),
        lambda a, b: torch.optim.AdamW(groups(a, b, 0.1), betas=(0.9, 0.99)),
        max_norm=1.0,
        rate=lambda step: 1e-3 * (step + 1),
    )


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"), [(0.0, False, 0.0), (0.0, False, 0.1), (0.9, False, 0.1), (0.9, True, 0.1)]
)
def test_sgd(momentum: float, nesterov: bool, decay: float, max_norm: float | None) -> None:
    follow(
        lambda named: SGD(named, learning_rate=0.05, momentum=momentum, nesterov=nesterov, weight_decay=decay),
        lambda a, b: torch.optim.SGD(groups(a, b, decay), lr=0.05, momentum=momentum, nesterov=nesterov),
        max_norm=max_norm,
    )


@pytest.mark.parametrize("shape", [(48, 32), (32, 48)])
def test_muon(shape: tuple[int, int]) -> None:
    """torch multiplies in bfloat16, whatever the weights are, and so does ours here."""
    host = numbers(*shape, seed=3)
    mine, other = pl.Parameter(pl.tensor(host)), torch.tensor(host, requires_grad=True)
    ours = Muon([("w", mine)], learning_rate=0.02, momentum=0.95, weight_decay=0.1, operand_dtype=pl.bfloat16)
    theirs = torch.optim.Muon([other], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(STEPS):
        gradient = numbers(*shape, seed=100 + step)
        mine.grad, other.grad = pl.tensor(gradient), torch.tensor(gradient)
        ours.step()
        theirs.step()
    moved = np.linalg.norm(other.detach().numpy() - host)
    apart = np.linalg.norm(mine.detach().numpy() - other.detach().numpy())
    assert apart < 0.02 * moved, (apart, moved)
