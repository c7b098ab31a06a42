"""A mixture of experts: which experts a token goes to, the rows of each expert side by side, and their products.

N tokens, E experts, k of them for each token. `chosen` (N, k) names the experts of a token; E stands for none: such a
token (padding) is computed by nobody and counts nowhere. An assignment is a pair of token and place, numbered n k + j.
Rows are the N k assignments sorted by expert: rows bounds[e] to bounds[e + 1] - 1 belong to expert e, those from
bounds[E] on to nobody.
"""

from __future__ import annotations

import numpy as np

from ...base.dtypes import DType, int64
from ...device import Array
from ..indices import check_indices
from .host import Host, read, rounded, write


def top_experts(logits: Array, counted: Array | None, *, active: int) -> Array:
    """chosen[n] = the `active` experts with the largest logits, largest first, of equal ones the first; NaN counts as
    less than any number. E where not counted[n].   logits: (N, E); counted: (N,) bool or None; chosen: (N, active)"""
    order = np.argsort(-read(logits), axis=1, kind="stable")[:, :active]
    if counted is not None:
        order = np.where(read(counted)[:, None], order, logits.shape[1])
    return write(logits, order, int64)


def expert_gates(logits: Array, chosen: Array) -> Array:
    """gates[n, j] = e**l_j / sum_i e**l_i, l the logits of the experts chosen: their probabilities, renormalised to
    sum to 1. 0 where nobody was chosen.   gates: (N, k)"""
    check_indices("expert_gates", chosen, logits.shape[1] + 1)
    index = read(chosen)
    with np.errstate(all="ignore"):
        picked = _picked(read(logits), index)
        e = np.exp(picked - picked.max(axis=1, keepdims=True))
        return write(logits, np.where(index < logits.shape[1], e / e.sum(axis=1, keepdims=True), 0))


def expert_gates_backward(dgates: Array, gates: Array, chosen: Array, *, experts: int) -> Array:
    """dlogits[n, chosen[n, j]] = gates (dgates - sum_i gates dgates), 0 elsewhere; (N, experts)"""
    dy, y, index = read(dgates), read(gates), read(chosen)
    wide = np.zeros((len(y), experts + 1), y.dtype)
    with np.errstate(all="ignore"):
        np.put_along_axis(wide, index, y * (dy - (dy * y).sum(axis=1, keepdims=True)), axis=1)
    return write(gates, wide[:, :experts])


def router_statistics(logits: Array, chosen: Array) -> Array:
    """Losses that keep a router healthy, over the n tokens that went somewhere; statistics: (2 + E,) =

        balance = E sum_e f_e P_e    (Fedus et al. 2021, eq. 4; 1 where all are equal),
        z = mean (ln sum e**logits)**2    (Zoph et al. 2022, eq. 5),
        f_0, f_1, ...: the share of assignments that went to each expert; P_e is its mean probability.

    All 0 where no token went anywhere.
    """
    index, experts = read(chosen), logits.shape[1]
    went = index[:, 0] < experts
    z, count = read(logits)[went], max(int(went.sum()), 1)
    load = np.bincount(index[went].reshape(-1), minlength=experts) / (count * index.shape[1])
    with np.errstate(all="ignore"):
        p, lse = _softmax(z)
        losses = [experts * np.sum(load * p.sum(axis=0)) / count, np.sum(lse**2) / count]
    return write(logits, np.concatenate([losses, load]))


def router_statistics_backward(dy: Array, logits: Array, chosen: Array, statistics: Array) -> Array:
    """dlogits = p (a (f - sum_i f_i p_i) + b ln sum e**logits),  a = E dy_0 / n, b = 2 dy_1 / n; 0 for tokens that went
    nowhere. f counts, so it is constant.   dy, statistics: (2 + E,)"""
    index, experts = read(chosen), logits.shape[1]
    went = index[:, :1] < experts
    z, f, g = read(logits), read(statistics)[2:], read(dy)
    count = max(int(went.sum()), 1)
    with np.errstate(all="ignore"):
        p, lse = _softmax(z)
        dlogits = p * (g[0] * experts / count * (f - (p * f).sum(axis=1, keepdims=True)) + g[1] * 2 / count * lse)
    return write(logits, np.where(went, dlogits, 0))


