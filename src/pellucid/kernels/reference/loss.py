"""Mean squared error; cross-entropy in nats, alone and fused with the language-model head.

The fused form takes the hidden states and the head's weight and never holds more than a chunk of the logits; it
returns the gradients of both with the loss, because the logits it needs for them are there only then.
"""

from __future__ import annotations

import numpy as np

from ...base.dtypes import DType
from ...device import Array
from ..indices import check_indices
from .host import Host, compute_dtype, read, rounded, write


def mse(x: Array, target: Array) -> tuple[Array, Array]:
    """loss = mean(difference**2), difference = x - target. Returns loss: (), difference, both of the dtype of x.

    x, target: one shape, not empty.
    """
    with np.errstate(all="ignore"):
        difference = read(x) - read(target)
        return write(x, np.mean(difference * difference)), write(x, difference)


def mse_backward(dy: Array, difference: Array) -> Array:
    """dx = dy 2 difference / n.   dy: ()"""
    d = read(difference)
    with np.errstate(all="ignore"):
        return write(difference, d * (read(dy) * d.dtype.type(2 / d.size)))


def cross_entropy(logits: Array, targets: Array, weights: Array) -> tuple[Array, Array]:
    """loss = sum_i weights[i] (lse[i] - logits[i, targets[i]]),  lse = ln sum e**logits. Returns loss: (), lse: (N,),
    both float32 (float64 for float64 logits).

    logits: (N, V); targets: (N,) integer; weights: (N,) float. A row of weight 0 gives exactly 0, whatever it
    holds.
    """
    check_indices("cross_entropy", targets, logits.shape[1], weights)
    z, index, w = read(logits), _usable(targets, weights), read(weights)
    with np.errstate(all="ignore"):
        lse = _lse(z)
        each = lse - np.take_along_axis(z, index[:, None].astype(np.int64), axis=1)[:, 0]
        loss = np.sum(np.where(w == 0, 0, w * each), dtype=z.dtype)
    return write(logits, loss, compute_dtype(logits)), write(logits, lse, compute_dtype(logits))


def cross_entropy_backward(dloss: Array, logits: Array, targets: Array, weights: Array, lse: Array) -> Array:
    """dlogits = dloss weights (e**(logits - lse) - onehot(targets)).   dloss: ()"""
    check_indices("cross_entropy_backward", targets, logits.shape[1], weights)
    z, w = read(logits), read(weights)
    return write(logits, read(dloss).astype(z.dtype) * _dlogits(z, _usable(targets, weights), w, read(lse)))


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
    a, b = rounded(read(x), operand_dtype), rounded(read(weight), operand_dtype)
    index, w = _usable(targets, weights), read(weights)
    with np.errstate(all="ignore"):
        z = a @ b.T
        lse = _lse(z)
        each = lse - np.take_along_axis(z, index[:, None].astype(np.int64), axis=1)[:, 0]
        loss = write(x, np.sum(np.where(w == 0, 0, w * each), dtype=z.dtype), compute_dtype(x))
    if not gradients:
        return loss, None, None
    dz = _dlogits(z, index, w, lse)
    if operand_dtype is not None:
        dz = dz.astype(operand_dtype.numpy).astype(dz.dtype)
    return loss, write(x, dz @ b), write(weight, dz.T @ a) if for_weight else None


def _usable(targets: Array, weights: Array) -> Host:
    """The targets, those of rows that don't count replaced by 0: they may be anything."""
    return np.where(read(weights) == 0, 0, read(targets))


def _lse(z: Host) -> Host:
    top = z.max(axis=1, initial=-np.inf)
    return top + np.log(np.exp(z - top[:, None]).sum(axis=1))


def _dlogits(z: Host, index: Host, w: Host, lse: Host) -> Host:
    with np.errstate(all="ignore"):
        p = np.exp(z - lse[:, None])
        p[np.arange(len(index)), index] -= 1
        return np.where(w[:, None] == 0, 0, p * w[:, None]).astype(z.dtype)
