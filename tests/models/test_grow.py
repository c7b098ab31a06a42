"""A larger vocabulary: what the model knew stays, new tokens begin in the middle of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pellucid.base.errors import ConfigError
from pellucid.models import TransformerConfig, TransformerLM, grow_vocabulary

CONFIG = TransformerConfig(40, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=24, seed=2)


@pytest.mark.parametrize("tied", [True, False])
def test_old_logits_stay_and_new_ones_are_their_mean(tied: bool) -> None:
    model = TransformerLM(replace(CONFIG, tie_embeddings=tied))
    grown = grow_vocabulary(model, 43, replace(model.config, dropout=0.1))
    assert grown.config == replace(CONFIG, vocab_size=43, tie_embeddings=tied, dropout=0.1)
    ids = np.random.default_rng(0).integers(0, 40, (2, 20))
    before, after = model(ids).detach().numpy(), grown.eval()(ids).detach().numpy()  # type: ignore[operator]
    np.testing.assert_allclose(after[..., :40], before, rtol=1e-5, atol=1e-5)
    for i in range(40, 43):
        np.testing.assert_allclose(after[..., i], before.mean(-1), rtol=1e-4, atol=1e-5)
    same = grow_vocabulary(model, 40)
    assert all(
        np.array_equal(p.detach().numpy(), q.detach().numpy())
        for p, q in zip(model.parameters(), same.parameters(), strict=True)
    )
    assert same.parameters()[0].array.buffer is not model.parameters()[0].array.buffer


def test_it_does_not_shrink() -> None:
    with pytest.raises(ConfigError) as error:
        grow_vocabulary(TransformerLM(CONFIG), 39)
    assert str(error.value) == "grow_vocabulary: a vocabulary can't shrink; got 39, expected at least 40"
