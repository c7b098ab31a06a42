"""What a training run tells whoever watches it; the library itself prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stepped:
    """A step is done. step counts from 1; seconds: of this step; tokens_per_second: median of the last steps;
    share_of_peak: achieved over measured FLOP/s, None where no peak was measured; seconds_left: estimate."""

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


@dataclass(frozen=True)
class Evaluated:
    """Held-out loss after `step` steps, nats/token; whole: over all of the held-out text."""

    step: int
    loss: float
    perplexity: float
    n_targets: int
    whole: bool


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


Event = Stepped | Evaluated | Sampled | Saved
