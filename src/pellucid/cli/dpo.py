"""`pellucid dpo`: pairs of answers and a model -> a model that prefers the better ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..base.errors import CheckpointError, ConfigError
from ..checkpoint import latest_checkpoint, lock_folder
from ..data import Examples, preferences
from .output import Output, note
from .parse import parse, pick, told
from .progress import Line
from .runs import METRICS, new_folder
from .signals import Stopper
from .tuning import (
    EXAMPLES,
    REFERENCE,
    Layout,
    ResumeSource,
    ResumeTuning,
    SpecialToken,
    TuneConfig,
    TuneOptions,
    Tuning,
    announce,
    checked,
    encoding,
    ends,
    held_out_numbers,
    lora_config,
    model_config,
    open_tuning,
    report,
    save_tuning,
    special_tokens,
    template_text,
    train,
    train_config,
)

HELP = """Teaches a model which of two answers is better: direct preference optimisation, without a reward model.

Examples:
  pellucid dpo --dataset pairs.jsonl --init-from runs/chats
  pellucid dpo --dataset pairs.json --init-from model.gguf --seq-len 1024 --too-long skip --beta 0.1
  pellucid dpo --resume runs/pairs                        go on after Ctrl-C, a crash or a power cut

A line of the dataset is a JSON object with chosen and rejected, beside a prompt or conversations. What the model thinks
of every answer before the first step is computed once, and kept in the run folder. metrics.jsonl says for each step and
each evaluation how far the answers have moved apart (margin) and the share of pairs that moved the right way
(preferred)."""


@dataclass(frozen=True)
class DpoCommand(TuneOptions):
    """Options of `pellucid dpo`."""

    sequences: int = 4
    """Pairs a step."""
    accumulate: int = 4
    """Parts a step is computed in: the same result in less memory."""
    epochs: int = 1
    """Times every pair is read."""
    learning_rate: float = 1e-6
    """Highest learning rate."""
    warmup: int = 10
    """Steps in which it rises."""
    beta: float = 0.1
    """How dear it is to move away from the model it began as."""
    smoothing: float = 0.0
    """Probability that a pair is the wrong way round, from 0 to below 0.5."""
    resume: Annotated[Path | None, tyro.conf.DisallowNone, told("a new run", "RUN")] = None
    """Continue this run folder where it stopped, with its own options."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    asked = "-h" in arguments or "--help" in arguments
    with Stopper() as stopper:
        if not asked and pick(ResumeSource, arguments, command="dpo").resume is not None:
            options = parse(ResumeTuning, arguments, command="dpo", help=HELP)
            found = open_tuning(options.resume, "pellucid dpo")
            with lock_folder(found.folder):
                return _train(found, Output(options.json), stopper)
        return _begin(parse(DpoCommand, arguments, command="dpo", help=HELP), stopper)


def _begin(options: DpoCommand, stopper: Stopper) -> int:
    if not options.beta > 0:
        raise ConfigError("--beta", "must be positive", got=options.beta)
    if not 0 <= options.smoothing < 0.5:
        raise ConfigError("--smoothing", "out of range", got=options.smoothing, expected="0 to below 0.5")
    dataset, source, tokenizer = checked(options)
    text, tokens = template_text(options.template, source), special_tokens(source, tokenizer)
    config = train_config(options, source, 1)
    making = encoding(text, tokens, tokenizer, config.seq_len + 1, options)
    with new_folder(options.out, dataset.resolve().stem.split(".")[0] or "pairs") as folder:
        note(f"reading {dataset}")
        info = Examples.write(folder / EXAMPLES, making.pairs(preferences(dataset)))
        pairs = info.examples // 2
        trained = pairs - int(held_out_numbers(pairs, options.held_out, options.seed).sum())
        made = TuneConfig(
            format="pellucid dpo",
            version=1,
            dataset=str(dataset.resolve()),
            init_from=str(source.path.resolve()),
            layouts=tuple(Layout(*one) for one in making.layouts.items()),
            skipped=making.skipped,
            cut=making.cut,
            held_out=options.held_out,
            template=text,
            special_tokens=tuple(SpecialToken(*one) for one in tokens.items()),
            eos_ids=ends(source, tokenizer),
            tokenizer=tokenizer.fingerprint(),
            model=model_config(options, source),
            train=train_config(options, source, -(-options.epochs * trained // options.sequences)),
            lora=lora_config(options),
            packing=False,
            beta=options.beta,
            smoothing=options.smoothing,
        )
        return _train(save_tuning(folder, made, tokenizer), Output(options.json), stopper)


def _train(run: Tuning, out: Output, stopper: Stopper) -> int:
    from ..train import Pairs, PreferenceLoss, read_metrics, reference_log_probs

    c, examples, model = run.config, run.examples(), run.start()
    if latest_checkpoint(run.folder) is not None and not (run.folder / REFERENCE).exists():
        hint = "restore it from a copy, or start a new run"
        raise CheckpointError(str(run.folder / REFERENCE), "the reference of this run is gone", hint=hint)
    with Line() as line:

        def show(done: int, of: int) -> None:
            if line.due():
                line.show(f"reference: {done:,} of {of:,} answers")

        reference = reference_log_probs(
            model, examples, run.folder / REFERENCE, sequences=max(1, c.train.sequences // c.train.accumulate),
            on_progress=show,
        )  # fmt: skip
    pairs = Pairs(examples, reference, sequences=c.train.sequences, seed=c.train.seed)
    held = held_out_numbers(len(pairs), c.held_out, c.train.seed)
    trained, measured = pairs.subset((~held).nonzero()[0]), pairs.subset(held.nonzero()[0]) if held.any() else None
    announce(run, len(trained), int(held.sum()), "pairs")
    objective = PreferenceLoss(beta=c.beta or 0.1, smoothing=c.smoothing or 0.0)
    trainer, result = train(run, model, stopper, trained, measured, objective)
    metrics = read_metrics(run.folder / METRICS)
    last, measures = [m for m in metrics if "margin" in m][-20:], [m for m in metrics if "held_out_margin" in m]
    facts = {
        "pairs": len(trained),
        "margin": round(sum(m["margin"] for m in last) / max(1, len(last)), 4),
        "preferred": round(sum(m["preferred"] for m in last) / max(1, len(last)), 4),
        "held-out margin": round(measures[-1]["held_out_margin"], 4) if measures else None,
        "held-out preferred": round(measures[-1]["held_out_preferred"], 4) if measures else None,
    }
    return report(run, trainer, result, facts, out, stopper)
