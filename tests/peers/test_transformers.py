"""Published models beside Hugging Face's `transformers`: small random ones of every family and option, both ways.

Logits agree within LIMIT of the largest, greedy generation with a cache token by token; what is exported loads there
and writes the same; tokens and chat templates give the same ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

from pellucid.base import dtypes  # noqa: E402 - skipped without the peers
from pellucid.checkpoint import open_model, write_hub  # noqa: E402
from pellucid.generate import Sampler, generate  # noqa: E402
from pellucid.models import RopeScaling, TransformerConfig, TransformerLM  # noqa: E402
from pellucid.tape import no_grad  # noqa: E402
from pellucid.text import (  # noqa: E402
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Lowercase,
    NormalizedTokenizer,
    Normalizer,
    Tokenizer,
    UnigramTokenizer,
)
from pellucid.text.jinja import JinjaTemplate  # noqa: E402

LIMIT = 1e-5  # of the largest logit, float32
VOCABULARY, CONTEXT = 199, 128
BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT, "pad_token_id": 0}
ENDLESS = {"bos_token_id": None, "eos_token_id": None}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are fastest without a second thread there, which ours would have to share a core with."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
WINDOWS = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", BASE),
    "llama, tied": ("llama", BASE | {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 5e5}}),
    "llama, biases": ("llama", BASE | {"attention_bias": True, "mlp_bias": True}),
    "llama, one key head": ("llama", BASE | {"num_key_value_heads": 1, "head_dim": 20}),
    "llama, linear": ("llama", BASE | rope("linear", factor=4.0)),
    "llama, llama3": ("llama", BASE | rope("llama3", **LLAMA3)),
    "llama, yarn": ("llama", BASE | rope("yarn", **YARN)),
    "llama, yarn with options": (
        "llama",
        BASE | rope("yarn", **YARN, beta_fast=16.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=0.4, truncate=False),
    ),
    "llama, yarn and a factor": ("llama", BASE | rope("yarn", **YARN, attention_factor=1.2)),
    "mistral": ("mistral", BASE | {"sliding_window": None, "head_dim": 16}),
    "mistral, window": ("mistral", BASE | {"sliding_window": 9}),
    "qwen2": ("qwen2", BASE | {"tie_word_embeddings": True}),
    "qwen2, windows": ("qwen2", BASE | WINDOWS),
    "qwen3": ("qwen3", BASE | {"head_dim": 16}),
    "qwen3, biases, yarn": ("qwen3", BASE | {"head_dim": 16, "attention_bias": True} | rope("yarn", **YARN)),
    "qwen3, windows": ("qwen3", BASE | {"head_dim": 16} | WINDOWS),
    "gpt2": ("gpt2", GPT2 | ENDLESS),
    "gpt2, exact gelu": ("gpt2", GPT2 | ENDLESS | {"activation_function": "gelu", "n_inner": 100}),
    "gpt2, untied": ("gpt2", GPT2 | ENDLESS | {"tie_word_embeddings": False}),
    "mixtral": ("mixtral", BASE | EXPERTS | {"num_local_experts": 4}),
    "qwen3 experts": (
        "qwen3_moe",
        BASE
        | EXPERTS
        | {
            "num_experts": 4,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
            "head_dim": 16,
        },
    ),
}


def theirs(family: str, options: dict[str, Any]) -> Any:
    """A random model there, biases and norms too."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3) if p.ndim == 1 else p.mul_(4.0)
    return model


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    if isinstance(model, TransformerLM):
        with no_grad():
            return model(ids).numpy()
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def greedy(model: Any, prompt: np.ndarray, count: int = 64) -> list[int]:
    if isinstance(model, TransformerLM):
        return generate(model, prompt, max_new_tokens=count, sampler=Sampler.greedy())
    out = model.generate(
        torch.tensor(prompt[None]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        use_cache=True,
        eos_token_id=None,
    )
    return out[0, len(prompt) :].tolist()


def assert_same(ours: TransformerLM, other: Any) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, (2, CONTEXT - 1))
    found, expected = logits(ours.eval(), ids), logits(other, ids)
    assert np.abs(found - expected).max() <= LIMIT * np.abs(expected).max()
    prompt = rng.integers(0, VOCABULARY, 20)
    assert greedy(ours, prompt) == greedy(other, prompt)


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_theirs(name: str, tmp_path: Path) -> None:
    model = theirs(*CASES[name])
    model.save_pretrained(tmp_path / "hub")
    opened = open_model(tmp_path / "hub")
    assert opened.source.ignored == ()
    assert_same(opened.model, model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_of_theirs(dtype: str, tmp_path: Path) -> None:
    model = theirs("llama", BASE).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "hub", max_shard_size="40KB")
    assert len(list((tmp_path / "hub").glob("*.safetensors"))) > 2
    # Read again: what was made narrow in memory has narrow rotary tables, too.
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32)
    assert_same(open_model(tmp_path / "hub").model, again.eval())


OURS = TransformerConfig(VOCABULARY, d_model=48, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=CONTEXT)
OUR_GPT2 = TransformerConfig.gpt2(VOCABULARY, d_model=48, n_layers=2, n_heads=4, max_seq_len=CONTEXT)
LLAMA3_SCALING = RopeScaling("llama3", 8.0, original_context=32)
EXPORTS = {
    "llama": OURS,
    "llama, interleaved": replace(OURS, rope_interleaved=True, tie_embeddings=False),
    "llama, biases": replace(OURS, qkv_bias=True, out_bias=True, ff_bias=True),
    "llama, llama3": replace(OURS, rope_scaling=LLAMA3_SCALING),
    "llama, yarn": replace(OURS, rope_scaling=RopeScaling("yarn", 4.0, original_context=32, beta_fast=8.0)),
    "mistral": replace(OURS, window=9),
    "qwen2": replace(OURS, qkv_bias=True, window=9, window_layers=(1,)),
    "qwen3": replace(OURS, qk_norm=True, head_dim=16),
    "gpt2": OUR_GPT2,
    "gpt2, untied": replace(OUR_GPT2, tie_embeddings=False, activation="gelu"),
    "mixtral": replace(OURS, experts=3),
    "qwen3 experts": replace(OURS, qk_norm=True, experts=3, moe_layers=(1,)),
}


