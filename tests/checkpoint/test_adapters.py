"""Adapters on disk: PEFT's layout, loaded whole or not at all, and the mistakes that are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, PellucidError
from pellucid.checkpoint import base_fingerprint, load_lora, read_tensors, save_lora, untouched_base, write_tensors
from pellucid.checkpoint.adapters import base_weights
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora, set_adapter, unload_lora
from pellucid.ops import tensor
from pellucid.optim import AdamW

IDS = np.random.default_rng(0).integers(0, 40, (2, 9))


def model(**options: Any) -> TransformerLM:
    shape = {"d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "max_seq_len": 16}
    return TransformerLM(TransformerConfig(40, **{**shape, **options}))


def trained(config: LoraConfig, **options: Any) -> TransformerLM:
    m = model(**options)
    add_lora(m, config)
    optimizer = AdamW(m.named_trained(), learning_rate=1e-2)
    for _ in range(2):
        m.loss(IDS[:, :-1], IDS[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return m


def logits(m: TransformerLM) -> np.ndarray:
    return m(IDS).detach().numpy().copy()


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(PellucidError) as caught:
        call()
    return str(caught.value)


def test_the_layout_is_that_of_peft(tmp_path: Path) -> None:
    m = trained(LoraConfig(3, alpha=6, targets=("q_proj", "down_proj")))
    folder = save_lora(m, tmp_path / "a" / "adapter", base="some/base")
    assert sorted(p.name for p in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((folder / "adapter_config.json").read_text())
    wanted = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "bias": "none"}
    assert {name: config[name] for name in wanted} == wanted
    assert config["base_model_name_or_path"] == "some/base"
    tensors = read_tensors(folder / "adapter_model.safetensors")
    assert {name: tensors.shape(name) for name in tensors if ".layers.0." in name} == {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (3, 16),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (16, 3),
        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight": (3, 24),
        "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight": (16, 3),
    }
    assert tensors.metadata["base_sha256"] == base_fingerprint(model())
    assert sum(p.stat().st_size for p in folder.iterdir()) < 20_000


@pytest.mark.parametrize("options", [{}, {"experts": 3, "shared_expert": True}])
def test_a_base_serves_several_adapters(tmp_path: Path, options: dict[str, Any]) -> None:
    first, second = trained(LoraConfig(3, alpha=5.5), **options), trained(LoraConfig(2, seed=4), **options)
    save_lora(first, tmp_path / "first")
    save_lora(second, tmp_path / "second")
    m = model(**options)
    base = logits(m)
    assert load_lora(m, tmp_path / "first", name="first").alpha == 5.5
    load_lora(m, tmp_path / "second", name="second")
    assert np.array_equal(logits(m), logits(second))
    set_adapter(m, "first")
    assert np.array_equal(logits(m), logits(first))
    unload_lora(m)
    assert np.array_equal(logits(m), base)


def test_another_seed_is_no_reason_to_refuse(tmp_path: Path) -> None:
    saved = trained(LoraConfig(3, alpha=6, seed=1))
    save_lora(saved, tmp_path / "a")
    m = model()
    add_lora(m, LoraConfig(3, alpha=6, seed=2))
    load_lora(m, tmp_path / "a")
    assert np.array_equal(logits(m), logits(saved))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (LoraConfig(4, alpha=6), "another rank than the adapter attached; got 3, expected 4"),
        (LoraConfig(3, alpha=7), "another alpha than the adapter attached; got 6.0, expected 7.0"),
        (
            LoraConfig(3, alpha=6, targets=("q_proj",)),
            "another targets than the adapter attached; got q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
            "down_proj, expected q_proj",
        ),
    ],
)
def test_a_mismatch_names_both(tmp_path: Path, config: LoraConfig, what: str) -> None:
    save_lora(trained(LoraConfig(3, alpha=6)), tmp_path / "a")
    m = trained(config)
    before = logits(m)
    hint = "hint: load it under another name, or attach an adapter like it"
    assert refusal(lambda: load_lora(m, tmp_path / "a")) == f"{tmp_path / 'a'}: {what}. {hint}"
    assert np.array_equal(logits(m), before)


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_a_tensor(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    kept = {name: tensor(np.array(value)) for name, value in read_tensors(path).items()}
    del kept["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]
    write_tensors(path, kept)


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no tensors": (
        lambda f: (f / "adapter_model.safetensors").unlink(),
        "{f}: not an adapter: no adapter_model.safetensors. hint: give the folder that save_lora or PEFT wrote",
    ),
    "a pickle": (
        lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"),
        "{f}: not an adapter: no adapter_model.safetensors. hint: save it as safetensors: a pickle can run anything",
    ),
    "no config": (
        lambda f: (f / "adapter_config.json").unlink(),
        "{f}: not an adapter: no adapter_config.json. hint: give the folder that save_lora or PEFT wrote",
    ),
    "another kind": (
        lambda f: edited(f, peft_type="IA3"),
        "{f}/adapter_config.json: another kind of adapter; got 'IA3', expected LORA",
    ),
    "dora": (
        lambda f: edited(f, use_dora=True),
        "{f}/adapter_config.json: asks for use_dora, which is not supported; got 'True'",
    ),
    "ranks that differ": (
        lambda f: edited(f, rank_pattern={"q_proj": 8}),
        "{f}/adapter_config.json: asks for rank_pattern, which is not supported; got \"{{'q_proj': 8}}\"",
    ),
    "a text for a rank": (
        lambda f: edited(f, r="8"),
        "{f}/adapter_config.json: r and lora_alpha are not numbers; got \"'8' and 3\"",
    ),
    "a rank of none": (
        lambda f: edited(f, r=0),
        "{f}/adapter_config.json: rank must be at least 1; got 0",
    ),
    "another rank than it says": (
        lambda f: edited(f, r=4),
        "{f}: tensor 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' does not fit the model; "
        "got (3, 16), expected (4, 16). hint: load it into the base it was trained on",
    ),
    "a tensor missing": (
        without_a_tensor,
        "{f}: the adapter does not fit the model; got missing "
        "'base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight', expected 28 tensors. "
        "hint: load it into the base it was trained on",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_and_foreign_folders(tmp_path: Path, name: str) -> None:
    folder = save_lora(trained(LoraConfig(3)), tmp_path / "a")
    damage, wanted = DAMAGE[name]
    damage(folder)
    m = model()
    before = logits(m)
    assert refusal(lambda: load_lora(m, folder)) == wanted.format(f=folder)
    assert m.adapters is None
    assert m.trainable_parameters() == m.config.parameter_counts().total
    assert np.array_equal(logits(m), before)


def test_a_cut_file_and_a_path_that_is_none(tmp_path: Path) -> None:
    folder = save_lora(trained(LoraConfig(3)), tmp_path / "a")
    cut(folder)
    assert "truncated" in refusal(lambda: load_lora(model(), folder))
    assert refusal(lambda: load_lora(model(), tmp_path / "b")) == (
        f"{tmp_path / 'b'}: no such adapter; got nothing there, "
        "expected a folder with adapter_config.json and adapter_model.safetensors"
    )


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    folder = save_lora(trained(LoraConfig(3)), tmp_path / "a")
    hint = "hint: load it into the base it was trained on"
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert refusal(lambda: load_lora(model(d_model=32), folder)) == (
        f"{folder}: tensor '{first}' does not fit the model; got (3, 16), expected (3, 32). {hint}"
    )
    assert refusal(lambda: load_lora(model(n_layers=1), folder)) == (
        f"{folder}: the adapter does not fit the model; got unexpected "
        f"'base_model.model.model.layers.1.mlp.down_proj.lora_A.weight', expected 14 tensors. {hint}"
    )


def test_saving_replaces_an_adapter_and_nothing_else(tmp_path: Path) -> None:
    m = trained(LoraConfig(3))
    folder = save_lora(m, tmp_path / "a")
    save_lora(m, folder)
    (folder / "notes.txt").write_text("mine")
    assert refusal(lambda: save_lora(m, folder)) == (
        f"{folder}: cannot be replaced: holds other files than an adapter's; got 'notes.txt'. "
        "hint: choose another name, or move these files away"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    assert refusal(lambda: save_lora(model(), tmp_path / "b")) == (
        "save_lora: the model has no adapter. hint: add_lora attaches one"
    )


def test_the_fingerprint_is_of_the_base_and_how_it_is_held() -> None:
    plain, adapted, held = model(), trained(LoraConfig(3)), model()
    held.quantize()
    assert base_fingerprint(plain) == base_fingerprint(adapted)
    assert len({base_fingerprint(m) for m in (plain, held, model(seed=1))}) == 3


def test_a_base_held_in_no_known_type_is_refused() -> None:
    details = {"lora": {}, "base": {"weights": "int3"}}
    with pytest.raises(CheckpointError) as caught:
        base_weights(details, where="a/config.json")
    expected = "a base held in no known type; got \"'int3'\", expected int8, bfloat16, float32"
    assert str(caught.value) == f"a/config.json: {expected}"
    assert base_weights({"lora": {}, "base": {}}, where="a") is None


def test_a_base_that_moved_is_found() -> None:
    model = TransformerLM(TransformerConfig(20, d_model=16, n_layers=1, n_heads=2, max_seq_len=8))
    add_lora(model, LoraConfig(2))
    before = base_fingerprint(model)
    for _, p in model.named_trained():
        p.detach().numpy()[...] = 1
    assert untouched_base(model) == before
    model.model.norm.weight.detach().numpy()[0] += 1e-3  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError) as caught:
        untouched_base(model)
    assert str(caught.value) == (
        f"base: weights of the base have changed under the adapter; got {base_fingerprint_now(model)}, "
        f"expected {before[:12]}. hint: open the base again"
    )


def base_fingerprint_now(model: TransformerLM) -> str:
    assert model.adapters is not None
    model.adapters.fingerprint = None
    return base_fingerprint(model)[:12]
