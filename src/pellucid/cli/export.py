"""`pellucid export`: a model alone, without what its training needs, into a folder or a file, and read back once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from ..base import dtypes
from ..base.errors import ConfigError
from ..checkpoint import (
    AdaptedSource,
    Companions,
    ModelSource,
    OpenedModel,
    keep_model,
    open_model,
    parity,
    save_lora,
    write_gguf,
    write_hub,
)
from ..checkpoint.published.gguf_read import holds_gguf
from ..checkpoint.published.gguf_write import Precision
from .output import Output, note
from .parse import Flag, parse, told

HELP = """Writes a model alone to ship: weights, configuration and tokenizer, no optimizer.

Examples:
  pellucid export runs/book --out book-model                       a checkpoint, the weights as they are, float32
  pellucid export runs/book --out book-int8 --precision int8       in one byte each, rounded
  pellucid export runs/book --out book-hf --format hf              a Hugging Face folder
  pellucid export runs/book --out book-hf --format hf --precision bfloat16 --shard-mb 2000
  pellucid export runs/book --out book.gguf --format gguf --precision int8     a file for llama.cpp (Q8_0)
  pellucid export runs/chats --out my-adapter --format peft        the adapter of a run with --lora-rank, alone

hf holds vocabularies of bytes, characters, Unigram and byte pairs; gguf those of bytes and byte pairs (train
--train-tokenizer --tokenizer bpe). Those of published models go back where they came from.

generate, eval and info read what was written. An int8 checkpoint is about a quarter of the size; no training can go on
from it. What the format can't hold is refused by name. What was written is read back at the end, and its logits are
compared with the model's own on a fixed prompt."""

Off = tyro.conf.DisallowNone


@dataclass(frozen=True)
class ExportCommand:
    """Options of `pellucid export`."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Run folder (its newest checkpoint), checkpoint folder, or a published model."""
    out: Annotated[Path, tyro.conf.arg(metavar="PATH")]
    """Where to write it; an export of the same format that is there is replaced."""
    format: Literal["pellucid", "hf", "gguf", "peft"] = "pellucid"
    """pellucid: a checkpoint. hf: a Hugging Face folder. gguf: one file, for llama.cpp. peft: an adapter without its
    base."""
    precision: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    """Of the weights. pellucid takes float32 and int8 (one scale a row of each matrix).
    hf takes float32, bfloat16 and float16; gguf float32, bfloat16 and int8 (Q8_0: one scale for 32 weights); peft
    float32."""
    shard_mb: Annotated[int | None, Off, told("one file", "MB")] = None
    """hf: write several files of weights, each of this many million bytes at most."""
    average: Flag = False
    """The running mean of the weights (train --ema) in place of the weights."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class Writer:
    """A format: the precisions it takes, whether it can be several files, and what writes it."""

    precisions: tuple[str, ...]
    shards: bool
    write: Callable[[OpenedModel, ExportCommand], Path]


def _pellucid(opened: OpenedModel, options: ExportCommand) -> Path:
    return keep_model(options.out, opened, precision="int8" if options.precision == "int8" else "float32")


def _hf(opened: OpenedModel, options: ExportCommand) -> Path:
    return write_hub(
        options.out,
        opened.model,
        tokenizer=opened.tokenizer,
        chat_template=opened.chat_template,
        special_tokens=opened.special_tokens,
        eos_ids=opened.eos_ids,
        dtype=dtypes.dtype(options.precision),
        shard_bytes=None if options.shard_mb is None else options.shard_mb * 1_000_000,
    )


def _gguf(opened: OpenedModel, options: ExportCommand) -> Path:
    if options.out.exists() and not holds_gguf(options.out):
        hint = "choose another name, or remove what is there"
        raise ConfigError("--out", "cannot be replaced: not a GGUF file", got=options.out, hint=hint)
    companions = Companions(
        opened.tokenizer,
        chat_template=opened.chat_template,
        special_tokens=opened.special_tokens,
        begin_ids=opened.source.begin_ids,
        eos_ids=opened.eos_ids,
        name=opened.path.stem,
    )
    precision = cast(Precision, options.precision)
    model = opened.model
    for line in write_gguf(
        options.out, dict(model.named_parameters()), model.config, precision=precision, companions=companions
    ):
        note(line)
    return options.out


def _peft(opened: OpenedModel, options: ExportCommand) -> Path:
    source = opened.source
    if not isinstance(source, AdaptedSource):
        hint = "train one: pellucid sft --lora-rank 16"
        raise ConfigError("--format peft", "not a run that trained an adapter", got=opened.path, hint=hint)
    return save_lora(source.adapted(), options.out)


WRITERS: dict[str, Writer] = {
    "pellucid": Writer(("float32", "int8"), False, _pellucid),
    "gguf": Writer(("float32", "bfloat16", "int8"), False, _gguf),
    "peft": Writer(("float32",), False, _peft),
    "hf": Writer(("float32", "bfloat16", "float16"), True, _hf),
}


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(ExportCommand, arguments, command="export", help=HELP)
    writer = WRITERS[options.format]
    if options.precision not in writer.precisions:
        expected = ", ".join(writer.precisions)
        raise ConfigError(
            "--precision", f"not one of --format {options.format}", got=options.precision, expected=expected
        )
    if options.shard_mb is not None and not (writer.shards and options.shard_mb >= 1):
        what = "must be at least 1" if writer.shards else f"--format {options.format} is one file"
        raise ConfigError("--shard-mb", what, got=options.shard_mb)
    opened = open_model(options.path, average=options.average)
    path = writer.write(opened, options)
    source = opened.source
    base = source.base if options.format == "peft" and isinstance(source, AdaptedSource) else None
    report(opened, path, options.precision, Output(options.json), base=base)
    return 0


def report(opened: OpenedModel, path: Path, precision: str, out: Output, *, base: ModelSource | None = None) -> None:
    """What was written, and how far its logits are from the model's own; `base`: of an adapter written alone."""
    found = parity(path, opened.model, base=base)
    nbytes = sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size
    facts: dict[str, Any] = {"checkpoint": str(opened.path), "exported": str(path), "precision": precision}
    ignored = ", ".join(opened.source.ignored) or None
    out.facts({**facts, "bytes": f"{nbytes:,}", "without effect": ignored, "parity": str(found)})
    compared = {"tokens": found.tokens, "error": found.error, "same": found.same}
    out.result({**facts, "bytes": nbytes, "ignored": list(opened.source.ignored), "parity": compared})
