"""The tokenizer around a byte-pair model, and how one is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ..base.errors import DataError
from .bpe import BPEModel
from .bpe_train import distinct_words, learn_merges
from .normalize import Normalizer, Prepend
from .parts import Parts
from .patterns import DROP_SPACE, pattern_named
from .pipeline import PipelineTokenizer
from .pretokenize import Pretokenizer
from .special import AddedToken, numbered


class BPETokenizer(PipelineTokenizer):
    """A pipeline around a byte-pair model: GPT-2, GPT-4, Llama, Qwen, CLIP, and what `train` makes."""

    kind: ClassVar[str] = "bpe"

    @property
    def model(self) -> BPEModel:
        """The model."""
        assert isinstance(self.parts.model, BPEModel)
        return self.parts.model

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
        if cut.flags & DROP_SPACE:
            raise DataError(where, "a pattern that drops white space, which bytes can't bring back", got=repr(pattern))
        if not isinstance(min_frequency, int) or min_frequency < 1:
            raise DataError(where, "not a count", got=min_frequency, expected="min_frequency of 1 or more")
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
