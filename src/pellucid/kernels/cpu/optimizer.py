"""One pass over all parameters and their state: read gradients, update moments, write weights, in a single launch.

Arguments are lists with an Array for each parameter, all contiguous, those of one parameter of one shape; `scale` is a
float32 array of shape () that multiplies the gradients (clipping), so that no host waits. Each kernel walks over
`pieces` of parameters (see there), so that many small ones cost one launch and a large one is spread over the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter

from ...device import Array
from .formats import array_at, load, store
from .functions import like
from .launch import kernel
from .launch_ir import MOST_LISTED
from .pieces import BLOCK, ask_block, pieces, shape_of

_first = itemgetter(0)


@kernel
def _sgd(lo, hi, weights, grads, weight_like, grad_like, scale, table, lr, weight_decay):
    """Items are pieces."""
    factor = load(scale, 0)
    for item in range(lo, hi):
        number, first, last = load(table, 3 * item), load(table, 3 * item + 1), load(table, 3 * item + 2)
        weight, grad = array_at(weights, number, weight_like), array_at(grads, number, grad_like)
        for at in range(first, last, BLOCK):
            ask_block(weight, at)
            ask_block(grad, at)
            for i in range(at, min(at + BLOCK, last)):
                w = load(weight, i)
                g = like(load(grad, i), w) * like(factor, w) + like(weight_decay, w) * w
                store(weight, i, w - like(lr, w) * g)


@kernel
def _sgd_momentum(
    lo, hi, weights, grads, velocities, weight_like, grad_like, velocity_like, scale, table, lr, weight_decay, momentum,
    nesterov,
):  # fmt: skip
    """Items are pieces."""
    factor = load(scale, 0)
    for item in range(lo, hi):
        number, first, last = load(table, 3 * item), load(table, 3 * item + 1), load(table, 3 * item + 2)
        weight, grad = array_at(weights, number, weight_like), array_at(grads, number, grad_like)
        velocity = array_at(velocities, number, velocity_like)
        for at in range(first, last, BLOCK):
            ask_block(weight, at)
            ask_block(grad, at)
            ask_block(velocity, at)
            for i in range(at, min(at + BLOCK, last)):
                w = load(weight, i)
                g = like(load(grad, i), w) * like(factor, w) + like(weight_decay, w) * w
                u = like(momentum, w) * load(velocity, i) + g
                store(velocity, i, u)
                step = g + like(momentum, w) * u if nesterov else u
                store(weight, i, w - like(lr, w) * step)


@kernel
def _adamw(
    lo, hi, weights, grads, firsts, seconds, weight_like, grad_like, first_like, second_like, scale, table, lr, eps,
    decay, beta1, beta2, rest1, rest2, unbias1, unbias2,
):  # fmt: skip
    """Items are pieces."""
    factor = load(scale, 0)
    for item in range(lo, hi):
        number, start, end = load(table, 3 * item), load(table, 3 * item + 1), load(table, 3 * item + 2)
        weight, grad = array_at(weights, number, weight_like), array_at(grads, number, grad_like)
        first, second = array_at(firsts, number, first_like), array_at(seconds, number, second_like)
        for at in range(start, end, BLOCK):
            ask_block(weight, at)
            ask_block(grad, at)
            ask_block(first, at)
            ask_block(second, at)
            for i in range(at, min(at + BLOCK, end)):
                w = load(weight, i)
                g = like(load(grad, i), w) * like(factor, w)
                m = like(beta1, w) * load(first, i) + like(rest1, w) * g
                v = like(beta2, w) * load(second, i) + like(rest2, w) * g * g
                store(first, i, m)
                store(second, i, v)
                step = m * like(unbias1, w) / (math.sqrt(v * like(unbias2, w)) + like(eps, w))
                store(weight, i, w - like(lr, w) * (like(decay, w) * w + step))


@kernel
def _lion(
    lo, hi, weights, grads, momenta, weight_like, grad_like, momentum_like, scale, table, lr, decay, beta1, beta2,
    rest1, rest2,
):  # fmt: skip
    """Items are pieces."""
    factor = load(scale, 0)
    for item in range(lo, hi):
        number, first, last = load(table, 3 * item), load(table, 3 * item + 1), load(table, 3 * item + 2)
        weight, grad = array_at(weights, number, weight_like), array_at(grads, number, grad_like)
        momentum = array_at(momenta, number, momentum_like)
        for at in range(first, last, BLOCK):
            ask_block(weight, at)
            ask_block(grad, at)
            ask_block(momentum, at)
            for i in range(at, min(at + BLOCK, last)):
                w, m = load(weight, i), load(momentum, i)
                g = like(load(grad, i), w) * like(factor, w)
                u = like(beta1, w) * m + like(rest1, w) * g
                step = like(1.0, w) if u > 0 else (like(-1.0, w) if u < 0 else u)
                store(weight, i, w - like(lr, w) * (like(decay, w) * w + step))
                store(momentum, i, like(beta2, w) * m + like(rest2, w) * g)


def sgd_(
    weights: list[Array],
    grads: list[Array],
    velocities: list[Array] | None,
    scale: Array,
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> None:
    """g = scale grad + weight_decay weight;  velocity = momentum velocity + g;
    weight -= lr (g + momentum velocity where nesterov, else velocity).   velocities None: weight -= lr g"""
    numbers = float(lr), float(weight_decay)
    if velocities is None:
        _launch(_sgd.launch, [weights, grads], scale, numbers)
    else:
        _launch(_sgd_momentum.launch, [weights, grads, velocities], scale, (*numbers, float(momentum), nesterov))


def adamw_(
    weights: list[Array],
    grads: list[Array],
    firsts: list[Array],
    seconds: list[Array],
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
    beta1, beta2 = float(beta1), float(beta2)
    moments = beta1, beta2, 1 - beta1, 1 - beta2, 1 / (1 - beta1**step), 1 / (1 - beta2**step)
    numbers = float(lr), float(eps), float(weight_decay), *moments
    _launch(_adamw.launch, [weights, grads, firsts, seconds], scale, numbers)


def lion_(
    weights: list[Array],
    grads: list[Array],
    momenta: list[Array],
    scale: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """g = scale grad;  weight -= lr (weight_decay weight + sign(beta1 momentum + (1 - beta1) g));
    momentum = beta2 momentum + (1 - beta2) g,  sign(0) = 0   (Chen et al. 2023)."""
    beta1, beta2 = float(beta1), float(beta2)
    numbers = float(lr), float(weight_decay), beta1, beta2, 1 - beta1, 1 - beta2
    _launch(_lion.launch, [weights, grads, momenta], scale, numbers)


def _launch(run: Callable[..., None], lists: list[list[Array]], scale: Array, numbers: tuple[float, ...]) -> None:
    """Launches for all parameters at once, or for as many as fit."""
    if len(lists[0]) > MOST_LISTED:
        for first in range(0, len(lists[0]), MOST_LISTED):
            _launch(run, [arrays[first : first + MOST_LISTED] for arrays in lists], scale, numbers)
        return
    items, grain, table = pieces(tuple(map(shape_of, lists[0])))
    run(items, grain, *lists, *map(_first, lists), scale, table, *numbers)
