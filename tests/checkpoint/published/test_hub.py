"""Hugging Face folders: out and in again bit for bit in every family; what can't be held or read is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import CheckpointError, ConfigError, PellucidError
from pellucid.checkpoint import load_checkpoint, open_model, open_source, parity, write_hub
from pellucid.checkpoint.keep import keep_model
from pellucid.checkpoint.storage import previous_of
from pellucid.models import RopeScaling, TransformerConfig, TransformerLM
from pellucid.tape import Parameter
from pellucid.text import BPETokenizer, CharTokenizer, UnigramTokenizer

from ..helpers import message

BASE = TransformerConfig(300, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=48, max_seq_len=40)
GPT2 = TransformerConfig.gpt2(300, d_model=32, n_layers=2, n_heads=4, max_seq_len=40)
LLAMA3 = RopeScaling("llama3", 8.0, original_context=16, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = RopeScaling("yarn", 4.0, original_context=16, beta_fast=16.0)
CONFIGS: dict[str, tuple[str, TransformerConfig]] = {
    "llama": ("llama", BASE),
    "untied": ("llama", replace(BASE, tie_embeddings=False, head_dim=12, rope_base=5e5, norm_eps=1e-6)),
    "biases": ("llama", replace(BASE, qkv_bias=True, out_bias=True, ff_bias=True)),
    "linear": ("llama", replace(BASE, rope_scaling=RopeScaling("linear", 4.0))),
    "llama3": ("llama", replace(BASE, rope_scaling=LLAMA3)),
    "yarn": ("llama", replace(BASE, rope_scaling=YARN)),
    "yarn named": ("llama", replace(BASE, rope_scaling=replace(YARN, attention_factor=1.3, truncate=False))),
    "qwen2": ("qwen2", replace(BASE, qkv_bias=True)),
    "qwen3": ("qwen3", replace(BASE, qk_norm=True, head_dim=16)),
    "qwen3 biases": ("qwen3", replace(BASE, qk_norm=True, qkv_bias=True, out_bias=True)),
    "mistral": ("mistral", replace(BASE, window=9)),
    "qwen2 windows": ("qwen2", replace(BASE, qkv_bias=True, window=9, window_layers=(1,))),
    "qwen3 windows": ("qwen3", replace(BASE, qk_norm=True, window=5, window_layers=(0,))),
    "gpt2": ("gpt2", GPT2),
    "gpt2 untied": ("gpt2", replace(GPT2, tie_embeddings=False, activation="gelu", d_ff=40, dropout=0.1)),
    "mixtral": ("mixtral", replace(BASE, experts=3)),
    "qwen3 experts": ("qwen3_moe", replace(BASE, qk_norm=True, experts=3, moe_layers=(1,), moe_d_ff=24)),
}


def randomised(config: TransformerConfig) -> TransformerLM:
    """A model whose every parameter is random, biases and norms too."""
    model, rng = TransformerLM(config), np.random.default_rng(0)
    for p in model.parameters():
        p.detach().numpy()[...] = rng.normal(size=p.shape)
    return model.eval()  # type: ignore[return-value]


def bits(model: TransformerLM) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.train(
        ["the wind and the sea went over the stone " * 20], vocab_size=280, special=["<|endoftext|>"]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder, to be damaged."""
    return write_hub(tmp_path / "hub", randomised(BASE))


def edited(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    for key, value in changes.items():
        if value is ...:
            del content[key]
        else:
            content[key] = value
    (folder / name).write_text(json.dumps(content))


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_what_was_written_is_read_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    family, config = CONFIGS[name]
    model = randomised(config)
    write_hub(tmp_path / "hub", model, eos_ids=(3, 5))
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["model_type"] == family
    opened = open_model(tmp_path / "hub")
    assert bits(opened.model) == bits(model)
    assert opened.source.ignored == ()
    assert opened.eos_ids == (3, 5)
    found = parity(tmp_path / "hub", model)
    assert (found.error, found.same) == (0.0, 32)
    # The same model may be spelled otherwise; what it computes, and what it has, is equal.
    for same in ("parameter_counts", "matmul_parameters"):
        assert getattr(opened.model.config, same)() == getattr(config, same)()
    again = write_hub(tmp_path / "again", opened.model, eos_ids=opened.eos_ids)
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "hub" / "model.safetensors").read_bytes()


