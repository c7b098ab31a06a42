"""TrainConfig: how a model is trained. What is trained is the model's configuration, on what is the run's."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

from ..base.errors import ConfigError
from ..optim import Schedule


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    steps: optimizer updates. sequences, seq_len: a step reads `sequences` windows, and predicts `seq_len` tokens each.
    accumulate: micro-batches a step is computed in; the result is the same mean over all predicted tokens, less
    memory. learning_rate, warmup, min_learning_rate: see `Schedule`. max_norm: gradients are clipped to it (None: not).
    eval_every, save_every, sample_every: steps between them (None: never; the end always evaluates and saves).
    eval_batches: batches of held-out text in an evaluation during the run (None: all of it). keep: checkpoints kept.
    seed: of the windows; the model's seed is its own.
    """

    steps: int = 1000
    sequences: int = 16
    seq_len: int = 256
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int = 100
    min_learning_rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: float = 0.9
    max_norm: float | None = 1.0
    eval_every: int | None = 250
    eval_batches: int | None = 20
    save_every: int | None = 250
    sample_every: int | None = None
    keep: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        where = "TrainConfig"
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), float) and not isfinite(value):
                raise ConfigError(where, f"{field.name} is not a finite number", got=value)
        for name in ("steps", "sequences", "seq_len", "accumulate", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=getattr(self, name))
        for name in ("eval_every", "eval_batches", "save_every", "sample_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=value, hint="None switches it off")
        if self.accumulate > self.sequences:
            raise ConfigError(
                where,
                "more micro-batches than sequences",
                got=f"accumulate {self.accumulate}, sequences {self.sequences}",
            )
        if self.max_norm is not None and not self.max_norm > 0:
            raise ConfigError(where, "max_norm must be positive", got=self.max_norm, hint="None switches clipping off")
        if self.warmup < 0:
            raise ConfigError(where, "warmup is negative", got=self.warmup)
        if self.weight_decay < 0:
            raise ConfigError(where, "weight_decay is negative", got=self.weight_decay)
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ConfigError(where, f"{name} out of range", got=value, expected=f"0 <= {name} < 1")
        if not self.eps > 0:
            raise ConfigError(where, "eps must be positive", got=self.eps)
        self.schedule()  # refuses rates out of order

    def schedule(self) -> Schedule:
        """The learning rate over the run; a run shorter than the warm-up warms up all the way."""
        return Schedule(self.learning_rate, min(self.warmup, self.steps), self.steps, self.min_learning_rate)
