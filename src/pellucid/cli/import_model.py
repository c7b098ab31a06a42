"""`pellucid import`: a model published by others, as a checkpoint of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..checkpoint import keep_model, open_model
from .export import report
from .output import Output
from .parse import Flag, parse

HELP = """Turns a model published by others into a checkpoint: float32 weights, configuration, tokenizer, chat template.

Examples:
  pellucid import SmolLM2-135M-Instruct smollm2      a Hugging Face folder that was downloaded
  pellucid import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
  pellucid generate smollm2 "The capital of France is" --greedy

Hugging Face folders of the Llama, Mistral, Mixtral, Qwen2, Qwen3 and GPT-2 families are read, and GGUF files of those
without experts, whatever width their numbers have. A model that asks for what this library doesn't have is refused by
the name of it. The commands that use a model read folders and files themselves, too: import what is used often."""


@dataclass(frozen=True)
class ImportCommand:
    """Options of `pellucid import`."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """The published model: a folder or file."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Where to write the checkpoint; one that is there is replaced."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(ImportCommand, arguments, command="import", help=HELP)
    opened = open_model(options.source)
    path = keep_model(options.out, opened)
    report(opened, path, "float32", Output(options.json))
    return 0
