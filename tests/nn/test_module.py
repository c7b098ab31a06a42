"""Modules: names of parameters, tied weights, switching dropout, and what layers compute."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid
from pellucid.base.errors import ConfigError, ShapeError
from pellucid.base.rng import Generator
from pellucid.nn import Dropout, Embedding, GELUFeedForward, KVCache, LayerNorm, Linear, Module, RMSNorm, SwiGLU


class Pair(Module):
    def __init__(self) -> None:
        g = Generator(0)
        self.layers = [Linear(3, 4, generator=g), Linear(4, 3, generator=g, bias=False)]
        self.table = Embedding(5, 3, generator=g)
        self.again = self.table
        self.drop = Dropout(0.5, generator=g)


def test_names_and_tied_parameters() -> None:
    names = [name for name, _ in Pair().named_parameters()]
    assert names == ["layers.0.weight", "layers.0.bias", "layers.1.weight", "table.weight"]


def test_biases_and_norms_do_not_decay() -> None:
    decays = {name: p.decay for name, p in Pair().named_parameters()}
    assert decays == {"layers.0.weight": True, "layers.0.bias": False, "layers.1.weight": True, "table.weight": True}
    assert not any(p.decay for layer in (RMSNorm(3), LayerNorm(3)) for p in layer.parameters())


def test_initial_weights_are_seeded_and_centred() -> None:
    a, b = (Linear(200, 100, generator=Generator(5), std=0.1).weight.detach().numpy() for _ in range(2))
    c = Linear(200, 100, generator=Generator(6), std=0.1).weight.detach().numpy()
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert abs(a.mean()) < 0.003
    assert a.std() == pytest.approx(0.1, rel=0.03)


def test_train_and_eval_reach_every_layer() -> None:
    pair = Pair()
    x = pellucid.ones((1000,))
    assert pair.eval() is pair
    assert pair.drop(x) is x
    pair.train()
    kept = pair.drop(x).numpy()
    assert set(np.unique(kept)) == {0.0, 2.0}


def test_linear_is_a_matrix_product() -> None:
    layer = Linear(3, 4, generator=Generator(1))
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    expected = x @ layer.weight.detach().numpy().T
    np.testing.assert_allclose(layer(pellucid.tensor(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [SwiGLU, GELUFeedForward])
def test_feedforward_shapes_and_gradients(kind: type[Module]) -> None:
    layer = kind(6, 11, generator=Generator(0))  # type: ignore[call-arg]
    layer(pellucid.ones((2, 3, 6))).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in layer.parameters())
    layer.zero_grad()
    assert all(p.grad is None for p in layer.parameters())


def test_repr_shows_the_tree() -> None:
    text = repr(Pair())
    assert "layers.0: Linear(" in text
    assert "weight: (4, 3) float32" in text


def test_dropout_probability_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"^Dropout: not a probability; got 1\.0, expected 0 <= p < 1$"):
        Dropout(1.0, generator=Generator(0))


def test_the_cache_refuses_more_than_it_holds() -> None:
    cache = KVCache(1, 4, 1, 2, dtype=pellucid.float32)
    rows = pellucid.ones((1, 3, 1, 2)).array
    cache.extend(rows, rows)
    with pytest.raises(ShapeError, match="the context is full; got 6 positions, expected at most 4"):
        cache.extend(rows, rows)
    assert cache.length == 3
    cache.truncate(1)
    assert cache.length == 1
    with pytest.raises(ShapeError, match="can't keep more positions than there are; got 2, expected 0 to 1"):
        cache.truncate(2)
