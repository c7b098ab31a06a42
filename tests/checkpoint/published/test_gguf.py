"""Models out as GGUF and in again: the same configuration, tensors, tokenizer, template and logits."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, DataError, PellucidError
from pellucid.base.gguf import read_metadata
from pellucid.base.rng import Generator
from pellucid.checkpoint import open_model, open_source
from pellucid.checkpoint.published.gguf_file import read_gguf
from pellucid.checkpoint.published.gguf_write import Companions, write_gguf
from pellucid.models import RopeScaling, TransformerConfig, TransformerLM
from pellucid.ops import tensor
from pellucid.tape import Parameter, no_grad
from pellucid.text import BPETokenizer, ByteTokenizer, CharTokenizer, SentencePieceTokenizer, Tokenizer, load_tokenizer
from pellucid.text.sentencepiece import SentencePieceVocabulary

TEXTS = ["the cat sat on the mat, 1234, then that cat ran.\n", "کتاب می‌خوانم é🙂\n"] * 4
# Of the largest value: half a step of 1 / 127 of it, and what float16 leaves of the step.
Q8_0_ERROR = (0.5 + 127 * 2**-11) / 127
SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 64, "max_seq_len": 48}
LLAMA = TransformerConfig(97, head_dim=8, **SMALL)
CONFIGS = {
    "llama": LLAMA,
    "llama, own head": replace(LLAMA, tie_embeddings=False, norm_eps=1e-6, rope_base=500000.0),
    "llama, wide heads": replace(LLAMA, head_dim=16),
    "llama, pairs": replace(LLAMA, rope_interleaved=True),
    "llama, biases": replace(LLAMA, biases=True),
    "llama, biases around attention": replace(LLAMA, qkv_bias=True, out_bias=True),
    "qwen2": replace(LLAMA, qkv_bias=True),
    "qwen3": replace(LLAMA, qk_norm=True, head_dim=16, tie_embeddings=False),
    "linear": replace(LLAMA, rope_scaling=RopeScaling("linear", 2.5)),
    "yarn": replace(LLAMA, rope_scaling=RopeScaling("yarn", 4.0, 24)),
    "yarn, all": replace(LLAMA, rope_scaling=RopeScaling("yarn", 4.0, 24, beta_fast=16.0, beta_slow=2.0)),
    "llama3": replace(LLAMA, head_dim=16, rope_scaling=RopeScaling("llama3", 8.0, 8192)),
    "llama3, other numbers": replace(
        LLAMA, head_dim=16, rope_scaling=RopeScaling("llama3", 3.0, 40, low_freq_factor=1.5, high_freq_factor=3.0)
    ),
    "gpt2": TransformerConfig.gpt2(97, d_model=32, n_layers=2, n_heads=4, d_ff=128, max_seq_len=48),
}


def made(config: TransformerConfig) -> TransformerLM:
    """A model in which no bias or norm is what it was at the start."""
    model, generator = TransformerLM(config), np.random.default_rng(0)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            noise = tensor(generator.standard_normal(parameter.shape, dtype=np.float32) * np.float32(0.3))
            parameter.device.kernels.assign_(parameter.array, (parameter.detach() + noise).array)
    return model


def tensors(model: TransformerLM) -> dict[str, Parameter]:
    return dict(model.named_parameters())


def logits(model: TransformerLM, n: int = 40) -> np.ndarray:
    ids = np.random.default_rng(5).integers(model.config.vocab_size, size=n)
    with no_grad():
        return model(ids).numpy()


def message(error: pytest.ExceptionInfo[Any], path: Path) -> str:
    return str(error.value).replace(f"{path}: ", "")


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    model, path = made(config), tmp_path / "m.gguf"
    assert write_gguf(path, tensors(model), config) == []
    opened = open_model(path)
    assert opened.source.config == config
    assert (opened.source.format, opened.tokenizer, opened.chat_template) == ("gguf", None, None)
    back = tensors(opened.model)
    for key, parameter in tensors(model).items():
        a, b = parameter.detach().numpy(), back[key].detach().numpy()
        assert np.array_equal(a.view(np.uint32), b.view(np.uint32)), key
    assert np.array_equal(logits(model), logits(opened.model))


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_narrow_files_hold_what_their_width_keeps(name: str, tmp_path: Path) -> None:
    config, path = CONFIGS[name], tmp_path / "m.gguf"
    model = made(config)
    for precision, most in (("bfloat16", 2**-8), ("int8", Q8_0_ERROR)):
        write_gguf(path, tensors(model), config, precision=precision)  # type: ignore[arg-type]
        opened = open_model(path)
        for key, parameter in tensors(opened.model).items():
            was, now = tensors(model)[key].detach().numpy(), parameter.detach().numpy()
            if was.ndim == 1 or key == "model.embed_positions.weight":
                assert np.array_equal(was, now), key
            elif precision == "bfloat16":
                assert np.array_equal(was.astype(ml_dtypes.bfloat16).astype(np.float32), now), key
            else:
                assert 0 < np.abs(was - now).max() <= most * np.abs(was).max(), key
        raw = path.read_bytes()
        write_gguf(path, tensors(opened.model), config, precision=precision)  # type: ignore[arg-type]
        assert path.read_bytes() == raw


def test_a_yarn_magnitude_of_its_own_comes_back_as_near_as_float32(tmp_path: Path) -> None:
    scaling = RopeScaling("yarn", 4.0, 24, attention_factor=1.3)
    config, path = replace(LLAMA, rope_scaling=scaling), tmp_path / "m.gguf"
    model = made(config)
    write_gguf(path, tensors(model), config)
    found = open_source(path).config.rope_scaling
    assert found is not None
    assert found.attention_factor == pytest.approx(1.3, rel=1e-6)
    assert replace(found, attention_factor=1.3) == scaling


def test_the_rows_of_a_llama_file_lie_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = made(LLAMA)
    write_gguf(path, tensors(model), LLAMA)
    ours = tensors(model)["model.layers.0.self_attn.k_proj.weight"].detach().numpy()
    # two heads of eight features, of which i and i + 4 are turned together: 0 4 1 5 2 6 3 7
    order = [h * 8 + i for h in range(2) for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert np.array_equal(read_gguf(path)["blk.0.attn_k.weight"], ours[order])


# --- tokenizers -------------------------------------------------------------------------------------------------------


def sentencepiece(model: str) -> SentencePieceTokenizer:
    letters = sorted(set("".join(TEXTS)) - {" ", "\n"} | {"▁", "▁t", "he", "▁the", "at"})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    types = (2, 3, 3, *[6] * 256, *[1] * len(letters))
    scores = tuple(float(-i) for i in range(len(pieces)))
    return SentencePieceTokenizer(
        SentencePieceVocabulary(model, tuple(pieces), scores, types, byte_fallback=True, remove_extra_whitespaces=False)
    )


TOKENIZERS: dict[str, Tokenizer] = {
    "gpt2": BPETokenizer.train(TEXTS, 300, special=["<|endoftext|>", "<|user|>"]),
    "llama3": BPETokenizer.train(TEXTS, 300, pattern="llama3", special=["<|endoftext|>"]),
    "qwen2": BPETokenizer.train(TEXTS, 300, pattern="qwen2"),
    "bytes": ByteTokenizer(special=["<|endoftext|>"]),
    "sentencepiece bpe": sentencepiece("bpe"),
    "sentencepiece unigram": sentencepiece("unigram"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, tmp_path: Path) -> None:
    tokenizer, path = TOKENIZERS[name], tmp_path / "m.gguf"
    config = replace(LLAMA, vocab_size=tokenizer.vocab_size + 3)
    eot = tokenizer.eot if tokenizer.eot is not None else 5
    given = Companions(tokenizer, chat_template="{{ messages }}", eos_ids=[eot, 7], name="a model")
    assert write_gguf(path, tensors(made(config)), config, companions=given) == []
    opened = open_source(path)
    assert opened.tokenizer is not None
    assert opened.tokenizer.vocab_size == config.vocab_size
    for text in (*TEXTS[:2], "  two  spaces\n\n and 12345 'll <|endoftext|>", ""):
        ids = tokenizer.encode(text, allowed_special="all")
        assert opened.tokenizer.encode(text, allowed_special="all").tolist() == ids.tolist()
        assert opened.tokenizer.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert opened.tokenizer.decode(ids) == tokenizer.decode(ids)
    assert (opened.chat_template, opened.eos_ids) == ("{{ messages }}", (eot, 7))
    assert opened.begin_ids == ((1,) if name == "sentencepiece bpe" else ())
    assert read_metadata(path)["general.name"] == "a model"


def test_what_a_text_begins_with_and_names_for_a_template(tmp_path: Path) -> None:
    tokenizer, path = TOKENIZERS["gpt2"], tmp_path / "m.gguf"
    config, user = replace(LLAMA, vocab_size=300), tokenizer.special["<|user|>"]
    given = Companions(tokenizer, special_tokens={"unk_token": "<|user|>", "pad_token": "missing"}, begin_ids=[user])
    write_gguf(path, tensors(made(config)), config, companions=given)
    opened = open_model(path)
    assert opened.source.begin_ids == (user,)
    assert opened.special_tokens == {"bos_token": "<|user|>", "unk_token": "<|user|>"}
    assert opened.prompt_ids("the").tolist() == [user, *tokenizer.encode("the")]


def test_what_a_file_has_no_room_for_is_said(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["qwen2"]
    content = tokenizer.to_json() | {"normalizer": {"type": "NFC"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    composed = load_tokenizer(tmp_path / "tokenizer.json")
    config = replace(LLAMA, vocab_size=300)
    given = Companions(composed, eos_ids=[1, 2, 3, 4], begin_ids=[5, 6])
    assert write_gguf(tmp_path / "m.gguf", tensors(made(config)), config, companions=given) == [
        "the tokenizer's NFC normalisation is not in the file: llama.cpp normalises no such text",
        "a text begins with 2 ids, of which the file has the first",
        "ids that end an answer beyond the third are not in the file: 4",
    ]


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[TransformerConfig, str]] = {
    "experts": (
        replace(LLAMA, experts=4, n_layers=2),
        "mixtures of experts can't be exported as GGUF; got experts 4",
    ),
    "window": (
        replace(LLAMA, window=8),
        "windows of positions can't be exported as GGUF; got 8 of 48 positions. hint: llama.cpp would attend to all of "
        "them",
    ),
    "kind": (
        replace(LLAMA, activation="gelu"),
        "llama.cpp has no architecture of this kind; got norm rmsnorm, positions rope, activation gelu, biases False, "
        "expected rmsnorm, rope, swiglu (Llama, Qwen), or layernorm, learned, gelu_tanh with biases (GPT-2)",
    ),
    "norms of pairs": (
        replace(LLAMA, qk_norm=True, rope_interleaved=True),
        "llama.cpp has norms of queries and keys in Qwen3's layout only; got biases False, rope_interleaved True",
    ),
    "heads": (
        replace(CONFIGS["gpt2"], n_kv_heads=2),
        "GPT-2's layout has no room for these heads; got 4 heads of 8, 2 for keys, width 32, qk_norm False",
    ),
    "yarn": (
        replace(LLAMA, rope_scaling=RopeScaling("yarn", 4.0, 24, truncate=False)),
        "YaRN without whole pairs can't be exported as GGUF; got truncate False",
    ),
    "blocks": (
        replace(LLAMA, d_model=24, head_dim=8),
        "Q8_0 has no room for the rows of tensor 'token_embd.weight'; got 24 elements, expected a multiple of 32. "
        "hint: export it in float32 or bfloat16",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused(name: str, tmp_path: Path) -> None:
    config, expected = REFUSED[name]
    path = tmp_path / "m.gguf"
    with pytest.raises(CheckpointError) as refused:
        write_gguf(path, {}, config, precision="int8")
    assert message(refused, path) == expected
    assert os.listdir(tmp_path) == []


TOKENIZERS_REFUSED: dict[str, tuple[Tokenizer, str]] = {
    "kind": (
        CharTokenizer.train(TEXTS),
        "a tokenizer that llama.cpp doesn't have; got char, expected byte-level BPE, bytes, or a SentencePiece "
        "vocabulary. hint: a Hugging Face folder holds it (--format hf)",
    ),
    "pattern": (
        BPETokenizer.train(TEXTS, 290, pattern="cl100k"),
        "words cut in a way that llama.cpp has no name for; got cl100k, expected those of gpt-2, llama-bpe, dbrx, "
        "qwen2, gpt-4o, tekken, smollm, starcoder, refact, command-r",
    ),
    "space": (
        BPETokenizer.train(TEXTS, 290, space_before=True),
        "a normalisation that llama.cpp doesn't have; got Prepend",
    ),
    "size": (
        BPETokenizer.train(TEXTS, 300),
        "the tokenizer has more tokens than the model; got 300, expected at most 295",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS_REFUSED)
def test_tokenizers_that_are_refused(name: str, tmp_path: Path) -> None:
    tokenizer, expected = TOKENIZERS_REFUSED[name]
    with pytest.raises(DataError) as refused:
        write_gguf(tmp_path / "m.gguf", {}, replace(LLAMA, vocab_size=295), companions=Companions(tokenizer))
    assert str(refused.value) == f"GGUF: {expected}"
    assert os.listdir(tmp_path) == []


def test_numbers_that_are_not_finite_leave_the_old_file(tmp_path: Path) -> None:
    model, path = made(LLAMA), tmp_path / "m.gguf"
    path.write_bytes(b"before")
    bad = tensors(model) | {"model.norm.weight": Parameter(tensor(np.full(32, np.inf, np.float32)))}
    with pytest.raises(CheckpointError) as refused:
        write_gguf(path, bad, LLAMA)
    assert message(refused, path) == (
        "tensor 'model.norm.weight' has numbers that are not finite. hint: the training diverged; export an earlier "
        "state"
    )
    assert [path.read_bytes(), os.listdir(tmp_path)] == [b"before", ["m.gguf"]]


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pellucid.checkpoint.storage.push", full)
    with pytest.raises(PellucidError, match="cannot be written: no space left on device"):
        write_gguf(path, tensors(made(LLAMA)), LLAMA)
    assert [path.read_bytes(), os.listdir(tmp_path)] == [b"before", ["m.gguf"]]


def test_generators_are_not_touched(tmp_path: Path) -> None:
    """A model that is loaded has the dropout of one that was drawn."""
    config, path = replace(LLAMA, dropout=0.1, seed=3), tmp_path / "m.gguf"
    model = made(config)
    write_gguf(path, tensors(model), config)
    loaded = TransformerLM(config, draw=False)
    assert loaded.dropout_generator.state() == model.dropout_generator.state() == Generator(3).split(1).state()
