"""TrainConfig: how a model is trained. What is trained is the model's configuration, on what is the run's."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil, isfinite
from typing import Literal

from ..base.errors import ConfigError
from ..optim import Group, Schedule


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    steps: optimizer updates. sequences, seq_len: a step reads `sequences` windows, and predicts `seq_len` tokens each.
    accumulate: micro-batches a step is computed in; the result is the same mean over all predicted tokens, less
    memory. tokens_per_step: a step reads as many windows as predict so many tokens, `sequences` of them at a time, in
    place of `sequences` in all (None). order: windows at random offsets, or each once an epoch in an order of its own.

    optimizer and its constants: momentum is that of SGD and Muon, beta1 and beta2 of the others. groups: parameters
    with another rate or decay, see `Group.parse`. freeze: shell patterns of parameters that stay as they are.
    train_rows_from: trains only the rows of the token tables from this one on, and nothing else (None: everything).
    learning_rate, warmup, min_learning_rate, rate_schedule, cooldown: see `Schedule`. max_norm: gradients are clipped
    to it (None: not). ema: decay of a running mean of the weights, evaluated and saved beside them (None: none).

    eval_every, save_every, sample_every: steps between them (None: never; the end always evaluates and saves).
    eval_batches: batches of held-out text in an evaluation during the run (None: all of it). patience: evaluations in a
    row without a better held-out loss that end the run (None: it goes to the last step). keep: newest checkpoints kept;
    keep_best: also that of the best evaluation. seed: of the windows; the model's seed is its own.
    """

    steps: int = 1000
    sequences: int = 16
    seq_len: int = 256
    accumulate: int = 1
    tokens_per_step: int | None = None
    order: Literal["random", "shuffled"] = "random"
    learning_rate: float = 1e-3
    warmup: int = 100
    min_learning_rate: float | None = None
    rate_schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    cooldown: float = 0.2
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    optimizer: Literal["adamw", "sgd", "lion", "muon"] = "adamw"
    momentum: float = 0.9
    groups: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    train_rows_from: int | None = None
    max_norm: float | None = 1.0
    ema: float | None = None
    eval_every: int | None = 250
    eval_batches: int | None = 20
    save_every: int | None = 250
    sample_every: int | None = None
    patience: int | None = None
    keep: int = 2
    keep_best: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        where = "TrainConfig"
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), float) and not isfinite(value):
                raise ConfigError(where, f"{field.name} is not a finite number", got=value)
        for name in ("steps", "sequences", "seq_len", "accumulate", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=getattr(self, name))
        for name in ("eval_every", "eval_batches", "save_every", "sample_every", "tokens_per_step", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=value, hint="None switches it off")
        if self.accumulate > self.sequences:
            raise ConfigError(
                where,
                "more micro-batches than sequences",
                got=f"accumulate {self.accumulate}, sequences {self.sequences}",
            )
        if self.tokens_per_step is not None and self.accumulate != 1:
            hint = "leave accumulate at 1: parts of `sequences` windows follow from the tokens of a step"
            raise ConfigError(where, "tokens_per_step and accumulate both cut a step", got=self.accumulate, hint=hint)
        if self.patience is not None and self.eval_every is None:
            raise ConfigError(where, "patience without evaluations", got=self.patience, hint="set eval_every")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(where, "ema out of range", got=self.ema, expected="0 < ema < 1", hint="0.999 is usual")
        if self.train_rows_from is not None and (self.train_rows_from < 0 or self.freeze):
            what = "is negative" if self.train_rows_from < 0 else "already freezes everything else"
            raise ConfigError(where, f"train_rows_from {what}", got=self.freeze or self.train_rows_from)
        for text in self.groups:
            Group.parse(text)
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
        low, warmup = self.min_learning_rate, min(self.warmup, self.steps)
        return Schedule(self.learning_rate, warmup, self.steps, low, self.rate_schedule, self.cooldown)

    @property
    def step_sequences(self) -> int:
        """Windows a step reads."""
        return self.sequences if self.tokens_per_step is None else -(-self.tokens_per_step // self.seq_len)

    @property
    def micro_batches(self) -> int:
        """Parts a step is computed in."""
        return self.accumulate if self.tokens_per_step is None else -(-self.step_sequences // self.sequences)

    @property
    def part_sequences(self) -> int:
        """Windows of the largest of these parts."""
        return -(-self.step_sequences // self.micro_batches)

    def for_epochs(self, epochs: float, tokens: int) -> TrainConfig:
        """The same, with as many steps as read `tokens` tokens `epochs` times, each window once an epoch."""
        if not 0 < epochs < float("inf"):
            raise ConfigError("TrainConfig", "epochs must be positive", got=epochs)
        windows = max((tokens - 1) // self.seq_len, 1)
        return replace(self, steps=max(ceil(epochs * windows / self.step_sequences), 1), order="shuffled")
