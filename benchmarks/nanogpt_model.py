"""nanoGPT's recipe in Pellucid: the same model, weights and step as `peers/nanogpt_torch.py`, under the same names.

`Pellucid` and the peer's class of the same shape (`step`, `loss`) are what the benchmark and the parity tests drive.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pellucid.checkpoint import load_into
from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.train import RecordedStep, evaluate

from .recipe import Batch, Recipe, Weights

Precision = Literal["float32", "bfloat16"]

#: Names of the model's parts: published GPT-2 checkpoints -> Pellucid. `c_attn` is q, k and v below one another.
PARTS = {
    "ln_1": "input_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.fc_in",
    "mlp.c_proj": "mlp.fc_out",
}
TABLES = {"wte": "embed_tokens", "wpe": "embed_positions", "ln_f": "norm"}


def renamed(weights: Weights) -> Weights:
    """The same weights under Pellucid's names."""
    found: Weights = {}
    for name, value in weights.items():
        if not name.startswith("h."):
            found[f"model.{TABLES[name.removesuffix('.weight')]}.weight"] = value
            continue
        _, layer, part = name.removesuffix(".weight").split(".", 2)
        if part == "attn.c_attn":
            for letter, third in zip("qkv", np.split(value, 3), strict=True):
                found[f"model.layers.{layer}.self_attn.{letter}_proj.weight"] = third
        else:
            found[f"model.layers.{layer}.{PARTS[part]}.weight"] = value
    return found


def configuration(recipe: Recipe, vocabulary: int, precision: Precision = "float32") -> TransformerConfig:
    """The recipe's model: GPT-2 without biases or dropout, gelu by the error function."""
    return TransformerConfig(
        vocabulary,
        d_model=recipe.width,
        n_layers=recipe.layers,
        n_heads=recipe.heads,
        max_seq_len=recipe.context,
        norm="layernorm",
        norm_eps=recipe.norm_eps,
        positions="learned",
        activation="gelu",
        precision=precision,
    )


def token_batch(batch: Batch) -> TokenBatch:
    """Inputs and targets as one batch of sequences."""
    inputs, targets = batch
    return TokenBatch(np.concatenate([inputs, targets[:, -1:]], axis=1))


class Pellucid:
    """Model and optimizer of the recipe, from exactly these weights."""

    name = "pellucid"

    def __init__(
        self, recipe: Recipe, weights: Weights, *, device: str = "cpu", precision: Precision = "float32"
    ) -> None:
        self.recipe = recipe
        self.model = TransformerLM(configuration(recipe, len(weights["wte.weight"]), precision), device=device)
        load_into(dict(self.model.named_parameters()), {n: w.copy() for n, w in renamed(weights).items()})
        self.optimizer = AdamW(
            self.model.named_parameters(),
            learning_rate=recipe.peak,
            beta1=recipe.betas[0],
            beta2=recipe.betas[1],
            eps=recipe.eps,
            weight_decay=recipe.decay,
        )
        self._step = RecordedStep(self.model, self.optimizer, max_norm=recipe.clip)

    def step(self, batch: Batch, *, rate: float) -> float:
        """One training step; the loss before it, nats/token."""
        self.optimizer.learning_rate = rate
        return self._step(token_batch(batch)).loss

    def loss(self, batch: Batch) -> float:
        """Mean loss of a batch, nats/token; nothing is trained."""
        return evaluate(self.model, token_batch(batch)).loss
