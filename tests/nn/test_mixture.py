"""A mixture of experts as a layer: against NumPy token by token, its gradients with both losses, padding, threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import pellucid
from pellucid import Tensor, ops
from pellucid.base import dtypes
from pellucid.base.errors import ConfigError
from pellucid.base.rng import Generator
from pellucid.device import pool, reference
from pellucid.nn import MixtureOfExperts, Routing, SwiGLU
from pellucid.tape import gradcheck


def layer(experts: int = 4, active: int = 2, **options: object) -> MixtureOfExperts:
    return MixtureOfExperts(6, 5, experts, active, generator=Generator(1), std=0.5, **options)  # type: ignore[arg-type]


def tokens(*shape: int, seed: int = 2) -> Tensor:
    return pellucid.randn((*shape, 6), generator=Generator(seed), requires_grad=True)


def network(expert: SwiGLU, x: np.ndarray) -> np.ndarray:
    gate, up, down = (
        np.float64(w.weight.detach().numpy()) for w in (expert.gate_proj, expert.up_proj, expert.down_proj)
    )
    g = gate @ x
    return down @ (g / (1 + np.exp(-g)) * (up @ x))


def by_hand(m: MixtureOfExperts, x: np.ndarray) -> np.ndarray:
    """One token after the other."""
    y, router = np.zeros(x.shape), np.float64(m.gate.weight.detach().numpy())
    for n, token in enumerate(np.float64(x)):
        logits = router @ token
        best = sorted(range(len(m.experts)), key=lambda e: -logits[e])[: m.active]
        p = np.exp(logits) / np.exp(logits).sum()
        y[n] = sum(p[e] / p[best].sum() * network(m.experts[e], token) for e in best)
        if m.shared_experts is not None:
            y[n] += network(m.shared_experts, token)
    return y


@pytest.mark.parametrize(("experts", "active"), [(4, 2), (4, 4), (1, 1), (9, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_tokens_one_by_one(experts: int, active: int, shared: bool) -> None:
    m, x = layer(experts, active, shared=shared), tokens(3, 7)
    found = m(x).detach().numpy()
    assert found.shape == (3, 7, 6)
    np.testing.assert_allclose(found.reshape(21, 6), by_hand(m, x.detach().numpy().reshape(21, 6)), atol=2e-6)


def test_a_single_expert_is_the_network_itself() -> None:
    m, x = layer(1, 1), tokens(9)
    np.testing.assert_allclose(m(x).detach().numpy(), m.experts[0](x).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("active", [1, 2, 3])
def test_gradients_with_both_losses(active: int) -> None:
    """Router, gates, experts and both losses in one function, against finite differences in float64."""
    generator = Generator(active)

    def leaf(*shape: int) -> Tensor:
        return Tensor(reference.upload(generator.normal(shape), dtypes.float64), True)

    x, router = leaf(7, 4), leaf(3, 4)
    weights = [leaf(*s) for _ in range(3) for s in ((2, 4), (2, 4), (4, 2))]

    def objective(x: Tensor, router: Tensor, *weights: Tensor) -> Tensor:
        logits = ops.linear(x, router)
        chosen = ops.top_experts(logits, active=active)
        experts = list(zip(weights[::3], weights[1::3], weights[2::3], strict=True))
        y = ops.mixture_of_experts(x, ops.expert_gates(logits, chosen), chosen, experts)
        statistics = ops.router_statistics(logits, chosen)
        return ops.concatenate([(y * y).sum().reshape(1), 0.01 * statistics[:1], 1e-3 * statistics[1:2]])

    gradcheck(objective, [x, router, *weights])


def test_an_expert_without_tokens_gets_a_gradient_of_zero() -> None:
    m, x = layer(3, 1), tokens(8)
    away = m.gate.weight.detach().numpy()
    away[1] = 0
    away[0], away[2] = np.eye(6)[0] * 50, -np.eye(6)[0] * 50  # one of them is above 0 for every token
    routing = Routing()
    (m(x, routing) ** 2).sum().backward()
    load = routing.statistics[0].detach().numpy()[2:]
    assert load[1] == 0
    assert load[0] > 0
    assert load[2] > 0
    for e, idle in ((0, False), (1, True), (2, False)):
        for name, p in m.experts[e].named_parameters():
            assert p.grad is not None
            assert (p.grad.numpy() == 0).all() == idle, (e, name)


def test_padding_is_routed_nowhere_and_counts_nowhere() -> None:
    m, x = layer(shared=True), tokens(10)
    counted = np.arange(10) % 3 > 0
    some, alone = Routing(pellucid.tensor(counted)), Routing()
    y = m(x, some)
    kept = pellucid.tensor(x.detach().numpy()[counted])
    expected = m(kept, alone)
    np.testing.assert_allclose(y.detach().numpy()[counted], expected.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(some.statistics[0].detach().numpy(), alone.statistics[0].detach().numpy(), atol=1e-6)
    assert some.statistics[0].detach().numpy()[2:].sum() == pytest.approx(1, abs=1e-6)
    # What a padded token holds reaches no expert and no router.
    m.zero_grad()
    (y[pellucid.tensor(np.flatnonzero(counted))] ** 2).sum().backward()
    first = {name: p.grad.numpy().copy() for name, p in m.named_parameters() if p.grad is not None}
    m.zero_grad()
    (m(kept) ** 2).sum().backward()
    for name, p in m.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), first[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_batch_of_nothing_but_padding() -> None:
    m, x, routing = layer(), tokens(4), Routing(pellucid.tensor(np.zeros(4, bool)))
    y = m(x, routing)
    assert (y.detach().numpy() == 0).all()
    assert (routing.statistics[0].detach().numpy() == 0).all()
    (y.sum() + routing.statistics[0].sum()).backward()
    assert all(p.grad is not None and (p.grad.numpy() == 0).all() for p in m.parameters())


@pytest.fixture
def threads() -> Iterator[None]:
    before = pool.threads()
    yield
    pool.set_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_change_no_bit() -> None:
    found = []
    for count in (1, 2):
        pool.set_threads(count)
        m = MixtureOfExperts(64, 48, 5, 2, shared=True, generator=Generator(1), std=0.2)
        x = pellucid.randn((300, 64), generator=Generator(2), requires_grad=True)
        routing = Routing()
        y = m(x, routing)
        ((y * y).sum() + routing.statistics[0][:2].sum()).backward()
        assert x.grad is not None
        bits = [y, routing.statistics[0], x.grad, *[p.grad for p in m.parameters()]]
        found.append([t.detach().numpy().tobytes() for t in bits if t is not None])
    assert found[0] == found[1]


def test_names_are_those_of_published_checkpoints() -> None:
    names = [name for name, _ in layer(2, 1, shared=True).named_parameters()]
    parts = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    at = ("experts.0", "experts.1", "shared_experts")
    assert names == ["gate.weight", *[f"{a}.{part}" for a in at for part in parts]]


@pytest.mark.parametrize(
    ("experts", "active", "expected"), [(4, 5, "1 to 4"), (4, 0, "1 to 4"), (0, 1, "at least one expert")]
)
def test_impossible_numbers_are_refused(experts: int, active: int, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        layer(experts, active)
    message = f"MixtureOfExperts: no such number of experts can be active; got {active}, expected {expected}"
    assert str(error.value) == message