def randomised(config: TransformerConfig) -> TransformerLM:
    model, rng = TransformerLM(config), np.random.default_rng(0)
    for p in model.parameters():
        p.detach().numpy()[...] += 0.3 * rng.normal(size=p.shape) * (1 if p.ndim == 1 else 0.3)
    return model.eval()  # type: ignore[return-value]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_of_ours(name: str, tmp_path: Path) -> None:
    model = randomised(EXPORTS[name])
    shards = 50_000 if name == "llama" else None
    write_hub(tmp_path / "hub", model, shard_bytes=shards)
    transformers.logging.set_verbosity_error()
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32)
    assert_same(model, found.eval())


def test_a_narrow_export_of_ours(tmp_path: Path) -> None:
    write_hub(tmp_path / "hub", randomised(OURS), dtype=dtypes.bfloat16)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    assert found.dtype == torch.bfloat16
    assert_same(open_model(tmp_path / "hub").model, found.float().eval())


TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_tokens_and_chat_template_of_an_export(tmp_path: Path) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    text = "the wind and the sea went over the stone, and the user said: why? " * 20
    tokenizer = BPETokenizer.train([text], vocab_size=280, special=special)
    write_hub(
        tmp_path / "hub",
        randomised(replace(OURS, vocab_size=280)),
        tokenizer=tokenizer,
        chat_template=TEMPLATE,
        special_tokens={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
        eos_ids=(tokenizer.special["<|im_end|>"],),
    )
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    opened = open_model(tmp_path / "hub")
    assert opened.tokenizer is not None
    for sample in (text[:60], "Ünïcode, 12345 \n\n  spaces  and <|im_end|>", ""):
        expected = other(sample, add_special_tokens=False)["input_ids"]
        assert opened.tokenizer.encode(sample, allowed_special="all").tolist() == expected
    messages = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "why is the sea so wide?"},
        {"role": "assistant", "content": "the wind"},
        {"role": "user", "content": "and the stone?"},
    ]
    assert opened.chat_template is not None
    template = JinjaTemplate(opened.chat_template, variables=opened.special_tokens)
    expected = other.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert template.encode(opened.tokenizer, messages, add_generation_prompt=True).tolist() == expected
    assert opened.eos_ids == (other.eos_token_id,)


MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VERSES = "به نام خداوند جان و خرد\nکزین برتر اندیشه برنگذرد\n\nthe wind went over the sea\n" * 20


def unigram(*, byte_fallback: bool = True) -> UnigramTokenizer:
    return UnigramTokenizer.train([VERSES], 320 if byte_fallback else 80, byte_fallback=byte_fallback, special=MARKS)


OWN: dict[str, Callable[[], Tokenizer]] = {
    "unigram": unigram,
    "unigram without bytes": lambda: unigram(byte_fallback=False),
    "normalised": lambda: NormalizedTokenizer(unigram(), Normalizer([Lowercase()])),
    "characters": lambda: CharTokenizer.train([VERSES + "<|>_~!0x41\t\r é"], special=MARKS),
    "bytes": lambda: ByteTokenizer(special=MARKS),
}


@pytest.mark.parametrize("kind", OWN)
def test_vocabularies_of_our_own_in_an_export(kind: str, tmp_path: Path) -> None:
    tokenizer = OWN[kind]()
    model = randomised(replace(OURS, vocab_size=tokenizer.vocab_size))
    write_hub(tmp_path / "hub", model, tokenizer=tokenizer, chat_template=TEMPLATE)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    opened = open_model(tmp_path / "hub")
    assert type(opened.tokenizer) is type(tokenizer)
    rng = np.random.default_rng(0)
    letters = np.array([*" \t\n\r~é<|>0x41_!", "the", "جان", " به", "<|im_end|>", "\n\n"])
    samples = [VERSES[:90], VERSES[:90].title(), "", *("".join(rng.choice(letters, 30)) for _ in range(200))]
    if kind == "characters":
        samples = [s for s in samples if set(s) <= set(tokenizer.characters)]  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="unk_id"):
            other("漢")
    assert len(samples) > 40
    for sample in samples:
        ids = tokenizer.encode(sample, allowed_special="all")
        assert ids.tolist() == other(sample, add_special_tokens=False)["input_ids"], sample
        assert tokenizer.decode(ids) == opened.tokenizer.decode(ids)
        if "<|" not in sample:
            assert tokenizer.decode(ids) == other.decode(ids, clean_up_tokenization_spaces=False)
    ids = tokenizer.encode(VERSES)[None, :40].astype(np.int64)
    other_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub", dtype=torch.float32).eval()
    found, expected = logits(opened.model.eval(), ids), logits(other_model, ids)
    assert np.abs(found - expected).max() <= LIMIT * np.abs(expected).max()
    messages = [{"role": "user", "content": "به نام\nخداوند"}, {"role": "assistant", "content": "the sea"}]
    template = JinjaTemplate(TEMPLATE, variables={"bos_token": ""})
    if kind != "characters":  # it has none for the roles
        expected = other.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert template.encode(tokenizer, messages).tolist() == expected
