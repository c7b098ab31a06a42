"""The byte tokenizer: the id of a byte is its value, so every text of every language has ids and nothing is trained.

Ids 0 to 255 are the bytes of the UTF-8 text; special tokens follow from 256 on. Sequences are long (one to four ids
a character), which is the price of a vocabulary that can't miss anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from ..base.files import check_keys
from .tokenizer import Tokenizer

_BYTES = 256


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids.

    Args:
        special: names of special tokens; `ByteTokenizer(special=[END_OF_TEXT])` has `eot` 256.
    """

    kind: ClassVar[str] = "byte"

    def __init__(self, *, special: Sequence[str] = ()) -> None:
        super().__init__(_BYTES, special)

    def encode(self, text: str) -> np.ndarray:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                "ByteTokenizer.encode",
                f"character {error.start} is half a surrogate pair and has no bytes",
                got=f"U+{ord(text[error.start]):04X}",
                hint="decode the source with errors='replace', or repair it",
            ) from error
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint32)

    def _bytes(self, ids: np.ndarray) -> bytes:
        return ids.astype(np.uint8).tobytes()

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, "version": self.version, "special": list(self._special)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ByteTokenizer:
        """The tokenizer `to_json` describes. Raises DataError."""
        check_keys(content, {"type": (str,), "version": (int,), "special": (list,)}, where="ByteTokenizer")
        return cls(special=content["special"])
