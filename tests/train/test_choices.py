"""Multiple choice: likelihoods equal those of the full forward, a model that has learned the answers finds them."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.data import Question, TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.tape import no_grad
from pellucid.text import BPETokenizer, ByteTokenizer, Tokenizer
from pellucid.train import evaluate_choices, score_choices, train_step
from pellucid.train.choices import continuations

QUESTION = Question("the wind goes over", ("the sea", "a stone", "night", "x"), 1)


def model(tokenizer: Tokenizer, **changes: object) -> TransformerLM:
    options = {
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "max_seq_len": 64,
        "seed": 3,
        "init_std": 0.2,
    }
    return TransformerLM(TransformerConfig(tokenizer.vocab_size, **(options | changes)))  # type: ignore[arg-type]


def log_p(lm: TransformerLM, prefix: list[int], ids: list[int]) -> float:
    """ln p(ids | prefix) from the logits of everything at once, in float64."""
    with no_grad():
        logits = lm([[*prefix, *ids[:-1]]]).numpy()[0].astype(np.float64)
    log_softmax = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    return sum(log_softmax[len(prefix) + i - 1, token] for i, token in enumerate(ids))


@pytest.mark.parametrize("changes", [{}, {"positions": "learned", "norm": "layernorm", "n_kv_heads": None}])
def test_likelihoods_are_those_of_the_full_forward(changes: dict[str, object]) -> None:
    tokenizer = ByteTokenizer()
    lm = model(tokenizer, **changes)
    lm.train()
    found = score_choices(lm, tokenizer, QUESTION)
    assert lm.training
    prefix = list(QUESTION.stem.encode())
    for got, choice in zip(found.logs, QUESTION.choices, strict=True):
        assert got == pytest.approx(log_p(lm, prefix, list(f" {choice}".encode())), rel=1e-5)
    assert (found.sizes, found.cut) == ((7, 7, 5, 1), 0)
    logs = np.array(found.logs)
    assert found.best == logs.argmax()
    assert found.best_per_byte == (logs / [7, 7, 5, 1]).argmax()


def test_choices_of_one_token_and_a_beginning_of_text() -> None:
    tokenizer = ByteTokenizer(special=["<s>"])
    lm = model(tokenizer)
    question = Question("a ", ("b", "c"), 0)
    found = score_choices(lm, tokenizer, question, before=[256])
    for got, choice in zip(found.logs, b"bc", strict=True):
        assert got == pytest.approx(log_p(lm, [256, *b"a "], [choice]), rel=1e-5)


def test_a_token_across_the_border_belongs_to_the_choice() -> None:
    tokenizer = BPETokenizer.train(["over the the the over"], 262)
    question = Question("ov", ("er", "al"), 0)
    lm = model(tokenizer)
    found = score_choices(lm, tokenizer, Question("ov ", ("er", "al"), 0))
    assert found.cut == 0
    wholes = [tokenizer.encode(f"{question.stem} {c}").tolist() for c in question.choices]
    shared = [a == b for a, b in zip(*wholes, strict=False)].index(False)
    asked = tokenizer.encode("ov").tolist()
    begin = min(shared, len(asked))
    for got, ids in zip(score_choices(lm, tokenizer, question).logs, wholes, strict=True):
        assert got == pytest.approx(log_p(lm, ids[:begin], ids[begin:]), rel=1e-5)


def test_a_question_longer_than_the_context_loses_its_beginning() -> None:
    tokenizer = ByteTokenizer()
    lm = model(tokenizer, max_seq_len=20)
    question = Question("0123456789 is a number", ("yes", "never"), 0)
    found = score_choices(lm, tokenizer, question)
    # 22 characters, of which the context holds 20 beside all but the last of " never".
    assert found.cut == 22 - 15
    for got, choice in zip(found.logs, question.choices, strict=True):
        prefix = list(question.stem.encode())[found.cut :]
        assert got == pytest.approx(log_p(lm, prefix, list(f" {choice}".encode())), rel=1e-5)
    with pytest.raises(DataError) as error:
        score_choices(lm, tokenizer, Question("a", ("b" * 30, "c"), 0))
    assert str(error.value) == ("question: a choice is longer than the context; got 31 tokens, expected at most 20")


def test_the_prefix_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model(ByteTokenizer())
    read: list[tuple[int, ...]] = []
    forward = TransformerLM.forward_cached

    def counted(self: TransformerLM, ids: np.ndarray, *arguments: object, **options: object) -> object:
        read.append(np.shape(ids))
        return forward(self, ids, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformerLM, "forward_cached", counted)
    continuations(lm, [1, 2, 3, 4], [[5, 6, 7], [8], [9, 10]])
    assert read == [(1, 4), (3, 2)]


def test_a_trained_model_knows_the_answers() -> None:
    tokenizer = ByteTokenizer()
    lm = model(tokenizer, init_std=None)
    facts = ["grass is green", "snow is white", "night is black", "blood is red  "]
    colours = ("green", "white", "black", "red")
    questions = [Question(f.split(" is")[0] + " is", colours, i) for i, f in enumerate(facts)]
    before = evaluate_choices(lm, tokenizer, questions)
    optimizer = AdamW(lm.named_parameters(), learning_rate=1e-2)
    rows = np.zeros((4, 15), np.int64)
    for row, fact in zip(rows, facts, strict=True):
        row[: len(fact)] = list(fact.encode())
    for _ in range(60):
        train_step(lm, optimizer, TokenBatch(rows), max_norm=1.0)
    done: list[int] = []
    after = evaluate_choices(lm, tokenizer, questions, on_question=done.append)
    assert done == [1, 2, 3, 4]
    assert after.correct == after.correct_per_byte == 4 >= before.correct
    assert (after.accuracy, after.stderr, after.chance, after.cut) == (1.0, 0.0, 0.25, 0)
    assert before.stderr == pytest.approx(sqrt(before.accuracy * (1 - before.accuracy) / 3))
