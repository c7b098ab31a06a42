"""An exponential moving average of the weights: a second model that lags behind and is often the better one.

a = d a + (1 - d) w after each update, d = min(decay, (1 + t) / (10 + t)) at update number t, so that the first weights,
which are noise, are forgotten soon   (Polyak & Juditsky 1992; the warm-up is TensorFlow's).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..base import dtypes
from ..tape import Tensor, constant


class Average:
    """The running mean of tensors that are trained, by their names; begins as a copy of them."""

    def __init__(self, named: Iterable[tuple[str, Tensor]], decay: float) -> None:
        self.decay = decay
        self._parameters = dict(named)
        self.tensors = {name: _copy(p) for name, p in self._parameters.items()}

    def update(self, step: int) -> None:
        """Moves towards the weights after update number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        means, weights = [t.array for t in self.tensors.values()], [p.array for p in self._parameters.values()]
        device = means[0].device
        # SGD with a "gradient" of -w and a decay of 1 towards 0 takes a - (1 - d) (a - w), in one launch for all.
        minus = constant(device, -1.0, dtypes.float32)
        device.kernels.sgd_(means, weights, None, minus, lr=1 - decay, momentum=0.0, nesterov=False, weight_decay=1.0)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters are the mean inside the block, and again what they were, bit for bit, behind it."""
        before = {name: _copy(p) for name, p in self._parameters.items()}
        self._assign(self.tensors)
        try:
            yield
        finally:
            self._assign(before)

    def _assign(self, values: dict[str, Tensor]) -> None:
        for name, p in self._parameters.items():
            p.device.kernels.assign_(p.array, values[name].array)


def _copy(tensor: Tensor) -> Tensor:
    return Tensor(tensor.device.kernels.copy(tensor.array))