def test_several_files_hold_the_same(tmp_path: Path) -> None:
    model = randomised(GPT2)
    write_hub(tmp_path / "hub", model, shard_bytes=20_000)
    files = sorted(p.name for p in (tmp_path / "hub").glob("*.safetensors"))
    assert files == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    assert len(files) > 3
    index = json.loads((tmp_path / "hub" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * GPT2.parameter_counts().total
    assert bits(open_model(tmp_path / "hub").model) == bits(model)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_narrow_weights_are_rounded_once(name: str, tmp_path: Path) -> None:
    model, dtype = randomised(BASE), dtypes.dtype(name)
    write_hub(tmp_path / "hub", model, dtype=dtype)
    found = dict(open_model(tmp_path / "hub").model.named_parameters())
    for key, p in model.named_parameters():
        expected = p.detach().numpy().astype(dtype.numpy).astype(np.float32)
        assert np.array_equal(found[key].detach().numpy(), expected)


def test_interleaved_pairs_are_put_apart(tmp_path: Path) -> None:
    model = randomised(replace(BASE, rope_interleaved=True, qk_norm=True))
    write_hub(tmp_path / "hub", model)
    assert not open_source(tmp_path / "hub").config.rope_interleaved
    found = parity(tmp_path / "hub", model)
    assert 0 < found.error < 1e-5
    assert found.same == found.tokens


def test_tokenizer_template_and_ends_come_along(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    template, special = "{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<|endoftext|>"}
    write_hub(
        tmp_path / "hub",
        randomised(BASE),
        tokenizer=tokenizer,
        chat_template=template,
        special_tokens=special,
        eos_ids=(279,),
    )
    opened = open_model(tmp_path / "hub")
    keep_model(tmp_path / "kept", opened)
    for found in (opened, open_model(tmp_path / "kept")):
        assert found.tokenizer is not None
        assert found.tokenizer.fingerprint() == tokenizer.fingerprint()
        assert found.chat_template == template
        assert found.special_tokens["bos_token"] == "<|endoftext|>"
        assert found.eos_ids == (279,)
        assert found.prompt_ids("the sea").tolist() == tokenizer.encode("the sea").tolist()
    assert load_checkpoint(tmp_path / "kept").config["chat_template"] == template
    (tmp_path / "hub" / "chat_template.jinja").unlink()  # as older folders are: in tokenizer_config.json alone
    assert open_source(tmp_path / "hub").chat_template == template


def test_a_vocabulary_of_our_own_comes_along(tmp_path: Path) -> None:
    tokenizer = UnigramTokenizer([" the", "e", " sea"], [-1.0, -3.5, -2.0], special=["<|endoftext|>"])
    opened = open_model(write_hub(tmp_path / "hub", randomised(BASE), tokenizer=tokenizer))
    assert opened.tokenizer is not None
    assert opened.tokenizer.to_json() == tokenizer.to_json() | {
        "pieces": ["e", " the", " sea"],  # those that are a byte come first
        "scores": [-3.5, -1.0, -2.0],
    }
    assert opened.eos_ids == (tokenizer.eot,)


def test_a_published_folder_is_not_replaced_by_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)  # what is left has the names of a checkpoint's files
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    found = message(lambda: keep_model(folder, open_model(folder)), CheckpointError, tmp_path)
    assert found == (
        "~/hub: cannot be replaced: holds a Hugging Face model. hint: choose another name, or remove what is there"
    )
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_kill_between_two_renames_leaves_a_model(folder: Path, tmp_path: Path) -> None:
    bytes_before = bits(open_model(folder).model)
    folder.rename(previous_of(folder))
    assert bits(open_model(folder).model) == bytes_before
    write_hub(folder, randomised(GPT2))
    assert [p.name for p in tmp_path.iterdir()] == ["hub"]


def test_a_context_can_be_shortened(folder: Path) -> None:
    whole, short = open_model(folder).model, open_model(folder, max_seq_len=8).model
    ids = np.arange(8)[None]
    assert short.config.max_seq_len == 8
    assert np.array_equal(short.eval()(ids).detach().numpy(), whole.eval()(ids).detach().numpy())
    assert open_model(folder, max_seq_len=400).model.config.max_seq_len == 40


def test_names_without_their_first_part(tmp_path: Path) -> None:
    """GPT-2's own files say `wte.weight`, and hold buffers that follow from the configuration."""
    from pellucid.checkpoint import read_tensors, write_tensors
    from pellucid.tape import Tensor

    model = randomised(GPT2)
    home = write_hub(tmp_path / "hub", model)
    file = read_tensors(home / "model.safetensors")
    cpu = model.device
    tensors = {name.removeprefix("transformer."): Tensor(cpu.upload(file[name], file.dtype(name))) for name in file}
    tensors["h.0.attn.bias"] = Tensor(cpu.upload(np.ones((1, 1, 4, 4), np.float32), dtypes.float32))
    del file
    write_tensors(home / "model.safetensors", tensors)
    assert bits(open_model(home).model) == bits(model)


NOT_HERE = " asks for what this library doesn't have"
OTHER = ". hint: this model computes something that this library can't; use one of another family"
WHOLE = "expected a whole number from 1 to 2147483647"
FAMILIES = "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gpt2"
INDEX = "model.safetensors.index.json"
SHARD = "model-0000"
HEADS = "hint: other heads than a language model's can't be used"
SAME_PLACE = ". hint: get config.json and the weights from the same place"
AGAIN = ". hint: get the files again, all of one download"
MISSING = ", ".join(
    f"'model.layers.2.{name}.weight'" for name in ("input_layernorm", *(f"self_attn.{n}_proj" for n in "qkvo"))
)
UNUSED = ", ".join(
    f"'model.layers.1.{name}.weight'"
    for name in ("input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm")
)


# --- configurations ---------------------------------------------------------------------------------------------------


def test_old_and_new_spellings_of_rotary_positions(folder: Path) -> None:
    linear = RopeScaling("linear", 2.0)
    for changes in (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "rope_scaling": ...,
            "rope_theta": ...,
            "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 10000},
        },
    ):
        edited(folder, "config.json", **changes)
        assert open_source(folder).config.rope_scaling == linear
    edited(folder, "config.json", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert open_source(folder).config.rope_base == 500.0
    yarn = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}
    edited(folder, "config.json", rope_parameters=yarn, max_position_embeddings=64)
    scaling = open_source(folder).config.rope_scaling
    assert scaling is not None
    assert scaling.original_context == 64
    assert scaling.magnitude == pytest.approx((0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1))


