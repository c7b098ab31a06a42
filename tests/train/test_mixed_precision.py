"""Training with bfloat16 operands follows training in float32 on real text."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.train import train_step

STEPS, WINDOWS, LENGTH = 100, 8, 33


def losses(config: TransformerConfig) -> np.ndarray:
    """Loss of each step on windows of the source of Python's own `inspect`, byte by byte."""
    text = np.frombuffer(inspect.getsource(inspect).encode("ascii", "replace"), np.uint8).astype(np.int64)
    starts = np.random.default_rng(1).integers(len(text) - LENGTH, size=(STEPS, WINDOWS))
    model = TransformerLM(config)
    optimizer = AdamW(model.named_parameters(), learning_rate=3e-3)
    batches = (TokenBatch(np.stack([text[s : s + LENGTH] for s in row])) for row in starts)
    return np.array([train_step(model, optimizer, batch, max_norm=1.0).loss for batch in batches])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_losses_stay_together(family: str) -> None:
    sizes = {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
    make = TransformerConfig if family == "llama" else TransformerConfig.gpt2
    full, mixed = (losses(make(256, precision=p, **sizes)) for p in ("float32", "bfloat16"))
    assert full[-10:].mean() < 0.6 * full[0]
    np.testing.assert_allclose(mixed[:10], full[:10], rtol=2e-3)
    assert abs(mixed[-10:].mean() / full[-10:].mean() - 1) < 0.01
    assert (mixed != full).any()
