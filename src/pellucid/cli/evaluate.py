"""`pellucid eval`: models, and text or questions -> loss, perplexity, bits per byte, accuracy, side by side."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..base.errors import CheckpointError, ConfigError, DataError
from ..checkpoint import OpenedModel, open_model
from ..data import Question, TokenFile, asked, overlap, read_questions, run_length
from ..text import Tokenizer
from ..train import (
    ChoiceResult,
    Evaluation,
    doubts,
    evaluate_choices,
    evaluate_file,
)
from .corpus import bytes_per_token, is_token_file, write_tokens
from .machine import DeviceName, Threads, use_machine
from .output import Output, duration, note
from .parse import Flag, parse, told
from .progress import Line
from .runs import Run, run_of

HELP = """Measures models on text (loss, perplexity, bits per byte, every token weighing the same) and on questions with
choices (the share answered rightly).

Examples:
  pellucid eval runs/book                       on the part of its own text that the run held out
  pellucid eval runs/book --text other.txt      on other text, encoded with the model's tokenizer
  pellucid eval runs/book --text tokens.bin     on a token file of the same tokenizer
  pellucid eval runs/book/checkpoints/step-00000500
  pellucid eval runs/a runs/b model.gguf --text other.txt --choices openbookqa.jsonl

The text is read in consecutive windows of the context; a tail shorter than a window is left out. Bits per byte compare
models with different tokenizers; perplexities don't.

Questions are JSONL, {"question": ..., "choices": [...], "answer": number or text} or OpenBookQA's layout. A model's
answer is the choice it gives the highest probability behind the question; "per byte" divides the logarithm by the
choice's length first.

A warning on stderr says where a run's training text holds the evaluation text (5% or more of its runs of about 50
bytes), where a loss is below 0.2 bits per byte, and where 95% of 20 or more questions are answered rightly: such
scores look memorised, or the suite is too easy."""

Off = tyro.conf.DisallowNone
NEEDED = tyro.conf.arg(metavar="MODEL...", help_behavior_hint="(required)")
_TOKENS = 1 << 14  # tokens computed at a time, unless told
_WINDOWS = 16


@dataclass(frozen=True)
class EvalCommand:
    """Options of `pellucid eval`."""

    models: Annotated[tuple[Path, ...], tyro.conf.Positional, NEEDED]
    """Run folders (their newest checkpoints), checkpoint folders, or published models."""
    text: Annotated[Path | None, Off, told("the run's held-out part", "PATH")] = None
    """Text file, .jsonl file, folder or token file (.bin)."""
    choices: Annotated[Path | None, Off, told("no questions", "JSONL")] = None
    """Multiple-choice questions. Without --text, nothing else is measured then."""
    sequences: Annotated[int | None, Off, told("16, fewer where windows are long")] = None
    """Windows computed at a time."""
    seq_len: Annotated[int | None, Off, told("the model's context")] = None
    """Tokens predicted in a window."""
    max_batches: int | None = None
    """Read this many times `sequences` windows at most, spread over the text. None: all of it."""
    max_questions: int | None = None
    """Ask the first so many questions. None: all."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Hold the weights in this: what int8 costs is the difference of two losses."""
    threads: Threads = None
    device: DeviceName = "cpu"
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class Measured:
    """What was found about one model."""

    model: OpenedModel
    seconds: float
    doubts: list[str]
    text: str | None = None
    tokens: int = 0
    loss: Evaluation | None = None
    bits: float | None = None
    overlap: float | None = None
    choices: ChoiceResult | None = None
    asked: float | None = None


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(EvalCommand, arguments, command="eval", help=HELP)
    for name in ("sequences", "max_batches", "max_questions"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}", "must be at least 1", got=value)
    if not options.models:
        raise ConfigError("models", "missing argument", hint="name a run, a checkpoint or a published model")
    if len(options.models) > 1 and options.text is None and options.choices is None:
        hint = "name one for all of them: --text PATH or --choices JSONL"
        raise ConfigError("--text", "runs hold out different texts, which can't be compared", hint=hint)
    use_machine(options)
    questions = None if options.choices is None else read_questions(options.choices)[: options.max_questions]
    out, found = Output(options.json), []
    for path in options.models:
        measured = _measure(path, options, questions)
        found.append(_values(measured, options))
        for doubt in measured.doubts:
            note(f"warning: {path}: {doubt}")
        if len(options.models) == 1:
            out.facts(_facts(measured))
    if len(found) > 1:
        out.table([_row(values) for values in found])
    out.result(found[0] if len(found) == 1 else {"models": found})
    return 0