def test_windows_of_layers(folder: Path) -> None:
    def windows(**changes: Any) -> tuple[int | None, ...]:
        for name in ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"):
            changes.setdefault(name, None)
        changes = {name: value for name, value in changes.items() if value is not None}
        edited(folder, "config.json", **changes)
        from pellucid.checkpoint.published.hub_config import config_of

        content = json.loads((folder / "config.json").read_text())
        config, _, _ = config_of(content, "config.json", tensors=9)
        for name in changes:
            edited(folder, "config.json", **{name: ...})
        return tuple(config.window_of(i) for i in range(config.n_layers))

    assert windows(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=9) == (9, 9)
    assert windows(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=99) == (None, None)
    qwen2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}
    assert windows(**qwen2) == (None, None)
    assert windows(**qwen2, use_sliding_window=True, max_window_layers=1) == (None, 9)
    kinds = ["sliding_attention", "full_attention"]
    assert windows(**qwen2, use_sliding_window=True, layer_types=kinds) == (9, None)


def test_keys_without_effect_are_named(folder: Path) -> None:
    edited(folder, "config.json", unsloth_version="2024.9", pretraining_tp=2, use_cache=False)
    assert open_source(folder).ignored == ("config.json: unsloth_version",)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "gemma3"}, f"a family of models this library doesn't have; got 'gemma3', expected {FAMILIES}"),
        ({"model_type": ...}, f"a family of models this library doesn't have; got no model_type, expected {FAMILIES}"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            f"not a language model; got ['LlamaForSequenceClassification'], expected LlamaForCausalLM. {HEADS}",
        ),
        ({"architectures": True}, f"not a language model; got True, expected LlamaForCausalLM. {HEADS}"),
        ({"model_type": ["x"]}, f"a family of models this library doesn't have; got ['x'], expected {FAMILIES}"),
        ({"layer_types": {"0": 1}}, f"layer_types{NOT_HERE}; got {{'0': 1}}, expected full_attention in every layer"),
        ({"layer_types": [[]]}, f"layer_types{NOT_HERE}; got [[]], expected full_attention in every layer"),
        ({"rms_norm_eps": 10**310}, f"rms_norm_eps{NOT_HERE}; got 1{'0' * 79}, expected a positive number"),
        ({"hidden_size": ...}, "hidden_size is missing; expected a whole number from 1 to 2147483647"),
        ({"hidden_size": "32"}, f"hidden_size{NOT_HERE}; got '32', expected a whole number from 1 to 2147483647"),
        (
            {"max_position_embeddings": 10**15},
            f"max_position_embeddings{NOT_HERE}; got 1000000000000000, expected a whole number from 1 to 1048576",
        ),
        ({"hidden_act": "gelu"}, f"hidden_act{NOT_HERE}; got 'gelu', expected 'silu' or 'swish'"),
        ({"rms_norm_eps": -1}, f"rms_norm_eps{NOT_HERE}; got -1, expected a positive number"),
        ({"attention_bias": 1}, f"attention_bias{NOT_HERE}; got 1, expected true or false"),
        (
            {"num_key_value_heads": 3},
            "an impossible model: TransformerConfig: n_heads is not a multiple of n_kv_heads; got 4 and 3",
        ),
        ({"sliding_window": 8}, f"sliding_window{NOT_HERE}; got 8, expected null in this family"),
        ({"attn_logit_softcapping": 50.0}, f"attn_logit_softcapping{NOT_HERE}; got 50.0{OTHER}"),
        ({"num_experts": 4}, f"num_experts{NOT_HERE}; got 4{OTHER}"),
        ({"quantization_config": {"bits": 4}}, f"quantization_config{NOT_HERE}; got {{'bits': 4}}{OTHER}"),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], expected: str, folder: Path, tmp_path: Path) -> None:
    edited(folder, "config.json", **changes)
    assert message(lambda: open_source(folder), CheckpointError, tmp_path) == f"~/hub/config.json: {expected}"


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (
            {"type": "dynamic", "factor": 2.0},
            f"rope_type{NOT_HERE}; got 'dynamic', expected default, linear, llama3, yarn",
        ),
        ({"type": ["x"]}, f"rope_type{NOT_HERE}; got ['x'], expected default, linear, llama3, yarn"),
        (
            {"type": "mrope", "mrope_section": [1]},
            f"rope_type{NOT_HERE}; got 'mrope', expected default, linear, llama3, yarn",
        ),
        (
            {"type": "default", "mrope_section": [1]},
            f"mrope_section{NOT_HERE}; got [1], expected no such key with rope_type 'default'",
        ),
        ({"type": "linear"}, "factor is missing; expected a positive number"),
        (
            {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
            f"partial_rotary_factor{NOT_HERE}; got 0.5, expected 1.0",
        ),
    ],
)
def test_rotary_positions_that_are_refused(
    scaling: dict[str, Any], expected: str, folder: Path, tmp_path: Path
) -> None:
    edited(folder, "config.json", rope_scaling=scaling)
    found = message(lambda: open_source(folder), CheckpointError, tmp_path)
    assert found == f"~/hub/config.json: rope_scaling: {expected}"


