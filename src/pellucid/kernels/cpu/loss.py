"""Mean squared error; cross-entropy in nats, alone and fused with the language-model head.

The fused form takes the hidden states and the head's weight and never holds more than a chunk of the logits; it
returns the gradients of both with the loss, because the logits it needs for them are there only then. The gradient of
the weight adds the chunks in order.
"""

from __future__ import annotations

import math

from ...base import dtypes
from ...base.dtypes import DType
from ...device import Array
from .elementwise import GRAIN
from .formats import ask, load, store
from .functions import exp, exp_flushed, inlined, like, summing
from .indices import check_indices
from .launch import kernel
from .matmul import matmul
from .memory import assign_, cast, contiguous, fill_
from .reduce import sum as sum_of
from .rows import accumulator, add_row, row_grain
from .softmax import in_blocks, row_top, sum_exp
from .wide import VECTOR, step
from .wide_rows import lane_sum, lanes, nothing, rows_load, rows_store

_PART = 1 << 15  # elements whose squared errors one thread adds up
_PIECE = 4096  # of those, added up in their own precision
_LOGITS = 16 << 20  # elements of a chunk
_FEWEST_ROWS = 64


@summing
def _squared_errors(x, target, difference, i, n, zero):
    """difference = x - target for n elements; the sum of its squares."""
    total = zero
    for k in range(n):
        d = load(x, i + k) - load(target, i + k)
        store(difference, i + k, d)
        total += d * d
    return total


@kernel
def _mse(lo, hi, x, target, difference, sums, n, share):
    """Items are parts of _PART elements; sums[item] = share of the part in the mean. Added up in float64."""
    for item in range(lo, hi):
        total = 0.0
        for i in range(item * _PART, min(item * _PART + _PART, n), _PIECE):
            total += _squared_errors(x, target, difference, i, min(_PIECE, n - i), like(0, load(x, i)))
        store(sums, item, total * share)


@kernel
def _mse_backward(lo, hi, dy, difference, dx, factor):
    one = load(difference, lo)
    scale = like(load(dy, 0), one) * like(factor, one)
    for i in range(lo, hi):
        store(dx, i, load(difference, i) * scale)


@kernel
def _loss(lo, hi, logits, targets, weights, lse, each, n):
    for row in range(lo, hi):
        i = row * n
        top = row_top(logits, i, n)
        rest = like(top + math.log(sum_exp(logits, i, n, top)), top)
        store(lse, row, rest)
        w = like(load(weights, row), top)
        store(each, row, like(0, top) if w == 0 else w * (rest - load(logits, i + load(targets, row))))


@kernel
def _loss_backward(lo, hi, dloss, logits, targets, weights, lse, dlogits, n):
    for row in range(lo, hi):
        i = row * n
        rest = load(lse, row)
        d, w = like(load(dloss, 0), rest), like(load(weights, row), rest)
        if w == 0:
            for k in range(n):
                store(dlogits, i + k, d * like(0, d))
        else:
            d *= w
            for k in range(n):
                store(dlogits, i + k, d * exp(load(logits, i + k) - rest))
            hit = i + load(targets, row)
            store(dlogits, hit, d * (exp(load(logits, hit) - rest) - like(1, d)))


@inlined
def _exponentials(x, i, n, top):
    """x = e**(x - top) for a row; returns their sum. Asks memory for the next row meanwhile."""
    done, block = in_blocks(x, x, n), nothing()
    for k in range(0, done, max(1, step(x, VECTOR))):
        for line in range(0, step(x, VECTOR), lanes(x, VECTOR)):
            ask(x, i + n + k + line)
        e = exp_flushed(rows_load(x, i + k, lanes(x, VECTOR)) - like(top, block))
        rows_store(x, i + k, lanes(x, VECTOR), e)
        block = block + e
    rest = like(0, top)
    for k in range(done, n):
        e = exp_flushed(load(x, i + k) - top)
        store(x, i + k, e)
        rest += e
    return rest + like(lane_sum(block), top)


@inlined
def _scale(x, y, i, n, scale):
    """y = scale x for a row"""
    done = in_blocks(x, y, n)
    for k in range(0, done, max(1, step(x, VECTOR))):
        rows_store(y, i + k, lanes(x, VECTOR), rows_load(x, i + k, lanes(x, VECTOR)) * like(scale, nothing()))
    for k in range(done, n):
        store(y, i + k, load(x, i + k) * scale)


@kernel
def _chunk(lo, hi, logits, targets, weights, each, dlogits, n, gradients):
    """each = weighted loss of a row; dlogits, which may be the logits, the gradient of their sum where `gradients`."""
    for row in range(lo, hi):
        i = row * n
        w = like(load(weights, row), load(logits, i))
        if w == 0:
            store(each, row, 0)
            if gradients:
                for k in range(n):
                    store(dlogits, i + k, 0)
            continue
        top = row_top(logits, i, n)
        hit = i + load(targets, row)
        chosen = load(logits, hit)
        if gradients:
            total = _exponentials(logits, i, n, top)
            hit_gradient = load(logits, hit) * (w / total) - w
            _scale(logits, dlogits, i, n, w / total)
            store(dlogits, hit, hit_gradient)
        else:
            total = sum_exp(logits, i, n, top)
        store(each, row, w * (like(math.log(total), top) + (top - chosen)))


@kernel
def _accumulate(lo, hi, total, part):
    add_row(total, lo, part, lo, hi - lo)


