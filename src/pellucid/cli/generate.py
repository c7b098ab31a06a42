"""`pellucid generate`: a checkpoint and a prompt -> text, streamed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from ..base.errors import CheckpointError, ConfigError, DataError
from ..checkpoint import OpenedModel, open_model
from ..generate import Text
from .machine import DeviceName, Threads, use_machine
from .output import Output
from .parse import Flag, parse, told
from .sampling import opening, sampler_of, tokens

HELP = """Writes text with a trained model, as it comes, to stdout: the prompt and what follows it.

Examples:
  pellucid generate runs/book                              from the model's own beginning
  pellucid generate runs/book "It was" --tokens 500
  pellucid generate runs/book "It was" --greedy            always the most likely token
  pellucid generate runs/book "Q: Why?" --stop "Q:"        until the model asks itself the next question
  pellucid generate runs/book "It was" --weights int8      sooner, on a quarter of the memory
  cat prompt.txt | pellucid generate runs/book -           the prompt from stdin

The prompt has to fit the model's context. A text that grows beyond the context goes on from its last half."""

Off = tyro.conf.DisallowNone


@dataclass(frozen=True)
class GenerateCommand:
    """Options of `pellucid generate`."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Run folder (its newest checkpoint), checkpoint folder, or a published model."""
    prompt: Annotated[str, tyro.conf.Positional, told("the model's own beginning", "[PROMPT]")] = ""
    """Text to continue; - reads it from stdin."""
    tokens: int = 200
    """New tokens at most."""
    temperature: float = 0.8
    """Divides the logits: below 1 safer, above 1 wilder."""
    top_k: int | None = 50
    """Draw from this many most likely tokens. None: from all."""
    top_p: float | None = None
    """Draw from the most likely tokens that reach this probability together. None: from all."""
    repetition_penalty: float | None = None
    """Divides the logits of tokens the text already has; 1.1 is mild. None: no penalty."""
    greedy: Flag = False
    """Always the most likely token; temperature, top-k, top-p and seed have no effect."""
    seed: Annotated[int | None, Off, told("another text every time")] = None
    """Of the draws: the same seed gives the same text."""
    stop: Annotated[str | None, Off, told("goes on", "TEXT")] = None
    """End before this text appears."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Hold the weights in this: int8 is the fastest and smallest, float32 the most precise."""
    threads: Threads = None
    device: DeviceName = "cpu"
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(GenerateCommand, arguments, command="generate", help=HELP)
    if options.tokens < 1:
        raise ConfigError("--tokens", "must be at least 1", got=options.tokens)
    sampler = sampler_of(options)
    use_machine(options)
    prompt = _stdin() if options.prompt == "-" else options.prompt
    opened = open_model(options.path, device=options.device)
    model, tokenizer = opened.model, opened.tokenizer
    weight_bytes = model.hold_weights(options.weights)
    if tokenizer is None:
        raise CheckpointError(str(options.path), "the checkpoint has no tokenizer", hint="generate through the library")
    ids = _encode(opened, prompt)
    limit = model.config.max_seq_len
    if len(ids) > limit:
        got, expected = f"{len(ids):,} tokens", f"at most {limit:,}"
        raise DataError("prompt", "longer than the model's context", got=got, expected=expected, hint="shorten it")
    out, start = Output(options.json), time.perf_counter()
    out.text(prompt, end="")
    stops, drawn = (options.stop,) if options.stop else (), tokens(model, ids, sampler)
    text = Text(drawn, tokenizer, limit=options.tokens, stops=stops, after=ids, ends=opened.eos_ids)
    pieces = []
    for piece in text:
        out.text(piece, end="")
        pieces.append(piece)
    out.text()
    seconds = time.perf_counter() - start
    out.result(
        {
            "prompt": prompt,
            "text": "".join(pieces),
            "tokens": text.count,
            "ended": text.ended,
            "checkpoint": str(opened.path),
            "weights": options.weights,
            "weight_bytes": weight_bytes,
            "seed": None if options.greedy else sampler.generator.seed,
            "seconds": seconds,
            "tokens_per_second": text.count / seconds,
        }
    )
    return 0


def _encode(opened: OpenedModel, prompt: str) -> np.ndarray:
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    try:
        ids = opened.prompt_ids(prompt)
        return ids if len(ids) else opening(tokenizer)
    except DataError as error:
        hint = "the model can only read characters of its training text" if tokenizer.kind == "char" else error.hint
        raise DataError("prompt", error.what, got=error.got, expected=error.expected, hint=hint) from None


def _stdin() -> str:
    if sys.stdin is None:
        raise DataError("stdin", "cannot be read: it is closed")
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("stdin", f"not UTF-8 text: bad byte at offset {error.start}") from None
