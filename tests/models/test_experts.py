"""A transformer with mixtures of experts: counts, penalty, padding, micro-batches, cache, and balance on real text."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import ConfigError
from pellucid.checkpoint import load_into, read_tensors, write_tensors
from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.tape import no_grad
from pellucid.train import accumulate, train_step

BASE: dict[str, Any] = {"d_model": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 24, "seed": 5}
CONFIG = TransformerConfig(50, **BASE, experts=4, moe_layers=(0, 2), shared_expert=True)


def random_ids(batch: int, time: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, (batch, time))


def gradients(model: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}


def test_the_published_example_has_its_published_size() -> None:
    config = TransformerConfig(
        32000,
        d_model=512,
        n_layers=8,
        n_heads=8,
        n_kv_heads=2,
        d_ff=1408,
        experts=8,
        moe_layers=tuple(range(2, 8)),
        moe_d_ff=352,
        shared_expert=True,
    )
    assert str(config.parameter_counts()) == "55.2M total, 35.7M active"


@pytest.mark.parametrize("tied", [True, False])
def test_counts_are_those_of_the_built_model(tied: bool) -> None:
    config = replace(CONFIG, tie_embeddings=tied)
    counts, sizes = config.parameter_counts(), {n: p.size for n, p in TransformerLM(config).named_parameters()}
    assert counts.total == sum(sizes.values())
    assert counts.feedforward == sum(n for name, n in sizes.items() if ".mlp." in name)
    one = sum(n for name, n in sizes.items() if ".0.mlp.experts.0." in name)
    assert counts.total - counts.active == 2 * 2 * one  # layers x idle experts


def test_an_expert_has_a_share_of_the_dense_width() -> None:
    assert TransformerConfig(50, d_ff=1408, experts=8).expert_hidden == 704
    assert TransformerConfig(50, d_ff=1408, experts=8, shared_expert=True).expert_hidden == 480
    assert TransformerConfig(50, d_ff=1408, experts=8, moe_d_ff=10).expert_hidden == 10
    assert TransformerConfig(50, n_layers=4).expert_layers == ()
    assert [TransformerConfig(50, experts=n).experts_of_token for n in (1, 2, 8)] == [1, 2, 2]
    assert TransformerConfig(50, n_layers=2, experts=2).expert_layers == (0, 1)
    assert TransformerConfig(50, n_layers=4, experts=2, moe_layers=(3, 1)).moe_layers == (1, 3)


def test_gradients_against_finite_differences() -> None:
    config = TransformerConfig(
        20,
        d_model=8,
        n_layers=2,
        n_heads=2,
        d_ff=12,
        max_seq_len=8,
        experts=3,
        moe_layers=(1,),
        aux_weight=0.5,
        z_weight=0.1,
    )
    model, ids = TransformerLM(config), np.random.default_rng(3).integers(0, 20, (2, 9))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    rng = np.random.default_rng(0)
    for name, p in model.named_parameters():
        if "layers.0" in name or "embed" in name:
            continue  # in these directions some token changes its experts
        assert p.grad is not None
        direction = rng.normal(size=p.shape).astype(np.float32)
        expected = float((direction * p.grad.numpy()).sum())
        value = p.detach().numpy()
        start, losses = value.copy(), []
        for sign in (1, -1):
            value[...] = start + sign * np.float32(1e-3) * direction
            with no_grad():
                losses.append(model.loss(ids[:, :-1], ids[:, 1:]).item())
        value[...] = start
        assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(expected, rel=0.03, abs=2e-3), name


def test_the_penalty_is_added_in_training_alone_and_reported() -> None:
    model, ids = TransformerLM(CONFIG), random_ids(3, 25)
    training = model.loss(ids[:, :-1], ids[:, 1:]).item()
    report = model.routing_report()
    assert report is not None
    assert report.layers == (0, 2)
    assert [sum(shares) for shares in report.load] == pytest.approx([1, 1])
    assert report.penalty == pytest.approx(2 * (0.01 * report.balance_loss + 1e-3 * report.z_loss))
    assert 1 <= report.balance_loss < 1.5
    model.eval()
    assert training == pytest.approx(model.loss(ids[:, :-1], ids[:, 1:]).item() + report.penalty, rel=1e-6)
    silent = TransformerLM(replace(CONFIG, aux_weight=0.0, z_weight=0.0))
    assert silent.loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(training - report.penalty, rel=1e-6)
    assert TransformerLM(TransformerConfig(50, **BASE)).routing_report() is None


def test_padding_leaves_routing_as_it_is() -> None:
    model, long = TransformerLM(CONFIG), random_ids(1, 20)[0]
    alone, padded = TokenBatch([long]), TokenBatch([long, random_ids(1, 24, 1)[0]])
    losses = []
    for batch in (alone, padded):
        weights = batch.weights.copy()
        weights[1:] = 0  # the second sequence counts as little as padding
        losses.append(model.loss(batch.inputs, batch.targets, weights / weights.sum()).item())
        losses.append(model.routing_report())
    assert losses[0] == pytest.approx(losses[2], rel=1e-6)
    np.testing.assert_allclose(losses[1].load, losses[3].load, atol=1e-7)
    assert losses[1].balance_loss == pytest.approx(losses[3].balance_loss, rel=1e-6)


def test_a_masked_prompt_is_routed() -> None:
    """Nothing of it counts in the loss, but later positions read it."""
    model, ids = TransformerLM(CONFIG), random_ids(1, 12)[0]
    batch = TokenBatch.supervised([(ids[:8], ids[8:])])
    with no_grad():
        logits = model(batch.inputs).numpy()[0, 7:]
        loss = model.loss(batch.inputs, batch.targets, batch.weights).item()
    report = model.routing_report()
    assert report is not None
    lse = np.log(np.exp(logits).sum(1))
    expected = float(np.mean(lse - logits[np.arange(4), batch.targets[0, 7:]]))
    assert loss - report.penalty == pytest.approx(expected, rel=1e-5)


def test_micro_batches_differ_in_the_penalty_alone() -> None:
    whole = TokenBatch(list(random_ids(4, 20)))
    found = {}
    for aux in (0.0, 1.0):
        model = TransformerLM(replace(CONFIG, aux_weight=aux, z_weight=aux))
        for parts in (1, 2):
            model.zero_grad()
            loss = accumulate(model, whole, micro_batches=parts)
            found[aux, parts] = loss, gradients(model)
    assert found[0.0, 1][0] == pytest.approx(found[0.0, 2][0], rel=1e-6)
    assert found[1.0, 1][0] == pytest.approx(found[1.0, 2][0], rel=1e-5)
    for name, g in found[0.0, 1][1].items():
        np.testing.assert_allclose(found[0.0, 2][1][name], g, rtol=1e-3, atol=1e-6, err_msg=name)
    router = "model.layers.2.mlp.gate.weight"
    assert np.abs(found[1.0, 1][1][router] - found[1.0, 2][1][router]).max() > 1e-4
    head = "model.norm.weight"  # the penalty does not pass through it
    np.testing.assert_allclose(found[1.0, 1][1][head], found[1.0, 2][1][head], rtol=1e-3, atol=1e-6)


def test_two_half_batches_give_twice_the_mean_gradient() -> None:
    model, whole = TransformerLM(replace(CONFIG, aux_weight=0.0, z_weight=0.0)), TokenBatch(list(random_ids(4, 20)))
    accumulate(model, whole)
    expected = gradients(model)
    model.zero_grad()
    for half in whole.split(2):
        accumulate(model, half)
    for name, g in gradients(model).items():
        np.testing.assert_allclose(g, 2 * expected[name], rtol=1e-3, atol=2e-6, err_msg=name)


def test_the_cache_gives_the_logits_of_the_whole() -> None:
    model, ids = TransformerLM(CONFIG), random_ids(2, 12)
    with no_grad():
        whole = model(ids).numpy()
        caches = model.new_caches(batch=2)
        cuts = (0, 7, 8, 12)
        parts = [model.forward_cached(ids[:, a:b], caches).numpy() for a, b in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=5e-6)


def test_weights_go_to_a_file_and_back(tmp_path: Path) -> None:
    model, other = TransformerLM(CONFIG), TransformerLM(replace(CONFIG, seed=9))
    ids = random_ids(2, 12)
    write_tensors(tmp_path / "m.safetensors", dict(model.named_parameters()))
    load_into(dict(other.named_parameters()), read_tensors(tmp_path / "m.safetensors"))
    with no_grad():
        assert np.array_equal(model(ids).numpy(), other(ids).numpy())
    assert "model.layers.2.mlp.experts.3.down_proj.weight" in read_tensors(tmp_path / "m.safetensors")


def test_loads_are_balanced_after_200_steps_on_real_text(corpus_folder: Path) -> None:
    raw = (corpus_folder / "english" / "tinyshakespeare.txt").read_bytes()[:400_000]
    text = np.frombuffer(raw, np.uint8).astype(np.int64)

    def load_after(steps: int, **changes: float) -> np.ndarray:
        """Mean load of each expert in each layer over the last ten steps."""
        config = TransformerConfig(
            128,
            d_model=64,
            n_layers=2,
            n_heads=4,
            max_seq_len=64,
            experts=8,
            shared_expert=True,
            **changes,  # type: ignore[arg-type]
        )
        model, rng, loads = TransformerLM(config), np.random.default_rng(0), []
        optimizer = AdamW(model.named_parameters(), learning_rate=3e-3)
        for _ in range(steps):
            starts = rng.integers(0, len(text) - 65, 8)
            result = train_step(
                model, optimizer, TokenBatch(np.stack([text[a : a + 65] for a in starts])), max_norm=1.0
            )
            assert result.routing is not None
            loads.append(result.routing.load)
        assert result.loss < 3
        return np.mean(loads[-10:], axis=0)

    balanced = load_after(200)
    assert balanced.sum(axis=1) == pytest.approx([1, 1])
    assert balanced.min() > 0.5 / 8
    assert balanced.max() < 1.5 / 8
    assert load_after(60, aux_weight=0.0).max() > 2.5 / 8  # what the loss prevents


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 0}, "experts must be at least 1; got 0"),
        (
            {"experts": 4, "active_experts": 5},
            "active_experts out of range; got 5, expected 1 to 4, the experts in a layer",
        ),
        (
            {"experts": 1, "active_experts": 2},
            "active_experts out of range; got 2, expected 1 to 1, the experts in a layer",
        ),
        ({"active_experts": 3}, "active_experts without experts; got 3"),
        (
            {"experts": 4, "active_experts": 0},
            "active_experts out of range; got 0, expected 1 to 4, the experts in a layer",
        ),
        (
            {"experts": 4, "moe_layers": (1, 3)},
            "moe_layers are not layers of the model; got 3, expected different ones of 0 to 2",
        ),
        (
            {"experts": 4, "moe_layers": (-1,)},
            "moe_layers are not layers of the model; got -1, expected different ones of 0 to 2",
        ),
        (
            {"experts": 4, "moe_layers": ()},
            "moe_layers are not layers of the model; got (), expected different ones of 0 to 2",
        ),
        (
            {"experts": 4, "moe_layers": (1, 1)},
            "moe_layers are not layers of the model; got (1, 1), expected different ones of 0 to 2",
        ),
        ({"experts": 4, "moe_d_ff": 0}, "moe_d_ff must be at least 1; got 0"),
        ({"experts": 4, "aux_weight": -1.0}, "aux_weight must be a number from 0 on; got -1.0"),
        ({"experts": 4, "z_weight": float("nan")}, "z_weight must be a number from 0 on; got nan"),
        (
            {"experts": 4, "activation": "gelu"},
            "experts are SwiGLU without biases; got activation gelu, biases False",
        ),
        ({"experts": 4, "biases": True}, "experts are SwiGLU without biases; got activation swiglu, biases True"),
        ({"moe_layers": (1,)}, "moe_layers without experts; got (1,)"),
        ({"shared_expert": True}, "shared_expert without experts; got True"),
    ],
)
def test_impossible_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TransformerConfig(50, **BASE | changes)
    assert str(error.value).split(". hint")[0] == f"TransformerConfig: {message}"
