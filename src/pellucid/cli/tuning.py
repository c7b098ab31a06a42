"""What `pellucid sft` and `pellucid dpo` share: their options, their run folder, and the way through it.

The folder holds the examples as ids and the template they were encoded with, so a run that is resumed reads neither the
dataset nor the model it began with again, once its first checkpoint is there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from ..base.config import from_dict, to_dict
from ..base.errors import CheckpointError, ConfigError, DataError
from ..base.files import read_json, write_json
from ..base.rng import Generator
from ..checkpoint import latest_checkpoint, open_source
from ..checkpoint.open import BEGIN_IDS, CHAT_TEMPLATE, EOS_IDS, SPECIAL_TOKENS
from ..checkpoint.source import ModelSource
from ..data import Examples
from ..models import TransformerConfig, TransformerLM
from ..nn import LoraConfig, add_lora
from ..text import ChatML, Tokenizer, load_tokenizer
from ..text.chat_sources import NAMED
from ..train import Encoding, Event, Objective, TrainConfig, Trainer, TrainResult
from .output import Output, duration, note
from .parse import Flag, told
from .progress import Progress
from .runs import CONFIG, CURVE, METRICS, TOKENIZER, check_share
from .signals import Stopper

EXAMPLES, REFERENCE = "examples.bin", "reference.bin"
Given = tyro.conf.DisallowNone
_HELD_OUT = int.from_bytes(b"held out", "big")


@dataclass(frozen=True)
class TuneOptions:
    """What both commands take."""

    dataset: Annotated[Path | None, Given, tyro.conf.arg(metavar="FILE", help_behavior_hint="(needed)")] = None
    """Examples, a JSON object a line (.jsonl, also .gz or .zst), or a .json list of them."""
    init_from: Annotated[Path | None, Given, tyro.conf.arg(metavar="MODEL", help_behavior_hint="(needed)")] = None
    """Model to begin with: run folder, checkpoint folder, Hugging Face folder or GGUF file."""
    out: Annotated[Path | None, Given, told("runs/NAME after the dataset, numbered if taken", "PATH")] = None
    """Run folder."""
    template: str = "auto"
    """Chat template: auto (the model's own), chatml, transcript (plain lines "User:" and "Assistant:"), or a file."""
    too_long: Literal["error", "skip", "cut"] = "error"
    """An example longer than the window ends the command, is left out, or loses its end."""
    held_out: float = 0.05
    """Share of the examples that is not trained on but evaluated; 0 for none."""
    seq_len: Annotated[int | None, Given, told("the model's context")] = None
    """Tokens of the window."""
    sequences: int = 16
    """Rows, or pairs, a step."""
    accumulate: int = 1
    """Parts a step is computed in: the same result in less memory."""
    epochs: int = 3
    """Times every example is read."""
    steps: Annotated[int | None, Given, told("as many as the epochs take")] = None
    """Steps, in place of epochs."""
    learning_rate: float = 1e-4
    """Highest learning rate."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How it falls after the warm-up."""
    warmup: int = 100
    """Steps in which it rises."""
    min_learning_rate: Annotated[float | None, Given, told("a tenth of the highest")] = None
    """Where it ends."""
    weight_decay: float = 0.0
    """Pull of matrices and tables towards 0, times the learning rate."""
    max_norm: float | None = 1.0
    """Longest gradient; a longer one is scaled down. None: any length."""
    lora_rank: Annotated[int | None, Given, told("no adapter: every weight is trained", "RANK")] = None
    """Train an adapter of this rank beside every projection instead of the weights (LoRA)."""
    lora_alpha: Annotated[float | None, Given, told("the rank")] = None
    """The adapter's change is alpha / rank times its product."""
    precision: Annotated[Literal["float32", "bfloat16"] | None, Given, told("the processor's best")] = None
    """What operands of matrix products are rounded to."""
    eval_every: int | None = 100
    """Steps between evaluations on held-out examples. None: only at the end."""
    save_every: int | None = 100
    """Steps between checkpoints. None: only at the end."""
    keep: int = TrainConfig.keep
    """Newest checkpoints that are kept."""
    seed: int = 0
    """Of the order of the examples, of which are held out, and of dropout."""
    json: Flag = False
    """End with one line of JSON on stdout."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class ResumeTuning:
    """What may stand beside --resume: a run goes on as it was begun."""

    resume: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Run folder to continue."""
    json: Flag = False
    """End with one line of JSON on stdout."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class ResumeSource:
    """The option that decides which of the two a command line is."""

    resume: Annotated[Path | None, Given] = None


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
    were left out, and cut. template: Jinja. beta, smoothing: of `dpo`."""

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
    beta: float | None = None
    smoothing: float | None = None
    begin_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Tuning:
    """An opened run folder."""

    folder: Path
    config: TuneConfig
    tokenizer: Tokenizer

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
        """The model the run began with."""
        model = replace(open_source(self.config.init_from), config=self.config.model).build()
        if self.config.lora is not None:
            add_lora(model, self.config.lora, base=self.config.init_from)
        return model


def checked(options: TuneOptions) -> tuple[Path, ModelSource, Tokenizer]:
    """Dataset, model and tokenizer. Raises ConfigError for what can be refused before anything is read."""
    for name, value in (("--dataset", options.dataset), ("--init-from", options.init_from)):
        if value is None:
            hint = "--dataset FILE --init-from MODEL, or --resume RUN"
            raise ConfigError(name, "is needed", hint=hint)
    assert options.dataset is not None
    assert options.init_from is not None
    check_share(options.held_out)
    if options.epochs < 1:
        raise ConfigError("--epochs", "must be at least 1", got=options.epochs)
    if not options.dataset.is_file():
        raise DataError(str(options.dataset), "no such file", hint="a .jsonl file, one example a line")
    source = open_source(options.init_from)
    if source.tokenizer is None:
        raise CheckpointError(str(options.init_from), "the model has no tokenizer", hint="tuning needs text")
    train_config(options, source, 1)  # refuses what can't be
    lora_config(options)
    return options.dataset, source, source.tokenizer


def train_config(options: TuneOptions, source: ModelSource, steps: int) -> TrainConfig:
    """The training asked for. Raises ConfigError."""
    context = source.config.max_seq_len
    length = context if options.seq_len is None else options.seq_len
    if not 1 <= length <= context:
        raise ConfigError("--seq-len", "does not fit the model", got=length, expected=f"1 to {context} (the context)")
    names = {f.name for f in fields(TrainConfig)} & {f.name for f in fields(TuneOptions)} - {"seq_len", "steps"}
    shared = {name: getattr(options, name) for name in names}
    return TrainConfig(
        steps=steps if options.steps is None else options.steps,
        seq_len=length,
        rate_schedule=options.schedule,
        eval_batches=None,
        **shared,
    )


def lora_config(options: TuneOptions) -> LoraConfig | None:
    """The adapter asked for. Raises ConfigError."""
    if options.lora_rank is None:
        if options.lora_alpha is not None:
            raise ConfigError("--lora-alpha", "without an adapter", got=options.lora_alpha, hint="add --lora-rank")
        return None
    return LoraConfig(options.lora_rank, options.lora_alpha, seed=options.seed)


def template_text(wanted: str, source: ModelSource) -> str:
    """The chat template asked for, as Jinja. Raises ConfigError for a model without one, DataError for no file."""
    if wanted in NAMED:
        return NAMED[wanted]
    if wanted.endswith(".json"):
        from ..text.jinja import JinjaTemplate  # takes as long to load as all of the text package

        return JinjaTemplate.load(wanted).source
    if wanted == "auto":
        if source.chat_template is None:
            hint = "--template transcript teaches one to a model that was trained on text alone"
            raise ConfigError(str(source.path), "the model has no chat template", hint=hint)
        return source.chat_template
    try:
        return Path(wanted).read_text(encoding="utf-8")
    except (OSError, ValueError):
        expected = f"auto, {', '.join(NAMED)} or a file of Jinja"
        raise DataError("--template", "no such template", got=repr(wanted), expected=expected) from None


def special_tokens(source: ModelSource, tokenizer: Tokenizer) -> dict[str, str]:
    """What a template calls the special tokens: as the model says, else its end of text."""
    found = dict(source.special_tokens)
    names = {number: name for name, number in tokenizer.special.items()}
    if "eos_token" not in found and tokenizer.eot in names:
        found["eos_token"] = names[tokenizer.eot]
    return found


def ends(source: ModelSource, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end an answer: those of the model, and the end of text."""
    return tuple(dict.fromkeys([*source.eos_ids, *([] if tokenizer.eot is None else [tokenizer.eot])]))


def encoding(text: str, tokens: dict[str, str], tokenizer: Tokenizer, longest: int, options: TuneOptions) -> Encoding:
    """What makes examples of conversations."""
    from ..text.jinja import JinjaTemplate  # takes as long to load as all of the text package

    template = JinjaTemplate(text, variables=tokens)
    if options.template == "chatml":
        template.marks = ChatML.marks  # a template in Jinja doesn't say which special tokens it can't do without
    return Encoding(template, tokenizer, longest=longest, too_long=options.too_long)


def held_out_numbers(count: int, share: float, seed: int) -> np.ndarray:
    """Which of `count` are held out: a random share, at least one; none for 0. Raises DataError if none is left."""
    if share == 0:
        return np.zeros(count, np.bool_)
    held = max(1, round(count * share))
    if held >= count:
        raise DataError("examples", "too few to hold any out", got=count, hint="use more, or --held-out 0")
    chosen = np.zeros(count, np.bool_)
    chosen[Generator(seed).split(_HELD_OUT).permutation(count)[:held]] = True
    return chosen


def save_tuning(folder: Path, config: TuneConfig, tokenizer: Tokenizer) -> Tuning:
    """Makes the folder a run: config.json is written last."""
    tokenizer.save(folder / TOKENIZER)
    write_json(folder / CONFIG, to_dict(config))
    return Tuning(folder, config, tokenizer)


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

        def on_event(event: Event) -> None:
            progress(event)

        trainer = Trainer(
            model,
            source,
            run.config.train,
            held_out=held_out,
            objective=objective,
            details=run.details,
            folder=run.folder,
            tokenizer=run.tokenizer,
            on_event=on_event,
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
    loss = trainer.held_out_loss
    out.facts(
        {
            "steps": f"{result.steps:,} of {c.train.steps:,} ({duration(result.seconds)})",
            "dataset": ", ".join(f"{one.count:,} of {one.name}" for one in c.layouts),
            "held-out loss": None if loss is None else f"{loss:.4f}",
            **facts,
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
            **facts,
        }
    )
    if result.stopped:
        note(f"stopped after step {result.steps:,} and saved; continue with: {resume}")
    return stopper.status if result.stopped else 0
