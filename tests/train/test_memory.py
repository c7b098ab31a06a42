"""Predicted memory against what the allocator counts while a step runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pellucid.data import TokenBatch
from pellucid.device import cpu
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora
from pellucid.tape import tape
from pellucid.train import TrainConfig, make_optimizer, train_step
from pellucid.train.memory import available_memory, memory_need, tape_bytes, tuning_need

SHAPES: list[dict[str, Any]] = [
    {"vocab_size": 256, "d_model": 64, "n_heads": 4},
    {"vocab_size": 2000, "d_model": 128, "n_layers": 2, "n_heads": 4, "d_ff": 256},
    {"vocab_size": 2000, "d_model": 128, "n_layers": 6, "n_heads": 4, "checkpoint_blocks": True},
    {"vocab_size": 65, "d_model": 128, "n_heads": 4, "norm": "layernorm", "positions": "learned", "activation": "gelu"},
]


def peak_of(
    config: TransformerConfig, train: TrainConfig, change: Callable[[TransformerLM], object] = lambda model: None
) -> int:
    gc.collect()  # what tests before this one left in cycles would be freed at some time in between
    before = cpu.bytes_in_use
    model = TransformerLM(config)
    change(model)
    model.train()
    optimizer = make_optimizer(model, train)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (train.step_sequences, train.seq_len + 1))
    peak = 0
    for _ in range(2):
        cpu.peak_bytes = cpu.bytes_in_use
        train_step(model, optimizer, TokenBatch(ids), max_norm=1.0, micro_batches=train.micro_batches)
        peak = cpu.peak_bytes - before
    return peak


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s['d_model']}-{s['vocab_size']}-{len(s)}")
def test_the_predicted_peak_is_near_the_measured_one(shape: dict[str, Any], precision: str) -> None:
    config = TransformerConfig(**shape, precision=precision, max_seq_len=128)  # type: ignore[arg-type]
    train = TrainConfig(sequences=8, seq_len=128)
    assert memory_need(config, train).peak == pytest.approx(peak_of(config, train), rel=0.1, abs=4 << 20)


@pytest.mark.parametrize("changes", [{"optimizer": "lion"}, {"optimizer": "sgd"}, {"tokens_per_step": 8 * 128 * 3}])
def test_the_predicted_peak_follows_the_training(changes: dict[str, Any]) -> None:
    config = TransformerConfig(2000, d_model=256, n_layers=2, n_heads=4, max_seq_len=128)
    train = TrainConfig(sequences=8, seq_len=128, **changes)
    assert memory_need(config, train).peak == pytest.approx(peak_of(config, train), rel=0.1, abs=4 << 20)


@pytest.mark.parametrize("base", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_predicted_peak_of_an_adapter(precision: str, base: str) -> None:
    shape: dict[str, Any] = {"vocab_size": 8000, "d_model": 256, "n_layers": 4, "n_heads": 4, "max_seq_len": 128}
    config, train = TransformerConfig(**shape, precision=precision), TrainConfig(sequences=8, seq_len=128)
    adapter = 0

    def adapt(model: TransformerLM) -> None:
        nonlocal adapter
        if base != "float32":
            model.hold_weights(base)
        add_lora(model, LoraConfig(8))
        adapter = sum(p.nbytes for _, p in model.named_trained())

    measured = peak_of(config, train, adapt)
    assert tuning_need(config, train, adapter=adapter, base=base).peak == pytest.approx(measured, rel=0.1, abs=4 << 20)


def test_two_answers_take_two_rows() -> None:
    config, train = TransformerConfig(2000), TrainConfig(sequences=4, seq_len=64)
    twice = TrainConfig(sequences=8, seq_len=64)
    assert tuning_need(config, train, answers=2) == memory_need(config, twice)


def test_the_predicted_peak_of_experts() -> None:
    config = TransformerConfig(1000, d_model=128, n_heads=4, max_seq_len=128, experts=4, precision="bfloat16")
    train = TrainConfig(sequences=8, seq_len=128)
    assert memory_need(config, train).peak == pytest.approx(peak_of(config, train), rel=0.25)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s['d_model']}-{s['vocab_size']}-{len(s)}")
def test_the_tape_keeps_what_is_predicted(shape: dict[str, Any], precision: str) -> None:
    config = TransformerConfig(**shape, precision=precision, max_seq_len=128)  # type: ignore[arg-type]
    model = TransformerLM(config)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (3, 101))
    loss = model.loss(ids[:, :-1], ids[:, 1:])
    weights = {id(p.array.buffer) for p in model.parameters()}
    rotary = set() if model.model.rotary is None else {id(t.array.buffer) for t in model.model.rotary}
    kept = {id(a.buffer): a for op in tape(loss) for a in op.kept() if id(a.buffer) not in weights | rotary}
    numbers = sum(a.buffer.nbytes for a in kept.values())
    # Ids and weights of the targets, and blocks rounded up to their size, are beside the prediction.
    assert tape_bytes(config, 3, 100) == pytest.approx(numbers, rel=0.02)


def test_what_is_left_of_the_machine() -> None:
    found = available_memory()
    assert found is None or 0 <= found < 1 << 46
