"""`pellucid sft`: instructions and a model -> a model that answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..checkpoint import lock_folder
from ..data import Examples, PackedRows, conversations
from .output import Output, note
from .parse import parse, pick, told
from .runs import new_folder
from .signals import Stopper
from .tuning import (
    EXAMPLES,
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
    open_tuning,
    report,
    save_tuning,
    special_tokens,
    template_text,
    train,
    train_config,
)

HELP = """Teaches a model to answer: supervised fine-tuning on a file of instructions, with the loss on answers only.

Examples:
  pellucid sft --dataset chats.jsonl --init-from runs/book --template transcript
  pellucid sft --dataset instructions.jsonl --init-from model.gguf --seq-len 512 --epochs 3
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
    asked = "-h" in arguments or "--help" in arguments
    with Stopper() as stopper:
        if not asked and pick(ResumeSource, arguments, command="sft").resume is not None:
            options = parse(ResumeTuning, arguments, command="sft", help=HELP)
            found = open_tuning(options.resume, "pellucid sft")
            with lock_folder(found.folder):
                return _train(found, Output(options.json), stopper)
        return _begin(parse(SftCommand, arguments, command="sft", help=HELP), stopper)


def _begin(options: SftCommand, stopper: Stopper) -> int:
    from .session import best_precision  # brings the kernels, which --help has no use for

    dataset, source, tokenizer = checked(options)
    text, tokens = template_text(options.template, source), special_tokens(source, tokenizer)
    config = train_config(options, source, 1)
    making = encoding(text, tokens, tokenizer, config.seq_len + 1, options)
    with new_folder(options.out, dataset.resolve().stem.split(".")[0] or "dataset") as folder:
        note(f"reading {dataset}")
        Examples.write(folder / EXAMPLES, making.examples(conversations(dataset)))
        model = replace(source.config, precision=options.precision or best_precision())
        made = TuneConfig(
            format="pellucid sft",
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
            begin_ids=source.begin_ids,
            tokenizer=tokenizer.fingerprint(),
            model=model,
            train=config,
            lora=lora_config(options),
            packing=options.packing,
        )
        rows, _ = _rows(Tuning(folder, made, tokenizer))
        made = replace(made, train=train_config(options, source, rows.steps(options.epochs)))
        return _train(save_tuning(folder, made, tokenizer), Output(options.json), stopper)


def _rows(run: Tuning) -> tuple[PackedRows, PackedRows | None]:
    """What is trained on, and what is held out."""
    c, examples = run.config, run.examples()
    held = held_out_numbers(len(examples), c.held_out, c.train.seed)
    how: dict[str, Any] = {
        "seq_len": c.train.seq_len,
        "sequences": c.train.sequences,
        "seed": c.train.seed,
        "packing": c.packing,
    }
    rows = PackedRows(examples.subset((~held).nonzero()[0]), **how)
    return rows, PackedRows(examples.subset(held.nonzero()[0]), **how) if held.any() else None


def _train(run: Tuning, out: Output, stopper: Stopper) -> int:
    from ..train import NextToken

    rows, held_out = _rows(run)
    count, one = len(rows.examples), run.config.train.seq_len + 1
    fill = rows.examples.lengths.sum() / (len(rows.rows(0)) * one)
    announce(run, count, 0 if held_out is None else len(held_out.examples), f"rows, {fill:.0%} filled")
    trainer, result = train(run, run.start(), stopper, rows, held_out, NextToken())
    facts = {"examples": count, "rows": len(rows.rows(0)), "filled": round(float(fill), 3)}
    return report(run, trainer, result, facts, out, stopper)
