"""`pellucid eval`: a checkpoint and text -> loss, perplexity, bits per byte."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..base.errors import CheckpointError, ConfigError, DataError
from ..checkpoint import OpenedModel, open_model
from ..data import TokenFile
from ..text import Tokenizer
from ..train import evaluate_file
from .corpus import bytes_per_token, is_token_file, write_tokens
from .output import Output, duration, note
from .parse import Flag, parse, told
from .runs import run_of

HELP = """Measures a model on text: loss, perplexity and bits per byte, every token weighing the same.

Examples:
  pellucid eval runs/book                       on the part of its own text that the run held out
  pellucid eval runs/book other.txt             on other text, encoded with the model's tokenizer
  pellucid eval runs/book tokens.bin            on a token file of the same tokenizer
  pellucid eval runs/book/checkpoints/step-00000500

The text is read in consecutive windows of the context; a tail shorter than a window is left out. Bits per byte compare
models with different tokenizers; perplexities don't."""

Off = tyro.conf.DisallowNone


@dataclass(frozen=True)
class EvalCommand:
    """Options of `pellucid eval`."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Run folder (its newest checkpoint), checkpoint folder, or a published model."""
    text: Annotated[Path | None, tyro.conf.Positional, Off, told("the run's held-out part", "[TEXT]")] = None
    """Text file, .jsonl file, folder or token file (.bin)."""
    sequences: int = 16
    """Windows computed at a time."""
    seq_len: Annotated[int | None, Off, told("the model's context")] = None
    """Tokens predicted in a window."""
    max_batches: int | None = None
    """Read this many times `sequences` windows at most, spread over the text. None: all of it."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Hold the weights in this: what int8 costs is the difference of two losses."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(EvalCommand, arguments, command="eval", help=HELP)
    for name, value in (("--sequences", options.sequences), ("--max-batches", options.max_batches)):
        if value is not None and value < 1:
            raise ConfigError(name, "must be at least 1", got=value)
    opened = open_model(options.path)
    model = opened.model
    model.hold_weights(options.weights)
    context = model.config.max_seq_len
    seq_len = context if options.seq_len is None else options.seq_len
    if not 1 <= seq_len <= context:
        raise ConfigError("--seq-len", "does not fit the model", got=seq_len, expected=f"1 to {context} (the context)")
    with tempfile.TemporaryDirectory(prefix="pellucid-") as scratch:
        tokens, tokenizer, name = _text(options, opened, Path(scratch))
        tokens.check_vocabulary(model.config.vocab_size)
        if len(tokens) < 2:
            raise DataError(name, "too short to predict anything", got=f"{len(tokens)} tokens", expected="at least 2")
        start = time.perf_counter()
        found = evaluate_file(
            model, tokens, sequences=options.sequences, seq_len=seq_len, max_batches=options.max_batches
        )
        seconds = time.perf_counter() - start
        bits = None
        if tokenizer is not None:
            bits = found.loss / log(2) / bytes_per_token(tokens, tokenizer)
        count = len(tokens)
        del tokens  # a mapped file can't be removed everywhere
    out = Output(options.json)
    out.facts(
        {
            "checkpoint": opened.path,
            "text": name,
            "tokens": f"{found.n_targets:,} predicted of {count:,} ({duration(seconds)})",
            "loss": f"{found.loss:.4f} nats/token",
            "perplexity": f"{found.perplexity:.4f}",
            "bits per byte": None if bits is None else f"{bits:.4f}",
        }
    )
    out.result(
        {
            "checkpoint": str(opened.path),
            "weights": options.weights,
            "text": name,
            "tokens": count,
            "predicted": found.n_targets,
            "loss": found.loss,
            "perplexity": found.perplexity if found.perplexity < float("inf") else None,
            "bits_per_byte": bits,
            "seconds": seconds,
        }
    )
    return 0


def _text(options: EvalCommand, opened: OpenedModel, scratch: Path) -> tuple[TokenFile, Tokenizer | None, str]:
    """The tokens to evaluate, the tokenizer that gives them bytes, and what to call them."""
    tokenizer = opened.tokenizer
    if options.text is None:
        found = run_of(options.path)
        held_out = None
        if found is not None and found.config.held_out:
            found.verify()
            held_out = found.tokens()[1]
        if found is None or held_out is None:
            what = "no run with held-out text here" if found is None else "the run held nothing out"
            raise ConfigError(str(options.path), what, hint=f"name a text: pellucid eval {options.path} TEXT")
        return held_out, found.tokenizer, f"held-out part of {found.config.corpus}"
    if is_token_file(options.text):
        tokens = TokenFile.open(options.text)
        if tokenizer is not None:
            tokens.check_tokenizer(tokenizer)
        return tokens, tokenizer, str(options.text)
    if tokenizer is None:
        raise CheckpointError(str(options.path), "the checkpoint has no tokenizer", hint="give a token file (.bin)")
    note(f"encoding {options.text}")
    return write_tokens(scratch / "tokens.bin", options.text, tokenizer), tokenizer, str(options.text)
