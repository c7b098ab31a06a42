"""`pellucid dpo`: pairs of answers and a model -> a model that prefers the better ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from ..base.errors import CheckpointError, ConfigError
from ..checkpoint import latest_checkpoint
from ..data import Examples, preferences
from .output import Output, note
from .parse import told
from .progress import Line
from .runs import METRICS
from .signals import Stopper
from .tune_options import TuneOptions, less_memory
from .tuning import EXAMPLES, REFERENCE, Tuning, announce, divided, report, run_tuning, save_tuning, train

if TYPE_CHECKING:
    from ..train import Pairs, PreferenceLoss
    from ..train.readiness import Plan

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
    accumulate: Annotated[int | None, tyro.conf.DisallowNone, told("a part for each pair")] = None
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

    @property
    def parts(self) -> int:
        return self.sequences


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    return run_tuning(DpoCommand, arguments, command="dpo", help=HELP, begin=_begin, go_on=_train)


def _begin(options: DpoCommand, stopper: Stopper) -> int:
    from .check import only_checked, run_folder  # bring the kernels, which --help has no use for
    from .session import best_precision
    from .tune_start import TuneStart

    if not options.beta > 0:
        raise ConfigError("--beta", "must be positive", got=options.beta)
    if not 0 <= options.smoothing < 0.5:
        raise ConfigError("--smoothing", "out of range", got=options.smoothing, expected="0 to below 0.5")
    out, start = Output(options.json), TuneStart(options, precision=best_precision(), answers=2)
    with run_folder(options, start.name) as folder:
        note(f"reading {start.dataset}")
        pairs = Examples.write(folder / EXAMPLES, start.making.pairs(preferences(start.dataset))).examples // 2
        trained, _ = divided(pairs, options.held_out, options.seed)
        steps = -(-options.epochs * len(trained) // options.sequences)
        made = start.config("pellucid dpo", steps=steps, beta=options.beta, smoothing=options.smoothing)
        run = Tuning(folder, made, start.tokenizer, options.device)
        if only_checked(options, out, made.model, made.train, lambda: _plan(run)):
            return 0
        return _train(save_tuning(run), out, stopper)


def _plan(run: Tuning) -> Plan:
    from ..train import Pairs
    from ..train.readiness_data import pairs_plan

    examples = run.examples()
    trained, held_out = _parts(run, Pairs(examples, np.zeros(len(examples)), **_order(run)))
    how = {"base": run.config.weights, "less": less_memory(run.config.lora is not None), "objective": _objective(run)}
    return pairs_plan(run.start, run.config.train, trained, held_out, run.tokenizer, run.folder, **how)


def _order(run: Tuning) -> dict[str, int]:
    return {"sequences": run.config.train.sequences, "seed": run.config.train.seed}


def _parts(run: Tuning, pairs: Pairs) -> tuple[Pairs, Pairs | None]:
    """What is trained on, and what is held out."""
    chosen, held = divided(len(pairs), run.config.held_out, run.config.train.seed)
    return pairs.subset(chosen), pairs.subset(held) if len(held) else None


def _objective(run: Tuning) -> PreferenceLoss:
    from ..train import PreferenceLoss

    return PreferenceLoss(beta=run.config.beta or 0.1, smoothing=run.config.smoothing or 0.0)


def _train(run: Tuning, out: Output, stopper: Stopper) -> int:
    from ..train import Pairs, read_metrics, reference_log_probs

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
    trained, measured = _parts(run, Pairs(examples, reference, **_order(run)))
    announce(run, len(trained), 0 if measured is None else len(measured), "pairs")
    trainer, result = train(run, model, stopper, trained, measured, _objective(run))
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