def group_by_expert(chosen: Array, *, experts: int) -> tuple[Array, Array, Array]:
    """Sorts the assignments by expert, those of one expert in their own order. Returns source: (N k,), the assignment
    of a row, N k where none; place: (N, k), the row of an assignment, N k where none; bounds: (experts + 1,)."""
    check_indices("group_by_expert", chosen, experts + 1)
    index = read(chosen).reshape(-1)
    order, none = np.argsort(index, kind="stable"), index.size
    bounds = np.searchsorted(index[order], np.arange(experts + 1))
    used = np.arange(none) < bounds[-1]
    place = np.full(none, none)
    place[order[used]] = np.flatnonzero(used)
    source = np.where(used, order, none)
    return write(chosen, source), write(chosen, place.reshape(chosen.shape)), write(chosen, bounds)


def gather_rows(x: Array, source: Array, *, share: int) -> Array:
    """y[r] = x[source[r] // share], 0 where there is no such row.   x: (N, D), source: (R,), y: (R, D)"""
    rows, index = read(x), read(source) // share
    padded = np.concatenate([rows, np.zeros((1, rows.shape[1]), rows.dtype)])
    return write(x, padded[np.minimum(index, len(rows))])


def sum_rows(x: Array, place: Array) -> Array:
    """y[n] = sum_j x[place[n, j]] in the order of j, a row that is not there counting 0.   x: (R, D), place: (N, k),
    y: (N, D)"""
    rows, index = read(x), read(place)
    padded = np.concatenate([rows, np.zeros((1, rows.shape[1]), rows.dtype)])
    return write(x, padded[np.minimum(index, len(rows))].sum(axis=1))


def scaled_swiglu(x: Array, scale: Array) -> Array:
    """y = scale gate sigmoid(gate) up, gate and up the halves of a row.   x: (R, 2 H), scale: (R, 1), y: (R, H)"""
    gate, up = np.split(read(x), 2, axis=1)
    with np.errstate(all="ignore"):
        return write(x, read(scale) * (gate / (1 + np.exp(-gate)) * up))


def scaled_swiglu_backward(dy: Array, x: Array, scale: Array) -> tuple[Array, Array, Array]:
    """dgate = scale dy up s (1 + gate (1 - s)),  dup = scale dy gate s,  dscale = sum(dy gate s up); s = sigmoid(gate).
    Returns y, which is cheaper made again than kept, dx: (R, 2 H), dscale: (R, 1)."""
    (gate, up), g, c = np.split(read(x), 2, axis=1), read(dy), read(scale)
    with np.errstate(all="ignore"):
        s = 1 / (1 + np.exp(-gate))
        y = gate * s * up
        dx = np.concatenate([c * g * up * s * (1 + gate * (1 - s)), c * g * gate * s], axis=1)
        return write(x, c * y), write(x, dx), write(x, (g * y).sum(axis=1, keepdims=True))


def grouped_matmul(
    x: Array, weights: list[Array], bounds: Array, *, transposed: bool, operand_dtype: DType | None
) -> Array:
    """y[r] = x[r] @ weights[e] for the rows r of expert e, or weights[e]^T where `transposed`; 0 for rows of nobody.
    x: (R, K), weights: E of (K, M), (M, K) where transposed; y: (R, M). operand_dtype as in `matmul`."""
    rows, at = rounded(read(x), operand_dtype), read(bounds)
    right = [rounded(read(w.transpose() if transposed else w), operand_dtype) for w in weights]
    y = np.zeros((len(rows), right[0].shape[1]), rows.dtype)
    with np.errstate(all="ignore"):
        for e, weight in enumerate(right):
            y[at[e] : at[e + 1]] = rows[at[e] : at[e + 1]] @ weight
    return write(x, y)


def grouped_outer(a: Array, b: Array, bounds: Array, *, operand_dtype: DType | None) -> Array:
    """y[e] = a_e^T b_e over the rows of expert e, 0 where it has none.   a: (R, K), b: (R, M), y: (E, K, M)"""
    left, right, at = rounded(read(a), operand_dtype), rounded(read(b), operand_dtype), read(bounds)
    y = np.zeros((len(at) - 1, left.shape[1], right.shape[1]), left.dtype)
    with np.errstate(all="ignore"):
        for e in range(len(y)):
            y[e] = left[at[e] : at[e + 1]].T @ right[at[e] : at[e + 1]]
    return write(a, y)


def _picked(z: Host, index: Host) -> Host:
    """Logits of the experts chosen; any number where nobody was."""
    return np.take_along_axis(z, np.minimum(index, z.shape[1] - 1), axis=1)


def _softmax(z: Host) -> tuple[Host, Host]:
    """Probabilities, and the logarithm of their denominator as a column."""
    top = z.max(axis=1, keepdims=True)
    e = np.exp(z - top)
    total = e.sum(axis=1, keepdims=True)
    return e / total, top + np.log(total)
