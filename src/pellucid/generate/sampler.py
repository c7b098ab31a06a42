"""Sampler: from one row of logits to one id. Runs on the host, in float64, by an explicit generator.

The order is fixed: repetition penalty, temperature, top-k, top-p, draw. Anything that is not a finite number counts as
impossible, ties go to the lowest id, and at least one id always remains, so a draw never fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.errors import ConfigError
from ..base.rng import Generator


class Sampler:
    """How the next token is chosen.

    temperature: logits are divided by it; 0 or less means greedy. top_k: keep the k most likely ids (None: all).
    top_p: then keep the most likely ids until their probabilities reach top_p, the one that crosses it included
    (None: all)   (Holtzman et al. 2019). repetition_penalty: every distinct id of the history is pushed down once,
    logit / penalty where positive, logit * penalty where negative (None: off)   (Keskar et al. 2019). seed: of the
    draws; None takes one from the operating system.
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
    ) -> None:
        if not np.isfinite(temperature):
            raise ConfigError("Sampler", "temperature is not a finite number", got=temperature)
        if top_k is not None and not isinstance(top_k, int | np.integer):
            raise ConfigError("Sampler", "top_k is not a whole number", got=repr(top_k))
        if top_k is not None and top_k < 1:
            raise ConfigError("Sampler", "top_k keeps nothing", got=top_k, expected="at least 1", hint="None keeps all")
        if top_p is not None and not 0 < top_p <= 1:
            raise ConfigError(
                "Sampler", "top_p is not a share", got=top_p, expected="0 < top_p <= 1", hint="None keeps all"
            )
        if repetition_penalty is not None and not (0 < repetition_penalty < float("inf")):
            raise ConfigError(
                "Sampler", "repetition_penalty must be positive", got=repetition_penalty, hint="None switches it off"
            )
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.repetition_penalty = repetition_penalty
        self.generator = Generator(seed)

    @classmethod
    def greedy(cls, *, repetition_penalty: float | None = None) -> Sampler:
        """Always the most likely id, the lowest on a tie."""
        return cls(temperature=0.0, repetition_penalty=repetition_penalty, seed=0)

    def sample(self, logits: np.ndarray[Any, Any], history: Iterable[int] = ()) -> int:
        """The chosen id. logits: (vocabulary,); history: ids so far; those outside the vocabulary are ignored."""
        if self.temperature <= 0 and self.repetition_penalty is None:
            found = _largest(np.asarray(logits).reshape(-1))
            if found is not None:
                return found
        scores = np.array(logits, dtype=np.float64).reshape(-1)
        if scores.size == 0:
            raise ConfigError("Sampler.sample", "no logits to choose from")
        scores[np.isnan(scores)] = -np.inf
        if self.repetition_penalty is not None:
            seen = np.unique(np.fromiter((i for i in history if 0 <= i < scores.size), dtype=np.int64))
            past = scores[seen]
            with np.errstate(over="ignore"):
                scores[seen] = np.where(past > 0, past / self.repetition_penalty, past * self.repetition_penalty)
        top = scores.max()
        if self.temperature <= 0 or np.isinf(top):
            return int(np.argmax(scores))  # also the row without one finite number, and +inf
        with np.errstate(over="ignore"):
            weights = np.exp((scores - top) / self.temperature)
        if self.top_k is None and self.top_p is None:
            return self._draw(weights)
        order = np.argsort(-scores, kind="stable")  # most likely first, lowest id first on a tie
        if self.top_k is not None:
            order = order[: self.top_k]
        kept = weights[order]
        if self.top_p is not None:
            reached = np.cumsum(kept) / kept.sum()
            count = min(int(np.searchsorted(reached, self.top_p, side="left")) + 1, len(order))
            order, kept = order[:count], kept[:count]
        return int(order[self._draw(kept)])

    def _draw(self, weights: np.ndarray[Any, Any]) -> int:
        """An index with probability proportional to its weight: the first whose running sum exceeds u * total."""
        high, low = (int(w) for w in self.generator.words(2))
        u = ((high << 32 | low) >> 11) * 2.0**-53
        running = np.cumsum(weights)
        index = int(np.searchsorted(running, u * running[-1], side="right"))
        return min(index, int(np.flatnonzero(weights)[-1]))


def _largest(logits: np.ndarray[Any, Any]) -> int | None:
    """The lowest id with the largest logit, straight from what was computed; None where that takes a closer look:
    with something that is not a number, which NumPy takes for the largest."""
    if logits.size == 0 or logits.dtype.kind != "f":
        return None
    best = int(logits.argmax())
    return best if logits[best] == logits[best] else None