# --- damage -----------------------------------------------------------------------------------------------------------


def sharded(tmp_path: Path) -> Path:
    return write_hub(tmp_path / "hub", randomised(BASE), shard_bytes=40_000)


def _cut(home: Path) -> None:
    path = sorted(home.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-100])


def _missing(home: Path) -> None:
    sorted(home.glob("*.safetensors"))[1].unlink()


def _foreign(home: Path) -> None:
    files = sorted(home.glob("*.safetensors"))
    shutil.copy(files[0], files[1])


def _outside(home: Path) -> None:
    index = json.loads((home / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    (home / "model.safetensors.index.json").write_text(json.dumps(index))


def _unlisted(home: Path) -> None:
    index = json.loads((home / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.norm.weight"]
    (home / "model.safetensors.index.json").write_text(json.dumps(index))


def _both(home: Path) -> None:
    shutil.copy(sorted(home.glob("*.safetensors"))[0], home / "model.safetensors")


def _none(home: Path) -> None:
    for path in home.glob("model*"):
        path.unlink()
    (home / "pytorch_model.bin").touch()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            _cut,
            f"~/hub/{SHARD}2-of-00003.safetensors: the file is truncated; got 40,404 bytes, expected 40,504. "
            "hint: the copy or download was cut off; get the file again",
        ),
        (_missing, f"~/hub/{SHARD}2-of-00003.safetensors: a shard is missing; got 3 files listed in {INDEX}{AGAIN}"),
        (
            _foreign,
            f"~/hub/{SHARD}2-of-00003.safetensors: tensor 'model.layers.0.mlp.down_proj.weight' is "
            f"missing, which {INDEX} places here; got 2 tensors, expected 12{AGAIN}",
        ),
        (
            _outside,
            f"~/hub/{INDEX}: tensor 'model.norm.weight' lies in no file of this folder; got "
            "'../elsewhere.safetensors', expected the name of a .safetensors file",
        ),
        (
            _unlisted,
            f"~/hub/{SHARD}3-of-00003.safetensors: tensor 'model.norm.weight' is not placed here by "
            f"{INDEX}; got no such entry{AGAIN}",
        ),
        (
            _both,
            f"~/hub: holds both model.safetensors and {INDEX}. hint: move away the one that belongs to "
            "another download",
        ),
        (
            _none,
            f"~/hub: no weights; expected model.safetensors, or shards with {INDEX}. hint: "
            "pytorch_model.bin holds code of others; convert it to safetensors where you trust it",
        ),
    ],
)
def test_files_that_are_not_of_one_piece(damage: Callable[[Path], None], expected: str, tmp_path: Path) -> None:
    home = sharded(tmp_path)
    damage(home)
    found = message(lambda: open_source(home), CheckpointError, tmp_path)
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"intermediate_size": 49},
            "~/hub/model.safetensors: tensor 'model.layers.0.mlp.gate_proj.weight' has another shape "
            f"than config.json asks for; got (48, 32), expected (49, 32){SAME_PLACE}",
        ),
        ({"num_hidden_layers": 1}, f"~/hub: tensors that no part of the model would use; got {UNUSED} and 4 more"),
        (
            {"num_hidden_layers": 2**30},
            "~/hub/config.json: num_hidden_layers: more layers than tensors; got 1073741824, expected at most 20",
        ),
        ({"num_hidden_layers": 3}, f"~/hub: tensors are missing: {MISSING}; got 20 tensors{SAME_PLACE}"),
        (
            {"vocab_size": 2**31 - 1},
            "~/hub/model.safetensors: tensor 'model.embed_tokens.weight' has another shape than "
            f"config.json asks for; got (300, 32), expected (2147483647, 32){SAME_PLACE}",
        ),
        ({"tie_word_embeddings": False}, "~/hub: tensors are missing: 'lm_head.weight'; got 20 tensors" + SAME_PLACE),
    ],
)
def test_a_configuration_of_another_model(changes: dict[str, Any], expected: str, folder: Path, tmp_path: Path) -> None:
    edited(folder, "config.json", **changes)
    assert message(lambda: open_source(folder), CheckpointError, tmp_path) == expected


