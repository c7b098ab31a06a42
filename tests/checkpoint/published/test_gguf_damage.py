"""GGUF files that are damaged, hostile, or ask for what there is not: one error that names it, and nothing built."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, DataError, PellucidError
from pellucid.checkpoint import open_model, open_source
from pellucid.checkpoint.published.gguf_file import read_gguf

from .gguf_files import SHAPES, head, llama, place


def refusal(path: Path) -> str:
    with pytest.raises((CheckpointError, DataError)) as refused:
        open_source(path)
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def test_the_file_these_tests_damage_is_good(tmp_path: Path) -> None:
    model = open_model(llama(tmp_path / "m.gguf")).model
    assert (model.config.vocab_size, model.config.d_model, model.config.max_seq_len) == (6, 4, 16)


# --- heads ------------------------------------------------------------------------------------------------------------

ONE = place("a", (4,), 0, 0)
HEADS: dict[str, tuple[bytes, str]] = {
    "empty list, many tensors": (
        head({}, [], tensors=1 << 62),
        "a damaged GGUF file: it ends too early; got 4611686018427387904 tensors, expected at most 0",
    ),
    "many keys": (
        head({}, [], count=1 << 40),
        "a damaged GGUF file: too many keys; got 1099511627776, expected at most 65536",
    ),
    "cut in the list": (
        head({}, [ONE, ONE[:20]], tensors=2)[: 24 + len(ONE) + 20],
        "a damaged GGUF file: it ends too early; got 2 tensors, expected at most 1",
    ),
    "the same tensor twice": (head({}, [ONE, ONE]), "a damaged GGUF file: the same tensor twice; got 'a'"),
    "no axes": (
        head({}, [place("a", (), 0, 0), ONE]),
        "a damaged GGUF file: tensor 'a' of a wrong number of axes; got 0, expected 1 to 4",
    ),
    "too many axes": (
        head({}, [place("a", (1,) * 5, 0, 0)]),
        "a damaged GGUF file: tensor 'a' of a wrong number of axes; got 5, expected 1 to 4",
    ),
    "no elements": (
        head({}, [place("a", (3, 0), 0, 0)]),
        "a damaged GGUF file: tensor 'a' without elements; got (3, 0)",
    ),
    "huge sizes": (
        head({}, [place("a", (1 << 63, 1 << 63), 0, 0)]),
        f"truncated in tensor 'a'; got 0 bytes of tensors, expected at least {4 << 126:,}. hint: the copy or download "
        "was cut off; get the file again",
    ),
    "far away": (
        head({}, [place("a", (4,), 0, (1 << 64) - 32)]),
        f"truncated in tensor 'a'; got 0 bytes of tensors, expected at least {(1 << 64) - 16:,}. hint: the copy or "
        "download was cut off; get the file again",
    ),
    "not aligned": (
        head({}, [place("a", (4,), 0, 4)]) + bytes(64),
        "damaged GGUF file: tensor 'a' is not aligned; got byte 4, expected a multiple of 32",
    ),
    "on top of another": (
        head({}, [place("a", (16,), 0, 0), place("b", (4,), 0, 32)]) + bytes(64),
        "damaged GGUF file: tensor 'b' lies on tensor 'a'; got byte 32, expected 64 or later",
    ),
    "a format we lack": (
        head({}, [place("a", (256,), 20, 0)]) + bytes(256),
        "tensor 'a' is in a format this library doesn't read; got IQ4_NL, expected F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, BF16. hint: convert the model to one of them, for example with "
        "llama.cpp's llama-quantize",
    ),
    "an unknown format": (
        head({}, [place("a", (256,), 4000, 0)]) + bytes(256),
        "tensor 'a' is in a format this library doesn't read; got type 4000, expected F32, F16, Q4_0, Q4_1, Q5_0, "
        "Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, BF16. hint: convert the model to one of them, for example "
        "with llama.cpp's llama-quantize",
    ),
    "rows of broken blocks": (
        head({}, [place("a", (2, 48), 8, 0)]) + bytes(256),
        "damaged GGUF file: the rows of tensor 'a' are not whole blocks; got 48 elements, expected a multiple of 32 in "
        "Q8_0",
    ),
    "alignment": (
        head({"general.alignment": 24}, [ONE]) + bytes(64),
        "a damaged GGUF file: general.alignment; got 24, expected a power of two",
    ),
    "no alignment": (
        head({"general.alignment": 0}, [ONE]) + bytes(64),
        "a damaged GGUF file: general.alignment; got 0, expected a power of two",
    ),
    "a part": (
        head({"split.count": 3}, []),
        "one part of a model in several files; got 3 parts, expected one file. hint: join the parts with llama.cpp's "
        "llama-gguf-split --merge",
    ),
    "an array of arrays": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
        "a damaged GGUF file: an unknown type of value; got 9",
    ),
    "architecture": (
        head({"general.architecture": "mamba"}, []),
        "an architecture this library doesn't have; got 'mamba', expected llama, qwen2, qwen3, gpt2",
    ),
    "no architecture": (
        head({}, []),
        "an architecture this library doesn't have; got none, expected llama, qwen2, qwen3, gpt2",
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str, tmp_path: Path) -> None:
    raw, expected = HEADS[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert refusal(path) == expected


# --- keys and tensors that do not fit ---------------------------------------------------------------------------------

UNUSED = (
    "the file asks for what this library doesn't have; got {}. hint: a key of the architecture can change what the "
)
UNUSED += "model computes, so it is not passed over"
FILES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no layers": (
        {"llama.block_count": None},
        {},
        "llama.block_count can't be used; got no such key, expected a whole number from 1 to 11",
    ),
    "more layers than tensors": (
        {"llama.block_count": (1 << 32) - 1},
        {},
        "llama.block_count can't be used; got 4294967295, expected a whole number from 1 to 11",
    ),
    "a huge context": (
        {"llama.context_length": (1 << 32) - 1},
        {},
        "llama.context_length can't be used; got 4294967295, expected a whole number from 1 to 1048576",
    ),
    "a width that no tensor has": (
        {"llama.embedding_length": 1 << 30, "llama.attention.key_length": 4, "llama.rope.dimension_count": 4},
        {},
        f"tensor 'token_embd.weight' has another shape; got (6, 4), expected (6, {1 << 30}). hint: the keys of the "
        "file do not fit its tensors",
    ),
    "heads": (
        {"llama.attention.head_count": 3, "llama.attention.head_count_kv": 2, "llama.attention.key_length": 2},
        {},
        "an impossible model: n_heads is not a multiple of n_kv_heads; got 3 and 2",
    ),
    "heads of no width": (
        {"llama.attention.head_count": 8},
        {},
        "an impossible model: rotary positions need an even head_dim; got 1",
    ),
    "heads as text": (
        {"llama.attention.head_count": "4"},
        {},
        "llama.attention.head_count can't be used; got '4', expected a whole number from 1 to 2147483647",
    ),
    "heads by layer": (
        {"llama.attention.head_count": np.array([1, 2], np.int32)},
        {},
        "llama.attention.head_count can't be used; got array([1, 2], dtype=int32), expected a whole number from 1 to "
        "2147483647",
    ),
    "epsilon": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        {},
        "llama.attention.layer_norm_rms_epsilon can't be used; got nan, expected a positive number",
    ),
    "experts": (
        {"llama.expert_count": 8},
        {},
        "llama.expert_count: mixtures of experts; got 8, expected 0",
    ),
    "part of a head": (
        {"llama.rope.dimension_count": 2},
        {},
        "llama.rope.dimension_count: a part of the features rotated; got 2, expected 4",
    ),
    "values": (
        {"llama.attention.value_length": 8},
        {},
        "llama.attention.value_length: values of another length than keys; got 8, expected 4",
    ),
    "long rope": (
        {"llama.rope.scaling.type": "longrope"},
        {},
        "rotary positions scaled in a way this library doesn't have; got 'longrope', expected none, linear or yarn",
    ),
    "yarn": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": -1.0},
        {},
        "llama.rope.scaling.factor can't be used; got -1.0, expected a positive number",
    ),
    "soft cap": ({"llama.final_logit_softcapping": 30.0}, {}, UNUSED.format("llama.final_logit_softcapping")),
    "scale": ({"llama.logit_scale": 0.5, "llama.x": 1}, {}, UNUSED.format("llama.logit_scale, llama.x")),
    "divisors": (
        {},
        {"rope_freqs.weight": (3,)},
        "tensor 'rope_freqs.weight' has another shape; got (3,), expected (2,)",
    ),
    "odd divisors": (
        {},
        {"rope_freqs.weight": (2,)},
        "tensor 'rope_freqs.weight' has no divisors; got 0.015625 to 0.03125, expected numbers from 1 on",
    ),
    "no table": (
        {},
        {"token_embd.weight": None},
        "no table of embeddings: tensor 'token_embd.weight'; got none, expected two axes",
    ),
    "missing": (
        {},
        {"blk.0.ffn_up.weight": None},
        "tensor 'blk.0.ffn_up.weight' is missing; got 10 tensors, expected shape (8, 4)",
    ),
    "another shape": (
        {},
        {"blk.0.ffn_up.weight": (4, 8)},
        "tensor 'blk.0.ffn_up.weight' has another shape; got (4, 8), expected (8, 4). hint: the keys of the file do "
        "not fit its tensors",
    ),
    "too many": (
        {},
        {"blk.0.ffn_gate_inp.weight": (8, 4), "blk.1.attn_norm.weight": (4,)},
        "tensors that no part of the model would use; got 'blk.0.ffn_gate_inp.weight', 'blk.1.attn_norm.weight'",
    ),
    "a bias alone": (
        {},
        {"blk.0.attn_q.bias": (4,)},
        "tensor 'blk.0.attn_k.bias' is missing; got 12 tensors, expected shape (4,)",
    ),
    "a special token": (
        {"tokenizer.ggml.eos_token_id": 6},
        {},
        "tokenizer.ggml.eos_token_id is no token; got 6, expected 0 to 5",
    ),
    "a template": ({"tokenizer.chat_template": 3}, {}, "tokenizer.chat_template is no text; got int"),
    "a tokenizer": (
        {"tokenizer.ggml.model": "rwkv"},
        {},
        "a tokenizer this library doesn't have; got 'rwkv', expected gpt2, llama or t5",
    ),
    "pairs": (
        {"pellucid.rope_interleaved": 1},
        {},
        "pellucid.rope_interleaved can't be used; got 1, expected false",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    keys, shapes, expected = FILES[name]
    assert refusal(llama(tmp_path / "m.gguf", keys=keys, shapes=shapes)) == expected


def test_divisors_of_no_published_model(tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf", shapes={"rope_freqs.weight": (2,)})
    raw = path.read_bytes()
    at = raw.rindex(np.array([1 / 64, 2 / 64], "<f4").tobytes())
    path.write_bytes(raw[:at] + np.array([5, 7], "<f4").tobytes() + raw[at + 8 :])
    assert refusal(path) == (
        "tensor 'rope_freqs.weight' stretches rotary positions in no way of a published model; got divisors up to 7, "
        "expected Llama 3's, from 8192 tokens say"
    )


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [chr(0x100 + i) if i < 68 else f"x{i}" for i in range(7)],
        "tokenizer.ggml.token_type": np.full(7, 3, np.int32),
        "tokenizer.ggml.merges": [],
    }
    assert refusal(llama(tmp_path / "m.gguf", keys=keys)) == (
        "the tokenizer has more tokens than the model; got 7 tokens, expected at most 6, the rows of the embeddings"
    )


# --- every cut, and bytes of any value --------------------------------------------------------------------------------


def test_every_cut_is_refused(tmp_path: Path) -> None:
    raw = llama(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for n in range(4, len(raw) - 32, 17):
        path.write_bytes(raw[:n])
        with pytest.raises((CheckpointError, DataError)):
            open_source(path)


def test_flipped_bytes_give_an_error_or_a_model_of_the_same_size(tmp_path: Path) -> None:
    """Whatever a byte of the head becomes, nothing large is made of it."""
    raw = llama(tmp_path / "whole.gguf").read_bytes()
    path, generator = tmp_path / "m.gguf", np.random.default_rng(0)
    length = len(raw) - sum(4 * int(np.prod(s)) + -4 * int(np.prod(s)) % 32 for s in SHAPES.values())
    opened = 0
    tracemalloc.start()
    for at in range(4, length, 3):
        changed = bytearray(raw)
        changed[at] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        try:
            source = open_source(path)
            opened += 1
            assert sum(int(np.prod(source.weights.shape(name))) for name in source.weights) < 400
        except PellucidError:
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened > 5
    assert peak < 4 << 20


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        read_gguf(tmp_path)
    assert str(refused.value) == f"{tmp_path}: cannot be read: is a directory"
    (tmp_path / "x").write_bytes(b"nothing of the kind, though long enough")
    with pytest.raises(CheckpointError) as refused:
        read_gguf(tmp_path / "x")
    assert str(refused.value) == f"{tmp_path / 'x'}: not a GGUF file"
