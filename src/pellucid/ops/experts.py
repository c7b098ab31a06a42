"""A mixture of experts: which feed-forward networks each token goes through, and the networks.

A router's logits choose k of E experts for each token; the token's result is theirs, weighted by gates. No token is
dropped and no expert has a capacity: the assignments are sorted by expert and each expert multiplies the rows it got.
The number of rows in all is fixed, N k, and how they divide stays on the device, so nothing waits for it.
Tokens that do not count (padding) go to no expert, which the choice says by naming expert E.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError, DTypeError, ShapeError
from ..device import Array
from ..kernels.views import joined, reshaped
from ..tape import Op, Tensor
from .common import cast, floats
from .index import _integers

Expert = tuple[Tensor, Tensor, Tensor]
Change = tuple[Tensor, Tensor]


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
    chosen, then G, U and D of each expert; then A and C of each where [G; U] + C A takes the place of [G; U]
    (`inner_change`); then A and C of each where D + C A takes the place of D (`outer_change`).

    The gate is applied before D, where a row is narrow. With the rows of an expert side by side in x, h = [G; U] x,
    a = gate silu(h_G) h_U and do = dy of the row's token:

        t = do D,  dD = do^T a,  dh and dgate = sum(t silu(h_G) h_U) from t,  dx = dh [G; U],  d[G; U] = dh^T x

    and dx adds up over the rows of a token. Rows of x are gathered again, and a made again, rather than kept.
    """

    saves = ("x", "hidden", "scale", "source", "place", "bounds", "into", "down", "inner", "outer")

    def forward(
        self, *arrays: Array, experts: int, inner_change: bool, outer_change: bool, operand_dtype: DType | None
    ) -> Array:
        k, (x, gates, chosen) = self.kernels, arrays[:3]
        self.active, self.operand_dtype, self.last = chosen.shape[1], operand_dtype, 3 + 3 * experts
        into = [joined(k, [arrays[i], arrays[i + 1]]) for i in range(3, self.last, 3)]
        down, changes = list(arrays[5 : self.last : 3]), arrays[self.last :]
        inner_pairs = changes[: 2 * experts] if inner_change else ()
        outer_pairs = changes[len(inner_pairs) :] if outer_change else ()
        source, place, bounds = k.group_by_expert(chosen, experts=len(down))
        scale = k.gather_rows(reshaped(k, gates, (gates.size, 1)), source, share=1)
        rows = k.gather_rows(x, source, share=self.active)
        hidden = self._product(rows, into, inner_pairs, bounds)
        y = self._product(k.scaled_swiglu(hidden, scale), down, outer_pairs, bounds)
        made = {"hidden": hidden, "scale": scale, "source": source, "place": place, "bounds": bounds}
        self.save(x=x, **made, into=into, down=down, inner=list(inner_pairs), outer=list(outer_pairs))
        return k.sum_rows(y, place)

    def _product(self, x: Array, weights: list[Array], pairs: Sequence[Array], bounds: Array) -> Array:
        """Rows of each expert times its weights, changed by its pair."""
        k, how = self.kernels, {"transposed": True, "operand_dtype": self.operand_dtype}
        y = k.grouped_matmul(x, weights, bounds, **how)
        if not pairs:
            return y
        low = k.grouped_matmul(x, list(pairs[::2]), bounds, **how)
        return k.add(y, k.grouped_matmul(low, list(pairs[1::2]), bounds, **how))

    def _to_input(self, dy: Array, weights: list[Array], pairs: list[Array]) -> Array:
        """dx of `_product`: dy (W + C A)."""
        k, bounds, how = self.kernels, self.bounds, {"transposed": False, "operand_dtype": self.operand_dtype}
        dx = k.grouped_matmul(dy, weights, bounds, **how)
        if not pairs:
            return dx
        dlow = k.grouped_matmul(dy, pairs[1::2], bounds, **how)
        return k.add(dx, k.grouped_matmul(dlow, pairs[::2], bounds, **how))

    def _of_pairs(self, dy: Array, x: Array, pairs: list[Array]) -> list[Array]:
        """dA and dC of each expert's pair: low = x A^T,  dC = dy^T low,  dA = (dy C)^T x."""
        k, bounds, how = self.kernels, self.bounds, {"operand_dtype": self.operand_dtype}
        low = k.grouped_matmul(x, pairs[::2], bounds, transposed=True, **how)
        dlow = k.grouped_matmul(dy, pairs[1::2], bounds, transposed=False, **how)
        narrowing, changes = (_each(k.grouped_outer(*ab, bounds, **how)) for ab in ((dlow, x), (dy, low)))
        return [gradient for pair in zip(narrowing, changes, strict=True) for gradient in pair]

    def backward(self, dy: Array) -> dict[str, list[Array | None]]:
        k, last, bounds = self.kernels, self.last, self.bounds
        needs = [x is not None and x.requires_grad for x in self.inputs]
        found: list[Array | None] = [None] * len(needs)
        middle = last + len(self.inner)
        do = k.gather_rows(dy, self.source, share=self.active)
        t = self._to_input(do, self.down, self.outer)
        inner, dhidden, dscale = k.scaled_swiglu_backward(t, self.hidden, self.scale)
        if any(needs[5:last:3]):
            found[5:last:3] = _each(k.grouped_outer(do, inner, bounds, operand_dtype=self.operand_dtype))
        if any(needs[middle:]):
            found[middle:] = self._of_pairs(do, inner, self.outer)
        if needs[0]:
            found[0] = k.sum_rows(self._to_input(dhidden, self.into, self.inner), self.place)
        if needs[1]:
            place = reshaped(k, self.place, (self.place.size,))
            found[1] = reshaped(k, k.gather_rows(dscale, place, share=1), self.place.shape)
        if any(needs[3:last:3]) or any(needs[4:last:3]) or any(needs[last:middle]):
            rows = k.gather_rows(self.x, self.source, share=self.active)
            if any(needs[3:last:3]) or any(needs[4:last:3]):
                both = _each(k.grouped_outer(dhidden, rows, bounds, operand_dtype=self.operand_dtype))
                half = self.hidden.shape[1] // 2
                found[3:last:3] = [w.slice(0, 0, half) for w in both]
                found[4:last:3] = [w.slice(0, half, 2 * half) for w in both]
            if any(needs[last:middle]):
                found[last:middle] = self._of_pairs(dhidden, rows, self.inner)
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
    x: Tensor,
    gates: Tensor,
    chosen: Tensor,
    experts: Sequence[Expert],
    *,
    inner_changes: Sequence[Change] | None = None,
    outer_changes: Sequence[Change] | None = None,
    operand_dtype: DType | None = None,
) -> Tensor:
    """y[n] = sum_j gates[n, j] down (silu(gate x[n]) * up x[n]),  the weights those of expert chosen[n, j]: gated
    feed-forward networks of which each token goes through its own few   (Shazeer et al. 2017).

    x: (N, D); gates: (N, k); chosen: (N, k) from `top_experts`; experts: the weights gate (H, D), up (H, D) and down
    (D, H) of each; y: (N, D), 0 where no expert was chosen. operand_dtype as in `matmul`. The gradient of an expert
    without tokens is exactly 0.

    Low-rank changes   (Hu et al. 2021): inner_changes: A (R, D) and C (2 H, R) of each expert, whose gate and up one
    below the other are then [gate; up] + C A; outer_changes: A (R, H) and C (D, R), for down.
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
    for changes, inputs, outputs in ((inner_changes, width, 2 * hidden), (outer_changes, hidden, width)):
        if changes is not None:
            _check_changes(where, changes, len(experts), inputs, outputs)
            weights += (cast(part, wide) for pair in changes for part in pair)
    y = MixtureOfExperts.apply(
        cast(x, wide),
        cast(gates, wide),
        cast(chosen, dtypes.int64),
        *weights,
        experts=len(experts),
        inner_change=inner_changes is not None,
        outer_change=outer_changes is not None,
        operand_dtype=operand_dtype,
    )
    return cast(y, x.dtype)


def _check_changes(where: str, changes: Sequence[Change], experts: int, inputs: int, outputs: int) -> None:
    if len(changes) != experts:
        raise ShapeError(where, "not one change an expert", got=len(changes), expected=experts)
    rank = changes[0][0].shape[0]
    for i, (a, c) in enumerate(changes):
        if a.shape != (rank, inputs) or c.shape != (outputs, rank):
            got, expected = f"{a.shape} and {c.shape}", f"({rank}, {inputs}) and ({outputs}, {rank})"
            raise ShapeError(where, f"the change of expert {i} does not fit", got=got, expected=expected)


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
