"""Routing of a mixture of experts: the experts of each token, their gates, the losses that keep a router healthy, and
the sort of tokens by expert. The definitions stand in `reference/experts.py`.

All of it is a few numbers a token. Sums over tokens go through blocks of rows, folded in order; the sort counts, one
pass to count and one to place, in the order of the tokens.
"""

from __future__ import annotations

import math

from ...base import dtypes
from ...device import Array
from .formats import load, store
from .functions import exp_flushed, inlined, like
from .indices import check_indices
from .launch import kernel
from .memory import contiguous
from .rows import fold, largest, row_blocks, row_grain
from .softmax import sum_exp


@kernel
def _top(lo, hi, logits, counted, chosen, masked, n, active):
    for row in range(lo, hi):
        i, to = row * n, row * active
        out = masked and not load(counted, row)
        for j in range(active):
            best = n
            if not out:
                for e in range(n):
                    taken = False
                    for before in range(j):
                        taken = taken or load(chosen, to + before) == e
                    v = load(logits, i + e)
                    if not taken and (best == n or v > load(logits, i + best)):
                        best = e
                    elif not taken and v == v:  # a number beats NaN
                        w = load(logits, i + best)
                        best = e if w != w else best
            store(chosen, to + j, best)


@kernel
def _gates(lo, hi, logits, chosen, gates, n, active):
    for row in range(lo, hi):
        i, to = row * n, row * active
        if load(chosen, to) >= n:
            for j in range(active):
                store(gates, to + j, 0)
            continue
        top = load(logits, i + load(chosen, to))  # the largest comes first
        total = like(0, top)
        for j in range(active):
            e = exp_flushed(load(logits, i + load(chosen, to + j)) - top)
            store(gates, to + j, e)
            total += e
        for j in range(active):
            store(gates, to + j, load(gates, to + j) / total)


@kernel
def _gates_backward(lo, hi, dgates, gates, chosen, dlogits, n, active):
    for row in range(lo, hi):
        i, to = row * n, row * active
        for e in range(n):
            store(dlogits, i + e, 0)
        if load(chosen, to) < n:
            mean = like(0, load(gates, to))
            for j in range(active):
                mean += load(gates, to + j) * load(dgates, to + j)
            for j in range(active):
                store(dlogits, i + load(chosen, to + j), load(gates, to + j) * (load(dgates, to + j) - mean))


@inlined
def _log_sum(x, i, n):
    """ln of the sum of e**x over a row"""
    top = largest(x, i, 1, n, load(x, i))
    return like(top + math.log(sum_exp(x, i, n, top)), top)


@kernel
def _sums(lo, hi, logits, chosen, parts, rows, length, n, active):
    """Items are blocks of rows; a block's part is: sums of probabilities, counts, sum of lse**2, tokens."""
    width = 2 * n + 2
    for block in range(lo, hi):
        to = block * width
        for c in range(width):
            store(parts, to + c, 0)
        for row in range(block * length, min(block * length + length, rows)):
            i = row * n
            if load(chosen, row * active) >= n:
                continue
            rest = _log_sum(logits, i, n)
            for e in range(n):
                store(parts, to + e, load(parts, to + e) + exp_flushed(load(logits, i + e) - rest))
            for j in range(active):
                at = to + n + load(chosen, row * active + j)
                store(parts, at, load(parts, at) + 1)
            store(parts, to + 2 * n, load(parts, to + 2 * n) + rest * rest)
            store(parts, to + 2 * n + 1, load(parts, to + 2 * n + 1) + 1)


@kernel
def _statistics(lo, hi, sums, y, n, active):
    """One item: the statistics from the sums."""
    for _ in range(lo, hi):
        count = max(load(sums, 2 * n + 1), like(1, load(sums, 0)))
        balance = like(0, count)
        for e in range(n):
            share = load(sums, n + e) / (count * like(active, count))
            store(y, 2 + e, share)
            balance += share * load(sums, e)
        store(y, 0, balance * like(n, count) / count)
        store(y, 1, load(sums, 2 * n) / count)


@kernel
def _statistics_backward(lo, hi, dy, logits, chosen, statistics, count, dlogits, n, active):
    for row in range(lo, hi):
        i = row * n
        if load(chosen, row * active) >= n:
            for e in range(n):
                store(dlogits, i + e, 0)
            continue
        rest = _log_sum(logits, i, n)
        tokens = like(load(count, 0), rest)
        a, b = load(dy, 0) * like(n, rest) / tokens, load(dy, 1) * like(2, rest) / tokens
        mean = like(0, rest)
        for e in range(n):
            mean += load(statistics, 2 + e) * exp_flushed(load(logits, i + e) - rest)
        for e in range(n):
            p = exp_flushed(load(logits, i + e) - rest)
            store(dlogits, i + e, p * (a * (load(statistics, 2 + e) - mean) + b * rest))


@kernel
def _count(lo, hi, chosen, count, rows, n, active):
    """One item: the number of tokens that went somewhere, at least 1."""
    for _ in range(lo, hi):
        total = 0
        for row in range(rows):
            total += load(chosen, row * active) < n
        store(count, 0, max(total, 1))


