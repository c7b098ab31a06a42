"""Packed documents through whole models: loss and every gradient are those of the documents a row each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import ShapeError
from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM

SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 64}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "learned": {"positions": "learned", "norm": "layernorm", "activation": "gelu", "biases": True},
    "experts": {"experts": 4, "aux_weight": 0.1, "z_weight": 0.1},
    "recomputed": {"checkpoint_blocks": True},
    "recomputed experts": {"checkpoint_blocks": True, "experts": 4, "moe_layers": (1,)},
    "norms": {"qk_norm": True},
}


def documents() -> list[tuple[list[int], list[bool]]]:
    random = np.random.default_rng(0)
    found = []
    for length in (5, 2, 17, 9, 30, 3):
        flags = np.arange(length) >= min(2, length - 1)
        flags[-1] |= True
        found.append((random.integers(0, 40, length).tolist(), flags.tolist()))
    found[2][1][-4:] = [False] * 4  # tokens behind the last that counts
    return found


def gradients(model: TransformerLM, batch: TokenBatch) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    for p in model.parameters():
        p.grad = None
    loss = model.loss(batch.inputs, batch.targets, batch.weights, starts=batch.starts, positions=batch.positions)
    loss.backward()
    return loss.item(), {n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_loss_and_gradients_are_those_of_documents_alone(options: dict[str, Any]) -> None:
    model = TransformerLM(TransformerConfig(40, **SIZES, **options))
    given = documents()
    packed = TokenBatch.packed([[given[4], given[0], given[1]], [given[2], given[3], given[5]]])
    width = max(len(ids) for ids, _ in given)
    flags = np.array([np.pad(f, (0, width - len(f))) for _, f in given])
    alone = TokenBatch([ids for ids, _ in given], loss_mask=flags)
    assert packed.n_targets == alone.n_targets
    loss, got = gradients(model, packed)
    expected, want = gradients(model, alone)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert got.keys() == want.keys() == {n for n, _ in model.named_parameters()}
    for name in want:
        scale = float(np.abs(want[name]).max())
        assert np.abs(got[name] - want[name]).max() <= 2e-6 * scale + 1e-9, name


def test_a_document_that_counts_for_nothing_changes_nothing() -> None:
    model = TransformerLM(TransformerConfig(40, **SIZES, experts=4))
    given = documents()
    other = [(i + 1) % 40 for i in given[0][0]]
    found = []
    for ids in (given[0][0], other):
        batch = TokenBatch.packed([[(ids, [False] * 5), given[2]]])
        found.append(gradients(model, batch))
    assert found[0][0] == found[1][0]
    for name, gradient in found[0][1].items():
        assert gradient.tobytes() == found[1][1][name].tobytes(), name


def test_log_probabilities_of_rows_sum_to_the_loss() -> None:
    model = TransformerLM(TransformerConfig(40, **SIZES))
    batch = TokenBatch([ids for ids, _ in documents()])
    counted = batch.weights > 0
    found = [x.item() for x in model.log_probs(batch.inputs, batch.targets, counted)]
    assert -sum(found) / batch.n_targets == pytest.approx(
        model.loss(batch.inputs, batch.targets, batch.weights).item(), rel=1e-6
    )
    whole = model(batch.inputs).detach().numpy().astype(np.float64)
    logs = whole - np.log(np.exp(whole).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, batch.targets[..., None], -1)[..., 0]
    assert found == pytest.approx((picked * counted).sum(-1).tolist(), rel=1e-5)


def test_places_that_do_not_fit_are_refused() -> None:
    model, ids = TransformerLM(TransformerConfig(40, **SIZES)), np.zeros((1, 3), np.int64)
    message = r"^loss: starts do not fit the ids; got int64 \(1, 2\), expected integers \(1, 3\)$"
    with pytest.raises(ShapeError, match=message):
        model.loss(ids, ids, starts=np.zeros((1, 2), np.int64))
