"""The character tokenizer: one id for each distinct character of a corpus, in the order of the code points.

The smallest vocabulary that keeps one id a character (65 for the usual Shakespeare file). No normalisation: a
zero-width non-joiner, Arabic and Persian yeh, a carriage return are characters like any other, and text comes back
exactly. A character the corpus didn't have is an error on `encode`, because a lossy tokenizer has to be asked for:
`unknown=True` adds one id for all such characters, which decodes to U+FFFD.

Both directions are table look-ups over UTF-32, in NumPy: a table from code points to ids, and one from ids to code
points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from ..base.files import check_keys
from .special import numbered
from .tokenizer import Tokenizer, character_error

_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_REPLACEMENT = 0xFFFD
_MISSING = np.uint32(2**32 - 1)
_BLOCK = 1 << 20
_KEYS = {"type": (str,), "version": (int,), "characters": (str,), "unknown": (bool,), "special": (list,)}


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


class CharTokenizer(Tokenizer):
    """Characters as ids: 0 to n-1 for the n characters by code point, then `unknown` if asked for, then special tokens.

    Args:
        characters: the vocabulary; order and repetition don't matter.
        unknown: gives characters outside the vocabulary an id of their own instead of an error.
        special: names of special tokens.
    """

    kind: ClassVar[str] = "char"

    def __init__(self, characters: str, *, unknown: bool = False, special: Sequence[str] = ()) -> None:
        codes = np.unique(_code_points(characters))
        if not len(codes):
            raise DataError("CharTokenizer", "no characters", hint="give the text the vocabulary is made of")
        if ((codes >= _SURROGATES.start) & (codes < _SURROGATES.stop)).any():
            raise DataError("CharTokenizer", "half a surrogate pair is no character", hint="repair the source text")
        self._unknown = unknown
        self._codes = np.append(codes, _REPLACEMENT).astype("<u4") if unknown else codes
        missing = np.uint32(len(codes)) if unknown else _MISSING
        # One more entry than the largest code point: everything above is clipped to it.
        self._table = np.full(int(codes[-1]) + 2, missing, dtype=np.uint32)
        self._table[codes] = np.arange(len(codes), dtype=np.uint32)
        first = len(self._codes)
        super().__init__(first + len(special), numbered("CharTokenizer", special, first))

    @classmethod
    def train(cls, texts: str | Iterable[str], *, unknown: bool = False, special: Sequence[str] = ()) -> CharTokenizer:
        """The tokenizer of all characters in `texts`, read once in constant memory.

        Raises:
            DataError: no text at all, or half a surrogate pair in it.
        """
        seen = np.zeros(_CODE_POINTS, dtype=np.bool_)
        for text in [texts] if isinstance(texts, str) else texts:
            for begin in range(0, len(text), _BLOCK):
                seen[_code_points(text[begin : begin + _BLOCK])] = True
        found = np.flatnonzero(seen).astype("<u4").tobytes().decode("utf-32-le", errors="surrogatepass")
        if not found:
            raise DataError("CharTokenizer.train", "no text", hint="give at least one character")
        return cls(found, unknown=unknown, special=special)

    @property
    def characters(self) -> str:
        """The vocabulary, in the order of the ids."""
        return self._text(self._codes[:-1] if self._unknown else self._codes)

    @property
    def unknown(self) -> int | None:
        """Id of characters outside the vocabulary, or None where they are an error."""
        return len(self._codes) - 1 if self._unknown else None

    def _encode(self, text: str) -> np.ndarray:
        codes = _code_points(text)
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if not self._unknown and (bad := ids == _MISSING).any():
            raise character_error(
                "CharTokenizer.encode",
                text,
                int(bad.argmax()),
                expected=f"one of its {len(self._codes)} characters",
                hint="train the tokenizer on text that has it, or with unknown=True",
            )
        return ids

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        at = np.arange(len(text), dtype=np.int64)
        return self._encode(text), np.stack([at, at + 1], axis=1)

    def _bytes(self, ids: np.ndarray) -> bytes:
        return self._text(self._codes[ids]).encode("utf-8")

    @staticmethod
    def _text(codes: np.ndarray) -> str:
        return codes.tobytes().decode("utf-32-le")

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            "version": self.version,
            "characters": self.characters,
            "unknown": self._unknown,
            "special": list(self._special),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CharTokenizer:
        """The tokenizer `to_json` describes. Raises DataError."""
        check_keys(content, _KEYS, where="CharTokenizer")
        characters = content["characters"]
        if any(a >= b for a, b in pairwise(characters)):
            raise DataError("CharTokenizer", "characters are not in ascending order", hint="train the tokenizer again")
        return cls(characters, unknown=content["unknown"], special=content["special"])
