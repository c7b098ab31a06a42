"""Presets of `pellucid train`: sets of options by name, from a minute's model to a hundred million parameters.

What they come to, parameters and predicted memory, is computed from them when --help asks.
"""

from __future__ import annotations

from typing import Any, Literal

from ..models import TransformerConfig
from ..train import TrainConfig
from ..train.memory import memory_need

Preset = Literal["small", "nanogpt", "eco", "balanced", "performance", "reference"]

_OWN_VOCABULARY = {"train_tokenizer": True, "keep_best": True}

PRESETS: dict[str, dict[str, Any]] = {
    "small": {"layers": 4, "heads": 4, "width": 128, "context": 128, "steps": 600},
    # nanoGPT's README, "I only have a macbook": config/train_shakespeare_char.py with its CPU options. It computes in
    # float32 (--precision float32); the precision here is the processor's best, with the same loss at the end.
    "nanogpt": {
        "tokenizer": "char",
        "held_out": 0.1,
        "family": "gpt2",
        "layers": 4,
        "heads": 4,
        "width": 128,
        "context": 64,
        "dropout": 0.0,
        "biases": False,
        "activation": "gelu",
        "tie": True,
        "steps": 2000,
        "sequences": 12,
        "learning_rate": 1e-3,
        "min_learning_rate": 1e-4,
        "warmup": 100,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "max_norm": 1.0,
        "eval_every": 250,
        "eval_batches": 20,
        "save_every": 250,
    },
    "eco": {
        **_OWN_VOCABULARY,
        "tokenizer_vocab": 2000,
        "layers": 2,
        "heads": 4,
        "width": 128,
        "ff": 256,
        "context": 128,
        "sequences": 8,
        "steps": 1000,
        "warmup": 50,
        "learning_rate": 2e-3,
    },
    "balanced": {
        **_OWN_VOCABULARY,
        "tokenizer_vocab": 4096,
        "layers": 6,
        "heads": 6,
        "width": 192,
        "ff": 448,
        "context": 256,
        "sequences": 8,
        "steps": 2000,
        "warmup": 50,
        "learning_rate": 2e-3,
    },
    "performance": {
        **_OWN_VOCABULARY,
        "tokenizer_vocab": 4096,
        "layers": 6,
        "heads": 4,
        "width": 256,
        "ff": 640,
        "context": 256,
        "sequences": 16,
        "steps": 3000,
        "warmup": 100,
        "learning_rate": 1.5e-3,
    },
    "reference": {
        **_OWN_VOCABULARY,
        "tokenizer_vocab": 32000,
        "layers": 16,
        "heads": 12,
        "kv_heads": 4,
        "width": 768,
        "ff": 1408,
        "context": 512,
        "sequences": 4,
        "tokens_per_step": 16384,
        "steps": 20000,
        "warmup": 500,
        "learning_rate": 6e-4,
        "eval_every": 500,
        "save_every": 500,
    },
}

_WHAT = {
    "small": "characters or bytes, about a minute",
    "nanogpt": "nanoGPT's recipe for a CPU",
    "eco": "for little memory and little text",
    "balanced": "for an hour and a few megabytes of text",
    "performance": "the same with more of both",
    "reference": "for days, and gigabytes of text",
}
_CHARACTERS = 65  # ids of the presets that train no vocabulary, for the table


def about_presets() -> str:
    """The table of presets for --help."""
    lines = ["presets:"]
    for name, values in PRESETS.items():
        model, train = preset_configs(name)
        vocabulary = f"{model.vocab_size:,} ids" if "tokenizer_vocab" in values else "characters"
        total = model.parameter_counts().total
        need = memory_need(model, train).peak
        memory = f"{need / 1e9:.1f} GB" if need >= 1e9 else f"{need / 1e6:.0f} MB"
        size = f"{total / 1e6:6.1f}M parameters, {memory:>7}, {vocabulary:>10}, {train.steps:>6,} steps"
        lines.append(f"  {name:<12}{size}: {_WHAT[name]}")
    return "\n".join(lines)


def preset_configs(name: str) -> tuple[TransformerConfig, TrainConfig]:
    """What a preset trains and how, in float32, with as many ids as it asks for."""
    v = PRESETS[name]
    gpt2 = v.get("family") == "gpt2"
    model = TransformerConfig(
        v.get("tokenizer_vocab", _CHARACTERS),
        d_model=v["width"],
        n_layers=v["layers"],
        n_heads=v["heads"],
        n_kv_heads=v.get("kv_heads"),
        d_ff=v.get("ff"),
        max_seq_len=v["context"],
        norm="layernorm" if gpt2 else "rmsnorm",
        positions="learned" if gpt2 else "rope",
        activation=v.get("activation", "swiglu"),
    )
    shared = {key: value for key, value in v.items() if key in TrainConfig.__dataclass_fields__}
    return model, TrainConfig(seq_len=v["context"], **shared)
