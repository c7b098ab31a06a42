"""nanoGPT's recipe beside PyTorch's: from the same weights and batches, the same losses."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.nanogpt_model import Pellucid
from benchmarks.peers.nanogpt_torch import PyTorch
from benchmarks.recipe import Recipe, initial_weights, random_batches

RELATIVE = 1e-4


def losses(ids: np.ndarray, vocabulary: int, *, steps: int, device: str) -> tuple[list[float], list[float]]:
    recipe = Recipe()
    weights = initial_weights(recipe, vocabulary, seed=1)
    sides = (Pellucid(recipe, weights, device=device), PyTorch(recipe, weights))
    stream = random_batches(ids, recipe, np.random.default_rng(2))
    batches = [next(stream) for _ in range(steps)]
    ours, theirs = ([s.step(b, rate=recipe.rate(i)) for i, b in enumerate(batches)] for s in sides)
    assert sides[0].loss(batches[0]) == pytest.approx(sides[1].loss(batches[0]), rel=RELATIVE)
    return ours, theirs


def test_the_first_fifty_losses(characters: tuple[np.ndarray, int]) -> None:
    ours, theirs = losses(*characters, steps=50, device="cpu")
    np.testing.assert_allclose(ours, theirs, rtol=RELATIVE)
    assert ours[-1] < ours[0]


def test_the_definition_kernels_agree(characters: tuple[np.ndarray, int]) -> None:
    ours, theirs = losses(*characters, steps=3, device="reference")
    np.testing.assert_allclose(ours, theirs, rtol=RELATIVE)
