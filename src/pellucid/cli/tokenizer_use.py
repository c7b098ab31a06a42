"""`pellucid tokenizer encode` and `decode`: text to ids, ids to text, a line or a whole corpus."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from ..base.errors import ConfigError, DataError
from ..base.files import check_target
from ..data import TokenFile, documents
from ..text import Tokenizer, load_tokenizer
from .output import Output, duration, note, size
from .parse import Flag, parse, told
from .progress import Encoding

ENCODE = """Writes the ids of a text, in one line; of a corpus, into a token file.

Examples:
  pellucid tokenizer encode tokenizer.json "some text"
  pellucid tokenizer encode tokenizer.json < book.txt                       the text from stdin
  pellucid tokenizer encode tokenizer.json "some text" --pieces             what each id stands for
  pellucid tokenizer encode tokenizer.json --corpus books/ --out books.bin  a token file, in constant memory

Names of special tokens in a text are text like any other, unless --special allows them."""

DECODE = """Writes the text of ids.

Examples:
  pellucid tokenizer decode tokenizer.json 12 7 512
  pellucid tokenizer encode tokenizer.json "text" | pellucid tokenizer decode tokenizer.json
  pellucid tokenizer decode tokenizer.json --tokens books.bin --start 1000 --count 50"""

Off = tyro.conf.DisallowNone
File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER")]


@dataclass(frozen=True)
class EncodeCommand:
    """Options of `pellucid tokenizer encode`."""

    tokenizer: File
    """Tokenizer file."""
    text: Annotated[str | None, tyro.conf.Positional, Off, told("stdin", "[TEXT]")] = None
    """Text to encode."""
    corpus: Annotated[Path | None, Off, told("none", "PATH")] = None
    """Text to encode into a token file: a file, a folder, JSONL or parquet, also compressed (.gz, .zst)."""
    out: Annotated[Path | None, Off, told("none", "FILE")] = None
    """The token file (.bin) a corpus is written to."""
    field: str = "text"
    """Key of the text in JSONL lines, or the column of a parquet file."""
    resume: Flag = False
    """Go on with the file that a stopped run with --resume left; it comes out the same."""
    pieces: Flag = False
    """Show what each id stands for."""
    special: Flag = False
    """Let names of special tokens in the text be special tokens."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class DecodeCommand:
    """Options of `pellucid tokenizer decode`."""

    tokenizer: File
    """Tokenizer file."""
    ids: Annotated[tuple[str, ...], tyro.conf.Positional, told("stdin", "[ID ...]")] = ()
    """Ids to decode."""
    tokens: Annotated[Path | None, Off, told("none", "FILE")] = None
    """Token file (.bin) to read ids from."""
    start: int = 0
    """First token to read there."""
    count: int = 200
    """Tokens to read there at most."""
    show_special: Flag = False
    """Write the names of special tokens."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def encode(arguments: list[str]) -> int:
    """Runs `encode`; returns the exit status."""
    options = parse(EncodeCommand, arguments, command="tokenizer encode", help=ENCODE)
    if options.corpus is not None:
        return _encode_corpus(options, options.corpus)
    if options.out is not None:
        raise ConfigError("--out", "needs a corpus", hint="--corpus PATH --out FILE")
    if options.resume:
        raise ConfigError("--resume", "needs a corpus", hint="--corpus PATH --out FILE")
    tokenizer = load_tokenizer(options.tokenizer)
    text = _stdin() if options.text is None else options.text
    ids = tokenizer.encode(text, allowed_special="all" if options.special else ())
    pieces = [tokenizer.decode([i], show_special=True) for i in ids.tolist()] if options.pieces else None
    out = Output(options.json)
    if pieces is None:
        out.text(" ".join(map(str, ids.tolist())))
    else:
        for number, piece in zip(ids.tolist(), pieces, strict=True):
            out.text(f"{number:>7}  {json.dumps(piece, ensure_ascii=False)}")
    out.result({"ids": ids.tolist(), "characters": len(text), **({} if pieces is None else {"pieces": pieces})})
    return 0


def _encode_corpus(options: EncodeCommand, corpus: Path) -> int:
    if options.text is not None or options.pieces or options.special:
        raise ConfigError("--corpus", "cannot be combined with a text, --pieces or --special")
    if options.out is None:
        raise ConfigError("--corpus", "nowhere to write the ids", hint="--out FILE.bin")
    check_target(options.out)
    tokenizer = load_tokenizer(options.tokenizer)
    found = documents(corpus, field=options.field)
    with Encoding() as progress:
        count = TokenFile.write_documents(
            options.out, found, tokenizer, eos=tokenizer.eot, on_progress=progress, resume=options.resume
        )
    done = progress.last
    nbytes, seconds = options.out.stat().st_size, done.seconds if done else 0.0
    out = Output(options.json)
    rate = (found.bytes_total - (done.bytes_skipped if done else 0)) / max(seconds, 1e-9)
    out.facts(
        {
            "token file": options.out,
            "documents": f"{done.documents:,}" if done else None,
            "tokens": f"{count:,} ({size(nbytes)})",
            "time": f"{duration(seconds)} ({size(round(rate))} of the corpus a second)",
        }
    )
    out.result(
        {
            "tokens_file": str(options.out),
            "documents": done.documents if done else 0,
            "tokens": count,
            "bytes": nbytes,
            "seconds": seconds,
        }
    )
    return 0


def decode(arguments: list[str]) -> int:
    """Runs `decode`; returns the exit status."""
    options = parse(DecodeCommand, arguments, command="tokenizer decode", help=DECODE)
    tokenizer = load_tokenizer(options.tokenizer)
    ids = _ids(options, tokenizer)
    text = tokenizer.decode(ids, show_special=options.show_special)
    out = Output(options.json)
    out.text(text, end="" if text.endswith("\n") else "\n")
    out.result({"text": text, "ids": len(ids)})
    return 0


def _ids(options: DecodeCommand, tokenizer: Tokenizer) -> np.ndarray:
    if options.tokens is not None:
        if options.ids:
            raise ConfigError("--tokens", "cannot be combined with ids")
        if options.start < 0 or options.count < 1:
            raise ConfigError("--start", "no such range", got=f"{options.start}, {options.count} tokens")
        found = TokenFile.open(options.tokens)
        found.check_tokenizer(tokenizer)
        return found.part(options.start, min(options.start + options.count, len(found))).ids.astype(np.int64)
    where, words = ("ID", options.ids) if options.ids else ("stdin", _stdin().split())
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 12):
            raise DataError(where, "not an id", got=repr(word[:40]), expected="whole numbers")
    return np.array([int(word) for word in words], np.int64)


def _stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        note("reading stdin until its end")
    raw = sys.stdin.buffer.read() if sys.stdin is not None else b""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("stdin", f"not UTF-8 text: bad byte at offset {error.start}") from error
