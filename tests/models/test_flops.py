"""The FLOPs a configuration predicts against those its kernels are asked for, counted call by call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pellucid.device import HostDevice
from pellucid.kernels import reference, spec
from pellucid.models import TransformerConfig, TransformerLM

COUNTED = (
    "matmul",
    "linear_backward",
    "grouped_matmul",
    "grouped_outer",
    "attention",
    "attention_backward",
    "lm_head_loss",
)
CONFIGS = {
    "llama": TransformerConfig(300, d_model=64, n_layers=3, n_heads=4, n_kv_heads=2, max_seq_len=48),
    "gpt2": TransformerConfig.gpt2(300, d_model=64, n_layers=2, n_heads=4, max_seq_len=48),
    "qwen": TransformerConfig(300, d_model=64, n_layers=2, n_heads=4, max_seq_len=48, qkv_bias=True, qk_norm=True),
    "experts": TransformerConfig(
        300, d_model=64, n_layers=3, n_heads=4, max_seq_len=48, experts=5, moe_layers=(0, 2), shared_expert=True
    ),
}


class Counting(HostDevice):
    """A device that adds up the FLOPs of the products and attentions it runs."""

    def __init__(self) -> None:
        super().__init__("counting", "pellucid.kernels.reference")
        self.flops = 0
        self.kernels = SimpleNamespace(**{name: self._counted(name) for name in reference.__all__})  # type: ignore[misc]

    def _counted(self, name: str) -> Any:
        run = getattr(reference, name)
        if name not in COUNTED:
            return run
        row = spec.KERNELS[name]

        def counted(*arguments: Any, **options: Any) -> Any:
            full = [*arguments, None] if name == "matmul" and len(arguments) == 2 else arguments
            self.flops += row.flops(row.bind(*full, **({"operand_dtype": None} if name == "matmul" else {}) | options))
            return run(*arguments, **options)

        return counted


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("training", [False, True])
def test_flops_are_those_the_kernels_are_asked_for(config: TransformerConfig, training: bool) -> None:
    device = Counting()
    model = TransformerLM(config, device=device)
    ids = np.random.default_rng(0).integers(0, 300, (2, 41))
    if training:
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
    else:
        model(ids[:, :-1])
    assert device.flops == pytest.approx(config.flops_per_token(40, training=training) * 80, rel=0.03)
