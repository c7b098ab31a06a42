"""The byte tokenizer: the id of a byte is its value, so every text of every language has ids and nothing is trained.

Ids 0 to 255 are the bytes of the UTF-8 text; special tokens follow from 256 on. Sequences are long (one to four ids
a character), which is the price of a vocabulary that can't miss anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.files import check_keys
from .batch import IdBatch, character_offsets, utf8, utf8_batch
from .special import numbered
from .tokenizer import Tokenizer

_BYTES = 256


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids.

    Args:
        special: names of special tokens; `ByteTokenizer(special=[END_OF_TEXT])` has `eot` 256.
    """

    kind: ClassVar[str] = "byte"

    def __init__(self, *, special: Sequence[str] = ()) -> None:
        super().__init__(_BYTES + len(special), numbered("ByteTokenizer", special, _BYTES))

    def _encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text, "ByteTokenizer.encode"), dtype=np.uint8).astype(np.uint32)

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        data, starts = utf8_batch(texts, "ByteTokenizer.encode_batch")
        return IdBatch(data.astype(np.uint32), starts)

    def _encode_other(self, raw: bytes, valid: int) -> np.ndarray:
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint32)

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        ids = self._encode(text)
        at = np.arange(len(ids))
        return ids, character_offsets(ids.astype(np.uint8), at, at + 1)

    def _bytes(self, ids: np.ndarray) -> bytes:
        return ids.astype(np.uint8).tobytes()

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, "version": self.version, "special": list(self._special)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ByteTokenizer:
        """The tokenizer `to_json` describes. Raises DataError."""
        check_keys(content, {"type": (str,), "version": (int,), "special": (list,)}, where="ByteTokenizer")
        return cls(special=content["special"])
