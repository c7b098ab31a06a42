"""Decoder: text generation with a cache that is kept between turns; `generate` and `stream` are one turn of it.

The decoder holds the whole history of ids. Ids that were fed or sampled but not yet read by the model are pending; they
are read in one pass when the next token is asked for, so a turn costs its new tokens only, and filling the context
exactly is allowed: the last token drawn need never be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..models import TransformerLM
from ..tape import no_grad
from .sampler import Sampler


class Decoder:
    """A conversation with a model.

    feed(ids) appends ids, next(sampler) draws and appends one, follow(ids) starts over from ids of which the beginning
    may be known. At most max_seq_len ids can be read by the model, so the
    history holds at most max_seq_len + 1.
    """

    def __init__(self, model: TransformerLM) -> None:
        self.model = model
        self.caches = model.new_caches()
        self._history: list[int] = []

    @property
    def history(self) -> tuple[int, ...]:
        """Every id fed or drawn so far."""
        return tuple(self._history)

    @property
    def room(self) -> int:
        """How many more ids can be fed or drawn in all."""
        return self.model.config.max_seq_len + 1 - len(self._history)

    def feed(self, ids: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Appends ids; nothing for no ids. Raises DataError, with nothing changed, for ids outside the vocabulary or
        more than the context can hold."""
        self._history += self._checked("Decoder.feed", ids, len(self._history))

    def follow(self, ids: Sequence[int] | np.ndarray[Any, Any]) -> int:
        """Makes `ids` the history; returns how many of them need no reading, because the history began with them too.
        Raises as `feed`, with nothing changed."""
        new = self._checked("Decoder.follow", ids, 0)
        # The last one is read in any case: the next token comes from its logits.
        most = max(min(len(new) - 1, self.caches[0].length), 0)
        kept = next((i for i in range(most) if new[i] != self._history[i]), most)
        for cache in self.caches:
            cache.truncate(kept)
        self._history = new
        return kept

    def _checked(self, where: str, ids: Sequence[int] | np.ndarray[Any, Any], before: int) -> list[int]:
        """The ids as a list, if they can follow `before` others."""
        new = []
        size = self.model.config.vocab_size
        for i in ids:
            if not isinstance(i, int | np.integer) or isinstance(i, bool):
                raise DataError(where, "ids are not integers", got=type(i).__name__, expected="an integer type")
            new.append(int(i))
            if not 0 <= i < size:
                raise DataError(where, "id outside the vocabulary", got=i, expected=f"0 to {size - 1}")
        limit = self.model.config.max_seq_len
        if new and before + len(new) > limit:
            raise DataError(
                where,
                "longer than the context",
                got=f"{before + len(new)} tokens",
                expected=f"at most {limit}",
                hint="shorten the prompt",
            )
        return new

    def next(self, sampler: Sampler) -> int:
        """Draws the next id and appends it. Raises DataError before anything was fed, or when the context is full."""
        if not self._history:
            raise DataError("Decoder.next", "nothing to continue", hint="feed a prompt first")
        limit = self.model.config.max_seq_len
        if len(self._history) > limit:
            raise DataError(
                "Decoder.next",
                "the context is full",
                got=f"{len(self._history)} tokens",
                expected=f"at most {limit} to continue from",
            )
        pending = self._history[self.caches[0].length :]
        training = self.model.training
        if training:
            self.model.eval()
        try:
            with no_grad():
                logits = self.model.forward_cached(pending, self.caches, last_only=True)
        finally:
            if training:
                self.model.train()
        row = logits.device.host(logits.array).reshape(-1)
        self._history.append(sampler.sample(row, self._history))
        return self._history[-1]

    def reset(self) -> None:
        """Forgets the history; the memory of the caches is used again."""
        self._history.clear()
        for cache in self.caches:
            cache.truncate(0)


def stream(
    model: TransformerLM, prompt: Sequence[int] | np.ndarray[Any, Any], *, max_new_tokens: int, sampler: Sampler
) -> Iterator[int]:
    """Yields new ids as they are drawn. The arguments are checked before the first one is asked for.

    Raises DataError for an empty prompt, or where prompt and new tokens do not fit: the last token is never read, so
    len(prompt) + max_new_tokens may be max_seq_len + 1.
    """
    if len(prompt) == 0:
        raise DataError("generate", "the prompt is empty", hint="start from at least one id")
    if max_new_tokens < 0:
        raise DataError("generate", "max_new_tokens is negative", got=max_new_tokens)
    limit = model.config.max_seq_len
    if len(prompt) > limit or len(prompt) + max_new_tokens > limit + 1:
        raise DataError(
            "generate",
            "longer than the context",
            got=f"{len(prompt)} prompt tokens and {max_new_tokens} new ones",
            expected=f"at most {limit + 1} together",
            hint="shorten the prompt or ask for fewer new tokens",
        )
    decoder = Decoder(model)
    decoder.feed(prompt)
    return (decoder.next(sampler) for _ in range(max_new_tokens))


def generate(
    model: TransformerLM,
    prompt: Sequence[int] | np.ndarray[Any, Any],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    on_token: Callable[[int], bool | None] | None = None,
) -> list[int]:
    """The new ids alone. `on_token` is handed each id as it is drawn; returning False ends the generation, the id that
    ended it stays in the result. Raises what `stream` raises."""
    found: list[int] = []
    for token in stream(model, prompt, max_new_tokens=max_new_tokens, sampler=sampler):
        found.append(token)
        if on_token is not None and on_token(token) is False:
            break
    return found
