"""What `pellucid sft` and `pellucid dpo` share: their run folder, and the way through it.

The folder holds the examples as ids and the template they were encoded with, so a run that is resumed never reads the
dataset again; nor, once its first checkpoint is there, the model it began with, unless an adapter to that is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from ..base.config import from_dict, to_dict
from ..base.errors import ConfigError, DataError
from ..base.files import read_json, write_json
from ..base.rng import Generator
from ..checkpoint import latest_checkpoint, lock_folder, open_source, untouched_base
from ..checkpoint.open import BEGIN_IDS, CHAT_TEMPLATE, EOS_IDS, SPECIAL_TOKENS
from ..data import Examples, Shuffled
from ..models import TransformerConfig, TransformerLM
from ..nn import LoraConfig, add_lora
from ..text import Tokenizer, load_tokenizer
from ..train import Objective, TrainConfig, Trainer, TrainResult
from .machine import use_machine
from .output import Output, duration, note
from .parse import parse, pick
from .progress import Progress
from .runs import CONFIG, CURVE, METRICS, TOKENIZER
from .signals import Stopper
from .tune_options import ResumeSource, ResumeTuning, TuneOptions

EXAMPLES, REFERENCE = "examples.bin", "reference.bin"
_HELD_OUT = int.from_bytes(b"held out", "big")
_BLOCK = 1 << 16
Options = TypeVar("Options", bound=TuneOptions)


@dataclass(frozen=True)
class Layout:
    """How many conversations of a dataset are in a layout."""

    name: str
    count: int


@dataclass(frozen=True)
class SpecialToken:
    """What a chat template calls a special token, and the token."""

    name: str
    text: str


@dataclass(frozen=True)
class TuneConfig:
    """config.json: all that defines a run. layouts: conversations of the dataset in each layout; skipped, cut: how many
    were left out, and cut. template: Jinja. weights: what those beside an adapter are held in. beta, smoothing: of
    `dpo`."""

    format: Literal["pellucid sft", "pellucid dpo"]
    version: Literal[1]
    dataset: str
    init_from: str
    layouts: tuple[Layout, ...]
    skipped: int
    cut: int
    held_out: float
    template: str
    special_tokens: tuple[SpecialToken, ...]
    eos_ids: tuple[int, ...]
    tokenizer: str
    model: TransformerConfig
    train: TrainConfig
    lora: LoraConfig | None = None
    packing: bool = True
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    beta: float | None = None
    smoothing: float | None = None
    begin_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Tuning:
    """An opened run folder."""

    folder: Path
    config: TuneConfig
    tokenizer: Tokenizer
    device: str = "cpu"

    def examples(self) -> Examples:
        return Examples.open(self.folder / EXAMPLES)

    @property
    def details(self) -> dict[str, Any]:
        """What each checkpoint says beside the model's configuration, so that it can be talked with."""
        c = self.config
        return {
            CHAT_TEMPLATE: c.template,
            SPECIAL_TOKENS: {t.name: t.text for t in c.special_tokens},
            EOS_IDS: list(c.eos_ids),
            **({} if c.begin_ids is None else {BEGIN_IDS: list(c.begin_ids)}),
        }

    def start(self) -> TransformerLM:
        """The model to train: that the run began with, or one for its checkpoint to fill."""
        if self.config.lora is None and latest_checkpoint(self.folder) is not None:
            return TransformerLM(self.config.model, draw=False, device=self.device)
        model = replace(open_source(self.config.init_from), config=self.config.model).build(device=self.device)
        if self.config.weights != "float32":
            model.hold_weights(self.config.weights)
        if self.config.lora is not None:
            add_lora(model, self.config.lora, base=self.config.init_from)
        return model


def run_tuning(
    cls: type[Options],
    arguments: list[str],
    *,
    command: str,
    help: str,
    begin: Callable[[Options, Stopper], int],
    go_on: Callable[[Tuning, Output, Stopper], int],
) -> int:
    """Runs a command line: with --resume, `go_on` from that folder; otherwise `begin` with its options. Returns the
    exit status."""
    asked = "-h" in arguments or "--help" in arguments
    with Stopper() as stopper:
        if not asked and pick(ResumeSource, arguments, command=command).resume is not None:
            options = parse(ResumeTuning, arguments, command=command, help=help)
            use_machine(options)
            found = replace(open_tuning(options.resume, f"pellucid {command}"), device=options.device)
            with lock_folder(found.folder):
                return go_on(found, Output(options.json), stopper)
        options = parse(cls, arguments, command=command, help=help)
        use_machine(options)
        return begin(options, stopper)


