"""What the routers of a model did in a training step: losses added to the objective, and shares for the metrics.

A router left alone sends everything to the few experts that learned first. Two small losses for each layer with experts
keep it honest: load balance (Fedus et al. 2021) and the size of its logits (Zoph et al. 2022). Both arrive from the
layers, with the load, as one vector a layer (`ops.router_statistics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import Array
from ..ops import tensor
from ..tape import Tensor
from .config import TransformerConfig


@dataclass(frozen=True)
class RoutingReport:
    """What the routers did.

    layers: their numbers. load: for each of them the share of assignments every expert got, with sum 1. balance_loss (1
    where routing is even, E where one expert has all) and z_loss: means over the layers, not yet weighted. penalty:
    nats/token, what was added to the cross-entropy.
    """

    layers: tuple[int, ...]
    load: tuple[tuple[float, ...], ...]
    balance_loss: float
    z_loss: float
    penalty: float

    @classmethod
    def of(cls, statistics: Sequence[Array], config: TransformerConfig, weight: float) -> RoutingReport:
        """From the statistics of each layer, whose losses were weighted by `weight` too. Waits for the device."""
        found = np.stack([s.device.download(s) for s in statistics]).astype(np.float64)
        balance, z = found[:, 0], found[:, 1]
        return cls(
            config.expert_layers,
            _shares(found[:, 2:]),
            float(balance.mean()),
            float(z.mean()),
            weight * float(config.aux_weight * balance.sum() + config.z_weight * z.sum()),
        )

    @classmethod
    def together(cls, reports: Sequence[RoutingReport], shares: Sequence[float]) -> RoutingReport:
        """Of a batch computed in parts: means weighted by the shares of the parts; penalties are weighted already and
        add up."""
        share = np.asarray(shares) / np.sum(shares)
        load = np.tensordot(share, np.array([r.load for r in reports]), 1)
        return cls(
            reports[0].layers,
            _shares(load),
            float(share @ [r.balance_loss for r in reports]),
            float(share @ [r.z_loss for r in reports]),
            sum(r.penalty for r in reports),
        )


def _shares(load: np.ndarray[Any, Any]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f) for f in row) for row in load)


def penalty(statistics: Sequence[Tensor], config: TransformerConfig, weight: float) -> Tensor | None:
    """weight * sum over layers of (aux_weight balance + z_weight z), nats/token, shape (); None where both are off."""
    if config.aux_weight == 0 and config.z_weight == 0:
        return None
    total = statistics[0]
    for more in statistics[1:]:
        total = total + more
    factors = np.zeros(total.shape, np.float32)
    factors[:2] = weight * config.aux_weight, weight * config.z_weight
    return (total * tensor(factors, dtype=total.dtype, device=total.device)).sum()


def counted_tokens(weights: np.ndarray[Any, Any], starts: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """Which tokens are not padding: (batch * time,) bool from the weights of a loss, (batch, time); None for all.

    In a causal model a position behind the last weighted one of its row, or of its document where `starts` tells of
    several, reaches no loss, whatever it holds; one before it does, even where its own weight is 0 (a masked prompt).
    """
    if starts is None:
        counted = np.logical_or.accumulate(weights[:, ::-1] != 0, axis=1)[:, ::-1]
    else:
        # A position counts if a weighted one at or behind it starts no later than it stands itself.
        time = weights.shape[1]
        first_seen = np.where(weights != 0, starts, time)
        counted = np.minimum.accumulate(first_seen[:, ::-1], axis=1)[:, ::-1] <= np.arange(time)
    return None if counted.all() else counted.reshape(-1)
