"""A mixture of experts: which feed-forward networks each token goes through, and the networks.

A router's logits choose k of E experts for each token; the token's result is theirs, weighted by gates. No token is
dropped and no expert has a capacity: the assignments are sorted by expert and each expert multiplies the rows it got.
The number of rows in all is fixed, N k, and how they divide stays on the device, so nothing waits for it.
Tokens that do not count (padding) go to no expert, which the choice says by naming expert E.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError, DTypeError, ShapeError
from ..device import Array
from ..tape import Op, Tensor
from .common import cast, floats, reshaped
from .index import _integers
from .self_attention import joined

Expert = tuple[Tensor, Tensor, Tensor]


class ExpertGates(Op):
    """gates[n, j] = e**l_j / sum_i e**l_i, l the logits of the experts chosen.   dl = gates (dy - sum_i gates dy)"""

    saves = ("gates", "chosen")

    def forward(self, logits: Array, chosen: Array) -> Array:
        self.experts = logits.shape[1]
        gates = self.kernels.expert_gates(logits, chosen)
        self.save(gates=gates, chosen=chosen)
        return gates

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"logits": self.kernels.expert_gates_backward(dy, self.gates, self.chosen, experts=self.experts)}


class RouterStatistics(Op):
    """y = [balance, z, f_0, f_1, ...], see `router_statistics`.
    dlogits = p (dbalance E / n (f - sum_i f_i p_i) + 2 dz / n ln sum e**logits)"""

    saves = ("logits", "chosen", "statistics")

    def forward(self, logits: Array, chosen: Array) -> Array:
        statistics = self.kernels.router_statistics(logits, chosen)
        self.save(logits=logits, chosen=chosen, statistics=statistics)
        return statistics

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"logits": self.kernels.router_statistics_backward(dy, self.logits, self.chosen, self.statistics)}


class MixtureOfExperts(Op):
    """y[n] = sum_j gates[n, j] D (silu(G x[n]) * U x[n]),  G, U and D those of expert chosen[n, j].   Arrays: x, gates,
    chosen, then G, U and D of each expert.

    The gate is applied before D, where a row is narrow. With the rows of an expert side by side in x, h = [G; U] x,
    a = gate silu(h_G) h_U and do = dy of the row's token:

        t = do D,  dD = do^T a,  dh and dgate = sum(t silu(h_G) h_U) from t,  dx = dh [G; U],  d[G; U] = dh^T x

    and dx adds up over the rows of a token. Rows of x are gathered again, and a made again, rather than kept.
    """

    saves = ("x", "hidden", "scale", "source", "place", "bounds", "into", "down")

    def forward(self, *arrays: Array, operand_dtype: DType | None) -> Array:
        k, (x, gates, chosen) = self.kernels, arrays[:3]
        self.active, self.operand_dtype = chosen.shape[1], operand_dtype
        into = [joined(k, [arrays[i], arrays[i + 1]]) for i in range(3, len(arrays), 3)]
        down = list(arrays[5::3])
        source, place, bounds = k.group_by_expert(chosen, experts=len(down))
        scale = k.gather_rows(reshaped(k, gates, (gates.size, 1)), source, share=1)
        rows = k.gather_rows(x, source, share=self.active)
        hidden = k.grouped_matmul(rows, into, bounds, transposed=True, operand_dtype=operand_dtype)
        inner = k.scaled_swiglu(hidden, scale)
        y = k.grouped_matmul(inner, down, bounds, transposed=True, operand_dtype=operand_dtype)
        self.save(x=x, hidden=hidden, scale=scale, source=source, place=place, bounds=bounds, into=into, down=down)
        return k.sum_rows(y, place)

    def backward(self, dy: Array) -> dict[str, list[Array | None]]:
        k, bounds = self.kernels, self.bounds
        how: dict[str, Any] = {"operand_dtype": self.operand_dtype}
        needs = [x is not None and x.requires_grad for x in self.inputs]
        found: list[Array | None] = [None] * len(needs)
        do = k.gather_rows(dy, self.source, share=self.active)
        t = k.grouped_matmul(do, self.down, bounds, transposed=False, **how)
        inner, dhidden, dscale = k.scaled_swiglu_backward(t, self.hidden, self.scale)
        if any(needs[5::3]):
            found[5::3] = _each(k.grouped_outer(do, inner, bounds, **how))
        if needs[0]:
            dx = k.grouped_matmul(dhidden, self.into, bounds, transposed=False, **how)
            found[0] = k.sum_rows(dx, self.place)
        if needs[1]:
            place = reshaped(k, self.place, (self.place.size,))
            found[1] = reshaped(k, k.gather_rows(dscale, place, share=1), self.place.shape)
        if any(needs[3::3]) or any(needs[4::3]):
            rows = k.gather_rows(self.x, self.source, share=self.active)
            both = _each(k.grouped_outer(dhidden, rows, bounds, **how))
            half = self.hidden.shape[1] // 2
            found[3::3] = [w.slice(0, 0, half) for w in both]
            found[4::3] = [w.slice(0, half, 2 * half) for w in both]
        return {"arrays": [x if need else None for x, need in zip(found, needs, strict=True)]}


def _each(x: Array) -> list[Array]:
    """Views along the first axis."""
    return [x.select(0, i) for i in range(x.shape[0])]


def top_experts(logits: Tensor, *, active: int, counted: Tensor | None = None) -> Tensor:
    """The `active` experts with the largest logits, largest first; E, which is none, for tokens that do not count.

    logits: (N, E) of a router; counted: (N,) bool, None for all; result: (N, active) int64. No gradient flows.
    Raises ConfigError unless 1 <= active <= E.
    """
    logits = _router_logits("top_experts", logits)
    if not 1 <= active <= logits.shape[1]:
        raise ConfigError(
            "top_experts", "no such number of experts can be active", got=active, expected=f"1 to {logits.shape[1]}"
        )
    if counted is not None:
        if counted.shape != logits.shape[:1]:
            raise ShapeError(
                "top_experts", "counted does not fit the tokens", got=counted.shape, expected=(len(logits),)
            )
        if counted.dtype is not dtypes.bool_:
            raise DTypeError("top_experts", "counted is not bool", got=counted.dtype.name)
    mask = None if counted is None else counted.array
    return Tensor(logits.device.kernels.top_experts(logits.array, mask, active=active))


def expert_gates(logits: Tensor, chosen: Tensor) -> Tensor:
    """Weights of the experts chosen: the router's probabilities renormalised over them, so each row sums to 1 (to 0
    where no expert was chosen).   logits: (N, E), chosen: (N, k) from `top_experts`, y: (N, k)."""
    logits, chosen = _router_logits("expert_gates", logits), _choice("expert_gates", logits, chosen)
    return ExpertGates.apply(logits, chosen)


def router_statistics(logits: Tensor, chosen: Tensor) -> Tensor:
    """What keeps a router healthy: y = [balance, z, f_0, ..., f_(E-1)], shape (2 + E,).

    balance = E sum_e f_e P_e   (Fedus et al. 2021, eq. 4): 1 where tokens and probabilities are spread evenly, E where
    one expert has all; f_e is the share of assignments that expert e got, P_e its mean probability.
    z = mean (ln sum e**logits)**2   (Zoph et al. 2022, eq. 5). Means are over tokens that went to some expert; no
    gradient flows through f.   logits: (N, E), chosen: (N, k) from `top_experts`.
    """
    logits, chosen = _router_logits("router_statistics", logits), _choice("router_statistics", logits, chosen)
    return RouterStatistics.apply(logits, chosen)


def mixture_of_experts(
    x: Tensor, gates: Tensor, chosen: Tensor, experts: Sequence[Expert], *, operand_dtype: DType | None = None
) -> Tensor:
    """y[n] = sum_j gates[n, j] down (silu(gate x[n]) * up x[n]),  the weights those of expert chosen[n, j]: gated
    feed-forward networks of which each token goes through its own few   (Shazeer et al. 2017).

    x: (N, D); gates: (N, k); chosen: (N, k) from `top_experts`; experts: the weights gate (H, D), up (H, D) and down
    (D, H) of each; y: (N, D), 0 where no expert was chosen. operand_dtype as in `matmul`. The gradient of an expert
    without tokens is exactly 0.
    """
    where = "mixture_of_experts"
    if not experts:
        raise ConfigError(where, "no experts", expected="at least one")
    chosen, x, gates = _integers(where, chosen), floats(where, x), floats(where, gates)
    if x.ndim != 2 or gates.shape != chosen.shape or chosen.ndim != 2 or chosen.shape[0] != x.shape[0]:
        got = f"x {x.shape}, gates {gates.shape}, chosen {chosen.shape}"
        raise ShapeError(where, "tokens, gates and choice do not fit", got=got, expected="(N, D), (N, k), (N, k)")
    wide, width, hidden = _wide(x.dtype), x.shape[1], experts[0][0].shape[0]
    into, back = (hidden, width), (width, hidden)
    weights: list[Tensor] = []
    for i, (gate, up, down) in enumerate(experts):
        if gate.shape != into or up.shape != into or down.shape != back:
            got = f"{gate.shape}, {up.shape}, {down.shape}"
            raise ShapeError(where, f"weights of expert {i} do not fit", got=got, expected=f"{into} twice and {back}")
        weights += (cast(gate, wide), cast(up, wide), cast(down, wide))
    y = MixtureOfExperts.apply(
        cast(x, wide), cast(gates, wide), cast(chosen, dtypes.int64), *weights, operand_dtype=operand_dtype
    )
    return cast(y, x.dtype)


def _wide(dtype: DType) -> DType:
    """The format these kernels compute in."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _router_logits(where: str, logits: Tensor) -> Tensor:
    logits = floats(where, logits)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ShapeError(where, "not the logits of a router", got=logits.shape, expected="(tokens, experts)")
    return cast(logits, _wide(logits.dtype))


def _choice(where: str, logits: Tensor, chosen: Tensor) -> Tensor:
    chosen = _integers(where, chosen)
    if chosen.ndim != 2 or chosen.shape[0] != logits.shape[0] or not 1 <= chosen.shape[1] <= logits.shape[1]:
        got = f"logits {logits.shape}, chosen {chosen.shape}"
        raise ShapeError(where, "the choice does not fit the logits", got=got, expected="(N, E) and (N, k)")
    return cast(chosen, dtypes.int64)


__all__ = [
    "ExpertGates",
    "MixtureOfExperts",
    "RouterStatistics",
    "expert_gates",
    "mixture_of_experts",
    "router_statistics",
    "top_experts",
]
