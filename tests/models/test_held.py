"""Weights held for inference: quantize(), what it costs in loss, what still works and what says that it can't."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.dtypes import bfloat16, float32
from pellucid.base.errors import ConfigError, DataError, DTypeError, ShapeError
from pellucid.base.rng import Generator
from pellucid.checkpoint import load_into, write_tensors
from pellucid.device import pool
from pellucid.generate import Sampler, generate
from pellucid.kernels.views import together
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import HeldMatrix, KVCache, LoraConfig, add_lora, unload_lora
from pellucid.ops import cast, tensor
from pellucid.ops.held import dequantize, quantize
from pellucid.optim import AdamW
from pellucid.tape import Parameter, no_grad

MODELS = {
    "llama": {"n_kv_heads": 2},
    "untied": {"rope_interleaved": True, "tie_embeddings": False},
    "gpt2": {"norm": "layernorm", "positions": "learned", "activation": "gelu", "biases": True},
}


def build(name: str = "llama", *, device: str = "cpu", **changes: object) -> TransformerLM:
    options = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32, "seed": 3} | MODELS[name] | changes
    return TransformerLM(TransformerConfig(40, **options), device=device)  # type: ignore[arg-type]


def ids_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 40, shape)


def logits(model: TransformerLM, ids: np.ndarray) -> np.ndarray:
    with no_grad():
        return model(ids).numpy()


def fake_quantised(name: str) -> TransformerLM:
    """A float32 model whose matrices are rounded to int8 and back: what a quantised one computes."""
    model = build(name)
    for p in model.parameters():
        if p.ndim == 2:
            rounded = dequantize(*quantize(p.detach()))
            p.device.kernels.assign_(p.array, rounded.array)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_model_computes_what_its_rounded_weights_compute(name: str) -> None:
    fake, real, ids = fake_quantised(name), build(name), ids_of(2, 20)
    real.quantize()
    wanted = logits(fake, ids)
    assert np.abs(logits(real, ids) - wanted).max() < 1e-4
    with no_grad():
        caches = real.new_caches()
        parts = [real.forward_cached(ids[0, a:b], caches).numpy() for a, b in ((0, 9), (9, 10), (10, 11), (11, 20))]
        np.testing.assert_allclose(np.concatenate(parts, axis=1)[0], wanted[0], atol=1e-4)
        assert abs(real.loss(ids, ids).item() - fake.loss(ids, ids).item()) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_rounding_again_changes_nothing(name: str) -> None:
    weight = next(p for p in build(name).parameters() if p.ndim == 2).detach()
    values, scale = quantize(weight)
    again, scale_again = quantize(dequantize(values, scale))
    assert np.array_equal(values.numpy(), again.numpy())
    np.testing.assert_allclose(scale_again.numpy(), scale.numpy(), rtol=1e-6)
    assert np.abs(dequantize(values, scale).numpy() - weight.numpy()).max() <= scale.numpy().max() * 0.5001


@pytest.mark.parametrize("name", MODELS)
def test_bytes_and_what_is_held(name: str) -> None:
    for dtype, width in (("float32", 4), ("bfloat16", 2), ("int8", 1)):
        model = build(name)
        sizes = {n: p.shape for n, p in model.named_parameters()}
        matrices = [s for s in sizes.values() if len(s) == 2]
        found = model.quantize() if dtype == "int8" else model.hold_weights(dtype)
        rest = sum(int(np.prod(s)) * 4 for s in sizes.values() if len(s) != 2)
        scales = sum(4 * s[0] for s in matrices) if dtype == "int8" else 0
        assert found == rest + scales + width * sum(a * b for a, b in matrices)
        assert isinstance(model.head_weight, HeldMatrix)
        assert model.weights_dtype.name == dtype
        assert f"weight: (40, 32) {dtype}" in repr(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_held_weights_decode_as_the_layers_do(dtype: str) -> None:
    model, held = build(), build()
    held.hold_weights(dtype)
    bounds = {"float32": 2e-6, "bfloat16": 2e-2}
    ids = ids_of(1, 12)
    assert np.abs(logits(held, ids) - logits(model, ids)).max() < bounds[dtype]
    with no_grad():
        caches = held.new_caches()
        found = np.concatenate([held.forward_cached(ids[0, i : i + 1], caches).numpy()[0] for i in range(12)])
    assert np.abs(found - logits(held, ids)[0]).max() < bounds[dtype]


@pytest.mark.parametrize("name", ["llama", "untied", "apart"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "int8"])
def test_a_prompt_is_read_as_the_layers_read_it(dtype: str | None, precision: str, name: str) -> None:
    """In pieces of all sizes, a matrix product's and a matrix-vector product's; and the caches are the same."""
    model, ids = build("llama" if name == "apart" else name, precision=precision), ids_of(20)
    if dtype is not None:
        model.hold_weights(dtype)
    if name == "apart":  # in memory
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight = copy.deepcopy(layer.self_attn.k_proj.weight)
            layer.mlp.up_proj.weight = copy.deepcopy(layer.mlp.up_proj.weight)
    whole, layers = model.new_caches(), model.new_caches()
    bound = 1e-5 if precision == "float32" else 5e-3  # sums in another order are rounded to another number
    for first, stop, last_only in ((0, 9, False), (9, 10, True), (10, 13, True), (13, 20, False)):
        with no_grad():
            found = model.forward_cached(ids[first:stop], whole, last_only=last_only).numpy()
        wanted = model.forward_cached(ids[first:stop], layers, last_only=last_only)  # with gradients on: layer by layer
        np.testing.assert_allclose(found, wanted.detach().numpy(), atol=bound)
    for a, b in zip(whole, layers, strict=True):
        assert a.length == b.length == 20
        for x, y in ((a.keys, b.keys), (a.values, b.values)):
            np.testing.assert_allclose(*(tensor_of(z.slice(1, 0, 20)) for z in (x, y)), atol=bound)


def test_held_matrices_that_read_one_input_are_one_matrix() -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        model = build()
        model.hold_weights(dtype)
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            for group in ([a.q_proj, a.k_proj, a.v_proj], [m.gate_proj, m.up_proj]):
                held = [p.weight for p in group]
                parts = [[w.values for w in held], [w.scale for w in held if w.scale is not None]]
                for arrays in parts if dtype == "int8" else parts[:1]:
                    joint = together(arrays)
                    assert joint is not None
                    assert joint.buffer is arrays[0].buffer
                    rows = np.concatenate([tensor_of(x) for x in arrays])
                    np.testing.assert_array_equal(tensor_of(joint), rows)


def test_a_step_of_decoding_leaves_the_caches_the_layers_leave() -> None:
    model, ids = build(), ids_of(6)
    step, layers = model.new_caches(), model.new_caches()
    with no_grad():
        for i in ids:
            model.forward_cached([i], step)
    for i in ids:  # with gradients on, the layers run one by one
        model.forward_cached([i], layers)
    for a, b in zip(step, layers, strict=True):
        assert a.length == b.length == 6
        for x, y in ((a.keys, b.keys), (a.values, b.values)):
            parts = [tensor_of(z.slice(1, 0, 6)) for z in (x, y)]
            np.testing.assert_allclose(*parts, atol=1e-6)


def tensor_of(array: object) -> np.ndarray:
    return array.device.download(array)  # type: ignore[attr-defined]


def test_full_caches_are_refused_and_stay() -> None:
    model = build()
    caches = model.new_caches(capacity=2)
    with no_grad():
        model.forward_cached([1, 2], caches)
        with pytest.raises(ShapeError, match="KVCache: the context is full; got 3 positions, expected at most 2"):
            model.forward_cached([3], caches)
    assert [cache.length for cache in caches] == [2, 2]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_caches_that_do_not_fit_are_refused_and_stay(name: str) -> None:
    model = build(name)
    with no_grad():
        for batch, ids in ((2, ids_of(1, 1)), (2, ids_of(1, 3)), (2, ids_of(3, 3)), (1, ids_of(2, 1))):
            caches = model.new_caches(batch=batch)
            with pytest.raises(ShapeError, match=f"the filled positions of a cache don't fit; got 0 of {batch}"):
                model.forward_cached(ids, caches)
            assert [cache.length for cache in caches] == [0, 0]
        caches = model.new_caches()
        model.forward_cached([1, 2], caches)
        caches[1].truncate(1)
        with pytest.raises(ShapeError, match="don't fit; got 1 of 1 texts, expected 2 of 1"):
            model.forward_cached([3], caches)
        narrow = [KVCache(1, 32, c.kv_heads, c.head_width, dtype=bfloat16) for c in [model.config] * 2]
        for ids in ([1], [1, 2]):
            with pytest.raises(DTypeError, match="forward_cached: keys and values are kept in float32; got bfloat16"):
                model.forward_cached(ids, narrow)
        assert [cache.length for cache in (*caches, *narrow)] == [2, 1, 0, 0]


@pytest.mark.parametrize("name", MODELS)
def test_caches_with_more_room_than_the_context(name: str) -> None:
    model, ids = build(name), ids_of(32)
    with no_grad():
        found = []
        for capacity in (None, 33, 100):
            caches = model.new_caches(capacity=capacity)
            found.append(np.concatenate([model.forward_cached([i], caches).numpy() for i in ids]).tobytes())
            with pytest.raises(DataError, match="longer than the context"):
                model.forward_cached([1], caches)
        assert found[0] == found[1] == found[2]


def test_a_step_follows_exchanged_caches_and_norms() -> None:
    def last(model: TransformerLM, caches: list[KVCache]) -> np.ndarray:
        return model.forward_cached([2], caches).numpy().copy()

    model = build()
    with no_grad():
        one, two = model.new_caches(), model.new_caches()
        for caches in (one, two):
            model.forward_cached([1], caches)
        wanted, kept = last(model, one), two[1].keys
        mixed = [one[0], two[1]]
        one[0].truncate(1)
        assert last(model, mixed).tobytes() == wanted.tobytes()
        assert (two[1].length, two[1].keys) == (2, kept)
        np.testing.assert_array_equal(*(tensor_of(c.keys.slice(1, 1, 2)) for c in (one[1], two[1])))
        norm = model.model.layers[1].input_layernorm
        norm.weight = Parameter(norm.weight * 2 + 1)
        for cache in mixed:
            cache.truncate(1)
        assert np.abs(last(model, mixed) - wanted).max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "untied"])
def test_a_step_follows_whatever_is_exchanged(name: str) -> None:
    """Layer, table, head, final norm, an adapter on and off again: the logits are those of the layers."""

    def other_layer(model: TransformerLM) -> None:
        model.model.layers[1] = build(name, seed=7).model.layers[0]

    def other_layers(model: TransformerLM) -> None:
        model.model.layers = build(name, seed=8).model.layers

    def other_table(model: TransformerLM) -> None:
        model.model.embed_tokens.weight = Parameter(model.model.embed_tokens.weight * 3)

    def other_head(model: TransformerLM) -> None:
        if model.lm_head is not None:
            model.lm_head.weight = Parameter(model.lm_head.weight * 2)

    def other_norm(model: TransformerLM) -> None:
        model.model.norm.weight = Parameter(model.model.norm.weight * 2)

    def adapted(model: TransformerLM) -> None:
        add_lora(model, LoraConfig(rank=2))
        model.eval()
        for _, p in model.named_trained():
            model.device.kernels.fill_(p.array, value=0.1)

    def plain(model: TransformerLM) -> None:
        unload_lora(model)

    def narrow_head(model: TransformerLM) -> None:  # layers of float32 below a head of int8
        values, scale = quantize(model.head_weight.detach())
        (model.lm_head or model.model.embed_tokens).weight = HeldMatrix(values.array, scale.array)

    model = build(name).eval()
    caches, before, ids = model.new_caches(), b"", ids_of(3)
    with no_grad():
        changes = (other_layer, other_layers, other_table, other_head, other_norm, adapted, plain, narrow_head)
        for change in changes:
            change(model)
            for cache in caches:
                cache.truncate(0)
            found = [model.forward_cached([int(i)], caches).numpy()[0, 0] for i in ids]
            np.testing.assert_allclose(found, logits(model, ids[None])[0], atol=3e-6, err_msg=change.__name__)
            if change is not other_head or name == "untied":
                assert found[2].tobytes() != before
            before = found[2].tobytes()


@pytest.mark.parametrize("one", [[3], np.array([3]), np.array([[3]], np.int32), [np.int64(3)], [[3]], (3,)])
def test_one_id_in_any_form(one: object) -> None:
    model = build().eval()
    with no_grad():
        wanted = model.forward_cached([3], model.new_caches()).numpy()
        np.testing.assert_array_equal(model.forward_cached(one, model.new_caches()).numpy(), wanted)  # type: ignore[arg-type]
        caches = model.new_caches()
        for wrong, message in (([40], "got 40, expected 0 to 39"), ([-1], "got -1, expected 0 to 39")):
            with pytest.raises(DataError, match=f"ids: id outside the vocabulary; {message}"):
                model.forward_cached(wrong, caches)
        for wrong in ([True], [1.0]):
            with pytest.raises(DataError, match="ids: token ids are not integers"):
                model.forward_cached(wrong, caches)
        assert [cache.length for cache in caches] == [0, 0]


def test_a_copy_of_a_model_is_another_model() -> None:
    model = build()
    with no_grad():
        caches = model.new_caches()
        wanted = [model.forward_cached([i], caches).numpy().copy() for i in (1, 2)]
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert made.head_weight is made.model.embed_tokens.weight
            for cache in caches:
                cache.truncate(0)
            for i, before in zip((1, 2), wanted, strict=True):
                np.testing.assert_array_equal(made.forward_cached([i], caches).numpy(), before)
            made.quantize()
            other = copy.deepcopy(made)
            np.testing.assert_array_equal(logits(other, ids_of(5)), logits(made, ids_of(5)))
    assert model.weights_dtype.name == "float32"


def test_weights_exchanged_after_a_step_are_used() -> None:
    model, same, other = build(), build(), build(seed=9)
    caches, others = model.new_caches(), same.new_caches()
    with no_grad():
        for m, c in ((model, caches), (same, others)):
            m.forward_cached([1], c)
        model.quantize()
        apart = np.abs(model.forward_cached([2], caches).numpy() - same.forward_cached([2], others).numpy()).max()
        assert 1e-4 < apart < 0.1
        load_into(dict(same.named_parameters()), {n: p.detach().numpy() for n, p in other.named_parameters()})
        others[0].truncate(0), others[1].truncate(0)
        found = same.forward_cached([1], others).numpy()
    np.testing.assert_allclose(found[0, 0], logits(other, np.array([[1]]))[0, 0], atol=1e-6)


REFUSAL = (
    "the weights are held in int8 for inference: the float32 ones they came from are gone. "
    "hint: load the checkpoint again, and train, save or export that model; adapters can be added to this one"
)


def test_what_needs_the_float32_weights_says_so(tmp_path: Path) -> None:
    model, ids = build(), ids_of(1, 4)
    model.quantize()
    for where, attempt in {
        "loss": lambda: model.loss(ids, ids),
        "train": model.train,
        "parameters": lambda: AdamW(model.named_parameters(), learning_rate=1e-3),
        "hold_weights": model.quantize,
    }.items():
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert str(caught.value) == f"{where}: {REFUSAL}"
    with pytest.raises(ConfigError) as caught:
        write_tensors(tmp_path / "model.safetensors", dict(model.named_parameters()))
    assert str(caught.value) == f"parameters: {REFUSAL}"
    assert not (tmp_path / "model.safetensors").exists()
    assert model.training is False


def round_to_bfloat16(model: TransformerLM) -> None:
    for p in model.parameters():
        if p.ndim == 2:
            model.device.kernels.assign_(p.array, cast(cast(p.detach(), bfloat16), float32).array)


@pytest.mark.parametrize("name", MODELS)
def test_float32_numbers_that_are_bfloat16s_are_held_in_its_room(name: str) -> None:
    model, held, narrow, ids = build(name), build(name), build(name), ids_of(1, 12)
    for m in (model, held, narrow):
        round_to_bfloat16(m)
    assert held.hold_weights("float32") == narrow.hold_weights("bfloat16")
    assert held.weights_dtype is bfloat16
    assert np.abs(logits(held, ids) - logits(model, ids)).max() < 2e-6
    with no_grad():
        caches = held.new_caches()
        found = np.concatenate([held.forward_cached(ids[0, i : i + 1], caches).numpy()[0] for i in range(12)])
    assert np.abs(found - logits(model, ids)[0]).max() < 2e-6
    held.restore_weights()
    for p, q in zip(held.parameters(), model.parameters(), strict=True):
        assert np.array_equal(p.detach().numpy(), q.detach().numpy())


def test_one_other_number_keeps_float32() -> None:
    model = build()
    round_to_bfloat16(model)
    table = model.model.embed_tokens.weight
    assert isinstance(table, Parameter)
    values = table.detach().numpy().copy()
    values[-1, -1] = 1 + 2**-8
    model.device.kernels.assign_(table.array, tensor(values).array)
    model.hold_weights("float32")
    assert model.weights_dtype is float32


def test_what_can_not_be_held() -> None:
    model = build()
    with pytest.raises(ConfigError) as caught:
        model.hold_weights("float16")
    assert str(caught.value) == (
        "hold_weights: weights can't be held in this; got float16, expected one of int8, bfloat16, float32"
    )
    weight = model.parameters()[0]
    weight.device.kernels.fill_(weight.array, value=float("nan"))
    with pytest.raises(ConfigError) as caught:
        model.quantize()
    assert str(caught.value) == (
        "hold_weights: weights that are not finite numbers. hint: the training diverged; use an earlier checkpoint"
    )
    assert model.weights_dtype.name == "float32"


def test_the_same_text_on_any_number_of_threads() -> None:
    before, found = pool.threads(), []
    try:
        for count in (1, 2, 3):
            pool.set_threads(count)
            for dtype in ("int8", "bfloat16", "float32"):
                model = build(d_model=64)
                model.hold_weights(dtype)
                with no_grad():
                    caches = model.new_caches()
                    found.append([model.forward_cached([i], caches).numpy().tobytes() for i in (1, 2, 3)])
    finally:
        pool.set_threads(before)
    assert found[:3] == found[3:6] == found[6:]


def test_int8_costs_less_than_a_hundredth_of_the_loss_on_real_text(corpus_folder: Path) -> None:
    raw = (corpus_folder / "english" / "tinyshakespeare.txt").read_bytes()
    text = np.frombuffer(raw, np.uint8).astype(np.int64)
    config = TransformerConfig(256, d_model=64, n_layers=2, n_heads=4, max_seq_len=64, seed=1)
    model = TransformerLM(config)
    optimizer = AdamW(model.named_parameters(), learning_rate=3e-3)
    random, span = np.random.default_rng(0), np.arange(65)
    for _ in range(80):
        windows = text[random.integers(0, len(text) * 9 // 10, 8)[:, None] + span]
        model.zero_grad()
        model.loss(windows[:, :-1], windows[:, 1:]).backward()
        optimizer.step()
    held_out = text[len(text) * 95 // 100 :][: 65 * 60].reshape(60, 65)
    with no_grad():
        parent = model.loss(held_out[:, :-1], held_out[:, 1:]).item()
        model.quantize()
        child = model.loss(held_out[:, :-1], held_out[:, 1:]).item()
    assert parent < 3.0
    assert abs(child - parent) < 0.01 * parent


def test_a_held_model_generates() -> None:
    model, held = build(seed=Generator(5).seed), build(seed=Generator(5).seed)
    held.hold_weights("float32")
    options = {"max_new_tokens": 20, "sampler": Sampler.greedy()}
    assert generate(held, [1, 2], **options) == generate(model, [1, 2], **options)
    assert np.isfinite(tensor(logits(held, ids_of(1, 3))).numpy()).all()


def test_a_mixture_of_experts_keeps_its_weights() -> None:
    config = TransformerConfig(61, d_model=32, n_layers=2, n_heads=2, max_seq_len=16, experts=4, moe_layers=(1,))
    model = TransformerLM(config)
    assert model.hold_weights("float32") == sum(p.nbytes for p in model.parameters())
    assert not model.training
    with pytest.raises(ConfigError) as error:
        model.quantize()
    assert str(error.value) == (
        "hold_weights: a mixture of experts can't be held in less than float32. hint: use its float32 weights"
    )
