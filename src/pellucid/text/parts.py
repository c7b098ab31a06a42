"""The parts of a tokenizer that a file describes, and what its ids stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .bpe import BPEModel
from .normalize import Normalizer
from .pretokenize import MARK, Pretokenizer
from .special import WHITE_SPACE, AddedToken
from .unigram import UnigramModel

Model = BPEModel | UnigramModel
_MARK = MARK.encode()
_BLANK = WHITE_SPACE + "Ġ"  # how files spell a space of a byte-level token


@dataclass(frozen=True)
class Parts:
    """What a `PipelineTokenizer` is made of.

    texts: the spelling in files of ids that the model's tokens don't tell: of special tokens in the vocabulary, and
        of `<0x41>`, which stands for a byte.
    byte_level: files spell the bytes of a token as characters (GPT-2's alphabet).
    unmark: U+2581 decodes as a space.
    strip_space: decoding drops one space at the beginning.
    frame: ids that the file wants before and after a text; `encode` never adds them.
    trims: for each time that the file takes white space off the offsets, whether the space put before a text stays.
    """

    model: Model
    pretokenizer: Pretokenizer = field(default_factory=Pretokenizer)
    normalizer: Normalizer = field(default_factory=Normalizer)
    texts: Mapping[int, str] = field(default_factory=dict)
    byte_level: bool = True
    unmark: bool = False
    strip_space: bool = False
    frame: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    trims: tuple[bool, ...] = ()

    def blanks(self, added: Iterable[AddedToken], size: int) -> np.ndarray:
        """How many characters of white space each of `size` ids begins and ends with, as files spell it: int64
        (size, 2). Of the bytes of a byte-level token, these are the spaces."""
        found = np.zeros((size, 2), np.int64)
        tokens = self.model.tokens if isinstance(self.model, BPEModel) else self.model.pieces
        for number, token in enumerate(tokens):
            if token and self.byte_level and (token[0] == 0x20 or token[-1] == 0x20):
                found[number] = len(token) - len(token.lstrip(b" ")), len(token) - len(token.rstrip(b" "))
            elif token and not self.byte_level:
                found[number] = _blank(token.decode("utf-8"))
        for number, text in (dict(self.texts) | {token.id: token.content for token in added}).items():
            found[number] = _blank(text)
        return found

    def meanings(self, added: Iterable[AddedToken]) -> dict[int, bytes]:
        """The bytes that each id stands for in decoded text. Ids that the vocabulary leaves out are missing."""
        found = {number: text.encode("utf-8") for number, text in self.texts.items()}
        byte_ids = self.model.byte_ids or ()
        if isinstance(self.model, BPEModel):
            suffix = self.model.suffix
            for number, token in enumerate(self.model.tokens):
                if token is not None:
                    found[number] = token.removesuffix(suffix) + b" " if suffix and token.endswith(suffix) else token
        else:
            found |= dict(enumerate(self.model.pieces))
        if self.unmark:
            found = {number: text.replace(_MARK, b" ") for number, text in found.items()}
        for byte, number in enumerate(byte_ids):
            found[int(number)] = bytes([byte])
        return found | {token.id: token.content.encode("utf-8") for token in added}


def _blank(text: str) -> tuple[int, int]:
    return len(text) - len(text.lstrip(_BLANK)), len(text) - len(text.rstrip(_BLANK))
