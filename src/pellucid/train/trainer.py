"""Trainer: the loop from tokens to checkpoints.

Everything a step does follows from (configuration, step number, weights, optimizer state, dropout generator), and what
is kept of it also from the running mean of the weights and the best loss so far. A checkpoint holds exactly these, so a
run that was killed and resumed gives the weights of the uninterrupted run, bit for bit. The loop prints nothing; it
hands events to whoever asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from ..base.config import to_dict
from ..base.errors import CheckpointError, ConfigError, NonFiniteError
from ..base.rng import Generator
from ..base.settings import settings
from ..checkpoint import (
    Checkpoint,
    check_base,
    checkpoint_path,
    kept_tensors,
    latest_checkpoint,
    load_checkpoint,
    load_into,
    lora_details,
    prune_checkpoints,
    save_checkpoint,
)
from ..data import TokenFile
from ..models import TransformerConfig, TransformerLM
from ..text import Tokenizer
from .average import Average
from .batches import BatchSource, HeldOutSource, NextToken, Objective, TokenWindows
from .config import TrainConfig
from .events import EndedEarly, Evaluated, Event, Sampled, Saved, Stepped
from .judge import Judge
from .metrics import Metrics, routing_record
from .replay import RecordedStep
from .step import NEXT_TOKEN, Evaluation, StepResult, evaluate_batches, train_step
from .update import make_optimizer


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: `steps` done, held-out loss of the last evaluation, whether it was stopped and can be resumed,
    whether it ended early because the held-out loss no longer fell."""

    steps: int
    loss: float | None
    held_out_loss: float | None
    stopped: bool
    seconds: float
    ended_early: bool = False


