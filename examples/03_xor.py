"""A small network for a function no straight line can separate, trained with SGD and with AdamW."""

import pellucid
from pellucid.nn import Linear, Module
from pellucid.optim import SGD, AdamW, Optimizer

INPUTS = pellucid.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
TARGETS = pellucid.tensor([[0.0], [1.0], [1.0], [0.0]])


class Network(Module):
    """2 -> 8 -> 1 with tanh. A layer is a plain class: assign parts, write __call__."""

    def __init__(self, seed: int) -> None:
        generator = pellucid.Generator(seed)
        self.hidden = Linear(2, 8, generator=generator, std=1.0)
        self.out = Linear(8, 1, generator=generator, std=0.5)

    def __call__(self, x: pellucid.Tensor) -> pellucid.Tensor:
        return self.out(self.hidden(x).tanh())


def train(network: Network, optimizer: Optimizer, steps: int) -> float:
    loss = float("inf")
    for _ in range(steps):
        difference = network(INPUTS) - TARGETS
        result = (difference * difference).mean()
        result.backward()
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
        loss = result.item()
    return loss


for make in (
    lambda p: SGD(p, learning_rate=0.1, momentum=0.9, nesterov=True),
    lambda p: AdamW(p, learning_rate=0.02, weight_decay=0.0),
):
    network = Network(seed=1)
    optimizer = make(network.named_parameters())
    loss = train(network, optimizer, steps=500)
    with pellucid.no_grad():
        answers = network(INPUTS).flatten().tolist()
    print(f"{type(optimizer).__name__}: loss {loss:.1e}, answers {[round(a, 2) for a in answers]}")
    assert [round(a) for a in answers] == [0, 1, 1, 0]
