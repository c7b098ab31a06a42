"""MixtureOfExperts: a feed-forward layer of several networks, of which a router picks a few for each token.

The router is a linear map in the precision of the weights, whatever the experts multiply in: its few numbers decide
which weights are used at all (Fedus et al. 2021, section 2.4). Every token gets all the experts it is sent to. What the
router did is not the layer's to keep: a pass that wants to know hands a `Routing` along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..base.dtypes import DType
from ..base.errors import ConfigError
from ..base.rng import Generator
from ..device import Device
from ..ops import expert_gates, mixture_of_experts, router_statistics, top_experts
from ..tape import Tensor
from .layers import Linear, SwiGLU
from .low_rank import joint_change
from .module import Module


@dataclass
class Routing:
    """What one pass tells its routers, and they it.

    counted: (tokens,) bool, which tokens are not padding; None for all. statistics: of each layer in order, see
    `router_statistics`.
    """

    counted: Tensor | None = None
    statistics: list[Tensor] = field(default_factory=list)


class MixtureOfExperts(Module):
    """y = sum of gate_e(x) expert_e(x) over the `active` experts with the largest router logits, plus shared_experts(x)
    where asked for   (Shazeer et al. 2017; Dai et al. 2024 for the shared expert).

    Width -> hidden -> width in each expert, SwiGLU without biases; gates are the router's probabilities renormalised
    over the experts picked. Names are those of published checkpoints (Qwen, DeepSeek): `gate`, `experts.N.gate_proj`...
    Raises ConfigError unless 1 <= active <= experts.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        active: int,
        *,
        shared: bool = False,
        generator: Generator | None,
        std: float = 0.02,
        out_std: float = 0.02,
        operand_dtype: DType | None = None,
        device: str | Device = "cpu",
    ) -> None:
        if not 1 <= active <= experts:
            expected = f"1 to {experts}" if experts > 0 else "at least one expert"
            raise ConfigError(
                "MixtureOfExperts", "no such number of experts can be active", got=active, expected=expected
            )

        def expert() -> SwiGLU:
            return SwiGLU(
                width, hidden, generator=generator, std=std, out_std=out_std, operand_dtype=operand_dtype, device=device
            )

        self.gate = Linear(width, experts, generator=generator, bias=False, std=std, device=device)
        self.experts = [expert() for _ in range(experts)]
        self.shared_experts = expert() if shared else None
        self.active, self.operand_dtype = active, operand_dtype

    def __call__(self, x: Tensor, routing: Routing | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        logits = self.gate(rows)
        chosen = top_experts(logits, active=self.active, counted=None if routing is None else routing.counted)
        if routing is not None:
            routing.statistics.append(router_statistics(logits, chosen))
        weights: list[Any] = [(e.gate_proj.weight, e.up_proj.weight, e.down_proj.weight) for e in self.experts]
        y = mixture_of_experts(
            rows,
            expert_gates(logits, chosen),
            chosen,
            weights,
            inner_changes=_all([joint_change([e.gate_proj, e.up_proj]) for e in self.experts]),
            outer_changes=_all([joint_change([e.down_proj]) for e in self.experts]),
            operand_dtype=self.operand_dtype,
        )
        if self.shared_experts is not None:
            y = y + self.shared_experts(rows)
        return y.reshape(x.shape)


def _all(pairs: list[tuple[Tensor, Tensor] | None]) -> list[tuple[Tensor, Tensor]] | None:
    """The changes of every expert; None where they have none. Adapters are attached to all experts of a layer alike."""
    found = [pair for pair in pairs if pair is not None]
    assert len(found) in (0, len(pairs))
    return found or None
