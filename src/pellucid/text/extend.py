"""More special tokens for a vocabulary that exists: every id keeps its meaning, the new ones come behind the last.

What a model learned stays right, so that it can go on with a vocabulary that has, say, the turns of a chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.errors import DataError
from .byte import ByteTokenizer
from .char import CharTokenizer
from .normalized import NormalizedTokenizer
from .pipeline import PipelineTokenizer
from .special import AddedToken, numbered
from .tokenizer import Tokenizer
from .unigram_tokenizer import UnigramTokenizer


def with_special(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """The same tokenizer with special tokens `names`, which get ids from `tokenizer.vocab_size` on, in their order.

    Raises DataError for what is no name, a name twice or there already, and for a kind whose file has no room for more
    (SentencePiece's).
    """
    where = "with_special"
    added = numbered(where, names, tokenizer.vocab_size)
    if taken := [name for name in names if name in tokenizer.special]:
        raise DataError(where, "the vocabulary has this special token already", got=repr(taken[0]))
    if isinstance(tokenizer, NormalizedTokenizer):
        return NormalizedTokenizer(with_special(tokenizer.inner, names), tokenizer.normalizer)
    if isinstance(tokenizer, PipelineTokenizer):
        tokens = [*tokenizer.added.values(), *(AddedToken(name, number) for name, number in added.items())]
        return type(tokenizer)(tokenizer.parts, vocab_size=tokenizer.vocab_size + len(added), added=tokens)
    if isinstance(tokenizer, ByteTokenizer | CharTokenizer | UnigramTokenizer):
        content: dict[str, Any] = tokenizer.to_json()
        return type(tokenizer).from_json(content | {"special": [*content["special"], *names]})
    raise DataError(where, f"a {tokenizer.kind} vocabulary takes no more tokens", hint="use another kind of tokenizer")
