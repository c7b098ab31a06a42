"""Text out of a model for the command line: how its tokens are drawn, and as many of them as are asked for.

A text longer than the context goes on from its last half: the decoder forgets the rest and reads that half again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from ..base.errors import ConfigError
from ..generate import Decoder, Sampler, Text
from ..models import TransformerLM
from ..text import Tokenizer


class Sampling(Protocol):
    """Options that say how tokens are drawn."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def greedy(self) -> bool: ...
    @property
    def seed(self) -> int | None: ...


def sampler_of(options: Sampling) -> Sampler:
    """The sampler asked for. Raises ConfigError, naming flags."""
    try:
        if options.greedy:
            return Sampler.greedy(repetition_penalty=options.repetition_penalty)
        if options.temperature < 0:
            raise ConfigError("--temperature", "is negative", got=options.temperature, expected="0 (greedy) or more")
        return Sampler(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            repetition_penalty=options.repetition_penalty,
            seed=options.seed,
        )
    except ConfigError as error:
        if error.where.startswith("--"):
            raise
        what = error.what
        for name in ("top_k", "top_p", "repetition_penalty"):
            what = what.replace(name, f"--{name.replace('_', '-')}")
        raise ConfigError("sampling", what, got=error.got, expected=error.expected, hint=error.hint) from None


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


def sample(model: TransformerLM, tokenizer: Tokenizer, *, start: str = "", limit: int, seed: int) -> str:
    """A text that begins with `start`, or as the model will, as training runs end with."""
    sampler = Sampler(temperature=0.8, top_k=50, seed=seed)
    begin = tokenizer.encode(start) if start else opening(tokenizer)
    return start + "".join(Text(tokens(model, begin, sampler), tokenizer, limit=limit, after=begin))
