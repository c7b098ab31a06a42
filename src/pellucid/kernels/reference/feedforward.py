"""The gated feed-forward nonlinearity, fused: one pass over gate and up."""

from __future__ import annotations

import numpy as np

from ...device import Array
from .host import read, write


def swiglu(gate: Array, up: Array) -> Array:
    """y = gate sigmoid(gate) up   (Shazeer 2020). One shape, contiguous or strided."""
    a = read(gate)
    with np.errstate(all="ignore"):
        return write(gate, a / (1 + np.exp(-a)) * read(up))


def swiglu_backward(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """s = sigmoid(gate):  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s. Returns dgate, dup."""
    g, a, b = read(dy), read(gate), read(up)
    with np.errstate(all="ignore"):
        s = 1 / (1 + np.exp(-a))
        return write(gate, g * b * s * (1 + a * (1 - s))), write(up, g * a * s)


def swiglu_joint_backward(dy: Array, both: Array) -> Array:
    """`swiglu_backward` where gate and up are the halves of each row of `both`, and so are their gradients in the
    result.   dy: (rows, F); both and result: (rows, 2 F), contiguous."""
    hidden = dy.shape[1]
    g, a, b = read(dy), read(both)[:, :hidden], read(both)[:, hidden:]
    with np.errstate(all="ignore"):
        s = 1 / (1 + np.exp(-a))
        return write(both, np.concatenate([g * b * s * (1 + a * (1 - s)), g * a * s], axis=1))