def mse(x: Array, target: Array) -> tuple[Array, Array]:
    """loss = mean(difference**2), difference = x - target. Returns loss: (), difference, both of the dtype of x.

    x, target: one shape, not empty.
    """
    x, target = contiguous(x), contiguous(target)
    device, n = x.buffer.device, x.size
    loss, difference = device.empty((), x.dtype), device.empty(x.shape, x.dtype)
    parts = -(-n // _PART)
    if parts == 1:
        _mse.launch(1, 2, x, target, difference, loss, n, 1.0 / n)
        return loss, difference
    sums = device.empty((parts,), dtypes.float64)
    _mse.launch(parts, 1, x, target, difference, sums, n, 1.0 / n)
    return cast(sum_of(sums, axes=(0,), keepdims=False), dtype=x.dtype), difference


def mse_backward(dy: Array, difference: Array) -> Array:
    """dx = dy 2 difference / n.   dy: ()"""
    difference = contiguous(difference)
    n = difference.size
    dx = difference.buffer.device.empty(difference.shape, difference.dtype)
    _mse_backward.launch(n, GRAIN, dy, difference, dx, 2.0 / n)
    return dx


def cross_entropy(logits: Array, targets: Array, weights: Array) -> tuple[Array, Array]:
    """loss = sum_i weights[i] (lse[i] - logits[i, targets[i]]),  lse = ln sum e**logits. Returns loss: (), lse: (N,),
    both float32 (float64 for float64 logits).

    logits: (N, V); targets: (N,) integer; weights: (N,) float. A row of weight 0 contributes exactly 0,
    whatever it holds.
    """
    check_indices("cross_entropy", targets, logits.shape[1], weights)
    logits, targets, weights = contiguous(logits), contiguous(targets), contiguous(weights)
    rows, n = logits.shape
    kind = accumulator(logits.dtype)
    lse, each = logits.device.empty((rows,), kind), logits.device.empty((rows,), kind)
    _loss(rows, row_grain(n, cost=2), logits, targets, weights, lse, each, n)
    return sum_of(each, axes=(0,), keepdims=False), lse


def cross_entropy_backward(dloss: Array, logits: Array, targets: Array, weights: Array, lse: Array) -> Array:
    """dlogits = dloss weights (e**(logits - lse) - onehot(targets)).   dloss: ()"""
    check_indices("cross_entropy_backward", targets, logits.shape[1], weights)
    logits = contiguous(logits)
    rows, n = logits.shape
    dlogits = logits.device.empty(logits.shape, logits.dtype)
    arrays = [contiguous(a) for a in (dloss, logits, targets, weights, lse)]
    _loss_backward(rows, row_grain(n, cost=2), *arrays, dlogits, n)
    return dlogits


def lm_head_loss(
    x: Array,
    weight: Array,
    targets: Array,
    weights: Array,
    *,
    operand_dtype: DType | None,
    gradients: bool,
    for_weight: bool,
) -> tuple[Array, Array | None, Array | None]:
    """loss of `cross_entropy(x @ weight^T, targets, weights)`. Returns loss: (), dx: (N, D), dweight: (V, D); the
    gradients of the loss, None without `gradients`; dweight None without `for_weight`.

    x: (N, D); weight: (V, D); operand_dtype as in `matmul`, for all three products.
    """
    check_indices("lm_head_loss", targets, weight.shape[0], weights)
    kind = accumulator(x.dtype)
    targets, weights = contiguous(targets), contiguous(weights)
    a, b = (v if v.dtype is kind else cast(v, dtype=kind) for v in (x, weight))
    operand = None if operand_dtype is kind else operand_dtype
    (rows, n), device = (x.shape[0], weight.shape[0]), x.device
    length = max(_FEWEST_ROWS, _LOGITS // max(1, n))
    each = device.empty((rows,), kind)
    dx = dweight = None
    if gradients and rows == 0:
        dx, dweight = device.empty(x.shape, kind), device.empty(weight.shape, kind) if for_weight else None
        if dweight is not None:
            fill_(dweight, value=0)
    for first in range(0, rows, length):
        last = min(first + length, rows)
        part = a.slice(0, first, last)
        logits = matmul(part, b.transpose(), operand_dtype=operand)
        at = [v.slice(0, first, last) for v in (targets, weights, each)]
        # only products read the gradient: where they round it, it is made in what they round it to
        dlogits = logits if operand is None or not gradients else device.empty(logits.shape, operand)
        _chunk(last - first, row_grain(n, cost=4), logits, *at, dlogits, n, gradients)
        del logits
        if not gradients:
            continue
        dpart = matmul(dlogits, b, operand_dtype=operand, result_dtype=kind)
        dshare = None
        if for_weight:
            dshare = matmul(dlogits.transpose(), part, operand_dtype=operand, result_dtype=kind)
        del dlogits
        if dweight is None:
            dweight = dshare
        elif dshare is not None:
            _accumulate(dweight.size, GRAIN, dweight, dshare)
        if rows <= length:
            dx = dpart
        else:
            dx = device.empty(x.shape, kind) if dx is None else dx
            assign_(dx.slice(0, first, last), dpart)
    loss = sum_of(each, axes=(0,), keepdims=False)
    dx = None if dx is None else _narrowed(dx, x.dtype)
    return loss, dx, None if dweight is None else _narrowed(dweight, weight.dtype)


def _narrowed(x: Array, dtype: DType) -> Array:
    return x if x.dtype is dtype else cast(x, dtype=dtype)
