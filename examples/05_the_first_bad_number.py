"""Tracing: what every operation cost, and which one first turned good numbers into infinity or NaN."""

import pellucid
from pellucid.nn import Linear, Module


class Network(Module):
    """Two layers with a mistake between them: the logarithm of a number that may be 0 or less."""

    def __init__(self) -> None:
        generator = pellucid.Generator(0)
        self.first = Linear(4, 8, generator=generator, std=0.5)
        self.second = Linear(8, 1, generator=generator, std=0.5)

    def __call__(self, x: pellucid.Tensor) -> pellucid.Tensor:
        hidden = self.first(x)
        squashed = hidden.log()
        return self.second(squashed)


network = Network()
x = pellucid.rand((3, 4), generator=pellucid.Generator(1))

# A trace records every operation: shapes, bytes kept for backward, time of forward and backward, who called it.
with pellucid.trace() as trace:
    network(x).sum().backward()
print(trace)

# The loss alone would only say NaN. The trace stops where it began, and names the line of the model.
message = ""
try:
    with pellucid.trace(stop_at_nonfinite=True):
        network(x).sum().backward()
except pellucid.NonFiniteError as error:
    message = str(error)
print(f"\n{message}")
assert "05_the_first_bad_number.py:17" in message
