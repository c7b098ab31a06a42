"""The tokenizer around a byte-pair model, and how one is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from ..base.errors import DataError
from .bpe import BPEModel
from .bpe_train import distinct_words, learn_merges
from .normalize import Normalizer, Prepend
from .parts import Parts
from .patterns import pattern_named
from .pipeline import PipelineTokenizer
from .pretokenize import Pretokenizer
from .special import AddedToken, check_size, numbered


class BPETokenizer(PipelineTokenizer):
    """A pipeline around a byte-pair model: GPT-2, GPT-4, Llama, Qwen, CLIP, and what `train` makes."""

    kind: ClassVar[str] = "bpe"

    @property
    def model(self) -> BPEModel:
        """The model."""
        assert isinstance(self.parts.model, BPEModel)
        return self.parts.model

    def _encode_other(self, raw: bytes, valid: int) -> np.ndarray:
        """As tiktoken has it (`CoreBPE.encode_bytes`): the text before is cut into words; the last of them, with white
        space before it if it is white space, and all that follows are one word."""
        if self.model.characters or any(cut.drops for cut in self.parts.pretokenizer.cuts):
            return super()._encode_other(raw, valid)
        text, rest = raw[:valid].decode("utf-8"), raw[valid:]
        pieces = self.cut_special(text, allowed_special=())
        begin = pieces[-1][0] if pieces and pieces[-1][2] is None else len(text)
        before = self.encode(text[:begin])
        words = self._cut([self.parts.normalizer(text[begin:])], first=begin == 0)
        ids, starts = self.model.encode_words(words.data, words.starts)
        n = len(ids) - int(starts[-2]) if len(ids) else 0
        if n and self._is_blank(ids[-n]):
            while n < len(ids) and self._is_blank(ids[-n - 1]):
                n += 1
        kept = len(ids) - n
        word = b"".join(self.model.tokens[i] or b"" for i in ids[kept:].tolist()) + rest
        last, _ = self.model.encode_words(np.frombuffer(word, np.uint8), np.array([0, len(word)]))
        return np.concatenate([before, ids[:kept], last])

    def _is_blank(self, number: int) -> bool:
        return not (self.model.tokens[number] or b"").strip(b" \n\t")

    @classmethod
    def train(
        cls,
        texts: str | Iterable[str],
        vocab_size: int,
        *,
        pattern: str = "gpt2",
        special: Sequence[str] = (),
        min_frequency: int = 2,
        space_before: bool = False,
    ) -> BPETokenizer:
        """A byte-level vocabulary of `vocab_size` ids, special tokens included, for `texts`, which are read once.

        The same words in any order, on any number of threads, give the same tokenizer, bit for bit; `decode` gives
        every text back.

        Args:
            texts: the corpus, a document each.
            pattern: how text is cut into words: a name in `PATTERNS`, "clip" excepted.
            special: names of special tokens, which get the last ids.
            min_frequency: how often a pair must occur to be merged.
            space_before: every text is encoded with a space before it, which `decode` takes away, so that its first
                word looks like every other one. Worth it where texts are short.

        Raises:
            DataError: no text, half a surrogate pair in it, or a vocabulary smaller than the 256 bytes and the special
                tokens, or larger than the corpus can give; the message says how large it may be.
        """
        where = f"{cls.__name__}.train"
        cut = pattern_named(pattern, where)
        if cut.drops:
            raise DataError(where, "a pattern that drops white space, which bytes can't bring back", got=repr(pattern))
        if not isinstance(min_frequency, int) or not 1 <= min_frequency < 1 << 63:
            raise DataError(where, "not a count", got=min_frequency, expected="min_frequency of 1 or more")
        check_size(where, vocab_size)
        ids = numbered(where, special, vocab_size - len(special))
        texts = [texts] if isinstance(texts, str) else texts
        normalizer = Normalizer([Prepend(" ")] if space_before else [])
        words = distinct_words(texts, cut, where, before=" " if space_before else "")
        tokens, merges = learn_merges(words, vocab_size - len(special), min_frequency=min_frequency, where=where)
        parts = Parts(
            model=BPEModel(tokens, merges),
            pretokenizer=Pretokenizer(cuts=(cut,)),
            normalizer=normalizer,
            strip_space=space_before,
        )
        added = [AddedToken(name, number) for name, number in ids.items()]
        return cls(parts, vocab_size=vocab_size, added=added)
