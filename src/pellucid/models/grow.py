"""A model for a larger vocabulary: the rows it has stay, and new ones begin as the mean of them."""

from __future__ import annotations

from dataclasses import replace

from ..base.errors import ConfigError
from ..ops import concatenate
from ..tape import Tensor, no_grad
from .config import TransformerConfig
from .transformer import TransformerLM

_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def grow_vocabulary(model: TransformerLM, vocab_size: int, config: TransformerConfig | None = None) -> TransformerLM:
    """A copy of `model` for `vocab_size` tokens. Logits of the old ones stay as they are, but for the order of sums.

    A new row of the embedding, and of an untied head, is the mean of the old ones: a new token begins as no token in
    particular, and none of its logits stands out   (Hewitt 2021, "Initializing new word embeddings"). config: of the
    copy, but for the vocabulary (None: the model's). Raises ConfigError for a smaller vocabulary.
    """
    old = model.config.vocab_size
    if vocab_size < old:
        raise ConfigError("grow_vocabulary", "a vocabulary can't shrink", got=vocab_size, expected=f"at least {old}")
    grown = TransformerLM(replace(config or model.config, vocab_size=vocab_size), device=model.device)
    weights = dict(model.named_parameters())
    with no_grad():
        for name, p in grown.named_parameters():
            value = weights[name].detach()
            if name in _TABLES and vocab_size > old:
                mean = value.mean(0, keepdims=True)
                value = concatenate([value, mean.expand(vocab_size - old, value.shape[1])])
            _assign(p, value)
    return grown


def _assign(target: Tensor, value: Tensor) -> None:
    target.device.kernels.assign_(target.array, value.array)
