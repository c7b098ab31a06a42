"""Peer: the network of case xor in plain PyTorch, 2 inputs, 8 hidden units (tanh), 1 output (sigmoid); Adam.

As a program: `python -m benchmarks.peers.torch_xor` prints the seconds of one training, import excluded.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

from ..xor import BETAS, EPS, INPUTS, RATE, STEPS, TARGETS, Weights, initial_weights


class XOR:
    """Network and optimizer, from exactly these weights: the interface that the benchmark drives."""

    def __init__(self, weights: Weights) -> None:
        self.hidden, self.output = nn.Linear(2, len(weights["hidden.bias"])), nn.Linear(len(weights["hidden.bias"]), 1)
        network = nn.ModuleDict({"hidden": self.hidden, "output": self.output})
        network.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()}, strict=True)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=RATE, betas=BETAS, eps=EPS, fused=True)
        self.x, self.y = torch.from_numpy(INPUTS.copy()), torch.from_numpy(TARGETS.copy())

    def train(self, steps: int) -> list[float]:
        """Full-batch steps; the loss before the first of them, and the last one's."""
        losses = []
        for i in range(steps):
            guess = torch.sigmoid(self.output(torch.tanh(self.hidden(self.x))))
            loss = F.mse_loss(guess, self.y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            if i in (0, steps - 1):
                losses.append(loss.item())
        return losses


def main() -> None:
    p = argparse.ArgumentParser(prog="python -m benchmarks.peers.torch_xor", description="PyTorch alone.")
    p.add_argument("--steps", type=int, default=STEPS, help="default %(default)s")
    p.add_argument("--threads", type=int, default=2, help="CPU threads; default %(default)s")
    given = p.parse_args()
    torch.set_num_threads(given.threads)
    side = XOR(initial_weights())
    start = time.perf_counter()
    losses = side.train(given.steps)
    print(json.dumps({"seconds": time.perf_counter() - start, "losses": losses}))


if __name__ == "__main__":
    main()
