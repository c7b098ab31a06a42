"""A training step that has warmed up asks the system for no memory."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.data import TokenBatch
from pellucid.device import cpu
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.train import train_step


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_steady_step_allocates_nothing_from_the_system(precision: str) -> None:
    config = TransformerConfig(61, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=24, precision=precision)
    model = TransformerLM(config)
    optimizer = AdamW(model.named_parameters())
    ids = np.random.default_rng(0).integers(61, size=(8, 3, 25))
    for batch in ids[:3]:
        train_step(model, optimizer, TokenBatch(batch), max_norm=1.0)
    before = cpu.blocks_from_system
    for batch in ids[3:]:
        train_step(model, optimizer, TokenBatch(batch), max_norm=1.0)
    assert cpu.blocks_from_system == before
    cpu.trim()  # with no block kept, the same step asks again: the count does count
    train_step(model, optimizer, TokenBatch(ids[0]), max_norm=1.0)
    assert cpu.blocks_from_system > before