def test_damaged_documents(folder: Path, tokenizer: BPETokenizer, tmp_path: Path) -> None:
    write_hub(folder, randomised(BASE), tokenizer=tokenizer, eos_ids=(1,))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        whole = (folder / name).read_bytes()
        for raw in (whole[: len(whole) // 2], b"[" * 5000, b"\xff", b"", b'"text"'):
            (folder / name).write_bytes(raw if name != "config.json" else raw + b'"model_type"')
            with pytest.raises(PellucidError) as error:
                open_source(folder)
            assert str(folder / name) in str(error.value)
        (folder / name).write_bytes(whole)
    open_source(folder)
    edited(folder, "generation_config.json", eos_token_id="</s>")
    found = message(lambda: open_source(folder), CheckpointError, tmp_path)
    assert found == "~/hub/generation_config.json: eos_token_id is no token; got '</s>'"


# --- what can't be written --------------------------------------------------------------------------------------------

WHERE = "Hugging Face export: no published layout holds"
KEEP = ". hint: keep it as a checkpoint of Pellucid"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (replace(BASE, activation="gelu"), "activation 'gelu' with RMSNorm"),
        (replace(BASE, norm="layernorm"), "layernorm with rope positions"),
        (replace(GPT2, biases=False), "no biases with LayerNorm"),
        (replace(GPT2, n_kv_heads=2), "grouped-query attention with learned positions; got 2 key heads"),
        (replace(BASE, experts=3, shared_expert=True), "a shared expert"),
        (replace(BASE, experts=3, moe_layers=(1,)), "experts in some of the layers, without norms of queries and keys"),
        (replace(GPT2, window=8), "a window of positions with learned positions; got 8"),
        (
            replace(BASE, window=8, window_layers=(0,)),
            "windows in some of the layers, without biases or norms of queries and keys",
        ),
        (replace(BASE, out_bias=True), "a bias out of attention alone"),
        (replace(BASE, qk_norm=True, ff_bias=True), "biases in the feed-forward layer, with norms of queries and keys"),
    ],
)
def test_models_without_a_published_layout(config: TransformerConfig, expected: str, tmp_path: Path) -> None:
    model = TransformerLM(config)
    assert message(lambda: write_hub(tmp_path / "hub", model), ConfigError) == f"{WHERE} {expected}{KEEP}"
    assert list(tmp_path.iterdir()) == []


