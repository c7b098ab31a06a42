"""What a tokenizer makes of a text: characters and bytes a token, script by script, and how its pieces are used.

A token belongs to the script of its first letter. One without letters counts as digits, signs or spaces, and one that
holds only a part of a character (a byte, mostly) as "parts of characters": how many of those a text needs says more
about a vocabulary than its size.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..base.errors import DataError
from .normalized import NormalizedTokenizer
from .started import StartedTokenizer
from .tokenizer import Tokenizer

_TOGETHER = 1 << 20  # characters encoded at a time
_PARTS = "parts of characters"
_KINDS = {"N": "digits", "P": "signs", "S": "signs", "Z": "spaces", "C": "spaces", "M": "marks"}
# Where the first word of a character's name isn't its script.
_SCRIPTS = (
    {"CJK": "Han"}
    | dict.fromkeys(
        (
            "BLACK-LETTER",
            "DOUBLE",
            "FEMININE",
            "FULLWIDTH",
            "HALFWIDTH",
            "MASCULINE",
            "MATHEMATICAL",
            "MICRO",
            "MODIFIER",
        ),
        "other letters",
    )
    | dict.fromkeys(("ALEF", "BET", "DALET", "GIMEL", "INFORMATION", "OTHER", "SCRIPT", "TURNED"), "other letters")
)


@dataclass(frozen=True)
class Share:
    """Tokens, and the characters and bytes they stand for."""

    tokens: int
    characters: int
    bytes: int

    @property
    def characters_per_token(self) -> float:
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class Measured:
    """A text by one tokenizer.

    counts: int64 (vocab_size), how often each id occurs. whole: all tokens. scripts: by script, the most frequent
    first. seconds: encoding took.
    """

    counts: np.ndarray
    whole: Share
    scripts: dict[str, Share]
    seconds: float


def measure(tokenizer: Tokenizer, texts: Iterable[str]) -> Measured:
    """Encodes the texts, in constant memory, and counts. Raises DataError for text the vocabulary can't express."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    characters = size = 0
    seconds = 0.0
    for batch in _batches(texts):
        start = time.perf_counter()
        ids = tokenizer.encode_batch(batch).ids
        seconds += time.perf_counter() - start
        counts += np.bincount(ids, minlength=len(counts))
        characters += sum(map(len, batch))
        size += len("".join(batch).encode("utf-8"))
    whole = Share(int(counts.sum()), characters, size)
    return Measured(counts, whole, by_script(pieces_of(tokenizer), counts), seconds)


def pieces_of(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes each id stands for inside a text; none for special tokens and for ids without a meaning."""
    inner = tokenizer.inner if isinstance(tokenizer, NormalizedTokenizer) else tokenizer
    special = set(tokenizer.special.values())
    pieces = []
    for number, one in enumerate(np.arange(tokenizer.vocab_size).reshape(-1, 1)):
        if number in special:
            pieces.append(b"")
            continue
        try:
            # Not as the first of a text, where some kinds drop a space.
            pieces.append(inner._started(one, False)[0] if isinstance(inner, StartedTokenizer) else inner._bytes(one))
        except DataError:
            pieces.append(b"")
    return pieces


def by_script(pieces: list[bytes], counts: np.ndarray) -> dict[str, Share]:
    """The tokens counted, script by script, the most frequent first."""
    found: dict[str, list[int]] = {}
    for number in np.flatnonzero(counts).tolist():
        piece, count = pieces[number], int(counts[number])
        if not piece:
            continue
        sums = found.setdefault(script_of_piece(piece), [0, 0, 0])
        sums[0] += count
        sums[1] += count * sum((byte & 0xC0) != 0x80 for byte in piece)
        sums[2] += count * len(piece)
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return {name: Share(*sums) for name, sums in ordered}


def script_of_piece(piece: bytes) -> str:
    """The script of a piece: that of its first letter, else of its first character."""
    text = piece.decode("utf-8", errors="ignore")
    if not text:
        return _PARTS
    return next((script_of(c) for c in text if c.isalpha()), None) or script_of(text.strip()[:1] or text[0])


@cache
def script_of(c: str) -> str:
    """The script of a letter, by its name; the kind of any other character."""
    if not c.isalpha():
        return _KINDS.get(unicodedata.category(c)[0], "signs")
    word = unicodedata.name(c, "OTHER").split()[0]
    return _SCRIPTS.get(word) or word.split("-")[0].capitalize()


def _batches(texts: Iterable[str]) -> Iterable[list[str]]:
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
