"""Multiple choice by likelihood: the choice that the model finds likeliest after the question is its answer.

The question is read once; its keys and values are then repeated, and all choices are read behind them as one batch.

    score(c) = sum over the tokens of c of ln p(token | question, tokens before it)

Long choices have low sums, so a second answer goes by score(c) / bytes of c   (Gao et al., lm-evaluation-harness).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..data import Question
from ..models import TransformerLM
from ..tape import no_grad
from ..text import Tokenizer


@dataclass(frozen=True)
class Scores:
    """logs: ln p of each choice, in nats. sizes: of each, in bytes. cut: tokens of the question that were left out at
    its beginning, because the context had no room for them."""

    logs: tuple[float, ...]
    sizes: tuple[int, ...]
    cut: int = 0

    @property
    def best(self) -> int:
        """The choice with the highest log-likelihood, the first one on a tie."""
        return int(np.argmax(self.logs))

    @property
    def best_per_byte(self) -> int:
        """The choice with the highest log-likelihood per byte."""
        return int(np.argmax(np.array(self.logs) / np.array(self.sizes)))


@dataclass(frozen=True)
class ChoiceResult:
    """questions: how many. correct, correct_per_byte: answered rightly, by sum and by sum per byte. chance: the
    accuracy of guessing. cut: questions that did not fit the context whole."""

    questions: int
    correct: int
    correct_per_byte: int
    chance: float
    cut: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.questions

    @property
    def accuracy_per_byte(self) -> float:
        return self.correct_per_byte / self.questions

    @property
    def stderr(self) -> float:
        """Standard error of `accuracy`: sqrt(a (1 - a) / (n - 1)), 0 for one question."""
        return _stderr(self.accuracy, self.questions)

    @property
    def stderr_per_byte(self) -> float:
        return _stderr(self.accuracy_per_byte, self.questions)


def evaluate_choices(
    model: TransformerLM,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    before: Sequence[int] = (),
    on_question: Callable[[int], object] | None = None,
) -> ChoiceResult:
    """The share of questions a model answers rightly. before: ids every text begins with, a begin-of-text as a rule.
    on_question: told after each how many are done. Raises DataError as `score_choices`."""
    correct = per_byte = cut = 0
    for done, question in enumerate(questions, 1):
        found = score_choices(model, tokenizer, question, before=before)
        correct += found.best == question.answer
        per_byte += found.best_per_byte == question.answer
        cut += found.cut > 0
        if on_question is not None:
            on_question(done)
    chance = sum(1 / len(q.choices) for q in questions) / len(questions)
    return ChoiceResult(len(questions), correct, per_byte, chance, cut)


def score_choices(
    model: TransformerLM, tokenizer: Tokenizer, question: Question, *, before: Sequence[int] = ()
) -> Scores:
    """ln p of every choice behind the question, with a space between, unless the question ends in white space.

    Where a vocabulary joins the end of the question with the beginning of a choice, the token that is both counts as
    the choice's; so do, in every choice, the tokens behind that place. Raises DataError for text the vocabulary can't
    express, and a choice that is longer than the context.
    """
    gap = "" if question.stem[-1].isspace() else " "
    asked = tokenizer.encode(question.stem)
    whole = [tokenizer.encode(f"{question.stem}{gap}{choice}") for choice in question.choices]
    shared = min(min(_common(asked, ids), len(ids) - 1) for ids in whole)
    prefix = [*before, *whole[0][:shared].tolist()]
    choices = [ids[shared:].tolist() for ids in whole]
    if not prefix:  # nothing in common, and nothing that texts begin with
        raise DataError("question", "its choices have no beginning in common", got=repr(question.stem)[:80])
    limit, longest = model.config.max_seq_len, max(map(len, choices))
    room = limit + 1 - longest  # the last token of a choice is predicted and not read
    if room < 1:
        got, expected = f"{longest:,} tokens", f"at most {limit:,}"
        raise DataError("question", "a choice is longer than the context", got=got, expected=expected)
    cut = max(len(prefix) - room, 0)
    logs = continuations(model, prefix[cut:], choices)
    return Scores(tuple(logs), tuple(len(c.encode("utf-8")) for c in question.choices), cut)


def continuations(model: TransformerLM, prefix: Sequence[int], following: Sequence[Sequence[int]]) -> list[float]:
    """ln p of each list of ids behind `prefix`, in nats. The prefix is read once, the lists as one padded batch."""
    longest = max(map(len, following))
    training = model.training
    model.eval()
    try:
        with no_grad():
            first = model.new_caches(1, len(prefix))
            logits = _host(model.forward_cached(np.array([prefix]), first, last_only=True))
            logs = [_log_p(logits[0, -1:], ids[:1]) for ids in following]
            if longest > 1:
                batch = np.zeros((len(following), longest - 1), np.int64)
                for row, ids in zip(batch, following, strict=True):
                    row[: len(ids) - 1] = ids[:-1]
                caches = model.new_caches(len(following), len(prefix) + longest - 1)
                for cache, source in zip(caches, first, strict=True):
                    cache.repeat(source)
                logits = _host(model.forward_cached(batch, caches))
                for i, ids in enumerate(following):
                    logs[i] += _log_p(logits[i, : len(ids) - 1], ids[1:])
    finally:
        model.train(training)
    return logs


def _host(logits: Any) -> np.ndarray:
    return logits.device.download(logits.array)


def _log_p(logits: np.ndarray, ids: Sequence[int]) -> float:
    """The sum of ln softmax(logits)[ids], a row for each id, in float64."""
    rows = logits.astype(np.float64)
    top = rows.max(-1)
    normal = top + np.log(np.exp(rows - top[:, None]).sum(-1))
    return float((rows[np.arange(len(ids)), list(ids)] - normal).sum())


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _stderr(share: float, n: int) -> float:
    return sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0
