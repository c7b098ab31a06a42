"""The training step: accumulation, clipping, evaluation, determinism, and what happens when the numbers blow up."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import NonFiniteError
from pellucid.data import TokenBatch, TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.train import accumulate, evaluate, evaluate_file, train_step

CONFIG = TransformerConfig(40, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=24, seed=2)


def batch_of(*lengths: int, seed: int = 0) -> TokenBatch:
    rng = np.random.default_rng(seed)
    return TokenBatch([rng.integers(0, 40, n).tolist() for n in lengths])


def gradients(model: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}


def weights(model: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_two_half_batches_give_twice_the_mean_gradient() -> None:
    model, whole = TransformerLM(CONFIG), batch_of(20, 20, 20, 20)
    accumulate(model, whole)
    expected = gradients(model)
    model.zero_grad()
    for half in whole.split(2):
        accumulate(model, half)
    for name, g in gradients(model).items():
        np.testing.assert_allclose(g, 2 * expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_micro_batches_weigh_tokens_not_batches(parts: int) -> None:
    model, whole = TransformerLM(CONFIG), batch_of(24, 3, 9, 17)
    loss = accumulate(model, whole)
    expected = gradients(model)
    model.zero_grad()
    assert accumulate(model, whole, micro_batches=parts) == pytest.approx(loss, rel=1e-6)
    for name, g in gradients(model).items():
        np.testing.assert_allclose(g, expected[name], rtol=1e-4, atol=1e-6)


def test_a_masked_out_micro_batch_counts_nothing() -> None:
    model, whole = TransformerLM(CONFIG), batch_of(10, 10)
    flags = np.zeros((2, 10), bool)
    flags[0, 3:] = True
    masked = whole.with_loss_mask(flags)
    assert accumulate(model, masked, micro_batches=2) == pytest.approx(accumulate(model, masked), rel=1e-6)


def test_an_all_true_mask_changes_no_bit() -> None:
    model, plain = TransformerLM(CONFIG), batch_of(20, 13)
    accumulate(model, plain)
    expected = gradients(model)
    model.zero_grad()
    accumulate(model, plain.with_loss_mask(np.ones((2, 20), bool)))
    assert same(gradients(model), expected)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_clipping_does_not_depend_on_the_accumulation_count(parts: int) -> None:
    results = []
    for n in (1, parts):
        model = TransformerLM(CONFIG)
        optimizer = AdamW(model.named_parameters(), learning_rate=1e-2, weight_decay=0.0)
        found = train_step(model, optimizer, batch_of(20, 20, 20, 20), max_norm=0.1, micro_batches=n)
        results.append((found.norm, weights(model)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    assert results[0][0] > 0.1
    for name, w in results[0][1].items():
        np.testing.assert_allclose(w, results[1][1][name], atol=2e-4)


def test_evaluation_is_repeatable_and_equals_the_loss_of_the_next_step() -> None:
    model, batch = TransformerLM(CONFIG), batch_of(20, 11)
    before = weights(model)
    first = evaluate(model, batch)
    assert first == evaluate(model, batch)
    assert same(before, weights(model))
    assert model.training
    assert first.perplexity == pytest.approx(np.exp(first.loss))
    optimizer = AdamW(model.named_parameters())
    assert train_step(model, optimizer, batch).loss == pytest.approx(first.loss, rel=1e-6)


def test_evaluation_over_a_file_weighs_every_token_the_same(tmp_path: object) -> None:
    path = f"{tmp_path}/t.bin"
    TokenFile.write(path, np.random.default_rng(0).integers(0, 40, 2 * 3 * 11 + 11 + 5))
    tokens, model = TokenFile.open(path), TransformerLM(CONFIG)
    found = evaluate_file(model, tokens, sequences=3, seq_len=10)
    assert found.n_targets == 7 * 10
    windows = [evaluate(model, TokenBatch([tokens.ids[i * 11 : i * 11 + 11]])).loss for i in range(7)]
    assert found.loss == pytest.approx(np.mean(windows), rel=1e-6)
    halves = evaluate_file(model, tokens, sequences=1, seq_len=10, max_batches=2)
    assert halves.loss == pytest.approx(np.mean([windows[0], windows[3]]), rel=1e-6)
    short = evaluate_file(model, tokens.part(0, 6), sequences=3, seq_len=10)
    assert short.n_targets == 5


def test_losses_fall_on_text_that_repeats() -> None:
    model = TransformerLM(CONFIG)
    optimizer = AdamW(model.named_parameters(), learning_rate=3e-3)
    batch = TokenBatch([np.tile(np.arange(8), 3)] * 4)
    losses = [train_step(model, optimizer, batch, max_norm=1.0).loss for _ in range(60)]
    assert losses[-1] < 0.3 < 3 < losses[0]


def test_equal_seeds_give_equal_bits_for_any_number_of_threads(thread_counts: object) -> None:
    results = []
    for threads in (1, 2, 2):
        thread_counts(threads)  # type: ignore[operator]
        model = TransformerLM(TransformerConfig(300, d_model=64, n_layers=2, n_heads=4, max_seq_len=96, dropout=0.1))
        optimizer = AdamW(model.named_parameters())
        rng = np.random.default_rng(0)
        losses = [
            train_step(model, optimizer, TokenBatch(rng.integers(0, 300, (6, 97))), max_norm=1.0).loss for _ in range(4)
        ]
        results.append((losses, weights(model)))
    assert results[0][0] == results[1][0] == results[2][0]
    assert same(results[0][1], results[1][1])
    assert same(results[1][1], results[2][1])


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    model = TransformerLM(CONFIG)
    optimizer = AdamW(model.named_parameters())
    weight = model.model.layers[1].mlp.down_proj.weight.detach().numpy()  # type: ignore[attr-defined]
    weight[3, 5] = np.inf
    before = weights(model)
    with pytest.raises(NonFiniteError, match="loss or gradient is not a finite number; the weights are as they were"):
        train_step(model, optimizer, batch_of(20, 20), max_norm=1.0)
    assert optimizer.steps == 0
    assert same(before, weights(model))
