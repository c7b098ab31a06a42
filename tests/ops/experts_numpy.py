"""A mixture of experts in NumPy, token by token and expert by expert: what the operations are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

Host = np.ndarray[Any, Any]


def gates(logits: Host, chosen: Host) -> Host:
    """The router's probabilities of the experts chosen, with sum 1."""
    found = np.zeros(chosen.shape)
    for n, some in enumerate(chosen):
        total = sum(np.exp(logits[n, e]) for e in some if e < logits.shape[1])
        for j, e in enumerate(some):
            found[n, j] = np.exp(logits[n, e]) / total if e < logits.shape[1] else 0.0
    return found


def statistics(logits: Host, chosen: Host) -> Host:
    """Balance, z, and the share of each expert."""
    experts, tokens = logits.shape[1], [n for n, some in enumerate(chosen) if some[0] < logits.shape[1]]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    f = [sum(int(e in chosen[n]) for n in tokens) / (len(tokens) * chosen.shape[1]) for e in range(experts)]
    balance = experts * sum(f[e] * np.mean([p[n, e] for n in tokens]) for e in range(experts))
    return np.array([balance, np.mean([np.log(np.exp(logits[n]).sum()) ** 2 for n in tokens]), *f])


def mixture(x: Host, logits: Host, chosen: Host, *weights: Host) -> Host:
    """Weights stand expert by expert: gate, up, down."""
    y, factors = np.zeros_like(x), gates(logits, chosen)
    for n, some in enumerate(chosen):
        for j, e in enumerate(some):
            if e < len(weights) // 3:
                gate, up, down = weights[3 * e : 3 * e + 3]
                g = gate @ x[n]
                y[n] += factors[n, j] * (down @ (g / (1 + np.exp(-g)) * (up @ x[n])))
    return y
