"""Learning-rate schedules: pure functions of the step, so that a resumed run needs nothing but the step number."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from ..base.errors import ConfigError

Kind = Literal["cosine", "linear", "constant", "wsd"]


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then down to `floor` on one of four ways, then constant.

    rate(s) = peak (s + 1) / warmup                       for s < warmup
            = floor + (peak - floor) f(p)                 for warmup <= s < total, p = (s - warmup) / (total - warmup)
            = floor                                       for s >= total
    cosine:   f(p) = (1 + cos(pi p)) / 2                  (Loshchilov & Hutter 2016)
    linear:   f(p) = 1 - p
    constant: f(p) = 1, and the floor is the peak
    wsd:      f = 1 up to the last `cooldown` (a share) of all steps, then straight to 0 at `total`   (warm-up, stable,
              decay: Hu et al. 2024). Unlike a cosine's, its rates do not depend on where the run ends until then.

    So rate(0) = peak / warmup and rate(warmup - 1) = rate(warmup) = peak. `floor` None means a tenth of the peak.
    """

    peak: float
    warmup: int
    total: int
    floor: float | None = None
    kind: Kind = "cosine"
    cooldown: float = 0.2

    def __post_init__(self) -> None:
        low = self.lowest
        if not (self.peak > 0 and 0 <= low <= self.peak):
            raise ConfigError(
                "Schedule",
                "rates out of order",
                got=f"peak {self.peak}, floor {low}",
                expected="0 <= floor <= peak, peak > 0",
            )
        if self.kind == "constant" and low != self.peak:
            raise ConfigError("Schedule", "a constant rate has no floor", got=low, hint="leave the floor out")
        if not 0 <= self.warmup <= self.total:
            raise ConfigError(
                "Schedule",
                "steps out of order",
                got=f"warmup {self.warmup}, total {self.total}",
                expected="0 <= warmup <= total",
            )
        if not 0 < self.cooldown <= 1:
            raise ConfigError("Schedule", "cooldown is not a share", got=self.cooldown, expected="0 < cooldown <= 1")

    @property
    def lowest(self) -> float:
        """The rate at the end."""
        if self.floor is None:
            return self.peak if self.kind == "constant" else self.peak / 10
        return self.floor

    @classmethod
    def warmup_cosine(cls, peak: float, warmup: int, total: int, *, floor: float | None = None) -> Schedule:
        return cls(peak, warmup, total, floor)

    @classmethod
    def constant(cls, rate: float) -> Schedule:
        """The same rate at every step."""
        return cls(rate, 0, 0, kind="constant")

    def rate(self, step: int) -> float:
        """The learning rate of step number `step`, counted from 0."""
        if step < 0:
            raise ConfigError("Schedule.rate", "negative step", got=step)
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if step >= self.total:
            return self.lowest
        high = self._height(step)
        return self.peak * high + self.lowest * (1 - high)

    def _height(self, step: int) -> float:
        """f: where between floor (0) and peak (1) the rate of a step between warm-up and end is."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "wsd":
            # A warm-up that reaches into the cooldown leaves it the steps that are there.
            begin = max(self.warmup, self.total - max(round(self.cooldown * self.total), 1))
            return min(1.0, (self.total - step) / (self.total - begin))
        progress = (step - self.warmup) / (self.total - self.warmup)
        return 1 - progress if self.kind == "linear" else (1 + cos(pi * progress)) / 2
