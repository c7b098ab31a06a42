"""Training in a run folder, the part `train`, `--resume` and `demo` share: from an opened run to its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any, Literal

from ..base import dtypes
from ..base.errors import CheckpointError, PellucidError
from ..checkpoint import checkpoint_path, latest_checkpoint
from ..data import TokenFile
from ..kernels.cpu.cache import cache_state
from ..kernels.cpu.isa import current
from ..models import TransformerConfig, TransformerLM
from ..train import Evaluated, Event, Stepped, Trainer, measure_peak
from .corpus import bytes_per_token
from .output import Output, duration, note
from .progress import Progress
from .runs import Run, save_config
from .sampling import sample
from .signals import Stopper

_DRAWING = 0.02  # share of the time that drawing the loss curve may take


@dataclass(frozen=True)
class Outcome:
    """How a run ended. steps, planned: done, of so many; seconds: of this session; bits_per_byte: None without held-out
    text; ended_early: because the held-out loss no longer fell; best: the checkpoint of the lowest held-out loss, and
    that loss, where it is kept."""

    steps: int
    planned: int
    stopped: bool
    seconds: float
    checkpoint: Path
    held_out_loss: float | None
    bits_per_byte: float | None
    sample: str
    start: str
    ended_early: bool = False
    best: Path | None = None
    best_loss: float | None = None


class Curve:
    """Draws the loss curve after evaluations, as far as its share of the time goes."""

    def __init__(self, run: Run) -> None:
        self._run, self._due, self._cost, self._last = run, False, 0.0, time.monotonic()

    def __call__(self, event: Event) -> None:
        # The evaluation stands in the metrics only once its event has been handled.
        if self._due and time.monotonic() - self._last > self._cost / _DRAWING:
            self.draw()
        self._due = self._due or isinstance(event, Evaluated)

    def draw(self) -> None:
        from ..train.report import write_loss_curve  # matplotlib takes half a second to load

        start = time.monotonic()
        write_loss_curve(self._run.metrics, self._run.curve, title=f"{self._run.folder.name}")
        self._last = time.monotonic()
        self._cost, self._due = self._last - start, False


def best_precision() -> Literal["float32", "bfloat16"]:
    """bfloat16 where the processor has instructions for it, else float32."""
    return "bfloat16" if current().bf16 else "float32"


def peak_of(model: TransformerConfig) -> float:
    """FLOP/s of this machine in the precision of a model."""
    return measure_peak("cpu", operand_dtype=dtypes.bfloat16 if model.precision == "bfloat16" else None)


def announce(run: Run, train: TokenFile, held_out: TokenFile | None) -> None:
    """What is about to happen, on stderr."""
    c, t, vocabulary = run.config.model, run.config.train, run.tokenizer.vocab_size
    held = f", {len(held_out):,} held out" if held_out is not None else ""
    note(f"corpus:  {run.config.corpus}: {len(train):,} tokens{held} ({run.tokenizer.kind}, {vocabulary:,} ids)")
    shape = f"{c.n_layers} layers, width {c.d_model}, {c.n_heads} heads, context {c.max_seq_len}"
    counts = c.parameter_counts()
    active = f", {counts.active:,} active" if counts.active != counts.total else ""
    note(f"model:   {counts.total:,} parameters{active} ({shape}), {c.precision}")
    epochs = t.steps * t.step_sequences * t.seq_len / len(train)
    windows = f"{t.step_sequences} x {t.seq_len}"
    note(f"run:     {t.steps:,} steps of {windows} tokens, {epochs:.1f} times the text; {run.folder}")
    if run.config.init_from is not None:
        note(f"begins:  with the weights of {run.config.init_from}")
    if not any(cache_state().folder.glob("*")):
        note("kernels: the first steps compile them for this machine, once; they are kept for later runs")


def train_run(
    run: Run,
    stopper: Stopper,
    *,
    plan: Callable[[Stepped], int | None] | None = None,
    start: str = "",
    device: str = "cpu",
) -> Outcome:
    """Trains a run from its newest checkpoint, or from its beginning, to its end or to the first signal.

    plan: asked after each step for another number of steps the run is to have in all (None: leave it). start: what
    samples begin with.
    """
    tokens, held_out = run.tokens()
    announce(run, tokens, held_out)
    model = TransformerLM(run.config.model, device=device)
    peak = peak_of(run.config.model) if device == "cpu" else None
    curve, began = Curve(run), time.perf_counter()
    with Progress() as progress:

        def write(model: TransformerLM, step: int) -> str:
            return sample(model, run.tokenizer, start=start, limit=run.config.sample_tokens, seed=step)

        def on_event(event: Event) -> None:
            progress(event)
            curve(event)
            if plan is not None and isinstance(event, Stepped) and (steps := plan(event)) is not None:
                trainer.replan(steps)
                save_config(run.folder, replace(run.config, train=trainer.config))

        trainer = Trainer(
            model,
            tokens,
            run.config.train,
            held_out=held_out,
            folder=run.folder,
            tokenizer=run.tokenizer,
            sample=write,
            on_event=on_event,
            peak=peak,
        )
        if trainer.resume() and trainer.step:
            progress.note(f"resumed: after step {trainer.step:,} of {run.config.train.steps:,}")
        if not trainer.done:
            stopper.stop = trainer.stop
            trainer.run()
            stopper.stop = None
    curve.draw()
    loss, stopped, planned = trainer.held_out_loss, not trainer.done, trainer.config.steps
    bits = None
    if loss is not None and held_out is not None:
        bits = loss / log(2) / bytes_per_token(held_out, run.tokenizer)
    checkpoint = latest_checkpoint(run.folder)
    if checkpoint is None:
        raise CheckpointError(str(run.folder), "the run left no checkpoint")
    text = "" if stopped else write(model, trainer.step)
    seconds, early = time.perf_counter() - began, trainer.done and trainer.step < planned
    judge, best = trainer.judge, None
    if trainer.config.keep_best and judge.best_step is not None:
        best = checkpoint_path(run.folder, judge.best_step)
    return Outcome(
        *(trainer.step, planned, stopped, seconds, checkpoint, loss, bits, text, start),
        ended_early=early,
        best=best,
        best_loss=judge.best_loss if best else None,
    )


def report(run: Run, outcome: Outcome, out: Output, stopper: Stopper) -> int:
    """Prints how a run ended; returns the exit status."""
    if outcome.sample:
        out.text(f"a sample:\n\n{outcome.sample.expandtabs(4)}\n")
    loss = None
    if outcome.held_out_loss is not None:
        bits = f", {outcome.bits_per_byte:.3f} bits/byte" if outcome.bits_per_byte is not None else ""
        perplexity = _perplexity(outcome.held_out_loss)
        loss = f"{outcome.held_out_loss:.4f} nats/token (perplexity {perplexity or float('inf'):.3f}{bits})"
    resume = f"pellucid train --resume {run.folder}"
    out.facts(
        {
            "steps": f"{outcome.steps:,} of {outcome.planned:,} ({duration(outcome.seconds)})",
            "held-out loss": loss,
            "run folder": run.folder,
            "checkpoint": outcome.checkpoint,
            "best": f"{outcome.best} ({outcome.best_loss:.4f} nats/token)" if outcome.best else None,
            "metrics": run.metrics,
            "loss curve": run.curve if run.curve.exists() else None,
            "resume": resume if outcome.stopped else None,
            "generate": f'pellucid generate {run.folder} "{outcome.start or _prompt(run)}"',
        }
    )
    out.result(result_json(run, outcome))
    if outcome.stopped:
        note(f"stopped after step {outcome.steps:,} and saved; continue with: {resume}")
    return stopper.status if outcome.stopped else 0


def result_json(run: Run, outcome: Outcome) -> dict[str, Any]:
    """The result of a run for programs."""
    loss = outcome.held_out_loss
    return {
        "run": str(run.folder),
        "checkpoint": str(outcome.checkpoint),
        "parameters": run.config.model.parameter_counts().total,
        "steps": outcome.steps,
        "stopped": outcome.stopped,
        "seconds": outcome.seconds,
        "held_out_loss": loss,
        "perplexity": None if loss is None else _perplexity(loss),
        "bits_per_byte": outcome.bits_per_byte,
        "sample": outcome.sample,
        "ended_early": outcome.ended_early,
        "best": None if outcome.best is None else str(outcome.best),
        "best_held_out_loss": outcome.best_loss,
    }


def _perplexity(loss: float) -> float | None:
    """e**loss, or None where that is beyond all numbers, which JSON has no word for."""
    return exp(loss) if loss < 700 else None


def _prompt(run: Run) -> str:
    """The first word of the training text, as a prompt to try."""
    try:
        text = run.tokenizer.decode(run.tokens()[0].ids[:200])
    except PellucidError:
        return ""
    words = [w for w in text.split() if w.isalpha()]
    return words[0] if words else ""
