"""Any tokenizer behind a normaliser: what looks alike gets the same ids, and the difference doesn't come back.

For kinds whose own files hold no normaliser (character, byte, Unigram) and for those that could: one wrapper for all.
Ids, special tokens and decoding are the inner tokenizer's; only text on its way in is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from .align import through
from .batch import IdBatch
from .normalize import Normalizer
from .tokenizer import Ids, StreamDecoder, Tokenizer

# Characters behind a cut that decide what the first of them becomes: a letter and its marks are far fewer.
_AHEAD = 64
_TRIES = 8


class NormalizedTokenizer(Tokenizer):
    """`inner` behind `normalizer`. Raises DataError for a normaliser without steps, or around another of this kind."""

    kind: ClassVar[str] = "normalized"

    def __init__(self, inner: Tokenizer, normalizer: Normalizer) -> None:
        if not normalizer:
            raise DataError("NormalizedTokenizer", "a normaliser that does nothing", hint="use the tokenizer itself")
        if isinstance(inner, NormalizedTokenizer):
            raise DataError("NormalizedTokenizer", "a normaliser around another", hint="give one with all the steps")
        super().__init__(inner.vocab_size, {}, added=list(inner._added.by_name.values()))
        self._position_matters = inner._position_matters
        self.inner, self.normalizer = inner, normalizer

    def _encode(self, text: str) -> np.ndarray:
        return self.inner._encode(self.normalizer(text))

    def _encode_rest(self, text: str) -> np.ndarray:
        return self.inner._encode_rest(self.normalizer(text))

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        return self.inner._encode_batch([self.normalizer(text) for text in texts])

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        normal, origins = self.normalizer.origins(text)
        ids, offsets = self.inner._encode_offsets(normal, first=first)
        return ids, through(origins, offsets)

    def settled(self, text: str) -> int:
        # One of the last beginnings of a line or of a word that both the normaliser and the tokenizer behind it accept.
        for mark, step in (("\n", 1), (" ", 0)):
            end = max(len(text) - _AHEAD, 0)
            for _ in range(_TRIES):
                end = text.rfind(mark, 0, end)
                at = end + step
                if end < 0 or at == 0:
                    break
                if self.normalizer.may_cut(text, at) and self._may_cut(text, at):
                    return at
        return 0

    def _may_cut(self, text: str, at: int) -> bool:
        head, rest = self.normalizer(text[:at]), self.normalizer(text[at : at + _AHEAD])
        return len(head) in (self.inner.settled(head), self.inner.settled(head + rest[:1]))

    def _bytes(self, ids: np.ndarray) -> bytes:
        return self.inner._bytes(ids)

    def decode_bytes(self, ids: Ids, *, show_special: bool = False) -> bytes:
        return self.inner.decode_bytes(ids, show_special=show_special)

    def stream_decoder(self, *, show_special: bool = False, after: Ids = ()) -> StreamDecoder:
        return self.inner.stream_decoder(show_special=show_special, after=after)

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            "version": self.version,
            "normalizer": self.normalizer.to_json(),
            "tokenizer": self.inner.to_json(),
        }

    def _identity(self) -> dict[str, Any]:
        return self.to_json() | {"tokenizer": self.inner._identity()}