def divided(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, uint32, of `count` examples to train on, and of those held out: a random share, at least one; none
    for 0. Raises DataError if none is left to train on."""
    held = max(1, round(count * share)) if share else 0
    if held >= count:
        raise DataError("examples", "too few to hold any out", got=count, hint="use more, or --held-out 0")
    trained, order = np.ones(count, np.bool_), Shuffled(count, Generator(seed).split(_HELD_OUT))
    for first in range(0, held, _BLOCK):
        trained[order.at(np.arange(first, min(first + _BLOCK, held)))] = False
    return _numbers(trained), _numbers(~trained)


def _numbers(flags: np.ndarray) -> np.ndarray:
    """Where flags are true; a block at a time, for numbers of eight bytes would be most of what a large file takes."""
    found, at = np.empty(int(np.count_nonzero(flags)), np.uint32), 0
    for first in range(0, len(flags), _BLOCK):
        some = np.flatnonzero(flags[first : first + _BLOCK])
        found[at : at + len(some)] = some + first
        at += len(some)
    return found


def save_tuning(run: Tuning) -> Tuning:
    """Makes the folder a run: config.json is written last."""
    run.tokenizer.save(run.folder / TOKENIZER)
    write_json(run.folder / CONFIG, to_dict(run.config))
    return run


def open_tuning(path: Path, kind: str) -> Tuning:
    """A run folder. Raises ConfigError where there is none of this kind."""
    if not (path / CONFIG).is_file():
        hint = "a run stopped while it was prepared has to be started again"
        raise ConfigError(str(path), f"not a run that can be resumed: no {CONFIG}", hint=hint)
    values = read_json(path / CONFIG, "the configuration of a run")
    if values.get("format") != kind:
        raise ConfigError(str(path), "a run of another kind", got=repr(values.get("format")), expected=repr(kind))
    config = from_dict(TuneConfig, values, where=str(path / CONFIG))
    tokenizer = load_tokenizer(path / TOKENIZER)
    if tokenizer.fingerprint() != config.tokenizer:
        got, expected = tokenizer.fingerprint()[:12], config.tokenizer[:12]
        raise DataError(str(path / TOKENIZER), "not the tokenizer of this run", got=got, expected=expected)
    return Tuning(path, config, tokenizer)


def announce(run: Tuning, train: int, held_out: int, filled: str) -> None:
    """What is about to happen, on stderr."""
    c, t = run.config, run.config.train
    layouts = ", ".join(f"{one.count:,} of {one.name}" for one in c.layouts)
    left = "".join(f", {n:,} {what}" for what, n in (("left out", c.skipped), ("cut", c.cut)) if n)
    note(f"dataset: {c.dataset}: {layouts}{left}; {train:,} to train on, {held_out:,} held out")
    note(f"model:   {c.init_from}: {c.model.parameter_counts().total:,} parameters, {c.model.precision}")
    note(f"run:     {t.steps:,} steps of {t.sequences} {filled}; {run.folder}")


def train(
    run: Tuning, model: TransformerLM, stopper: Stopper, source: Any, held_out: Any, objective: Objective
) -> tuple[Trainer, TrainResult]:
    """Trains from the newest checkpoint, or the beginning, to the end or the first signal."""
    began = time.perf_counter()
    with Progress() as progress:
        trainer = Trainer(
            model,
            source,
            run.config.train,
            held_out=held_out,
            objective=objective,
            details=run.details,
            folder=run.folder,
            tokenizer=run.tokenizer,
            on_event=progress,
        )
        if trainer.resume():
            progress.note(f"resumed: after step {trainer.step:,} of {run.config.train.steps:,}")
        result = TrainResult(trainer.step, None, trainer.held_out_loss, False, 0.0)
        if not trainer.done:
            stopper.stop = trainer.stop
            result = trainer.run()
            stopper.stop = None
    return trainer, replace(result, seconds=time.perf_counter() - began)


def report(
    run: Tuning,
    trainer: Trainer,
    result: TrainResult,
    facts: dict[str, Any],
    out: Output,
    stopper: Stopper,
) -> int:
    """Prints how a run ended; returns the exit status."""
    from ..train.report import write_loss_curve  # matplotlib takes half a second to load

    write_loss_curve(run.folder / METRICS, run.folder / CURVE, title=run.folder.name)
    c, kind = run.config, run.config.format
    checkpoint = latest_checkpoint(run.folder)
    resume = f"{kind} --resume {run.folder}"
    loss, unit = trainer.held_out_loss, " nats/token" if kind == "pellucid sft" else " nats/pair"
    base = None if c.lora is None else untouched_base(trainer.model)
    out.facts(
        {
            "steps": f"{result.steps:,} of {c.train.steps:,} ({duration(result.seconds)})",
            "dataset": ", ".join(f"{one.count:,} of {one.name}" for one in c.layouts),
            "left out": f"{c.skipped:,}, longer than the window" if c.skipped else None,
            "cut": f"{c.cut:,}, at the end, to fit the window" if c.cut else None,
            "held-out loss": None if loss is None else f"{loss:.4f}{unit}",
            **facts,
            "base": None if base is None else f"as it was, in {c.weights}: sha256 {base[:16]}",
            "run folder": run.folder,
            "checkpoint": checkpoint,
            "loss curve": run.folder / CURVE if (run.folder / CURVE).exists() else None,
            "resume": resume if result.stopped else None,
            "talk": None if result.stopped else f"pellucid chat {run.folder}",
        }
    )
    out.result(
        {
            "run": str(run.folder),
            "checkpoint": str(checkpoint),
            "steps": result.steps,
            "stopped": result.stopped,
            "seconds": result.seconds,
            "held_out_loss": loss,
            "layouts": {one.name: one.count for one in c.layouts},
            "skipped": c.skipped,
            "cut": c.cut,
            **({} if base is None else {"base_sha256": base}),
            **facts,
        }
    )
    if result.stopped:
        note(f"stopped after step {result.steps:,} and saved; continue with: {resume}")
    return stopper.status if result.stopped else 0
