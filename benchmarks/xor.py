"""Case xor: a 2-8-1 network learns exclusive or in 2000 full-batch steps of Adam. What is timed is overhead: the
arithmetic of a step is a few hundred FLOPs.

Both sides are written as a user would write them, start from the same weights and must end below the same loss. Their
losses are compared over the first steps, before a time is taken; later ones part, because rounding grows in training.
"""

from __future__ import annotations

import math
import time
from importlib import import_module
from typing import Any

import numpy as np

import pellucid as pl
from pellucid import nn
from pellucid.checkpoint import load_into
from pellucid.optim import AdamW

from .options import Options, Refused
from .report import Row, row

STEPS = 2000
HIDDEN = 8
RATE, BETAS, EPS = 0.05, (0.9, 0.999), 1e-8
SOLVED = 0.01  # mean squared error
CHECKED = 20  # steps
AGREEMENT = 1e-4  # relative, of losses
INPUTS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
TARGETS = np.array([[0], [1], [1], [0]], np.float32)

Weights = dict[str, np.ndarray]


def initial_weights(seed: int = 0) -> Weights:
    """Normal with deviation 1: wide enough that no hidden unit starts as a copy of another."""
    draw = np.random.default_rng(seed).standard_normal
    return {
        "hidden.weight": draw((HIDDEN, 2), np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": draw((1, HIDDEN), np.float32),
        "output.bias": np.zeros(1, np.float32),
    }


class Network(nn.Module):
    """sigmoid(W2 tanh(W1 x + b1) + b2)."""

    def __init__(self) -> None:
        generator = pl.Generator(0)
        self.hidden = nn.Linear(2, HIDDEN, generator=generator)
        self.output = nn.Linear(HIDDEN, 1, generator=generator)

    def __call__(self, x: pl.Tensor) -> pl.Tensor:
        return pl.sigmoid(self.output(pl.tanh(self.hidden(x))))


class Pellucid:
    """Network and optimizer, from exactly these weights."""

    def __init__(self, weights: Weights) -> None:
        self.network = Network()
        load_into(dict(self.network.named_parameters()), weights)
        self.optimizer = AdamW(
            self.network.named_parameters(),
            learning_rate=RATE,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPS,
            weight_decay=0.0,
        )
        self.x, self.y = pl.tensor(INPUTS), pl.tensor(TARGETS)

    def train(self, steps: int) -> list[float]:
        """Full-batch steps; the loss before the first of them, and the last one's."""
        losses = []
        for i in range(steps):
            loss = pl.mse_loss(self.network(self.x), self.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if i in (0, steps - 1):
                losses.append(loss.item())
        return losses


def check(sides: dict[str, Any]) -> None:
    """Refuses sides whose first losses differ, or differ from the network's in NumPy where there is no peer."""
    weights = initial_weights()
    losses = {name: [x for _ in range(CHECKED) for x in side.train(1)[:1]] for name, side in sides.items()}
    hidden = np.tanh(INPUTS.astype(np.float64) @ weights["hidden.weight"].T + weights["hidden.bias"])
    guess = 1 / (1 + np.exp(-(hidden @ weights["output.weight"].T + weights["output.bias"])))
    first = float(np.mean((guess - TARGETS) ** 2))
    for name, found in losses.items():
        for i, (got, want) in enumerate(zip(found, [first, *losses["pellucid"][1:]], strict=True)):
            if not math.isclose(got, want, rel_tol=AGREEMENT):
                raise Refused(f"xor: step {i}: loss {got} of {name}, expected {want}; wrong kernels are not timed")


def run(options: Options) -> list[Row]:
    makers: dict[str, Any] = {"pellucid": Pellucid}
    if options.peer == "torch":
        makers["torch"] = import_module("benchmarks.peers.torch_xor").XOR
    check({name: make(initial_weights()) for name, make in makers.items()})
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    cpu: dict[str, list[float]] = {name: [] for name in makers}
    final: dict[str, float] = {}
    for turn in range(3 if options.quick else 7):
        for name in list(makers) if turn % 2 == 0 else list(makers)[::-1]:
            side = makers[name](initial_weights())
            time.sleep(options.pause)
            start, before = time.perf_counter(), time.process_time()
            final[name] = side.train(STEPS)[-1]
            seconds[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - before)
            if not final[name] < SOLVED:
                raise Refused(f"xor: {name} ends at a loss of {final[name]}, expected less than {SOLVED}")
    ours = float(np.median(seconds["pellucid"]))
    found = []
    for name, values in seconds.items():
        middle = float(np.median(values))
        more = {"us/step": 1e6 * middle / STEPS, "CPU s": float(np.median(cpu[name])), "loss": final[name]}
        if name != "pellucid":
            more["over ours"] = middle / ours
        label = f"2-{HIDDEN}-1, {STEPS} steps"
        found.append(row("xor", "training", name, values, unit="s", shape=label, dtype="float32", **more))
    return found
