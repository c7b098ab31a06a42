"""One pass over all parameters and their state: read gradients, update moments, write weights.

Arguments are lists with an Array for each parameter, all contiguous, those of one parameter of one shape; `scale` is a
float32 array of shape () that multiplies the gradients (clipping), so that no host waits.
"""

from __future__ import annotations

import numpy as np

from ...device import Array
from ...device.cpu import view
from .host import read


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
    for i, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        w = view(weight)
        real = w.dtype.type
        g = read(grad) * real(read(scale)) + real(weight_decay) * w
        if velocities is not None:
            u = view(velocities[i])
            u[...] = real(momentum) * u + g
            g = g + real(momentum) * u if nesterov else u
        w -= real(lr) * g


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
    for weight, grad, first, second in zip(weights, grads, firsts, seconds, strict=True):
        w, m, v = view(weight), view(first), view(second)
        real = w.dtype.type
        g = read(grad) * real(read(scale))
        m[...] = real(beta1) * m + real(1 - beta1) * g
        v[...] = real(beta2) * v + real(1 - beta2) * g * g
        mhat, vhat = m * real(1 / (1 - beta1**step)), v * real(1 / (1 - beta2**step))
        w -= real(lr) * (real(weight_decay) * w + mhat / (np.sqrt(vhat) + real(eps)))


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
    for weight, grad, momentum in zip(weights, grads, momenta, strict=True):
        w, m = view(weight), view(momentum)
        real = w.dtype.type
        g = read(grad) * real(read(scale))
        step = np.sign(real(beta1) * m + real(1 - beta1) * g)
        w -= real(lr) * (real(weight_decay) * w + step)
        m[...] = real(beta2) * m + real(1 - beta2) * g