def _measure(path: Path, options: EvalCommand, questions: list[Question] | None) -> Measured:
    """Evaluates one model."""
    opened = open_model(path, device=options.device)
    opened.model.hold_weights(options.weights)
    start, run = time.perf_counter(), run_of(path)
    found: dict[str, Any] = {}
    if options.text is not None or questions is None:
        with tempfile.TemporaryDirectory(prefix="pellucid-") as scratch:
            found = _measure_text(path, opened, run, options, Path(scratch))
    if questions is not None:
        found |= _measure_choices(opened, run, questions)
    said = doubts(
        bits_per_byte=found.get("bits"),
        overlap=found.get("overlap"),
        choices=found.get("choices"),
        asked=found.get("asked"),
    )
    return Measured(opened, time.perf_counter() - start, said, **found)


def _measure_text(
    path: Path, opened: OpenedModel, run: Run | None, options: EvalCommand, scratch: Path
) -> dict[str, Any]:
    model = opened.model
    context = model.config.max_seq_len
    seq_len = context if options.seq_len is None else options.seq_len
    if not 1 <= seq_len <= context:
        raise ConfigError("--seq-len", "does not fit the model", got=seq_len, expected=f"1 to {context} (the context)")
    tokens, tokenizer, name = _text(path, opened, run, options, scratch)
    tokens.check_vocabulary(model.config.vocab_size)
    if len(tokens) < 2:
        raise DataError(name, "too short to predict anything", got=f"{len(tokens)} tokens", expected="at least 2")
    sequences = options.sequences or max(1, min(_WINDOWS, _TOKENS // seq_len))
    found = evaluate_file(model, tokens, sequences=sequences, seq_len=seq_len, max_batches=options.max_batches)
    bits = shared = None
    if tokenizer is not None:
        size = bytes_per_token(tokens, tokenizer)
        bits = found.loss / log(2) / size
        if run is not None:
            shared = overlap(run.tokens()[0].ids, tokens.ids, run_length(size))
    return {"text": name, "tokens": len(tokens), "loss": found, "bits": bits, "overlap": shared}


def _measure_choices(opened: OpenedModel, run: Run | None, questions: list[Question]) -> dict[str, Any]:
    if (tokenizer := opened.tokenizer) is None:
        raise CheckpointError(str(opened.path), "the model has no tokenizer", hint="questions are text")
    with Line() as line:

        def show(done: int) -> None:
            if line.due() and done < len(questions):
                line.show(f"{done:,} of {len(questions):,} questions")

        before = opened.prompt_ids("").tolist()
        found = evaluate_choices(opened.model, tokenizer, questions, before=before, on_question=show)
    if run is None:
        return {"choices": found}
    texts = [f"{q.stem} {q.choices[q.answer]}" for q in questions]
    ids = [tokenizer.encode(text) for text in texts]
    length = run_length(sum(len(text.encode("utf-8")) for text in texts) / sum(map(len, ids)))
    return {"choices": found, "asked": asked(run.tokens()[0].ids, ids, length)}


def _text(
    path: Path, opened: OpenedModel, run: Run | None, options: EvalCommand, scratch: Path
) -> tuple[TokenFile, Tokenizer | None, str]:
    """The tokens to evaluate, the tokenizer that gives them bytes, and what to call them."""
    tokenizer = opened.tokenizer
    if options.text is None:
        held_out = None
        if run is not None and run.config.held_out:
            run.verify()
            held_out = run.tokens()[1]
        if run is None or held_out is None:
            what = "no run with held-out text here" if run is None else "the run held nothing out"
            raise ConfigError(str(path), what, hint=f"name a text: pellucid eval {path} --text PATH")
        return held_out, run.tokenizer, f"held-out part of {run.config.corpus}"
    if is_token_file(options.text):
        tokens = TokenFile.open(options.text)
        if tokenizer is not None:
            tokens.check_tokenizer(tokenizer)
        return tokens, tokenizer, str(options.text)
    if tokenizer is None:
        raise CheckpointError(str(path), "the checkpoint has no tokenizer", hint="give a token file (.bin)")
    note(f"encoding {options.text}")
    return write_tokens(scratch / "tokens.bin", options.text, tokenizer), tokenizer, str(options.text)


# --- what is said -----------------------------------------------------------------------------------------------------


def _facts(found: Measured) -> dict[str, object]:
    facts: dict[str, object] = {"checkpoint": found.model.path}
    if found.loss is not None:
        facts |= {
            "text": found.text,
            "tokens": f"{found.loss.n_targets:,} predicted of {found.tokens:,} ({duration(found.seconds)})",
            "loss": f"{found.loss.loss:.4f} nats/token",
            "perplexity": f"{found.loss.perplexity:.4f}",
            "bits per byte": None if found.bits is None else f"{found.bits:.4f}",
        }
    if (c := found.choices) is not None:
        facts |= {
            "questions": f"{c.questions:,} ({duration(found.seconds)}); {c.chance:.1%} by chance",
            "cut": f"{c.cut:,} questions, at their beginning, to fit the context" if c.cut else None,
            "accuracy": f"{c.accuracy:.1%} +- {c.stderr:.1%}",
            "accuracy per byte": f"{c.accuracy_per_byte:.1%} +- {c.stderr_per_byte:.1%}",
        }
    return facts


def _values(found: Measured, options: EvalCommand) -> dict[str, Any]:
    values: dict[str, Any] = {
        "checkpoint": str(found.model.path),
        "parameters": found.model.model.config.parameter_counts().total,
        "weights": options.weights,
    }
    if found.loss is not None:
        values |= {
            "text": found.text,
            "tokens": found.tokens,
            "predicted": found.loss.n_targets,
            "loss": found.loss.loss,
            "perplexity": found.loss.perplexity,
            "bits_per_byte": found.bits,
        }
    if (c := found.choices) is not None:
        values |= {
            "questions": c.questions,
            "accuracy": c.accuracy,
            "stderr": c.stderr,
            "accuracy_per_byte": c.accuracy_per_byte,
            "stderr_per_byte": c.stderr_per_byte,
            "chance": c.chance,
            "cut": c.cut,
            "asked": found.asked,
        }
    return values | {"overlap": found.overlap, "doubts": found.doubts, "seconds": found.seconds}


def _row(values: dict[str, Any]) -> dict[str, str]:
    """A line of the comparison."""
    row = {"model": values["checkpoint"], "parameters": f"{values['parameters']:,}"}
    if "loss" in values:
        bits = values["bits_per_byte"]
        row |= {
            "loss": f"{values['loss']:.4f}",
            "perplexity": f"{values['perplexity']:.2f}",
            "bits/byte": "" if bits is None else f"{bits:.4f}",
        }
    if "accuracy" in values:
        row |= {
            "accuracy": f"{values['accuracy']:.1%} +- {values['stderr']:.1%}",
            "per byte": f"{values['accuracy_per_byte']:.1%} +- {values['stderr_per_byte']:.1%}",
        }
    return row
