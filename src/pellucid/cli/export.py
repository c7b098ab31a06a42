"""`pellucid export`: a model alone, without what its training needs, into a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..checkpoint import save_checkpoint
from ..train import load_model
from .output import Output
from .parse import Flag, parse

HELP = """Writes a trained model into a folder to ship: weights, configuration and tokenizer, no optimizer.

Examples:
  pellucid export runs/book --out book-model                  the weights as they are, float32
  pellucid export runs/book --out book-q8 --precision q8      in one byte each, rounded
  pellucid generate book-q8 "It was" --weights int8           which is how they are used fastest

The folder is a checkpoint: generate, eval and info read it. A q8 one is about a quarter of the size; no training can go
on from it."""


@dataclass(frozen=True)
class ExportCommand:
    """Options of `pellucid export`."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """Run folder (its newest checkpoint) or checkpoint folder."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Where to write it; a checkpoint that is there is replaced."""
    precision: Literal["float32", "q8"] = "float32"
    """q8: int8 with one scale a row of each matrix."""
    average: Flag = False
    """The running mean of the weights (train --ema) in place of the weights."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(ExportCommand, arguments, command="export", help=HELP)
    model, checkpoint = load_model(options.path, average=options.average)
    state = {name: checkpoint.state[name] for name in ("step", "held_out_loss") if name in checkpoint.state}
    path = save_checkpoint(
        options.out,
        tensors=dict(model.named_parameters()),
        config=checkpoint.config,
        state=state,
        tokenizer=checkpoint.tokenizer,
        precision=options.precision,
    )
    nbytes = sum(p.stat().st_size for p in path.iterdir())
    out, facts = Output(options.json), _facts(checkpoint.path, path, options.precision)
    out.facts({**facts, "bytes": f"{nbytes:,}"})
    out.result({**facts, "bytes": nbytes})
    return 0


def _facts(source: Path, path: Path, precision: str) -> dict[str, Any]:
    return {"checkpoint": str(source), "exported": str(path), "precision": precision}
