"""`pellucid tokenizer info` and `compare`: what vocabularies hold and what they make of a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from ..base.errors import ConfigError
from ..data import documents
from ..text import Tokenizer, load_tokenizer
from ..text.measure import Measured, Share, by_script, measure, pieces_of
from .corpus import whole_lines
from .output import Output
from .parse import Flag, parse, told

INFO = """Says what a tokenizer holds: its kind and size, its pieces by script, the longest of them; with a text also
what it makes of that: characters and bytes a token, script by script, and the pieces the text needs least.

Examples:
  pellucid tokenizer info tokenizer.json
  pellucid tokenizer info tokenizer.json books/"""

COMPARE = """Encodes one text with several tokenizers: characters and bytes a token, and how fast.

Examples:
  pellucid tokenizer compare a.json b.json --corpus books/"""

Off = tyro.conf.DisallowNone


@dataclass(frozen=True)
class TokenizerInfoCommand:
    """Options of `pellucid tokenizer info`."""

    tokenizer: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER")]
    """Tokenizer file."""
    corpus: Annotated[Path | None, tyro.conf.Positional, Off, told("none", "[CORPUS]")] = None
    """Text to measure it on: a file, a folder, JSONL or parquet, also compressed (.gz, .zst)."""
    field: str = "text"
    """Key of the text in JSONL lines, or the column of a parquet file."""
    pieces: int = 20
    """How many of the longest and of the rarest pieces to show."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


@dataclass(frozen=True)
class CompareCommand:
    """Options of `pellucid tokenizer compare`."""

    tokenizers: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER ...")]
    """Tokenizer files."""
    corpus: Annotated[Path, tyro.conf.arg(metavar="PATH")]
    """Text: a file, a folder, JSONL or parquet, also compressed (.gz, .zst)."""
    field: str = "text"
    """Key of the text in JSONL lines, or the column of a parquet file."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def info(arguments: list[str]) -> int:
    """Runs `info`; returns the exit status."""
    options = parse(TokenizerInfoCommand, arguments, command="tokenizer info", help=INFO)
    if options.pieces < 0:
        raise ConfigError("--pieces", "must not be negative", got=options.pieces)
    tokenizer = load_tokenizer(options.tokenizer)
    pieces = pieces_of(tokenizer)
    found = None
    if options.corpus is not None:
        found = measure(tokenizer, whole_lines(documents(options.corpus, field=options.field)))
    values = _facts(tokenizer, pieces, found, options.pieces)
    out = Output(options.json)
    _show(out, tokenizer, values)
    out.result({"path": str(options.tokenizer), **values})
    return 0


def _facts(tokenizer: Tokenizer, pieces: list[bytes], found: Measured | None, n: int) -> dict[str, Any]:
    ordinary = np.array([len(piece) > 0 for piece in pieces], np.int64)
    longest = sorted((i for i, piece in enumerate(pieces) if piece), key=lambda i: (-len(_characters(pieces[i])), i))
    facts: dict[str, Any] = {
        "kind": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "special": dict(tokenizer.special),
        "fingerprint": tokenizer.fingerprint(),
        "pieces_by_script": {name: _share(share) for name, share in by_script(pieces, ordinary).items()},
        "longest": [_characters(pieces[i]) for i in longest[:n]],
    }
    if found is None:
        return facts
    rarest = sorted((i for i, piece in enumerate(pieces) if piece), key=lambda i: (int(found.counts[i]), -i))
    used = [i for i in rarest if found.counts[i]]
    return {
        **facts,
        "corpus": _share(found.whole),
        "corpus_by_script": {name: _share(share) for name, share in found.scripts.items()},
        "unused": len(rarest) - len(used),
        "rarest": {_characters(pieces[i]): int(found.counts[i]) for i in used[:n]},
        "bytes_per_second": found.whole.bytes / max(found.seconds, 1e-9),
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "tokens": share.tokens,
        "characters_per_token": share.characters_per_token,
        "bytes_per_token": share.bytes_per_token,
    }


def _show(out: Output, tokenizer: Tokenizer, values: dict[str, Any]) -> None:
    special = ", ".join(f"{name} {number}" for name, number in tokenizer.special.items())
    out.facts(
        {
            "kind": values["kind"],
            "vocabulary": f"{values['vocabulary']:,} ids",
            "special": special or None,
            "fingerprint": values["fingerprint"],
        }
    )
    _table(out, "pieces", values["pieces_by_script"])
    if "corpus" in values:
        _table(out, "tokens of the text", {**values["corpus_by_script"], "all": values["corpus"]})
    out.text(f"\nlongest: {' '.join(map(_quoted, values['longest']))}")
    if "corpus" in values:
        rarest = " ".join(f"{_quoted(piece)} {count}" for piece, count in values["rarest"].items())
        out.text(f"rarest: {rarest} ({values['unused']:,} more are not used)")


def _table(out: Output, title: str, rows: dict[str, dict[str, Any]]) -> None:
    width = max(map(len, [title, *rows]))
    out.text(f"\n{title:<{width}}  {'number':>12}  characters/token  bytes/token")
    for name, row in rows.items():
        numbers = f"{row['characters_per_token']:>16.3f}  {row['bytes_per_token']:>11.3f}"
        out.text(f"{name:<{width}}  {row['tokens']:>12,}  {numbers}")


def compare(arguments: list[str]) -> int:
    """Runs `compare`; returns the exit status."""
    options = parse(CompareCommand, arguments, command="tokenizer compare", help=COMPARE)
    if not options.tokenizers:
        raise ConfigError("TOKENIZER", "nothing to compare", hint="name tokenizer files before --corpus")
    documents(options.corpus, field=options.field)
    tokenizers = [load_tokenizer(path) for path in options.tokenizers]
    out = Output(options.json)
    width = max(len(str(path)) for path in options.tokenizers)
    head = f"{'tokenizer':<{width}}  {'kind':<8}  {'ids':>9}  {'tokens':>12}  characters/token  bytes/token   MB/s"
    rows = []
    for path, tokenizer in zip(options.tokenizers, tokenizers, strict=True):
        found = measure(tokenizer, whole_lines(documents(options.corpus, field=options.field)))
        speed = found.whole.bytes / max(found.seconds, 1e-9) / 1e6
        if not rows:
            out.text(head)
        out.text(
            f"{path!s:<{width}}  {tokenizer.kind:<8}  {tokenizer.vocab_size:>9,}  {found.whole.tokens:>12,}  "
            f"{found.whole.characters_per_token:>16.3f}  {found.whole.bytes_per_token:>11.3f}  {speed:>5.1f}"
        )
        facts = {"path": str(path), "kind": tokenizer.kind, "vocabulary": tokenizer.vocab_size}
        rows.append({**facts, **_share(found.whole), "bytes_per_second": speed * 1e6})
    out.result({"corpus": str(options.corpus), "tokenizers": rows})
    return 0


def _characters(piece: bytes) -> str:
    """A piece as text; bytes that are no characters by themselves as \\x escapes."""
    return piece.decode("utf-8", errors="backslashreplace")


def _quoted(piece: str) -> str:
    return json.dumps(piece, ensure_ascii=False)
