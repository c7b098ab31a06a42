"""Log-likelihoods of choices against a Llama in plain PyTorch, which reads every choice with its question."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from pellucid.data import Question
from pellucid.text import ByteTokenizer
from pellucid.train import score_choices

from .test_llama import pair


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2, "rope_base": 500.0}, {"tie_embeddings": False}])
def test_likelihoods_agree(changes: dict[str, object]) -> None:
    tokenizer = ByteTokenizer()
    ours, theirs = pair({**changes, "vocab_size": tokenizer.vocab_size}, torch.float64)
    question = Question("the wind goes over", ("the sea", "a stone", "night", "x"), 1)
    found = score_choices(ours, tokenizer, question)
    expected = []
    for choice in question.choices:
        ids = torch.tensor(list(f"{question.stem} {choice}".encode()))
        logs = theirs(ids[None])[0].log_softmax(-1)[:-1].gather(1, ids[1:, None])
        expected.append(logs[len(question.stem) - 1 :].sum().item())
    assert found.logs == pytest.approx(expected, rel=1e-5)
    assert found.best == max(range(4), key=expected.__getitem__)
