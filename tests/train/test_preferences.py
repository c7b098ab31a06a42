"""Preference tuning: the loss and gradient are those of the equation, and the margin rises on real pairs."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import DataError, ShapeError
from pellucid.data import Examples, preferences
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.ops import preference_loss, tensor
from pellucid.text import ByteTokenizer
from pellucid.text.chat_sources import TRANSCRIPT
from pellucid.text.jinja import JinjaTemplate
from pellucid.train import (
    Encoding,
    Pairs,
    PreferenceLoss,
    TrainConfig,
    Trainer,
    accumulate,
    read_metrics,
    reference_log_probs,
)

MODEL = TransformerConfig(40, d_model=16, n_layers=2, n_heads=2, max_seq_len=32)


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    random = np.random.default_rng(0)
    made = []
    for _ in range(5):
        asked = random.integers(0, 40, 6)
        for length in random.integers(2, 9, 2):
            counts = np.arange(6 + length) >= 6
            made.append((np.concatenate([asked, random.integers(0, 40, length)]), counts))
    Examples.write(tmp_path / "examples.bin", made)
    return Examples.open(tmp_path / "examples.bin")


def test_the_first_loss_is_ln_2_and_pairs_are_read_once_an_epoch(examples: Examples, tmp_path: Path) -> None:
    model = TransformerLM(MODEL)
    reference = reference_log_probs(model, examples, tmp_path / "reference.bin", sequences=3)
    pairs = Pairs(examples, reference, sequences=5, seed=1)
    batch, objective = pairs.batch(0), PreferenceLoss(beta=0.5)
    assert objective.loss(model, batch, 1.0).item() == pytest.approx(log(2), rel=1e-5)
    record = objective.record()
    assert record["margin"] == pytest.approx(0, abs=1e-4)
    assert objective.record() == {}
    assert sorted(batch.reference.tolist()) == sorted((reference[::2] - reference[1::2]).tolist())
    assert pairs.batch(1).reference.tolist() != batch.reference.tolist()
    assert pairs.steps(3) == 3


def test_the_reference_is_computed_once(examples: Examples, tmp_path: Path) -> None:
    path = tmp_path / "reference.bin"
    first = reference_log_probs(TransformerLM(MODEL), examples, path, sequences=4)
    other = reference_log_probs(TransformerLM(TransformerConfig(40, d_model=8, n_heads=2)), examples, path, sequences=4)
    assert first.tolist() == other.tolist()
    with pytest.raises(DataError, match=f"^{path}: not of these examples; got 10 numbers, expected 4$"):
        reference_log_probs(TransformerLM(MODEL), examples.subset(np.arange(4)), path, sequences=4)


def test_gradients_are_those_of_finite_differences_and_of_parts(examples: Examples, tmp_path: Path) -> None:
    """Along a random direction, since a single weight moves a float32 loss by less than it is rounded to."""
    model, objective = TransformerLM(MODEL), PreferenceLoss(beta=0.9, smoothing=0.1)
    reference = np.random.default_rng(3).normal(-20, 1, 10)
    batch = Pairs(examples, reference, sequences=5, seed=1).batch(0)
    found = []
    for parts in (1, 3):
        for p in model.parameters():
            p.grad = None
        loss = accumulate(model, batch, micro_batches=parts, objective=objective)
        found.append((loss, {n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None}))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, gradient in found[0][1].items():
        assert found[1][1][name] == pytest.approx(gradient, rel=1e-4, abs=1e-6), name
    random, step = np.random.default_rng(1), 1e-2
    named = dict(model.named_parameters())
    direction = {n: random.normal(size=p.shape).astype(np.float32) for n, p in named.items()}
    length = np.sqrt(sum((d**2).sum() for d in direction.values()))
    direction = {n: d / length for n, d in direction.items()}
    want = sum(float((direction[n] * g).sum()) for n, g in found[0][1].items())
    start = {n: p.detach().numpy().copy() for n, p in named.items()}

    def at(distance: float) -> float:
        for n, p in named.items():
            p.device.kernels.assign_(p.array, p.device.upload(start[n] + distance * direction[n], p.dtype))
        return objective.loss(model, batch, 1.0).item()

    assert (at(step) - at(-step)) / (2 * step) == pytest.approx(want, rel=2e-2, abs=2e-4)


def test_the_margin_rises_on_real_pairs(corpus_folder: Path, tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    template = JinjaTemplate(TRANSCRIPT)
    making = Encoding(template, tokenizer, longest=193, too_long="cut")
    found = (
        p for p, _ in zip(preferences(corpus_folder / "instructions" / "dpo_en_demo.json"), range(60), strict=False)
    )
    Examples.write(tmp_path / "examples.bin", making.pairs(found))
    examples = Examples.open(tmp_path / "examples.bin")
    model = TransformerLM(
        TransformerConfig(tokenizer.vocab_size, d_model=32, n_layers=1, n_heads=2, max_seq_len=192, seed=2)
    )
    reference = reference_log_probs(model, examples, tmp_path / "reference.bin", sequences=8)
    pairs = Pairs(examples, reference, sequences=8, seed=1)
    config = TrainConfig(steps=12, sequences=8, seq_len=192, learning_rate=3e-3, warmup=2, eval_every=None)
    Trainer(model, pairs, config, objective=PreferenceLoss(beta=0.1), folder=tmp_path).run()
    lines: list[dict[str, Any]] = [m for m in read_metrics(tmp_path / "metrics.jsonl") if "margin" in m]
    assert lines[0]["margin"] == pytest.approx(0, abs=1e-3)
    assert np.mean([m["margin"] for m in lines[-3:]]) > 0.1
    assert np.mean([m["preferred"] for m in lines[-3:]]) > 0.6


def test_answers_that_do_not_fit_are_refused() -> None:
    one, two = (tensor(np.zeros(n, np.float32)) for n in (1, 2))
    with pytest.raises(
        ShapeError, match=r"^preference_loss: answers and reference do not fit; got \(1,\), \(2,\), \(1,\)"
    ):
        preference_loss(one, two, one, beta=0.1)
    assert preference_loss(one, one, one, beta=0.1).item() == pytest.approx(log(2))


def test_pairs_need_two_answers_each(examples: Examples) -> None:
    with pytest.raises(
        DataError, match=r"^Pairs: not two answers for each question; got 3 examples, 3 of the reference$"
    ):
        Pairs(examples.subset(np.arange(3)), np.zeros(3), sequences=1, seed=0)