@kernel
def _sort(lo, hi, chosen, source, place, bounds, following, assignments, experts):
    """One item. following[e]: the row the next assignment of expert e takes."""
    for _ in range(lo, hi):
        for e in range(experts + 1):
            store(bounds, e, 0)
        for i in range(assignments):
            e = load(chosen, i)
            if e < experts:
                store(bounds, e + 1, load(bounds, e + 1) + 1)
        for e in range(experts):
            store(following, e, load(bounds, e))
            store(bounds, e + 1, load(bounds, e + 1) + load(bounds, e))
        for i in range(load(bounds, experts), assignments):
            store(source, i, assignments)
        for i in range(assignments):
            e = load(chosen, i)
            if e >= experts:
                store(place, i, assignments)
                continue
            row = load(following, e)
            store(following, e, row + 1)
            store(place, i, row)
            store(source, row, i)


def top_experts(logits: Array, counted: Array | None, *, active: int) -> Array:
    """chosen[n] = the `active` experts with the largest logits, largest first, of equal ones the first; NaN counts as
    less than any number. E where not counted[n].   logits: (N, E); counted: (N,) bool or None; chosen: (N, active)"""
    logits = contiguous(logits)
    rows, n = logits.shape
    chosen = logits.device.empty((rows, active), dtypes.int64)
    mask = chosen if counted is None else contiguous(counted)
    grain = row_grain(n * active, cost=active)
    _top(rows, grain, logits, mask, chosen, counted is not None, n, active)
    return chosen


def expert_gates(logits: Array, chosen: Array) -> Array:
    """gates[n, j] = e**l_j / sum_i e**l_i, l the logits of the experts chosen: their probabilities, renormalised to
    sum to 1. 0 where nobody was chosen.   gates: (N, k)"""
    check_indices("expert_gates", chosen, logits.shape[1] + 1)
    logits, chosen = contiguous(logits), contiguous(chosen)
    (rows, n), active = logits.shape, chosen.shape[1]
    gates = logits.device.empty(chosen.shape, logits.dtype)
    _gates(rows, row_grain(active, cost=8), logits, chosen, gates, n, active)
    return gates


def expert_gates_backward(dgates: Array, gates: Array, chosen: Array, *, experts: int) -> Array:
    """dlogits[n, chosen[n, j]] = gates (dgates - sum_i gates dgates), 0 elsewhere; (N, experts)"""
    dgates, gates, chosen = contiguous(dgates), contiguous(gates), contiguous(chosen)
    rows, active = gates.shape
    dlogits = gates.device.empty((rows, experts), gates.dtype)
    arrays = (dgates, gates, chosen, dlogits)
    _gates_backward(rows, row_grain(experts, cost=2), *arrays, experts, active)
    return dlogits


def router_statistics(logits: Array, chosen: Array) -> Array:
    """Losses that keep a router healthy, over the n tokens that went somewhere; statistics: (2 + E,) =

        balance = E sum_e f_e P_e    (Fedus et al. 2021, eq. 4; 1 where all are equal),
        z = mean (ln sum e**logits)**2    (Zoph et al. 2022, eq. 5),
        f_0, f_1, ...: the share of assignments that went to each expert; P_e is its mean probability.

    All 0 where no token went anywhere.
    """
    logits, chosen = contiguous(logits), contiguous(chosen)
    (rows, n), active = logits.shape, chosen.shape[1]
    blocks, length = row_blocks(rows)
    parts, sums, y = (logits.device.empty(s, logits.dtype) for s in ((blocks, 2 * n + 2), (2 * n + 2,), (2 + n,)))
    _sums(blocks, 1, logits, chosen, parts, rows, length, n, active)
    _statistics(1, 1, fold(parts, sums), y, n, active)
    return y


def router_statistics_backward(dy: Array, logits: Array, chosen: Array, statistics: Array) -> Array:
    """dlogits = p (a (f - sum_i f_i p_i) + b ln sum e**logits),  a = E dy_0 / n, b = 2 dy_1 / n; 0 for tokens that went
    nowhere. f counts, so it is constant.   dy, statistics: (2 + E,)"""
    dy, logits, chosen, statistics = (contiguous(a) for a in (dy, logits, chosen, statistics))
    (rows, n), active = logits.shape, chosen.shape[1]
    count = logits.device.empty((1,), dtypes.int64)
    _count(1, 1, chosen, count, rows, n, active)
    dlogits = logits.device.empty(logits.shape, logits.dtype)
    arrays = (dy, logits, chosen, statistics, count, dlogits)
    _statistics_backward(rows, row_grain(n, cost=8), *arrays, n, active)
    return dlogits


def group_by_expert(chosen: Array, *, experts: int) -> tuple[Array, Array, Array]:
    """Sorts the assignments by expert, those of one expert in their own order. Returns source: (N k,), the assignment
    of a row, N k where none; place: (N, k), the row of an assignment, N k where none; bounds: (experts + 1,)."""
    check_indices("group_by_expert", chosen, experts + 1)
    chosen = contiguous(chosen)
    device, kind = chosen.device, chosen.dtype
    source, place = device.empty((chosen.size,), kind), device.empty(chosen.shape, kind)
    bounds, following = device.empty((experts + 1,), kind), device.empty((experts,), kind)
    arrays = (chosen, source, place, bounds, following)
    _sort(1, 1, *arrays, chosen.size, experts)
    return source, place, bounds
