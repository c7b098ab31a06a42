"""nanoGPT's CPU recipe on a character corpus (Karpathy 2022), without a line of any framework.

Everything two implementations must share to be comparable stands here once: the numbers, the split of the corpus, the
windows of each step, the initial weights as NumPy arrays. Weights are named as in published GPT-2 checkpoints; matrices
have PyTorch's layout, (outputs, inputs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Weights = dict[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Recipe:
    """The whole recipe. Lengths in tokens; `decay` acts on matrices and embeddings only."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 12
    iterations: int = 2000
    warmup: int = 100
    peak: float = 1e-3
    floor: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    deviation: float = 0.02
    norm_eps: float = 1e-5
    evaluate_every: int = 250
    evaluate_batches: int = 20

    def rate(self, iteration: int) -> float:
        """Learning rate of an iteration, counted from 0: linear to `peak` over `warmup`, then a cosine to `floor`."""
        if iteration < self.warmup:
            return self.peak * (iteration + 1) / self.warmup
        done = min((iteration - self.warmup) / max(self.iterations - self.warmup, 1), 1.0)
        return self.floor + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.peak - self.floor)


# ---- the corpus ------------------------------------------------------------------------------------------------------


def characters(text: str) -> tuple[np.ndarray, list[str]]:
    """Ids of a text under the vocabulary of its distinct characters in code point order, and that vocabulary."""
    vocabulary = sorted(set(text))
    number = {c: i for i, c in enumerate(vocabulary)}
    return np.fromiter((number[c] for c in text), dtype=np.int64, count=len(text)), vocabulary


def split(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first nine tenths for training, the rest for validation."""
    at = int(0.9 * len(ids))
    return ids[:at], ids[at:]


def random_batches(ids: np.ndarray, recipe: Recipe, generator: np.random.Generator) -> Iterator[Batch]:
    """Windows at uniformly random offsets, without end: inputs and targets, both (batch, context)."""
    offsets = np.arange(recipe.context)
    while True:
        rows = generator.integers(len(ids) - recipe.context, size=recipe.batch)[:, None] + offsets
        yield ids[rows], ids[rows + 1]


def windows(ids: np.ndarray, context: int, rows: int = 64) -> Iterator[Batch]:
    """Every token of `ids` but the first as a target, once: windows of one context lie behind one another (the target
    of a window's last place is the next window's first token), `rows` of them at a time; the last may be short."""
    last = len(ids) - 1
    whole = last // context * context
    inputs, targets = (ids[i : i + whole].reshape(-1, context) for i in (0, 1))
    for first in range(0, len(inputs), rows):
        yield inputs[first : first + rows], targets[first : first + rows]
    if whole < last:
        yield ids[None, whole:last], ids[None, whole + 1 :]


# ---- the weights -----------------------------------------------------------------------------------------------------


def weight_shapes(recipe: Recipe, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Every weight of the model in the order of the forward pass."""
    width = recipe.width
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocabulary, width), "wpe.weight": (recipe.context, width)}
    for i in range(recipe.layers):
        shapes[f"h.{i}.ln_1.weight"] = (width,)
        shapes[f"h.{i}.attn.c_attn.weight"] = (3 * width, width)
        shapes[f"h.{i}.attn.c_proj.weight"] = (width, width)
        shapes[f"h.{i}.ln_2.weight"] = (width,)
        shapes[f"h.{i}.mlp.c_fc.weight"] = (4 * width, width)
        shapes[f"h.{i}.mlp.c_proj.weight"] = (width, 4 * width)
    shapes["ln_f.weight"] = (width,)
    return shapes


def initial_weights(recipe: Recipe, vocabulary: int, *, seed: int) -> Weights:
    """Normal with deviation 0.02, projections into the residual stream by 1/sqrt(2 layers) less, norms one."""
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in weight_shapes(recipe, vocabulary).items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, dtype=np.float32)
            continue
        deviation = recipe.deviation
        if name.endswith("c_proj.weight"):
            deviation /= math.sqrt(2 * recipe.layers)
        weights[name] = (deviation * generator.standard_normal(shape)).astype(np.float32)
    return weights
