"""Case tokenizers: a vocabulary is trained and used, on the Persian poems and on Shakespeare, a line a document.

Before a time is taken, what is timed has to be right: every line comes back from its ids, a batch gives the ids that
its lines give one by one, and a tokenizer trained a second time is the same. Speeds are of UTF-8 bytes of text;
characters a token say what the vocabulary is worth: a faster tokenizer that makes more tokens has won nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.text import BPETokenizer, Tokenizer, UnigramTokenizer

from .options import Options, Refused
from .peers.tokenizer_libraries import HubTokenizers, SentencePiece
from .report import Row, interleaved, row

CASE = "tokenizers"
SIZE = 8000  # ids
KINDS = ("unigram", "bpe")
TEXTS = {
    "Persian": ("hafez", "khayyam", "moulavi", "naserkhosro", "roodaki", "saadi"),
    "English": ("tinyshakespeare",),
}
CHECKED = 2000  # lines


def ours(lines: Sequence[str], kind: str, size: int) -> Tokenizer:
    if kind == "unigram":
        return UnigramTokenizer.train(lines, size)
    # Lines are short: their first words should look like all others, as they do to every side here.
    return BPETokenizer.train(lines, size, space_before=True)


def lines_of(options: Options, language: str) -> list[str]:
    """The lines of a language's files that aren't empty, without their ends."""
    folder = Path(language.lower())
    files = [options.corpus(folder / f"{name}.txt") for name in TEXTS[language]]
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]


def check(tokenizer: Tokenizer, lines: Sequence[str], again: Tokenizer) -> None:
    """Raises Refused for a tokenizer that isn't exact."""
    if again.fingerprint() != tokenizer.fingerprint():
        raise Refused(f"{CASE}: trained twice, {tokenizer.kind} is not the same")
    batch = tokenizer.encode_batch(lines)
    for line, ids in zip(lines, batch, strict=True):
        if tokenizer.decode(ids) != line:
            raise Refused(f"{CASE}: {tokenizer.kind} does not give back {line!r}")
    for line, ids in zip(lines[:CHECKED], batch, strict=False):
        if not np.array_equal(tokenizer.encode(line), ids):
            raise Refused(f"{CASE}: in a batch, {tokenizer.kind} has other ids for {line!r}")


def peers(options: Options) -> list[Any]:
    if options.peer != "tokenizers":
        return []
    return [HubTokenizers(options.threads), SentencePiece(options.threads)]


def run(options: Options) -> list[Row]:
    """Both texts, every kind: rows of training and of encoding, ours and the peers' in turns."""
    beside, found = peers(options), []
    for language in TEXTS:
        lines = lines_of(options, language)
        size, characters = sum(len(line.encode()) for line in lines), sum(map(len, lines))
        for kind in KINDS:
            print(f"  {language}, {kind}: {len(lines):,} lines, {size / 1e6:.1f} MB", file=sys.stderr, flush=True)
            mine = ours(lines, kind, SIZE)
            check(mine, lines, ours(lines, kind, SIZE))
            trained = {peer.name: peer.train(lines, kind, SIZE) for peer in beside}

            trainers = {"pellucid": lambda lines=lines, kind=kind: ours(lines, kind, SIZE)}
            encoders = {"pellucid": lambda mine=mine, lines=lines: mine.encode_batch(lines)}
            tokens = {"pellucid": len(mine.encode_batch(lines).ids)}
            for peer in beside:
                model = trained[peer.name]
                trainers[peer.name] = lambda peer=peer, lines=lines, kind=kind: peer.train(lines, kind, SIZE)
                encoders[peer.name] = lambda peer=peer, model=model, lines=lines: peer.encode(model, lines)
                tokens[peer.name] = peer.count(peer.encode(model, lines))

            shape = f"{language}, {SIZE} ids"
            for what, sides, rounds in (("train", trainers, 3), ("encode", encoders, 7)):
                times = interleaved(sides, rounds=1 if options.quick else rounds, pause=options.pause)
                for name, seconds in times.items():
                    values = seconds if what == "train" else [size / s / 1e6 for s in seconds]
                    more: dict[str, Any] = {"characters/token": characters / tokens[name]}
                    if name != "pellucid":
                        # The median of ratios of neighbours: other load on the machine hits both.
                        more["ours is faster"] = float(np.median(np.array(seconds) / np.array(times["pellucid"])))
                    unit = "s" if what == "train" else "MB/s"
                    found.append(row(CASE, f"{what} {kind}", name, values, unit=unit, shape=shape, **more))
    return found
