"""The Llama family against a Llama in plain PyTorch: logits, loss and the gradient of every parameter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from pellucid.models import TransformerConfig, TransformerLM

from .parity import integers
from .torch_llama import Llama

F = torch.nn.functional

RELATIVE = 1e-5  # of the largest number of a tensor
MIXED = 2e-2  # the same with bfloat16 operands

BASE = {"vocab_size": 97, "d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 40, "init_std": 0.02, "seed": 3}
CONFIGURATIONS = {
    "plain": {},
    "grouped, odd sizes": {"n_kv_heads": 2, "head_dim": 10, "d_ff": 101, "rope_base": 500.0},
    "one kv head, interleaved": {"n_kv_heads": 1, "rope_interleaved": True, "norm_eps": 1e-6},
    "untied": {"n_kv_heads": 3, "tie_embeddings": False},
    "blocks recomputed": {"n_kv_heads": 2, "checkpoint_blocks": True},
    "experts": {"experts": 5, "moe_layers": (0, 2), "shared_expert": True, "aux_weight": 0.1, "z_weight": 0.01},
    "experts recomputed": {"experts": 4, "active_experts": 3, "aux_weight": 0.1, "checkpoint_blocks": True},
}


def near(got: np.ndarray, want: np.ndarray, relative: float, name: str) -> None:
    assert got.shape == want.shape, name
    assert np.abs(got - want).max() <= relative * np.abs(want).max(), name


def pair(changes: dict[str, Any], dtype: Any) -> tuple[TransformerLM, Any]:
    """Both models with the same weights, larger than initial ones, so that no part of the model is idle."""
    config = TransformerConfig(**(BASE | changes))
    ours = TransformerLM(config)
    state = {}
    generator = np.random.default_rng(5)
    for name, p in ours.named_parameters():
        host = p.detach().numpy()
        host += (0.05 * generator.standard_normal(p.shape)).astype(np.float32)
        state[name] = torch.tensor(host).to(dtype)
    theirs = Llama(config).to(dtype)
    theirs.load_state_dict(state, strict=True)
    return ours, theirs


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_models_agree(name: str) -> None:
    agree(CONFIGURATIONS[name], torch.float64, RELATIVE)


def agree(changes: dict[str, Any], dtype: Any, relative: float) -> None:
    ours, theirs = pair(changes, dtype)
    ids, targets = integers(97, 3, 37), integers(97, 3, 37, seed=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
        logits = theirs(torch.tensor(ids))
        loss = F.cross_entropy(logits.flatten(0, 1).to(dtype), torch.tensor(targets).flatten()) + theirs.penalty()
    loss.backward()
    near(ours(ids).detach().numpy(), logits.detach().to(dtype).numpy(), relative, "logits")
    mine = ours.loss(ids, targets)
    mine.backward()
    assert mine.item() == pytest.approx(loss.item(), rel=relative)
    gradients = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        assert p.grad is not None, name
        near(p.grad.numpy(), gradients.pop(name).grad.numpy(), relative, name)
    assert not gradients


def test_mixed_precision_is_near_autocast() -> None:
    agree({"n_kv_heads": 2, "precision": "bfloat16"}, torch.float32, MIXED)
