"""One pass over a parameter and its state: read gradient, update moments, write weights. All arguments contiguous and
of one shape; `scale` is a float32 array of shape () that multiplies the gradient (clipping), so that no host waits."""

from __future__ import annotations

import math
from functools import lru_cache

from ...device import Array
from .elementwise import GRAIN
from .formats import load, store
from .functions import like
from .launch import kernel


@kernel
def _sgd(lo, hi, weight, grad, scale, lr, weight_decay):
    factor = load(scale, 0)
    for i in range(lo, hi):
        w = load(weight, i)
        g = like(load(grad, i), w) * like(factor, w) + like(weight_decay, w) * w
        store(weight, i, w - like(lr, w) * g)


@kernel
def _sgd_momentum(lo, hi, weight, grad, velocity, scale, lr, momentum, nesterov, weight_decay):
    factor = load(scale, 0)
    for i in range(lo, hi):
        w = load(weight, i)
        g = like(load(grad, i), w) * like(factor, w) + like(weight_decay, w) * w
        u = like(momentum, w) * load(velocity, i) + g
        store(velocity, i, u)
        step = g + like(momentum, w) * u if nesterov else u
        store(weight, i, w - like(lr, w) * step)


@kernel
def _adamw(lo, hi, weight, grad, first, second, scale, lr, eps, decay, beta1, beta2, rest1, rest2, unbias1, unbias2):
    factor = load(scale, 0)
    for i in range(lo, hi):
        w = load(weight, i)
        g = like(load(grad, i), w) * like(factor, w)
        m = like(beta1, w) * load(first, i) + like(rest1, w) * g
        v = like(beta2, w) * load(second, i) + like(rest2, w) * g * g
        store(first, i, m)
        store(second, i, v)
        step = m * like(unbias1, w) / (math.sqrt(v * like(unbias2, w)) + like(eps, w))
        store(weight, i, w - like(lr, w) * (like(decay, w) * w + step))


def sgd_(
    weight: Array,
    grad: Array,
    velocity: Array | None,
    scale: Array,
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> None:
    """g = scale grad + weight_decay weight;  velocity = momentum velocity + g;
    weight -= lr (g + momentum velocity where nesterov, else velocity).   velocity None: weight -= lr g"""
    n, lr, weight_decay = weight.size, float(lr), float(weight_decay)
    if velocity is None:
        _sgd(n, GRAIN, weight, grad, scale, lr, weight_decay)
    else:
        _sgd_momentum(n, GRAIN, weight, grad, velocity, scale, lr, float(momentum), nesterov, weight_decay)


def adamw_(
    weight: Array,
    grad: Array,
    first: Array,
    second: Array,
    scale: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """g = scale grad;  first = beta1 first + (1 - beta1) g;  second = beta2 second + (1 - beta2) g**2;
    weight -= lr (weight_decay weight + mhat / (vhat**0.5 + eps)),  mhat = first / (1 - beta1**step),
    vhat = second / (1 - beta2**step), step counted from 1   (Loshchilov & Hutter 2017)."""
    moments = _moments(float(beta1), float(beta2), step)
    arrays = weight, grad, first, second, scale
    _adamw.launch(weight.size, GRAIN, *arrays, float(lr), float(eps), float(weight_decay), *moments)


@lru_cache(16)
def _moments(beta1: float, beta2: float, step: int) -> tuple[float, ...]:
    """What depends on the step and is the same for all parameters."""
    return beta1, beta2, 1 - beta1, 1 - beta2, 1 / (1 - beta1**step), 1 / (1 - beta2**step)
