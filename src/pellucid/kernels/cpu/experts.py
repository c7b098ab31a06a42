"""Work on the rows of a mixture of experts: gathering and adding them, the gated nonlinearity, grouped products.

A grouped product is one matrix product an expert, by the plans of `matmul`, written straight into its rows of the
result: the tokens of an expert are enough to fill its tiles, so there is nothing to gain from one launch for all.
The definitions stand in `reference/experts.py`.
"""

from __future__ import annotations

from ...base.dtypes import DType
from ...device import Array
from ...device.cpu import view
from .formats import element, load, put, store
from .functions import like, sigmoid, summing
from .launch import kernel
from .matmul import matmul_into
from .memory import contiguous, fill_
from .rows import row_grain


@kernel
def _gather_rows(lo, hi, x, source, y, rows, n, share):
    for r in range(lo, hi):
        at = load(source, r) // share
        if at < rows:
            for k in range(n):
                put(y, r * n + k, element(x, at * n + k))
        else:
            for k in range(n):
                store(y, r * n + k, 0)


@kernel
def _sum_rows(lo, hi, x, place, y, rows, n, active):
    for r in range(lo, hi):
        to, fresh = r * n, True
        for j in range(active):
            at = load(place, r * active + j)
            if at >= rows:
                continue
            at *= n
            if fresh:
                for k in range(n):
                    store(y, to + k, load(x, at + k))
            else:
                for k in range(n):
                    store(y, to + k, load(y, to + k) + load(x, at + k))
            fresh = False
        if fresh:
            for k in range(n):
                store(y, to + k, 0)


@kernel
def _scaled_swiglu(lo, hi, x, scale, y, n):
    for r in range(lo, hi):
        i, c = 2 * r * n, load(scale, r)
        for k in range(n):
            gate = load(x, i + k)
            store(y, r * n + k, c * (gate * sigmoid(gate) * load(x, i + n + k)))


@summing
def _swiglu_row(dy, x, y, dx, r, n, c):
    """One row of the three results; returns dscale."""
    i, to, total, one = 2 * r * n, r * n, like(0, c), like(1, c)
    for k in range(n):
        gate, up, d = load(x, i + k), load(x, i + n + k), load(dy, to + k)
        s = sigmoid(gate)
        plain = gate * s
        total += d * (plain * up)
        store(y, to + k, c * (plain * up))
        store(dx, i + k, c * d * up * s * (one + gate * (one - s)))
        store(dx, i + n + k, c * d * plain)
    return total


@kernel
def _scaled_swiglu_backward(lo, hi, dy, x, scale, y, dx, dscale, n):
    for r in range(lo, hi):
        store(dscale, r, _swiglu_row(dy, x, y, dx, r, n, load(scale, r)))


def gather_rows(x: Array, source: Array, *, share: int) -> Array:
    """y[r] = x[source[r] // share], 0 where there is no such row.   x: (N, D), source: (R,), y: (R, D)"""
    x, source = contiguous(x), contiguous(source)
    rows, n = x.shape
    y = x.device.empty((source.size, n), x.dtype)
    _gather_rows(source.size, row_grain(n), x, source, y, rows, n, share)
    return y


def sum_rows(x: Array, place: Array) -> Array:
    """y[n] = sum_j x[place[n, j]] in the order of j, a row that is not there counting 0.   x: (R, D), place: (N, k),
    y: (N, D)"""
    x, place = contiguous(x), contiguous(place)
    (rows, n), (results, active) = x.shape, place.shape
    y = x.device.empty((results, n), x.dtype)
    _sum_rows(results, row_grain(n, cost=active), x, place, y, rows, n, active)
    return y


def scaled_swiglu(x: Array, scale: Array) -> Array:
    """y = scale gate sigmoid(gate) up, gate and up the halves of a row.   x: (R, 2 H), scale: (R, 1), y: (R, H)"""
    x, scale = contiguous(x), contiguous(scale)
    rows, n = x.shape[0], x.shape[1] // 2
    y = x.device.empty((rows, n), x.dtype)
    _scaled_swiglu(rows, row_grain(n, cost=2), x, scale, y, n)
    return y


def scaled_swiglu_backward(dy: Array, x: Array, scale: Array) -> tuple[Array, Array, Array]:
    """dgate = scale dy up s (1 + gate (1 - s)),  dup = scale dy gate s,  dscale = sum(dy gate s up); s = sigmoid(gate).
    Returns y, which is cheaper made again than kept, dx: (R, 2 H), dscale: (R, 1)."""
    dy, x, scale = contiguous(dy), contiguous(x), contiguous(scale)
    rows, n = dy.shape
    y, dx = x.device.empty((rows, n), x.dtype), x.device.empty(x.shape, x.dtype)
    dscale = x.device.empty((rows, 1), x.dtype)
    arrays = (dy, x, scale, y, dx, dscale)
    _scaled_swiglu_backward(rows, row_grain(n, cost=4), *arrays, n)
    return y, dx, dscale


def grouped_matmul(
    x: Array, weights: list[Array], bounds: Array, *, transposed: bool, operand_dtype: DType | None
) -> Array:
    """y[r] = x[r] @ weights[e] for the rows r of expert e, or weights[e]^T where `transposed`; 0 for rows of nobody.
    x: (R, K), weights: E of (K, M), (M, K) where transposed; y: (R, M). operand_dtype as in `matmul`."""
    y = x.device.empty((x.shape[0], weights[0].shape[0 if transposed else 1]), x.dtype)
    at = view(bounds).tolist()
    for e, weight in enumerate(weights):
        if at[e] < at[e + 1]:
            rows = x.slice(0, at[e], at[e + 1])
            right = weight.transpose() if transposed else weight
            matmul_into(y.slice(0, at[e], at[e + 1]), rows, right, operand_dtype=operand_dtype)
    if at[-1] < x.shape[0]:
        fill_(y.slice(0, at[-1], x.shape[0]), value=0)
    return y


def grouped_outer(a: Array, b: Array, bounds: Array, *, operand_dtype: DType | None) -> Array:
    """y[e] = a_e^T b_e over the rows of expert e, 0 where it has none.   a: (R, K), b: (R, M), y: (E, K, M)"""
    at = view(bounds).tolist()
    y = a.device.empty((len(at) - 1, a.shape[1], b.shape[1]), a.dtype)
    for e in range(len(at) - 1):
        if at[e] == at[e + 1]:
            fill_(y.select(0, e), value=0)
            continue
        left, right = (v.slice(0, at[e], at[e + 1]) for v in (a, b))
        matmul_into(y.select(0, e), left.transpose(), right, operand_dtype=operand_dtype)
    return y