def test_other_exports_that_are_refused(folder: Path, tmp_path: Path) -> None:
    model = TransformerLM(BASE)
    unknown = CharTokenizer("ab", unknown=True)
    found = message(lambda: write_hub(tmp_path / "x", model, tokenizer=unknown), ConfigError)
    assert found == (
        "Hugging Face export: the tokenizer: an id for every unknown character by itself, which the format can't "
        "express. hint: a vocabulary of bytes, or a Unigram with byte fallback, needs none"
    )
    found = message(lambda: write_hub(tmp_path / "x", model, dtype=dtypes.int8), ConfigError)
    assert found == (
        "Hugging Face export: weights can't be written in this; got int8, expected float32, bfloat16, float16"
    )
    adapted = TransformerLM(BASE)
    adapted.model.layers[0].self_attn.q_proj.lora_A = Parameter(adapted.model.norm.weight.detach())
    found = message(lambda: write_hub(tmp_path / "x", adapted), ConfigError)
    assert found == (
        f"{WHERE} parameter 'model.layers.0.self_attn.q_proj.lora_A'; got 1 more. "
        "hint: merge adapters into the weights first; keep anything else as a checkpoint of Pellucid"
    )
    (folder / "notes.txt").touch()
    before = (folder / "config.json").read_bytes()
    found = message(lambda: write_hub(folder, TransformerLM(GPT2)), CheckpointError, tmp_path)
    assert found == (
        "~/hub: cannot be replaced: holds other files than an export's; got 'notes.txt'. "
        "hint: choose another name, or move these files away"
    )
    assert (folder / "config.json").read_bytes() == before
    model.quantize()
    with pytest.raises(ConfigError, match="the weights are held in int8 for inference"):
        write_hub(tmp_path / "x", model)
    assert not (tmp_path / "x").exists()
