"""`pellucid merge`: an adapter folded into the model it was trained on, as a model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..checkpoint import is_base, keep_model, load_lora, open_model
from ..nn import merge_lora
from .output import Output, note
from .parse import Flag, parse

HELP = """Adds an adapter's changes to the weights of its base and writes the result: a checkpoint like any other.

Examples:
  pellucid merge runs/book my-adapter merged       an adapter that was saved alone, in PEFT's layout
  pellucid merge model.gguf my-adapter merged      on any model that can be opened
  pellucid generate merged "It was"                at the speed of the base

A run that trains an adapter needs none of this: generate, chat and eval take the run and merge by themselves. One that
was trained beside rounded weights (--weights int8) opens with those; here it is merged into the base as it is."""


@dataclass(frozen=True)
class MergeCommand:
    """Options of `pellucid merge`."""

    base: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BASE")]
    """The model the adapter was trained on: a run, a checkpoint, or a model published by others."""
    adapter: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ADAPTER")]
    """Folder with adapter_config.json and adapter_model.safetensors."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Where to write the merged model; a checkpoint that is there is replaced."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(MergeCommand, arguments, command="merge", help=HELP)
    opened = open_model(options.base)
    config = load_lora(opened.model, options.adapter)
    if is_base(opened.model, options.adapter) is False:
        note(f"{options.adapter} was trained on other weights than these, or on these held in int8 or bfloat16")
    merge_lora(opened.model)
    path = keep_model(options.out, opened)
    nbytes = sum(p.stat().st_size for p in path.iterdir())
    facts = {"base": str(options.base), "adapter": str(options.adapter), "rank": config.rank, "merged": str(path)}
    out = Output(options.json)
    out.facts({**facts, "bytes": f"{nbytes:,}"})
    out.result({**facts, "bytes": nbytes})
    return 0
