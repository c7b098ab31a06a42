"""Lion: an update of signs, found by searching over programs; one state tensor a parameter where AdamW has two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..base.errors import ConfigError
from ..device import Array
from ..tape import Parameter
from .optimizer import Group, Optimizer


class Lion(Optimizer):
    """w -= lr (weight_decay w + sign(beta1 m + (1 - beta1) g));  m = beta2 m + (1 - beta2) g   (Chen et al. 2023).

    Every weight moves by the whole learning rate, so that one of a third to a tenth of AdamW's is usual, and a decay
    larger by as much. See the kernel `lion_`.
    """

    slots = ("momentum",)

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        learning_rate: float = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 1.0,
        groups: Sequence[Group] = (),
    ) -> None:
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            got = f"beta1 {beta1}, beta2 {beta2}"
            raise ConfigError("Lion", "constants out of range", got=got, expected="0 <= beta < 1")
        self.beta1, self.beta2 = beta1, beta2
        super().__init__(named_parameters, learning_rate=learning_rate, weight_decay=weight_decay, groups=groups)

    def update(
        self, weights: list[Array], grads: list[Array], *state: list[Array], scale: Array, rate: float, decay: float
    ) -> None:
        scale.device.kernels.lion_(
            weights, grads, state[0], scale, lr=rate, beta1=self.beta1, beta2=self.beta2, weight_decay=decay
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"beta1": self.beta1, "beta2": self.beta2}
