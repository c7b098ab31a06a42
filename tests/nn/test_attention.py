"""Self-attention as one operation, as a sequence of operations, and with a cache: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid
from pellucid import Tensor
from pellucid.base import dtypes
from pellucid.base.errors import ConfigError, ShapeError
from pellucid.base.rng import Generator
from pellucid.device import reference
from pellucid.nn import KVCache, SelfAttention
from pellucid.nn.attention import within
from pellucid.ops.self_attention import joined


def layer(**options: object) -> SelfAttention:
    return SelfAttention(12, 4, 2, 6, generator=Generator(1), std=0.3, **options)  # type: ignore[arg-type]


def tables() -> tuple[Tensor, Tensor]:
    angles = np.arange(9)[:, None] * np.array([0.5, 0.1, 0.02])
    return pellucid.tensor(np.cos(angles), dtype="float32"), pellucid.tensor(np.sin(angles), dtype="float32")


def by_parts(a: SelfAttention, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    batch, time, _ = x.shape
    q = a.q_proj(x).reshape(batch, time, 4, 6)
    k, v = a.k_proj(x).reshape(batch, time, 2, 6), a.v_proj(x).reshape(batch, time, 2, 6)
    if rotary is not None:
        q, k = pellucid.rope(q, *rotary), pellucid.rope(k, *rotary)
    return a.o_proj(pellucid.attention(q, k, v).reshape(batch, time, 24))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rotary", [None, tables()])
def test_one_operation_equals_its_parts(bias: bool, rotary: tuple[Tensor, Tensor] | None) -> None:
    x = pellucid.randn((2, 9, 12), generator=Generator(2), requires_grad=True)
    found = []
    for run in (lambda a: a(x, rotary), lambda a: by_parts(a, x, rotary)):
        a = layer(bias=bias)
        x.grad = None
        y = run(a)
        (y * y).sum().backward()
        assert x.grad is not None
        grads = {name: p.grad.numpy() for name, p in a.named_parameters() if p.grad is not None}
        found.append((y.detach().numpy(), x.grad.numpy().copy(), grads))
    (y1, dx1, g1), (y2, dx2, g2) = found
    np.testing.assert_allclose(y1, y2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx1, dx2, rtol=1e-4, atol=1e-5)
    assert g1.keys() == g2.keys() == {name for name, _ in layer(bias=bias).named_parameters()}
    for name in g1:
        np.testing.assert_allclose(g1[name], g2[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_packed_documents_are_as_documents_alone_with_and_without_a_cache() -> None:
    a, x = layer(), pellucid.randn((1, 9, 12), generator=Generator(2))
    starts = pellucid.tensor(np.array([[0, 0, 0, 0, 4, 4, 4, 4, 4]], np.int32))
    positions = pellucid.tensor(np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]], np.int32))
    whole = a(x, tables(), starts=starts, positions=positions).detach().numpy()
    for at in (slice(0, 4), slice(4, 9)):
        np.testing.assert_allclose(whole[:, at], a(x[:, at], tables()).detach().numpy(), rtol=1e-5, atol=1e-6)
    cache = KVCache(1, 9, 2, 6, dtype=pellucid.float32)
    for first, last in ((0, 6), (6, 8), (8, 9)):
        here = {"starts": starts[:, first:last], "positions": positions[:, first:last]}
        y = a(x[:, first:last], tables(), cache, **here).detach().numpy()
        np.testing.assert_allclose(y, whole[:, first:last], rtol=1e-5, atol=1e-6)


def test_the_projections_lie_behind_one_another() -> None:
    a = layer(bias=True)
    for parts in (
        [p.weight.array for p in (a.q_proj, a.k_proj, a.v_proj)],
        [p.bias.array for p in (a.q_proj, a.k_proj, a.v_proj)],
    ):  # type: ignore[union-attr]
        assert joined(None, parts).buffer is parts[0].buffer  # no kernel was needed


def test_projections_elsewhere_are_copied_together() -> None:
    parts = [reference.upload(np.full((n, 2), n), pellucid.float32) for n in (1, 3)]
    assert reference.download(joined(reference.kernels, parts)).tolist() == [[1, 1], [3, 3], [3, 3], [3, 3]]


def test_refusals() -> None:
    a, x = layer(), pellucid.ones((1, 10, 12))
    weights = (a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)
    with pytest.raises(ShapeError, match=r"^self_attention: rotary tables do not fit; got \(9, 3\) for 10 positions"):
        pellucid.self_attention(x, weights, heads=4, kv_heads=2, rotary=tables())
    with pytest.raises(ShapeError, match=r"^self_attention: input, weights and heads do not fit; got x \(1, 10, 12\)"):
        pellucid.self_attention(x, weights, heads=3, kv_heads=2)
    with pytest.raises(ConfigError, match=r"^self_attention: dropout without a generator\. hint: pass generator=$"):
        pellucid.self_attention(x, weights, heads=4, kv_heads=2, dropout=0.1)


@pytest.mark.parametrize("window", [1, 3, 50])
@pytest.mark.parametrize("cached", [False, True])
def test_a_window_is_what_a_query_sees(window: int, cached: bool) -> None:
    """The layer with a window equals the one without on each query's own last positions."""
    x = np.random.default_rng(0).normal(size=(1, 9, 12)).astype(np.float32)
    short, whole = layer(window=window), layer()
    with pellucid.no_grad():
        if cached:
            cache = KVCache(1, 9, 2, 6, dtype=dtypes.float32)
            pieces = [short(pellucid.tensor(x[:, i:j]), None, cache).numpy() for i, j in ((0, 4), (4, 5), (5, 9))]
            found = np.concatenate(pieces, axis=1)
        else:
            found = short(pellucid.tensor(x)).numpy()
        for t in range(9):
            seen = x[:, max(0, t - window + 1) : t + 1]
            expected = whole(pellucid.tensor(seen)).numpy()[:, -1]
            assert np.abs(found[:, t] - expected).max() < 1e-6


def test_documents_inside_a_window() -> None:
    starts = np.array([[0, 0, 0, 3, 3, 3, 3, 3]], np.int32)
    x = pellucid.tensor(np.zeros((1, 8, 4), np.float32))
    found = within(3, pellucid.tensor(starts), 0, x)
    assert found is not None
    assert found.numpy().tolist() == [[0, 0, 0, 3, 3, 3, 4, 5]]
    assert within(8, pellucid.tensor(starts), 0, x) is not None
    assert within(8, None, 0, x) is None