class Trainer:
    """Trains a model on a token file, or on any source of batches.

    objective: what a step lowers. details: settings that every checkpoint's config.json holds beside the model's.
    folder: where checkpoints and metrics go (None: nowhere). held_out: tokens to evaluate on. tokenizer: kept with each
    checkpoint. sample: makes the text of a sample from the model, every `sample_every` steps. on_event: is handed every
    event. peak: FLOP/s for the share of peak.
    """

    def __init__(
        self,
        model: TransformerLM,
        source: TokenFile | BatchSource,
        config: TrainConfig,
        *,
        held_out: TokenFile | HeldOutSource | None = None,
        objective: Objective = NEXT_TOKEN,
        details: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        tokenizer: Tokenizer | None = None,
        sample: Callable[[TransformerLM, int], str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        peak: float | None = None,
    ) -> None:
        self.model, self.config, self.objective, self.details = model, config, objective, details or {}
        self.source = TokenWindows(source, config) if isinstance(source, TokenFile) else source
        self.held_out = TokenWindows(held_out, config) if isinstance(held_out, TokenFile) else held_out
        self.tokenizer, self.peak = tokenizer, peak
        self.folder = None if folder is None else Path(folder)
        if config.patience is not None and held_out is None:
            raise ConfigError("Trainer", "patience without held-out text", hint="hold text out, or leave patience out")
        self.optimizer = make_optimizer(model, config)
        trained = [(name, p) for name, p in kept_tensors(model).items() if p.requires_grad]
        self.average = None if config.ema is None else Average(trained, config.ema)
        self.judge = Judge()
        self.step = 0  # steps done
        self.held_out_loss: float | None = None
        self._sample = sample
        self._on_event = on_event or (lambda event: None)
        self._measures: dict[str, float] = {}  # of the last evaluation
        self._stop = self._replanned = False
        self._saved_at = -1

    @property
    def done(self) -> bool:
        """Whether the run is at its end: the last step, or no better held-out loss for as long as `patience` says."""
        return self.step >= self.config.steps or self._ended_early

    @property
    def _ended_early(self) -> bool:
        return self.config.patience is not None and self.judge.worse >= self.config.patience

    def stop(self) -> None:
        """Asks the loop to save and end after the step in progress; safe to call from a signal handler."""
        self._stop = True

    def replan(self, steps: int) -> None:
        """Makes it a run of `steps` steps in all: from the next step on, the learning rate is that of such a run.

        May be called from `on_event`; whoever keeps the configuration has to keep the new one. A checkpoint that goes
        with it is written before the next step. Raises ConfigError for fewer steps than are done.
        """
        if steps < self.step:
            raise ConfigError("Trainer.replan", "more steps are done", got=steps, expected=f"at least {self.step}")
        self.config = replace(self.config, steps=steps)
        self._replanned = True

    def resume(self) -> bool:
        """Continues from the newest complete checkpoint of the folder; False where there is none yet.

        Raises CheckpointError, with nothing changed, if it is damaged or belongs to another configuration.
        """
        newest = None if self.folder is None else latest_checkpoint(self.folder)
        if newest is None:
            return False
        self.restore(load_checkpoint(newest))
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes weights, optimizer, generator and step from a checkpoint of the same model and configuration."""
        state = checkpoint.state
        if checkpoint.precision != "float32":
            raise CheckpointError(
                str(checkpoint.path),
                "weights rounded to int8, which the loss curve would show",
                got=checkpoint.precision,
                expected="float32",
                hint="resume from a float32 checkpoint, or load the weights alone into a new run",
            )
        saved = checkpoint.config.get("model")
        # An older file lacks the options that came since; it was made with what is their default.
        if not isinstance(saved, dict) or to_dict(TransformerConfig(1)) | saved != to_dict(self.model.config):
            raise CheckpointError(
                str(checkpoint.path),
                "a checkpoint of another model configuration",
                hint="resume with the run's own configuration",
            )
        if self.model.adapters is not None:
            check_base(self.model, checkpoint.config, where=str(checkpoint.path))
        if missing := {"step", "train", "optimizer", "dropout", "held_out_loss"} - set(state):
            raise CheckpointError(
                str(checkpoint.path),
                "not a checkpoint of a training run",
                got=f"a state without {', '.join(sorted(missing))}",
                hint="load the weights alone into a new run",
            )
        if to_dict(TrainConfig()) | state["train"] != to_dict(self.config):
            raise CheckpointError(
                str(checkpoint.path),
                "a checkpoint of another training configuration",
                hint="resume with the run's own configuration",
            )
        if state.get("data", mine := self.source.fingerprint()) != mine:
            hint = "resume with the data the run began with, cut in the same way"
            raise CheckpointError(
                str(checkpoint.path),
                "a checkpoint of a run on other data",
                got=mine[:12],
                expected=state["data"][:12],
                hint=hint,
            )
        if checkpoint.optimizer is None:
            raise CheckpointError(
                str(checkpoint.path), "no optimizer state to resume from", hint="load the weights alone into a new run"
            )
        if (self.average is None) != (checkpoint.average is None):
            what = "no running mean of weights to resume from" if self.average else "holds a running mean of weights"
            raise CheckpointError(str(checkpoint.path), what, hint="resume with the run's own configuration")
        self.optimizer.restore(state["optimizer"])
        load_into(kept_tensors(self.model), checkpoint.tensors)
        load_into(self.optimizer.state, checkpoint.optimizer)
        if self.average is not None and checkpoint.average is not None:
            load_into(self.average.tensors, checkpoint.average)
        if "best" in state:
            self.judge.restore(state["best"])
        generator = Generator.from_state(state["dropout"])
        self.model.dropout_generator.seed, self.model.dropout_generator.counter = generator.seed, generator.counter
        self.step = self._saved_at = state["step"]
        self.held_out_loss = state["held_out_loss"]

    def run(self) -> TrainResult:
        """Trains to the last step, or until `stop`. Raises NonFiniteError when the numbers blow up."""
        c, start = self.config, time.perf_counter()
        metrics = None if self.folder is None else Metrics(self.folder / "metrics.jsonl", after_step=self.step)
        flops = self.model.config.flops_per_token(c.seq_len)
        recent: deque[float] = deque(maxlen=20)
        loss: float | None = None
        recorded = RecordedStep(self.model, self.optimizer, max_norm=c.max_norm)
        self.model.train()
        try:
            if self.folder is not None and self._saved_at < 0:
                self.save()  # so that a run killed in its first steps resumes from its own beginning
            while not self.done and not self._stop:
                before, c = time.perf_counter(), self.config
                batch = self.source.batch(self.step)
                self.optimizer.learning_rate = rate = c.schedule().rate(self.step)
                result = self._trained(batch, recorded)
                self.step += 1
                if self.average is not None:
                    self.average.update(self.step)
                loss = result.loss
                seconds = time.perf_counter() - before
                recent.append(seconds)
                speed = result.n_targets / median(recent)
                share = None if self.peak is None else speed * flops / self.peak
                left = (c.steps - self.step) * median(recent)
                numbers, measures = (loss, result.norm, rate, result.n_targets, seconds), self.objective.record()
                self._on_event(Stepped(self.step, c.steps, *numbers, speed, share, left, measures))
                if metrics is not None:
                    metrics.write(
                        {
                            "step": self.step,
                            "loss": loss,
                            "norm": result.norm,
                            "learning_rate": rate,
                            "tokens": result.n_targets,
                            "seconds": seconds,
                        }
                        | routing_record(result.routing)
                        | measures
                    )
                self._between_steps(metrics)
            self._finish(metrics)
        finally:
            recorded.free()
            if metrics is not None:
                metrics.close()
        seconds, early = time.perf_counter() - start, self._ended_early and self.step < self.config.steps
        return TrainResult(self.step, loss, self.held_out_loss, not self.done, seconds, early)

    def _trained(self, batch: Any, recorded: RecordedStep) -> StepResult:
        """One step, replayed where it can be."""
        c = self.config
        if settings().replay and c.micro_batches == 1 and type(self.objective) is NextToken:
            recorded.model, recorded.optimizer, recorded.max_norm = self.model, self.optimizer, c.max_norm
            return recorded(batch)
        how: dict[str, Any] = {"micro_batches": c.micro_batches, "objective": self.objective}
        return train_step(self.model, self.optimizer, batch, max_norm=c.max_norm, **how)

    def save(self) -> Path:
        """Writes a checkpoint of this moment and drops the oldest ones beyond `keep`, the best one excepted."""
        assert self.folder is not None
        path = save_checkpoint(
            checkpoint_path(self.folder, self.step),
            tensors=kept_tensors(self.model),
            optimizer_tensors=self.optimizer.state,
            average_tensors=None if self.average is None else self.average.tensors,
            config=self._built(),
            tokenizer=self.tokenizer,
            state=self._state(),
        )
        best = self.judge.best_step if self.config.keep_best else None
        prune_checkpoints(self.folder, keep=self.config.keep, always=() if best is None else (best,))
        self._saved_at = self.step
        self._on_event(Saved(self.step, path))
        return path

    def _built(self) -> dict[str, Any]:
        """What the checkpoint is of; with an adapter, that alone, and the base by name and fingerprint."""
        kind: dict[str, Any] = {"architecture": "TransformerLM"}
        if self.model.adapters is not None:
            kind = {"architecture": "LoRA", **lora_details(self.model)}
        return kind | {"model": to_dict(self.model.config), **self.details}

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "train": to_dict(self.config),
            "optimizer": self.optimizer.settings(),
            "dropout": self.model.dropout_generator.state(),
            "held_out_loss": self.held_out_loss,
            "best": self.judge.state(),
            "data": self.source.fingerprint(),
        }

    def _between_steps(self, metrics: Metrics | None) -> None:
        c, last = self.config, self.step == self.config.steps
        best = False
        if c.eval_every is not None and self.step % c.eval_every == 0 and not last and self.held_out is not None:
            best = self.judge.saw(self.step, self._evaluate(metrics, c.eval_batches))
            if self._ended_early and self.judge.best_step is not None and self.judge.best_loss is not None:
                self._on_event(EndedEarly(self.step, self.judge.best_step, self.judge.best_loss))
        if c.sample_every is not None and self.step % c.sample_every == 0 and self._sample is not None:
            self._on_event(Sampled(self.step, self._sample(self.model, self.step)))
        due = self._replanned or (best and c.keep_best) or (c.save_every is not None and self.step % c.save_every == 0)
        if due and not last and self.folder is not None:
            self.save()
        self._replanned = False

    def _finish(self, metrics: Metrics | None) -> None:
        """The end of the run: a checkpoint first, so that nothing is lost while all held-out text is evaluated, and
        another with the result; a stopped run only saves."""
        if self.folder is not None and self._saved_at != self.step:
            self.save()
        if self.done and self.held_out is not None:
            loss = self._evaluate(metrics, None)
            if self.judge.best_loss is not None and self.step == self.config.steps:
                # The earlier evaluations read a part of the text, and only the same part can be compared with them.
                part = self.config.eval_batches
                self.judge.saw(self.step, loss if part is None else self._judged(*self._measure(part)))
            if self.folder is not None:
                self.save()

    def _evaluate(self, metrics: Metrics | None, batches: int | None) -> float:
        """Measures, tells, records; returns the loss to judge by."""
        found, mean = self._measure(batches)
        self.held_out_loss = found.loss
        average = None if mean is None else mean.loss
        whole = batches is None
        numbers, measures = (found.loss, found.perplexity, found.n_targets), self._measures
        self._on_event(Evaluated(self.step, *numbers, whole, average, measures))
        if metrics is not None:
            record = {"step": self.step, "held_out_loss": found.loss, "n_targets": found.n_targets}
            told = {f"held_out_{name}": value for name, value in measures.items()}
            metrics.write(record | told | ({} if average is None else {"average_held_out_loss": average}))
        return self._judged(found, mean)

    def _judged(self, found: Evaluation, mean: Evaluation | None) -> float:
        """The running mean is what whoever asked for it will use."""
        return found.loss if mean is None else mean.loss

    def _measure(self, batches: int | None) -> tuple[Evaluation, Evaluation | None]:
        """The held-out loss of the weights, and of their running mean where there is one."""
        self.objective.record()  # what a step left
        found = self._held_out_loss(batches)
        self._measures = self.objective.record()
        if self.average is None:
            return found, None
        with self.average.in_place():
            mean = self._held_out_loss(batches)
        self.objective.record()
        return found, mean

    def _held_out_loss(self, batches: int | None) -> Evaluation:
        assert self.held_out is not None
        self.model.device.trim()  # blocks of the sizes of a step, which are others
        found = evaluate_batches(self.model, self._parts(self.held_out.batches(batches)), objective=self.objective)
        if not isfinite(found.loss):
            raise NonFiniteError(
                f"step {self.step}",
                "the held-out loss is not a finite number",
                got=f"loss {found.loss}",
                hint="the last update was too large: lower the learning rate or clip harder",
            )
        self.model.device.trim()
        return found

    def _parts(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches as a step computes them: what is trained in parts may be too large to be evaluated whole. Windows of
        a token file stay whole, as `evaluate_file` takes them, which gives the same loss then."""
        whole = self.config.micro_batches == 1 or isinstance(self.held_out, TokenWindows)
        for batch in batches:
            if whole:
                yield batch
            else:
                parts = batch.split(min(self.config.micro_batches, len(batch)))
                yield from (part for part in parts if part.n_targets)
