"""TransformerLM: counts and bytes against the configuration, batches against single sequences, gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import pellucid
from pellucid import device as devices
from pellucid.base.errors import ConfigError, DataError, ShapeError
from pellucid.data import TokenBatch
from pellucid.models import RopeScaling, TransformerConfig, TransformerLM
from pellucid.tape import kept_bytes, no_grad, tape

LLAMA = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "max_seq_len": 24, "seed": 5}
GPT2 = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 24,
    "norm": "layernorm",
    "positions": "learned",
    "activation": "gelu",
    "biases": True,
    "seed": 5,
}
CONFIGS = {
    "llama": TransformerConfig(50, **LLAMA),
    "untied": TransformerConfig(50, **LLAMA | {"tie_embeddings": False, "head_dim": 6, "d_ff": 40}),
    "gpt2": TransformerConfig(50, **GPT2),
    "gpt2 without biases": TransformerConfig(50, **GPT2 | {"biases": False, "activation": "gelu_tanh"}),
    "mixed": TransformerConfig(50, **LLAMA | {"norm": "layernorm", "activation": "gelu", "biases": True}),
    "qwen2": TransformerConfig(50, **LLAMA, qkv_bias=True),
    "qwen3": TransformerConfig(50, **LLAMA | {"head_dim": 6}, qk_norm=True),
    "biased": TransformerConfig(50, **LLAMA, qkv_bias=True, out_bias=True, ff_bias=False, qk_norm=True),
    "yarn": TransformerConfig(50, **LLAMA, rope_scaling=RopeScaling("yarn", 4.0, original_context=8)),
    "window": TransformerConfig(50, **LLAMA, window=7, window_layers=(1,)),
    "experts": TransformerConfig(50, **LLAMA, experts=4, moe_layers=(1,), shared_expert=True),
    "experts everywhere": TransformerConfig(50, **LLAMA, experts=3, aux_weight=0.1),
}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> TransformerConfig:
    return CONFIGS[request.param]


def random_ids(batch: int, time: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, (batch, time))


def gradients(model: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}


def test_parameter_counts_are_those_of_the_built_model(config: TransformerConfig) -> None:
    counts = config.parameter_counts()
    parts = {"embedding": 0, "attention": 0, "feedforward": 0, "norms": 0, "head": 0}
    for name, p in TransformerLM(config).named_parameters():
        key = next(
            part
            for mark, part in [
                ("embed", "embedding"),
                ("self_attn", "attention"),
                ("mlp", "feedforward"),
                ("norm", "norms"),
                ("lm_head", "head"),
            ]
            if mark in name
        )
        parts[key] += p.size
    assert counts.total == sum(parts.values())
    assert (counts.active == counts.total) == (config.experts is None)
    assert {name: getattr(counts, name) for name in parts} == parts


def test_the_reference_model_has_its_published_size() -> None:
    config = TransformerConfig(32000, d_model=768, n_layers=16, n_heads=12, n_kv_heads=4, d_ff=1408)
    assert str(config.parameter_counts()) == "101.7M total, 101.7M active"


def test_initial_weights_are_those_documented() -> None:
    config = TransformerConfig(500, d_model=192, n_layers=8, n_heads=4, seed=1)
    assert config.weight_std == 0.04
    assert TransformerConfig(500, init_std=0.3).weight_std == 0.3
    model = TransformerLM(config)
    again = dict(TransformerLM(config).named_parameters())
    for name, p in model.named_parameters():
        value = p.detach().numpy()
        assert np.array_equal(value, again[name].detach().numpy())
        if "norm" in name:
            assert (value == 1).all()
            continue
        std = 0.04 / 4 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.04
        assert value.std() == pytest.approx(std, rel=0.05)
        assert abs(value.mean()) < 4 * std / np.sqrt(value.size)


def test_the_first_loss_is_near_that_of_guessing(config: TransformerConfig) -> None:
    # Logits of a fresh model have deviation s = 0.02 sqrt(768) whatever its width, which adds s**2 / 2 to ln V.
    ids = random_ids(16, 25)
    expected = np.log(50) + 0.02**2 * 768 / 2
    model = TransformerLM(config)
    model.eval()  # without the penalty of routers
    assert model.loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(expected, abs=0.15)


def test_the_loss_is_the_cross_entropy_of_the_logits(config: TransformerConfig) -> None:
    model, ids = TransformerLM(config), random_ids(2, 25)
    model.eval()
    with no_grad():
        logits = model(ids[:, :-1]).reshape(-1, 50)
        expected = pellucid.cross_entropy(logits, pellucid.tensor(ids[:, 1:].reshape(-1))).item()
        assert model.loss(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(expected, rel=1e-6)


def test_a_batch_equals_its_sequences_one_by_one(config: TransformerConfig) -> None:
    model, ids = TransformerLM(config), random_ids(3, 20)
    with no_grad():
        together = model(ids).numpy()
        for i in range(3):
            np.testing.assert_allclose(together[i], model(ids[i]).numpy()[0], atol=2e-6)


def test_padding_changes_nothing_and_the_mean_is_over_predicted_positions(config: TransformerConfig) -> None:
    model = TransformerLM(config)
    model.eval()
    long, short = list(random_ids(1, 20, 1)[0]), list(random_ids(1, 7, 2)[0])
    batch = TokenBatch([long, short])
    with no_grad():
        alone = [model.loss(b.inputs, b.targets, b.weights).item() for b in (TokenBatch([long]), TokenBatch([short]))]
        together = model.loss(batch.inputs, batch.targets, batch.weights).item()
    assert together == pytest.approx((19 * alone[0] + 6 * alone[1]) / 25, rel=1e-6)


def test_tied_embeddings_collect_gradient_from_both_ends() -> None:
    ids = np.array([[1, 2, 3, 4]])
    tied = TransformerLM(CONFIGS["llama"])
    tied.loss(ids[:, :-1], ids[:, 1:]).backward()
    both = gradients(tied)["model.embed_tokens.weight"]
    assert (np.abs(both).sum(axis=1) > 0).all()  # the softmax reaches every row

    untied = TransformerLM(CONFIGS["untied"])
    untied.loss(ids[:, :-1], ids[:, 1:]).backward()
    found = gradients(untied)
    table = np.abs(found["model.embed_tokens.weight"]).sum(axis=1)
    assert (table[[1, 2, 3]] > 0).all()
    assert (np.delete(table, [1, 2, 3]) == 0).all()
    assert (np.abs(found["lm_head.weight"]).sum(axis=1) > 0).all()


@pytest.mark.parametrize("more", [False, True])
def test_gradients_against_finite_differences(more: bool) -> None:
    small = TransformerConfig(20, d_model=8, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=12, max_seq_len=8)
    options = {"qkv_bias": True, "qk_norm": True, "rope_scaling": RopeScaling("yarn", 4.0, original_context=2)}
    model = TransformerLM(replace(small, **options) if more else small)  # type: ignore[arg-type]
    ids = np.random.default_rng(3).integers(0, 20, (2, 9))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    rng = np.random.default_rng(0)
    for name, p in model.named_parameters():
        assert p.grad is not None
        direction = rng.normal(size=p.shape).astype(np.float32)
        expected = float((direction * p.grad.numpy()).sum())
        value = p.detach().numpy()
        start, losses = value.copy(), []
        for sign in (1, -1):
            value[...] = start + sign * np.float32(2e-3) * direction
            with no_grad():
                losses.append(model.loss(ids[:, :-1], ids[:, 1:]).item())
        value[...] = start
        assert (losses[0] - losses[1]) / 4e-3 == pytest.approx(expected, rel=0.03, abs=1e-3), name


def test_checkpointed_blocks_give_the_same_bits(config: TransformerConfig) -> None:
    ids = random_ids(2, 25)
    results = []
    for flag in (False, True):
        changes = {name: getattr(config, name) for name in config.__dataclass_fields__}
        model = TransformerLM(TransformerConfig(**changes | {"checkpoint_blocks": flag, "dropout": 0.1}))
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        results.append((loss.item(), gradients(model), model.dropout_generator.state()))
    assert results[0][0] == results[1][0]
    assert results[0][2] == results[1][2]
    for name, g in results[0][1].items():
        assert np.array_equal(g, results[1][1][name]), name


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_the_tape_keeps_the_bytes_the_configuration_says(config: TransformerConfig, checkpoint_blocks: bool) -> None:
    changes = {name: getattr(config, name) for name in config.__dataclass_fields__}
    config = TransformerConfig(**changes | {"checkpoint_blocks": checkpoint_blocks})
    ids = random_ids(3, 25)
    loss = TransformerLM(config).loss(ids[:, :-1], ids[:, 1:])
    assert kept_bytes(tape(loss)) == config.tape_bytes(3, 24)


def test_peak_memory_is_near_the_prediction() -> None:
    config = TransformerConfig(256, d_model=64, n_layers=4, n_heads=4, max_seq_len=64)
    model, ids = TransformerLM(config), np.random.default_rng(0).integers(0, 256, (8, 65))
    optimizer = pellucid.optim.AdamW(model.named_parameters())
    cpu = devices("cpu")
    peaks = []
    for _ in range(2):
        optimizer.zero_grad()
        cpu.peak_bytes = cpu.bytes_in_use  # type: ignore[attr-defined]
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
        peaks.append(cpu.peak_bytes)  # type: ignore[attr-defined]
    assert 0.8 < peaks[-1] / config.training_bytes(8, 64) < 1.35


def test_flops_are_counted_by_hand() -> None:
    config = TransformerConfig(100, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=24, max_seq_len=8)
    weights = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24 + 100 * 16
    attention = 4 * 16 * (8 + 1) / 2
    assert config.flops_per_token(8, training=False) == 2 * weights + attention
    assert config.flops_per_token(8) == 3 * (2 * weights + attention)


def test_bfloat16_operands_stay_close() -> None:
    ids = random_ids(4, 25)
    losses = [
        TransformerLM(TransformerConfig(50, **LLAMA | {"precision": p})).loss(ids[:, :-1], ids[:, 1:]).item()
        for p in ("float32", "bfloat16")
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([[0, 50]], DataError, "ids: id outside the vocabulary; got 50, expected 0 to 49"),
        ([[-1, 0]], DataError, "ids: id outside the vocabulary; got -1, expected 0 to 49"),
        ([], DataError, "ids: no tokens; got (0,), expected at least one id"),
        ([[0.5]], DataError, "ids: token ids are not integers; got float64"),
        (np.zeros((1, 25), np.int64), DataError, "ids: longer than the context; got 25 tokens, expected at most 24"),
        (
            np.zeros((1, 1, 1), np.int64),
            ShapeError,
            "ids: ids have the wrong rank; got (1, 1, 1), expected (batch, time)",
        ),
    ],
)
def test_bad_ids(ids: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        TransformerLM(CONFIGS["llama"])(ids)  # type: ignore[arg-type]
    assert str(found.value).split(". hint")[0] == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 5}, "d_model is not a multiple of n_heads; got 32 and 5"),
        ({"n_kv_heads": 3}, "n_heads is not a multiple of n_kv_heads; got 4 and 3"),
        ({"n_heads": 0}, "n_heads must be at least 1; got 0"),
        ({"n_kv_heads": 0}, "n_kv_heads must be at least 1; got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1; got 0"),
        ({"head_dim": 7}, "rotary positions need an even head_dim; got 7"),
        ({"n_layers": 0}, "n_layers must be at least 1; got 0"),
        ({"dropout": 1.0}, "dropout is not a probability; got 1.0, expected 0 <= dropout < 1"),
        ({"init_std": 0.0}, "init_std must be positive; got 0.0"),
        ({"window": 0}, "window must be at least 1; got 0"),
        ({"window_layers": (1,)}, "window_layers without window; got (1,)"),
        (
            {"window": 4, "window_layers": (0, 2)},
            "window_layers are not layers of the model; got 2, expected different ones of 0 to 1",
        ),
        (
            {"positions": "learned", "rope_scaling": RopeScaling("linear", 2.0)},
            "rope_scaling needs rotary positions and rope_base above 1; got positions 'learned', rope_base 10000.0",
        ),
        ({"seed": -1}, "seed out of range; got -1, expected 0 to 2**64 - 1"),
    ],
)
def test_impossible_configurations(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TransformerConfig(50, **LLAMA | changes)  # type: ignore[arg-type]
    assert str(error.value).split(". hint")[0] == f"TransformerConfig: {message}"
