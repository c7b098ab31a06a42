"""Learning-rate schedules: pure functions of the step, so that a resumed run needs nothing but the step number."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from ..base.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, cosine to `floor`, then constant   (Loshchilov & Hutter 2016).

    rate(s) = peak (s + 1) / warmup                                              for s < warmup
            = floor + (peak - floor) (1 + cos(pi (s - warmup) / (total - warmup))) / 2    for warmup <= s < total
            = floor                                                              for s >= total
    so rate(0) = peak / warmup and rate(warmup - 1) = rate(warmup) = peak. `floor` None means a tenth of the peak.
    """

    peak: float
    warmup: int
    total: int
    floor: float | None = None

    def __post_init__(self) -> None:
        low = self.lowest
        if not (self.peak > 0 and 0 <= low <= self.peak):
            raise ConfigError(
                "Schedule",
                "rates out of order",
                got=f"peak {self.peak}, floor {low}",
                expected="0 <= floor <= peak, peak > 0",
            )
        if not 0 <= self.warmup <= self.total:
            raise ConfigError(
                "Schedule",
                "steps out of order",
                got=f"warmup {self.warmup}, total {self.total}",
                expected="0 <= warmup <= total",
            )

    @property
    def lowest(self) -> float:
        """The rate at the end."""
        return self.peak / 10 if self.floor is None else self.floor

    @classmethod
    def warmup_cosine(cls, peak: float, warmup: int, total: int, *, floor: float | None = None) -> Schedule:
        return cls(peak, warmup, total, floor)

    @classmethod
    def constant(cls, rate: float) -> Schedule:
        """The same rate at every step."""
        return cls(rate, 0, 0, rate)

    def rate(self, step: int) -> float:
        """The learning rate of step number `step`, counted from 0."""
        if step < 0:
            raise ConfigError("Schedule.rate", "negative step", got=step)
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if step >= self.total:
            return self.lowest
        progress = (step - self.warmup) / (self.total - self.warmup)
        high = (1 + cos(pi * progress)) / 2
        return self.peak * high + self.lowest * (1 - high)
