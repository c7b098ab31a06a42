"""`pellucid tokenizer train`: text -> a tokenizer file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from ..base.errors import ConfigError
from ..base.files import check_target
from ..data import documents
from ..text import END_OF_TEXT
from ..text.measure import measure
from .corpus import Form, Kind, train_tokenizer, whole_lines
from .output import Output, duration, note, size
from .parse import Flag, parse, told

HELP = """Trains a tokenizer: the pieces a text is cut into, chosen so that yours takes few of them.

Examples:
  pellucid tokenizer train --corpus books/ --vocab 8000             a Unigram tokenizer (Kudo 2018)
  pellucid tokenizer train --corpus lines.jsonl --kind bpe          byte-level BPE, as GPT-2 has
  pellucid tokenizer train --corpus book.txt --kind char            one id for each character
  pellucid tokenizer train --corpus shahnameh.txt --normalize nfc persian

The same text gives the same tokenizer, bit for bit, on any number of threads."""

Off = tyro.conf.DisallowNone
_SAMPLE = 8  # strings of about a megabyte, to say what the tokenizer makes of the corpus


@dataclass(frozen=True)
class TokenizerTrainCommand:
    """Options of `pellucid tokenizer train`."""

    corpus: Annotated[Path, tyro.conf.arg(metavar="PATH")]
    """Text: a file, a folder, JSONL or parquet, also compressed (.gz, .zst)."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("tokenizer.json")
    """File to write."""
    kind: Kind = "unigram"
    """unigram and bpe are trained to a size; char and byte have the size they have."""
    vocab: Annotated[int | None, Off, told("8000 for unigram and bpe")] = None
    """Ids, special tokens included."""
    special: tuple[str, ...] = (END_OF_TEXT,)
    """Special tokens: names that no text can spell."""
    normalize: tuple[Form, ...] = ()
    """What is done to every text before, in this order: Unicode's forms nfc or nfkc; persian.
    persian: Arabic yeh, kaf and digits become Persian ones, vowel signs go.
    None by default: then every text comes back as it was."""
    space_before: Flag = False
    """bpe: encode every text with a space before it, so that its first word looks like every other.
    Decoding takes it away. For corpora of short texts; unigram does so in any case."""
    field: str = "text"
    """Key of the text in JSONL lines, or the column of a parquet file."""
    pattern: Annotated[str | None, Off, told("text files of every kind", "GLOB")] = None
    """Names of the files to read out of a folder."""
    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def train(arguments: list[str]) -> int:
    """Runs the action; returns the exit status."""
    options = parse(TokenizerTrainCommand, arguments, command="tokenizer train", help=HELP)
    if options.vocab is not None and options.kind in ("char", "byte"):
        raise ConfigError("--vocab", f"a {options.kind} tokenizer has the size it has", hint="leave it out")
    if options.space_before and options.kind != "bpe":
        raise ConfigError("--space-before", f"not for {options.kind}", hint="--kind bpe")
    if options.vocab is not None and options.vocab < 1:
        raise ConfigError("--vocab", "must be at least 1", got=options.vocab)
    check_target(options.out)
    found = documents(options.corpus, field=options.field, pattern=options.pattern)
    note(f"reading {options.corpus} ({size(found.bytes_total)})")
    began = time.perf_counter()
    texts = whole_lines(found)
    tokenizer = train_tokenizer(
        options.kind,
        texts,
        options.vocab or 8000,
        options.special,
        flag="--vocab",
        normalize=options.normalize,
        space_before=options.space_before,
    )
    seconds = time.perf_counter() - began
    tokenizer.save(options.out)
    sample = islice(documents(options.corpus, field=options.field, pattern=options.pattern), _SAMPLE)
    share = measure(tokenizer, whole_lines(sample)).whole
    out = Output(options.json)
    out.facts(
        {
            "tokenizer": options.out,
            "kind": options.kind,
            "vocabulary": f"{tokenizer.vocab_size:,} ids",
            "characters": f"{share.characters_per_token:.3f} a token",
            "bytes": f"{share.bytes_per_token:.3f} a token",
            "time": duration(seconds),
        }
    )
    out.result(
        {
            "tokenizer": str(options.out),
            "kind": options.kind,
            "vocabulary": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint(),
            "characters_per_token": share.characters_per_token,
            "bytes_per_token": share.bytes_per_token,
            "seconds": seconds,
        }
    )
    return 0
