"""Text out of a model for the command line: as long as asked for, stopped by a word, streamed in whole characters.

A text longer than the context goes on from its last half: the decoder forgets the rest and reads that half again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ..generate import Decoder, Sampler
from ..models import TransformerLM
from ..text import Tokenizer


def opening(tokenizer: Tokenizer) -> np.ndarray:
    """What a text begins from without a prompt: the token between documents, else a line break, else the first id."""
    if tokenizer.eot is not None:
        return np.array([tokenizer.eot])
    found = encodable(tokenizer, "\n")
    return np.array([0]) if found is None else found


def encodable(tokenizer: Tokenizer, text: str) -> np.ndarray | None:
    """The ids of `text`, or None where the vocabulary can't express it."""
    try:
        return tokenizer.encode(text)
    except ValueError:
        return None


def tokens(model: TransformerLM, prompt: Sequence[int] | np.ndarray, sampler: Sampler) -> Iterator[int]:
    """New ids without end. Raises DataError at the first one for a prompt that is longer than the context."""
    decoder = Decoder(model)
    decoder.feed(prompt)
    keep = (model.config.max_seq_len + 1) // 2
    while True:
        if decoder.room == 0:
            recent = decoder.history[-keep:]
            decoder.reset()
            decoder.feed(recent)
        yield decoder.next(sampler)


class Text:
    """A text as it is written: an iterator of the pieces to show, ended by `limit` tokens, the token that ends a
    document, or `stop`, which is not shown. `after`: the ids it goes on from. `ends`: ids that end a document
    (None: the tokenizer's own).

    Attributes:
        count: tokens drawn. ended: "tokens", "document" or "stop", once it is over.
    """

    def __init__(
        self,
        ids: Iterator[int],
        tokenizer: Tokenizer,
        *,
        limit: int,
        stop: str | None = None,
        after: Sequence[int] | np.ndarray = (),
        ends: Collection[int] | None = None,
    ) -> None:
        self.count, self.ended = 0, "tokens"
        self._ids, self._tokenizer, self._limit, self._stop = ids, tokenizer, limit, stop
        self._after = after
        if ends is None:
            ends = () if tokenizer.eot is None else (tokenizer.eot,)
        self._ends = frozenset(ends)

    def __iter__(self) -> Iterator[str]:
        decoder = self._tokenizer.stream_decoder(after=self._after)
        held = ""  # may be the beginning of the stop text
        while self.count < self._limit:
            token = next(self._ids)
            self.count += 1
            if token in self._ends:
                self.ended = "document"
                break
            held += decoder.push(token)
            if self._stop and self._stop in held:
                self.ended = "stop"
                held = held[: held.index(self._stop)]
                break
            safe = len(held) - _overlap(held, self._stop or "")
            if safe:
                yield held[:safe]
                held = held[safe:]
        if self.ended != "stop":
            held += decoder.finish()
            if self._stop and self._stop in held:
                held = held[: held.index(self._stop)]
        if held:
            yield held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def sample(model: TransformerLM, tokenizer: Tokenizer, *, start: str = "", limit: int, seed: int) -> str:
    """A text that begins with `start`, or as the model will, as training runs end with."""
    sampler = Sampler(temperature=0.8, top_k=50, seed=seed)
    begin = tokenizer.encode(start) if start else opening(tokenizer)
    return start + "".join(Text(tokens(model, begin, sampler), tokenizer, limit=limit, after=begin))
