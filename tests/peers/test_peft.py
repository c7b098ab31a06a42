"""Adapters against PEFT: one that we train gives the same logits there, and one that PEFT makes gives them here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.checkpoint import load_lora, open_model, save_lora
from pellucid.cli import main
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora
from pellucid.optim import AdamW

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

# peft asks transformers by a name that transformers has renamed since
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

CONFIG = TransformerConfig(
    60, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=48, max_seq_len=32, tie_embeddings=False, norm_eps=1e-5
)
IDS = np.random.default_rng(0).integers(0, 60, (2, 16))


def their_base(model: TransformerLM) -> Any:
    """transformers' Llama with our weights: the names are the same."""
    c = CONFIG
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.hidden,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.kv_heads,
        max_position_embeddings=c.max_seq_len,
        rms_norm_eps=c.norm_eps,
        rope_theta=c.rope_base,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    weights = {name: torch.tensor(p.detach().numpy()) for name, p in model.named_parameters()}
    theirs.load_state_dict(weights, strict=True)
    return theirs


def theirs_on(model: Any, ids: np.ndarray = IDS) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("targets", [None, ("q_proj", "v_proj"), ("down_proj",)])
def test_peft_loads_our_adapter(tmp_path: Path, targets: tuple[str, ...] | None) -> None:
    ours = TransformerLM(CONFIG)
    base = their_base(ours)
    assert relative_error(ours(IDS).detach().numpy(), theirs_on(base)) < 1e-5
    add_lora(ours, LoraConfig(4, alpha=6, targets=targets))
    optimizer = AdamW(ours.named_trained(), learning_rate=1e-2)
    for _ in range(5):
        ours.loss(IDS[:, :-1], IDS[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    wanted = ours(IDS).detach().numpy()
    assert relative_error(theirs_on(base), wanted) > 1e-3, "the adapter changes something"
    adapted = peft.PeftModel.from_pretrained(base, str(save_lora(ours, tmp_path / "adapter")))
    assert relative_error(theirs_on(adapted), wanted) < 1e-5


def test_an_adapter_of_peft_loads_here(tmp_path: Path) -> None:
    ours = TransformerLM(CONFIG)
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=["q_proj", "o_proj", "up_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    adapted = peft.get_peft_model(their_base(ours), config).eval()
    adapted.save_pretrained(str(tmp_path / "theirs"))
    load_lora(ours, tmp_path / "theirs")
    wanted = theirs_on(adapted)
    assert relative_error(ours(IDS).detach().numpy(), wanted) < 1e-5


def test_a_real_model_fine_tuned_by_the_command_gives_the_same_logits_there(smollm: Path, tmp_path: Path) -> None:
    """From a GGUF file to an adapter, a Hugging Face folder of the base and an adapter of PEFT, by commands alone."""
    data, run, base, alone = (tmp_path / name for name in ("sums.jsonl", "run", "base", "adapter"))
    sums = [{"question": f"What is {i} plus {i + 1}?", "answer": f"{i} + {i + 1} = {2 * i + 1}."} for i in range(12)]
    data.write_text("".join(json.dumps(one) + "\n" for one in sums), encoding="utf-8")
    shape = ["--seq-len", "64", "--sequences", "2", "--steps", "4", "--warmup", "1", "--learning-rate", "2e-3"]
    kept = ["--held-out", "0", "--precision", "float32", "--lora-rank", "8", "--out", str(run)]
    assert main(["sft", "--dataset", str(data), "--init-from", str(smollm), *shape, *kept]) == 0
    assert main(["export", str(run), "--format", "peft", "--out", str(alone)]) == 0
    assert main(["export", str(smollm), "--format", "hf", "--out", str(base)]) == 0

    opened = open_model(smollm)
    assert opened.tokenizer is not None
    ids = opened.tokenizer.encode("What is 21 plus 22? The capital of France is")[None].astype(np.int64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()
    before = opened.model(ids).detach().numpy()
    assert relative_error(theirs_on(theirs, ids), before) < 1e-5
    load_lora(opened.model, alone)
    after = opened.model(ids).detach().numpy()
    assert relative_error(before, after) > 1e-2, "the adapter changes something"
    assert relative_error(theirs_on(peft.PeftModel.from_pretrained(theirs, str(alone)), ids), after) < 1e-5
    # trained beside the weights, not into them
    again = dict(open_model(base).model.named_parameters())
    for name, value in open_model(smollm).model.named_parameters():
        assert np.array_equal(again[name].detach().numpy(), value.detach().numpy()), name
