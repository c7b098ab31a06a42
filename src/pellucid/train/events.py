"""What a training run tells whoever watches it; the library itself prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Stepped:
    """A step is done. step counts from 1; seconds: of this step; tokens_per_second: median of the last steps;
    share_of_peak: achieved over measured FLOP/s, None where no peak was measured; seconds_left: estimate. measures:
    what the objective tells beside its loss, by name."""

    step: int
    steps: int
    loss: float
    norm: float
    learning_rate: float
    tokens: int
    seconds: float
    tokens_per_second: float
    share_of_peak: float | None
    seconds_left: float
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """Held-out loss after `step` steps, nats/token; whole: over all of the held-out text. average_loss: that of the
    running mean of the weights, None without one. measures: as of a step."""

    step: int
    loss: float
    perplexity: float
    n_targets: int
    whole: bool
    average_loss: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampled:
    """A text drawn from the model after `step` steps."""

    step: int
    text: str


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint of `step` steps."""

    step: int
    path: Path


@dataclass(frozen=True)
class EndedEarly:
    """The run ends before its last step: no evaluation since `best_step` had a lower loss than `best_loss`."""

    step: int
    best_step: int
    best_loss: float


Event = Stepped | Evaluated | Sampled | Saved | EndedEarly
