"""The parts of a tokenizer that a file describes, and what its ids stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .bpe import BPEModel
from .normalize import Normalizer
from .pretokenize import MARK, Pretokenizer
from .special import AddedToken
from .unigram import UnigramModel

Model = BPEModel | UnigramModel
_MARK = MARK.encode()


@dataclass(frozen=True)
class Parts:
    """What a `PipelineTokenizer` is made of.

    texts: the spelling in files of ids that the model's tokens don't tell: of special tokens in the vocabulary, and
        of `<0x41>`, which stands for a byte.
    byte_level: files spell the bytes of a token as characters (GPT-2's alphabet).
    unmark: U+2581 decodes as a space.
    strip_space: decoding drops one space at the beginning.
    frame: ids that the file wants before and after a text; `encode` never adds them.
    """

    model: Model
    pretokenizer: Pretokenizer = field(default_factory=Pretokenizer)
    normalizer: Normalizer = field(default_factory=Normalizer)
    texts: Mapping[int, str] = field(default_factory=dict)
    byte_level: bool = True
    unmark: bool = False
    strip_space: bool = False
    frame: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

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
