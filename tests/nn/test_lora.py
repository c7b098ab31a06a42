"""LoRA: exact at the start, the base untouched, every projection moved, adapters switched, merged and removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.base import dtypes
from pellucid.base.errors import ConfigError, PellucidError
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import (
    HeldMatrix,
    LoraConfig,
    Module,
    RMSNorm,
    add_lora,
    merge_lora,
    refuse_adapters,
    set_adapter,
    unload_lora,
)
from pellucid.nn.lora import PROJECTIONS
from pellucid.optim import AdamW
from pellucid.tape import Tensor, tape

IDS = np.random.default_rng(0).integers(0, 40, (3, 17))
LLAMA: dict[str, Any] = {}
GPT2: dict[str, Any] = {
    "norm": "layernorm",
    "positions": "learned",
    "activation": "gelu_tanh",
    "biases": True,
    "n_kv_heads": None,
}
EXPERTS: dict[str, Any] = {"experts": 4, "shared_expert": True, "moe_layers": (1,)}
KINDS = {"llama": LLAMA, "gpt2": GPT2, "experts": EXPERTS}


def model(**options: Any) -> TransformerLM:
    shape = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 48, "max_seq_len": 32}
    return TransformerLM(TransformerConfig(40, **{**shape, **options}))


def logits(m: TransformerLM) -> np.ndarray:
    return m(IDS).detach().numpy().copy()


def weights(m: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in m.named_parameters()}


def loss(m: TransformerLM) -> Tensor:
    return m.loss(IDS[:, :-1], IDS[:, 1:])


def trained(m: TransformerLM, steps: int = 5) -> list[float]:
    optimizer = AdamW(m.named_trained(), learning_rate=1e-2)
    losses = []
    for _ in range(steps):
        found = loss(m)
        found.backward()
        losses.append(found.item())
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
    return losses


def message(call: Any) -> str:
    with pytest.raises(PellucidError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_starts_as_the_base_and_leaves_it_untouched(kind: str, precision: str) -> None:
    m = model(**KINDS[kind], precision=precision)
    before, base = logits(m), weights(m)
    add_lora(m, LoraConfig(3, alpha=6))
    assert np.array_equal(logits(m), before)
    first = {name: p.detach().numpy().copy() for name, p in m.named_trained()}
    losses = trained(m)
    assert losses == sorted(losses, reverse=True)
    after = weights(m)
    assert all(np.array_equal(after[name], values) for name, values in base.items())
    assert set(first) == set(after) - set(base)
    still = [name for name, values in first.items() if np.array_equal(values, after[name])]
    assert not still, "every A and B of every projection moves"


def test_what_is_adapted() -> None:
    m = model(**EXPERTS)
    add_lora(m, LoraConfig(3))
    assert m.adapters is not None
    layers = set(m.adapters.pairs["default"])
    attention = {f"model.layers.{i}.self_attn.{p}_proj" for i in range(2) for p in "qkvo"}
    places = ["0.mlp", *[f"1.mlp.experts.{e}" for e in range(4)], "1.mlp.shared_experts"]
    assert layers == attention | {f"model.layers.{p}.{n}_proj" for p in places for n in ("gate", "up", "down")}
    pair = m.adapters.pairs["default"]["model.layers.0.mlp.down_proj"]
    assert (pair.A.shape, pair.B.shape) == ((3, 48), (32, 3))
    sizes = sum(p.A.size + p.B.size for p in m.adapters.pairs["default"].values())
    assert (
        m.trainable_parameters() == sizes < m.config.parameter_counts().total == model(**EXPERTS).trainable_parameters()
    )


def test_frozen_weights_cost_nothing() -> None:
    m = model()
    add_lora(m, LoraConfig(2))
    optimizer = AdamW(m.named_parameters(), learning_rate=1e-2)
    assert set(optimizer.parameters) == {name for name, _ in m.named_trained()}
    assert all(".adapter." in name for name in optimizer.state)
    found = loss(m)
    seen = set()
    for op in tape(found):
        kind = type(op).__name__
        if kind == "LMHeadLoss":
            assert op.dweight is None, "no gradient of the frozen head is made"
        elif kind in ("SelfAttention", "GatedLinear") or (kind == "Linear" and not op.inputs[1].requires_grad):
            assert op.x is None, "an input kept for a weight's gradient alone"
            seen.add(kind)
    assert seen == {"SelfAttention", "GatedLinear", "Linear"}
    found.backward()
    assert all((p.grad is None) == (".adapter." not in name) for name, p in m.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_that_of_changed_weights(kind: str) -> None:
    """Loss and gradients of an adapted model are those of a plain one with W + alpha / rank B A, by the chain rule."""
    m = model(**KINDS[kind])
    add_lora(m, LoraConfig(3, alpha=6))
    trained(m, 2)
    plain = model(**KINDS[kind])
    layers = _layers(plain)
    assert m.adapters is not None
    pairs = m.adapters.pairs["default"]
    for path, pair in pairs.items():
        weight = layers[path].weight
        change = 2.0 * np.float64(pair.B.detach().numpy()) @ pair.A.detach().numpy()
        weight.device.kernels.assign_(
            weight.array, weight.device.upload((weight.detach().numpy() + change).astype(np.float32), dtypes.float32)
        )
    found, wanted = loss(m), loss(plain)
    np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-6)
    found.backward()
    wanted.backward()
    for path, pair in pairs.items():
        dw = np.float64(layers[path].weight.grad.numpy())
        a, b = np.float64(pair.A.detach().numpy()), np.float64(pair.B.detach().numpy())
        for got, want in ((pair.A.grad, 2.0 * b.T @ dw), (pair.B.grad, 2.0 * dw @ a.T)):
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-3, atol=2e-5 * np.abs(want).max())


def _layers(m: Module, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, child in m.children():
        found[prefix + name] = child
        found |= _layers(child, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("up_proj",), ("down_proj", "o_proj"), ("k_proj",)])
def test_some_projections_alone(targets: tuple[str, ...]) -> None:
    for options in (LLAMA, EXPERTS):
        m = model(**options)
        before, base = logits(m), weights(m)
        add_lora(m, LoraConfig(2, targets=targets))
        assert np.array_equal(logits(m), before)
        assert {name.split(".adapter.")[0].rpartition(".")[2] for name, _ in m.named_trained()} == set(targets)
        losses = trained(m, 3)
        assert losses[-1] < losses[0]
        changed = logits(m)
        merge_lora(m)
        np.testing.assert_allclose(logits(m), changed, atol=2e-5)
        moved = {name for name, values in weights(m).items() if not np.array_equal(values, base[name])}
        assert {name.rpartition(".weight")[0].rpartition(".")[2] for name in moved} == set(targets)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_activation_checkpoints_change_nothing(checkpoint_blocks: bool) -> None:
    m = model(checkpoint_blocks=checkpoint_blocks)
    plain = model()
    for x in (m, plain):
        add_lora(x, LoraConfig(2))
        trained(x, 3)
    assert np.array_equal(logits(m), logits(plain))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_gives_the_same_logits(kind: str) -> None:
    m = model(**KINDS[kind])
    add_lora(m, LoraConfig(3))
    trained(m)
    m.eval()
    with pellucid.no_grad():
        whole = m(IDS[:1]).numpy()
        caches = m.new_caches()
        steps = [m.forward_cached(IDS[:1, i : i + 1], caches).numpy() for i in range(IDS.shape[1])]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), whole, atol=2e-5)


def test_several_adapters_switch() -> None:
    m = model()
    base = logits(m)
    add_lora(m, LoraConfig(2), name="one")
    trained(m)
    one = logits(m)
    add_lora(m, LoraConfig(3, targets=("q_proj",), seed=1), name="two")
    assert np.array_equal(logits(m), base)
    assert all(".q_proj." in name for name, _ in m.named_trained())
    trained(m)
    two = logits(m)
    for name, wanted in (("one", one), (None, base), ("two", two), ("one", one)):
        set_adapter(m, name)
        assert np.array_equal(logits(m), wanted)
    unload_lora(m, "two")
    assert np.array_equal(logits(m), one)
    assert m.trainable_parameters() > 0
    unload_lora(m)
    assert np.array_equal(logits(m), base)
    assert m.trainable_parameters() == m.config.parameter_counts().total


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_predicts_the_same(kind: str) -> None:
    m = model(**KINDS[kind])
    add_lora(m, LoraConfig(3, alpha=1.5))
    trained(m)
    adapted = logits(m)
    merge_lora(m)
    np.testing.assert_allclose(logits(m), adapted, atol=2e-5)
    assert set(weights(m)) == set(weights(model(**KINDS[kind])))
    assert m.trainable_parameters() == m.config.parameter_counts().total
    before = weights(m)
    trained(m, 1)
    assert any(not np.array_equal(values, before[name]) for name, values in weights(m).items())


def test_what_was_frozen_before_stays_frozen_after() -> None:
    m = model()
    m.model.embed_tokens.freeze()
    add_lora(m, LoraConfig(2))
    unload_lora(m)
    assert [name for name, p in m.named_parameters() if not p.requires_grad] == ["model.embed_tokens.weight"]
    m.unfreeze()
    assert m.trainable_parameters() == m.config.parameter_counts().total


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_trained_through_held_weights(dtype: str, kind: str) -> None:
    """Losses and gradients are those of the float32 model whose weights are the held ones, restored."""
    held, plain = model(**KINDS[kind]), model(**KINDS[kind])
    held.hold_weights(dtype)
    layers = _layers(plain)
    for path, layer in _layers(held).items():
        if isinstance(matrix := getattr(layer, "weight", None), HeldMatrix):
            weight = layers[path].weight
            weight.device.kernels.assign_(weight.array, matrix.restored().array)
    before = logits(held)
    matrices = {path: _bytes(layer.weight) for path, layer in _layers(held).items() if _is_held(layer)}
    for m in (held, plain):
        add_lora(m, LoraConfig(3))
        m.train()
    assert np.array_equal(logits(held), before)
    np.testing.assert_allclose(logits(held), logits(plain), atol=1e-5)
    for m in (held, plain):
        for _, p in m.named_trained():  # so that A has a gradient
            p.device.kernels.assign_(p.array, p.device.kernels.add(p.array, p.array))
        assert m.adapters is not None
        for i, pair in enumerate(m.adapters.pairs["default"].values()):
            noise = np.random.default_rng(i).normal(size=pair.B.shape).astype(np.float32) * 0.05
            pair.B.device.kernels.assign_(pair.B.array, pair.B.device.upload(noise, dtypes.float32))
        loss(m).backward()
    wanted = dict(plain.named_trained())
    for name, p in held.named_trained():
        assert p.grad is not None
        want = wanted[name].grad.numpy()  # type: ignore[union-attr]
        np.testing.assert_allclose(p.grad.numpy(), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    losses = trained(held)
    assert losses[-1] < losses[0]
    assert matrices == {path: _bytes(layer.weight) for path, layer in _layers(held).items() if _is_held(layer)}


def _is_held(layer: Any) -> bool:
    return isinstance(getattr(layer, "weight", None), HeldMatrix)


def _bytes(matrix: HeldMatrix) -> bytes:
    parts = [a for a in (matrix.values, matrix.scale) if a is not None]
    return b"".join(np.ascontiguousarray(a.device.download(a)).tobytes() for a in parts)


def test_attention_dropout_works_through_held_weights() -> None:
    m = model(dropout=0.5)
    m.quantize()
    add_lora(m, LoraConfig(2))
    quiet = logits(m)
    m.train()
    assert not np.array_equal(logits(m), quiet)


REFUSALS = {
    "rank": (
        lambda m: LoraConfig(0),
        "LoraConfig: rank must be at least 1; got 0. hint: usual ranks are 4 to 64",
    ),
    "alpha": (
        lambda m: LoraConfig(4, alpha=0.0),
        "LoraConfig: alpha must be positive; got 0.0. hint: None is the rank",
    ),
    "router": (
        lambda m: LoraConfig(4, targets=("gate",)),
        f"LoraConfig: not a projection to adapt; got 'gate', expected of {', '.join(PROJECTIONS)}",
    ),
    "no targets": (
        lambda m: LoraConfig(4, targets=()),
        f"LoraConfig: not a projection to adapt; got none, expected of {', '.join(PROJECTIONS)}",
    ),
    "seed": (
        lambda m: LoraConfig(4, seed=-1),
        "LoraConfig: seed out of range; got -1, expected 0 to 2**64 - 1",
    ),
    "twice": (
        lambda m: add_lora(m, LoraConfig(4)),
        "add_lora: an adapter of that name is attached; got 'default'. "
        "hint: unload_lora removes it; another name= keeps both",
    ),
    "a name": (
        lambda m: add_lora(m, LoraConfig(4), name="a.b"),
        "add_lora: not a name for an adapter; got 'a.b', expected some characters without a dot",
    ),
    "no such projection": (
        lambda m: add_lora(m, LoraConfig(4, targets=("fc_in",)), name="other"),
        "add_lora: the model has no such projection; got 'fc_in', "
        "expected of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    ),
    "nothing to adapt": (
        lambda m: add_lora(RMSNorm(4), LoraConfig(4)),
        f"add_lora: nothing to adapt: the model has no projection; expected {', '.join(PROJECTIONS)}",
    ),
    "unknown": (
        lambda m: set_adapter(m, "other"),
        "set_adapter: no adapter of that name; got 'other', expected 'default'",
    ),
    "none": (
        lambda m: merge_lora(model()),
        "merge_lora: the model has no adapter. hint: add_lora attaches one",
    ),
    "held later": (
        lambda m: m.quantize(),
        "hold_weights: adapters are attached to the model; got 'default'. hint: merge_lora folds an adapter in, "
        "unload_lora removes it, save_lora writes it alone",
    ),
    "an export": (
        lambda m: refuse_adapters("export", m),
        "export: adapters are attached to the model; got 'default'. hint: merge_lora folds an adapter in, "
        "unload_lora removes it, save_lora writes it alone",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    m = model()
    add_lora(m, LoraConfig(4))
    before = weights(m)
    call, wanted = REFUSALS[name]
    assert message(lambda: call(m)) == wanted
    assert all(np.array_equal(values, before[n]) for n, values in weights(m).items())


def test_merging_is_refused_where_it_would_be_wrong() -> None:
    m = model()
    add_lora(m, LoraConfig(4))
    add_lora(m, LoraConfig(4), name="two")
    assert message(lambda: merge_lora(m)) == (
        "merge_lora: other adapters are attached, which are changes of the base as it is; got 'default'. "
        "hint: unload_lora removes them; load them into the base they were trained on"
    )
    set_adapter(m, None)
    assert message(lambda: merge_lora(m)) == (
        "merge_lora: no adapter is active; expected 'default', 'two'. hint: set_adapter switches one on"
    )
    q = model()
    q.quantize()
    add_lora(q, LoraConfig(4))
    assert message(lambda: merge_lora(q)) == (
        "merge_lora: the weights are held in int8, and a merged one would be rounded to it. "
        "hint: save the adapter, load it into the float32 base and merge there"
    )


def test_a_model_that_is_all_frozen_is_not_optimised() -> None:
    m = model()
    m.freeze()
    with pytest.raises(ConfigError, match="AdamW: nothing to optimise; got every parameter frozen"):
        AdamW(m.named_parameters())
