"""Whether a written model is the model: it is read back, and the logits of both are compared on a fixed prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..models import TransformerLM
from ..tape import no_grad
from .adapters import load_lora
from .open import open_source
from .source import ModelSource

_TOKENS = 32  # of the prompt, less where the context is shorter
_SEED = 1


@dataclass(frozen=True)
class Parity:
    """Logits of a written model beside the model's own. tokens: of the prompt. error: the largest difference over the
    largest logit. same: of the positions, how many have the same most likely token."""

    tokens: int
    error: float
    same: int

    def __str__(self) -> str:
        return f"logits differ by {self.error:.1e} of the largest; {self.same} of {self.tokens} greedy tokens equal"


def parity(path: str | Path, model: TransformerLM, *, base: ModelSource | None = None) -> Parity:
    """Reads the model at `path` and compares it with `model`, both with the products of `model.config.precision`.

    base: of an adapter, where `path` is one that was saved alone. Raises what `open_model` and `load_lora` raise.
    """
    config = model.config
    count = min(_TOKENS, config.max_seq_len)
    prompt = np.random.default_rng(_SEED).integers(0, config.vocab_size, (1, count))
    source = open_source(path) if base is None else base
    written = replace(source, config=replace(source.config, precision=config.precision)).build()
    if base is not None:
        load_lora(written, path)
    found = _logits(written, prompt)
    expected = _logits(model, prompt)
    error = float(np.abs(found - expected).max() / max(np.abs(expected).max(), np.finfo(np.float32).tiny))
    same = int((found.argmax(-1) == expected.argmax(-1)).sum())
    return Parity(count, error, same)


def _logits(model: TransformerLM, ids: np.ndarray) -> np.ndarray:
    training = model.training
    model.eval()
    try:
        with no_grad():
            return model(ids).numpy()
    finally:
        model._switch(training)
