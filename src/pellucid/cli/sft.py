"""`pellucid sft`: instructions and a model -> a model that answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..data import Examples, PackedRows, conversations
from .output import Output, note
from .parse import told
from .signals import Stopper
from .tune_options import TuneOptions, less_memory
from .tuning import EXAMPLES, Tuning, announce, divided, report, run_tuning, save_tuning, train

if TYPE_CHECKING:
    from ..train.readiness import Plan

HELP = """Teaches a model to answer: supervised fine-tuning on a file of instructions, with the loss on answers only.

Examples:
  pellucid sft --dataset chats.jsonl --init-from runs/book --template transcript
  pellucid sft --dataset instructions.jsonl --init-from model.gguf --seq-len 512 --epochs 3
  pellucid sft --dataset chats.jsonl --init-from model.gguf --lora-rank 16 --weights int8
                                                          an adapter beside weights in a quarter of the memory
  pellucid sft --dataset chats.jsonl --init-from runs/book --check
                                                          whether it is worth starting, and what it takes
  pellucid sft --resume runs/chats                        go on after Ctrl-C, a crash or a power cut

A line of the dataset is a JSON object with messages, conversations, prompt and response, prompt and completion,
instruction and output (and input), instruction and instances, or question and answer; which it is shows by its fields.
Short examples share a row (packing) without seeing one another: the same loss and gradients as a row each, in a
fraction of the time. The run folder holds config.json, tokenizer.json, examples.bin, checkpoints/, metrics.jsonl and
loss.png; the dataset is read once, an example at a time, and never held in memory. A resumed run ends with the same
weights, bit for bit, as one that was never stopped."""


@dataclass(frozen=True)
class SftCommand(TuneOptions):
    """Options of `pellucid sft`."""

    packing: bool = True
    """Several short examples a row."""
    resume: Annotated[Path | None, tyro.conf.DisallowNone, told("a new run", "RUN")] = None
    """Continue this run folder where it stopped, with its own options."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    return run_tuning(SftCommand, arguments, command="sft", help=HELP, begin=_begin, go_on=_train)


def _begin(options: SftCommand, stopper: Stopper) -> int:
    from .check import only_checked, run_folder  # bring the kernels, which --help has no use for
    from .session import best_precision
    from .tune_start import TuneStart

    out, start = Output(options.json), TuneStart(options, precision=best_precision())
    with run_folder(options, start.name) as folder:
        note(f"reading {start.dataset}")
        Examples.write(folder / EXAMPLES, start.making.examples(conversations(start.dataset)))
        made = start.config("pellucid sft", steps=1, packing=options.packing)
        steps = _rows(Tuning(folder, made, start.tokenizer))[0].steps(options.epochs)
        made = start.config("pellucid sft", steps=steps, packing=options.packing)
        run = Tuning(folder, made, start.tokenizer, options.device)
        if only_checked(options, out, made.model, made.train, lambda: _plan(run)):
            return 0
        return _train(save_tuning(run), out, stopper)


def _plan(run: Tuning) -> Plan:
    from ..train.readiness_data import rows_plan

    rows, held_out = _rows(run)
    how = {"base": run.config.weights, "less": less_memory(run.config.lora is not None)}
    return rows_plan(run.start, run.config.train, rows, held_out, run.tokenizer, run.folder, **how)


def _rows(run: Tuning) -> tuple[PackedRows, PackedRows | None]:
    """What is trained on, and what is held out."""
    c, examples = run.config, run.examples()
    trained, held = divided(len(examples), c.held_out, c.train.seed)
    how: dict[str, Any] = {
        "seq_len": c.train.seq_len,
        "sequences": c.train.sequences,
        "seed": c.train.seed,
        "packing": c.packing,
    }
    rows = PackedRows(examples.subset(trained), **how)
    return rows, PackedRows(examples.subset(held), **how) if len(held) else None


def _train(run: Tuning, out: Output, stopper: Stopper) -> int:
    from ..train import NextToken

    rows, held_out = _rows(run)
    count, packed = len(rows.examples), rows.count(0)
    fill = rows.tokens() / (packed * (run.config.train.seq_len + 1))
    announce(run, count, 0 if held_out is None else len(held_out.examples), f"rows, {fill:.0%} filled")
    trainer, result = train(run, run.start(), stopper, rows, held_out, NextToken())
    facts = {"examples": count, "rows": packed, "filled": round(fill, 3)}
    return report(run, trainer, result, facts, out, stopper)
