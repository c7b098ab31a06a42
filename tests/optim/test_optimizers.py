"""Each rule against its equations in float64, and what must not change when something else does."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid
from pellucid.base.errors import CheckpointError, ConfigError
from pellucid.optim import SGD, AdamW, Group, Lion, Muon, Optimizer, orthogonalized
from pellucid.tape import Parameter, Tensor


def parameters(device: str = "cpu") -> dict[str, Parameter]:
    rng = np.random.default_rng(0)
    return {
        "w": Parameter(pellucid.tensor(rng.normal(size=(7, 5)).astype(np.float32), device=device)),
        "norm": Parameter(pellucid.tensor(rng.normal(size=5).astype(np.float32), device=device), decay=False),
    }


def set_gradients(named: dict[str, Parameter], seed: int, size: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, p in named.items():
        found[name] = (size * rng.normal(size=p.shape)).astype(np.float32)
        p.grad = pellucid.tensor(found[name], device=p.device)
    return found


def values(named: dict[str, Parameter]) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in named.items()}


def norm_of(gradients: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())))


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_adamw_follows_its_equations(max_norm: float | None) -> None:
    named = parameters()
    w = {name: v.astype(np.float64) for name, v in values(named).items()}
    m = {name: np.zeros_like(v) for name, v in w.items()}
    v = {name: np.zeros_like(x) for name, x in w.items()}
    optimizer = AdamW(named.items(), learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)
    for step in range(1, 6):
        g = set_gradients(named, step)
        norm = norm_of(g)
        scale = 1.0 if max_norm is None else min(1.0, max_norm / norm)
        found = optimizer.step(max_norm=max_norm)
        assert (
            found is None if max_norm is None else found is not None and found.item() == pytest.approx(norm, rel=1e-6)
        )
        for name in w:
            d = scale * g[name].astype(np.float64)
            m[name] = 0.8 * m[name] + 0.2 * d
            v[name] = 0.9 * v[name] + 0.1 * d * d
            decay = 0.3 if name == "w" else 0.0
            update = m[name] / (1 - 0.8**step) / (np.sqrt(v[name] / (1 - 0.9**step)) + 1e-6)
            w[name] -= 0.01 * (decay * w[name] + update)
    for name, p in named.items():
        np.testing.assert_allclose(p.detach().numpy(), w[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_follows_its_equations(momentum: float, nesterov: bool) -> None:
    named = parameters()
    w = {name: v.astype(np.float64) for name, v in values(named).items()}
    u = {name: np.zeros_like(v) for name, v in w.items()}
    optimizer = SGD(named.items(), learning_rate=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01)
    for step in range(5):
        g = set_gradients(named, step)
        optimizer.step()
        for name in w:
            d = g[name] + (0.01 if name == "w" else 0.0) * w[name]
            u[name] = momentum * u[name] + d
            w[name] -= 0.1 * (d + momentum * u[name] if nesterov else u[name])
    for name, p in named.items():
        np.testing.assert_allclose(p.detach().numpy(), w[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_lion_follows_its_equations(max_norm: float | None) -> None:
    named = parameters()
    w = {name: v.astype(np.float64) for name, v in values(named).items()}
    m = {name: np.zeros_like(v) for name, v in w.items()}
    optimizer = Lion(named.items(), learning_rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.3)
    for step in range(6):
        g = set_gradients(named, step)
        scale = 1.0 if max_norm is None else min(1.0, max_norm / norm_of(g))
        optimizer.step(max_norm=max_norm)
        for name in w:
            d = scale * g[name].astype(np.float64)
            decay = 0.3 if name == "w" else 0.0
            w[name] -= 0.01 * (decay * w[name] + np.sign(0.8 * m[name] + 0.2 * d))
            m[name] = 0.95 * m[name] + 0.05 * d
    for name, p in named.items():
        np.testing.assert_allclose(p.detach().numpy(), w[name], rtol=2e-6, atol=2e-6)


def orthogonalized_by_numpy(x: np.ndarray) -> np.ndarray:
    """Jordan's iteration, from its definition."""
    y = x.T if x.shape[0] > x.shape[1] else x
    y = y / (np.linalg.norm(y) + 1e-7)
    for _ in range(5):
        a = y @ y.T
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    return y.T if x.shape[0] > x.shape[1] else y


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6), (1, 4)])
def test_muon_follows_its_equations(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    names = {"q_proj.weight": shape, "embed_tokens.weight": (9, 4), "norm.weight": (4,)}
    named = {
        n: Parameter(pellucid.tensor(rng.normal(size=s).astype(np.float32)), decay=len(s) > 1) for n, s in names.items()
    }
    twin = {n: Parameter(p.detach().clone(), decay=p.decay) for n, p in named.items() if n != "q_proj.weight"}
    w, m = values(named)["q_proj.weight"].astype(np.float64), np.zeros(shape)
    optimizer = Muon(named.items(), learning_rate=0.01, momentum=0.9, beta1=0.8, beta2=0.9, weight_decay=0.3)
    rest = AdamW(twin.items(), learning_rate=0.01, beta1=0.8, beta2=0.9, weight_decay=0.3)
    for step in range(5):
        g = set_gradients(named, step)["q_proj.weight"].astype(np.float64)
        for n, p in twin.items():
            p.grad = named[n].grad
        optimizer.step()
        rest.step()
        m = 0.9 * m + 0.1 * g
        o = orthogonalized_by_numpy(0.1 * g + 0.9 * m)
        w = w - 0.01 * (0.3 * w + 0.2 * max(shape) ** 0.5 * o)
    np.testing.assert_allclose(named["q_proj.weight"].detach().numpy(), w, rtol=1e-4, atol=1e-5)
    for n, p in twin.items():  # tables, norms and biases are AdamW's, bit for bit
        assert np.array_equal(p.detach().numpy(), named[n].detach().numpy())
    assert set(optimizer.state) == {
        "q_proj.weight.momentum",
        *(f"{n}.{slot}" for n in twin for slot in ("first", "second")),
    }


def test_orthogonalized_makes_singular_values_nearly_one() -> None:
    x = np.random.default_rng(0).normal(size=(40, 24)).astype(np.float32)
    found = np.linalg.svd(orthogonalized(pellucid.tensor(x)).numpy(), compute_uv=False)
    assert found.min() > 0.6
    assert found.max() < 1.3


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lion", "muon"])
def test_frozen_parameters_have_no_state_and_stay(kind: str) -> None:
    named = parameters()
    named["norm"].requires_grad = False
    before = values(named)
    optimizer = build(kind, named)
    set_gradients({"w": named["w"]}, 1)
    optimizer.step(max_norm=1.0)
    assert not any(key.startswith("norm.") for key in optimizer.state)
    assert np.array_equal(before["norm"], named["norm"].detach().numpy())
    named["w"].requires_grad = False
    with pytest.raises(ConfigError, match=r"nothing to optimise; got every parameter frozen$"):
        build(kind, named)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lion"])
def test_kept_rows_stay_bit_for_bit_and_do_not_count_in_the_norm(kind: str) -> None:
    named = parameters()
    before = values(named)["w"]
    optimizer = build(kind, named)
    optimizer.weight_decay = 0.5
    optimizer.keep_rows("w", 4)
    norm, g = None, {}
    for step in range(3):
        g = set_gradients({"w": named["w"]}, step)
        norm = optimizer.step(max_norm=1e9)
    after = values(named)["w"]
    assert norm is not None
    assert norm.item() == pytest.approx(norm_of({"w": g["w"][4:]}), rel=1e-5)
    assert np.array_equal(before[:4], after[:4])
    assert (before[4:] != after[4:]).all()
    with pytest.raises(ConfigError, match=r"^keep_rows: not rows of w; got 7, expected 0 to 6$"):
        optimizer.keep_rows("w", 7)


def test_groups_come_from_text() -> None:
    assert Group.parse("*.bias:decay=0.5") == Group("*.bias", weight_decay=0.5)
    assert Group.parse("a:b*:rate=0.1,decay=0") == Group("a:b*", 0.0, 0.1)
    for bad in ("*", "*:", ":rate=1", "*:rate=x", "*:rate=1,rate=2", "*:lr=1", "*:rate=-1", "*:rate=inf"):
        with pytest.raises(ConfigError) as error:
            Group.parse(bad)
        assert str(error.value) == (
            f"groups: not a group of parameters; got {bad!r}, expected PATTERN:rate=FACTOR,decay=NUMBER, one of the "
            "two or both, from 0 on"
        )


def test_a_limit_above_the_norm_changes_no_bit() -> None:
    results = []
    for max_norm in (None, 1e9):
        named = parameters()
        optimizer = AdamW(named.items(), learning_rate=0.01)
        set_gradients(named, 1)
        optimizer.step(max_norm=max_norm)
        results.append(values(named))
    for name in results[0]:
        assert np.array_equal(results[0][name], results[1][name])


def test_changing_the_rate_keeps_everything_else() -> None:
    optimizer = AdamW(parameters().items(), learning_rate=0.01, beta1=0.7, beta2=0.8, eps=1e-5, weight_decay=0.2)
    before = optimizer.settings()
    optimizer.learning_rate = 0.5
    assert optimizer.settings() == before | {"learning_rate": 0.5}


def test_parameters_without_a_gradient_stay() -> None:
    named = parameters()
    before = values(named)
    set_gradients({"w": named["w"]}, 3)
    AdamW(named.items(), learning_rate=0.1).step()
    after = values(named)
    assert np.array_equal(before["norm"], after["norm"])
    assert not np.array_equal(before["w"], after["w"])


def test_groups_change_rate_and_decay_by_name() -> None:
    named = parameters()
    groups = [Group("n*", weight_decay=0.5), Group("*", learning_rate_scale=2.0)]
    optimizer = AdamW(named.items(), learning_rate=0.01, weight_decay=0.1, groups=groups)
    assert optimizer.rate_and_decay("norm", named["norm"]) == (0.01, 0.5)
    assert optimizer.rate_and_decay("w", named["w"]) == (0.02, 0.1)
    with pytest.raises(ConfigError, match=r"^AdamW: a group matches no parameter; got 'x\*'. hint: names are like"):
        AdamW(named.items(), groups=[Group("x*")])


def build(kind: str, named: dict[str, Parameter]) -> Optimizer:
    if kind == "sgd":
        return SGD(named.items(), learning_rate=0.1, momentum=0.9)
    rules = {"adamw": AdamW, "lion": Lion, "muon": Muon}
    return rules[kind](named.items(), learning_rate=0.1)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lion", "muon"])
def test_state_carries_over(kind: str) -> None:
    straight, first = parameters(), parameters()
    a, b = build(kind, straight), build(kind, first)
    for step in range(2):
        for named, optimizer in ((straight, a), (first, b)):
            set_gradients(named, step)
            optimizer.step(max_norm=1.0)
    second = {name: Parameter(Tensor(p.array), decay=p.decay) for name, p in first.items()}
    c = build(kind, second)
    c.restore(b.settings())
    c.state.update(b.state)
    for named, optimizer in ((straight, a), (second, c)):
        set_gradients(named, 9)
        optimizer.step(max_norm=1.0)
    for name, value in values(straight).items():
        assert np.array_equal(value, values(second)[name])


def test_state_of_another_optimizer_is_refused() -> None:
    sgd, adam = build("sgd", parameters()), build("adamw", parameters())
    with pytest.raises(CheckpointError, match=r"^optimizer: state of another optimizer; got SGD, expected AdamW$"):
        adam.restore(sgd.settings())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: AdamW(n, learning_rate=-1.0), "AdamW: learning_rate is negative; got -1.0"),
        (
            lambda n: AdamW(n, beta1=1.0),
            "AdamW: constants out of range; got beta1 1.0, beta2 0.95, eps 1e-08, expected 0 <= beta < 1, eps > 0",
        ),
        (
            lambda n: SGD(n, learning_rate=1.0, momentum=1.0),
            "SGD: momentum out of range; got 1.0, expected 0 <= momentum < 1",
        ),
        (lambda n: SGD(n, learning_rate=1.0, nesterov=True), "SGD: Nesterov's method needs momentum; got momentum 0"),
        (lambda n: AdamW([]), "AdamW: nothing to optimise"),
        (
            lambda n: Lion(n, beta2=1.0),
            "Lion: constants out of range; got beta1 0.9, beta2 1.0, expected 0 <= beta < 1",
        ),
        (
            lambda n: Muon(n, momentum=-0.1),
            "Muon: momentum out of range; got -0.1, expected 0 <= momentum < 1",
        ),
        (
            lambda n: AdamW(n).step(),
            "step: no parameter has a gradient. hint: call backward() first",
        ),
    ],
)
def test_mistakes(make: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(parameters().items())  # type: ignore[operator]
    assert str(error.value) == message


def test_max_norm_must_be_positive() -> None:
    named = parameters()
    set_gradients(named, 0)
    with pytest.raises(ConfigError, match=r"^clip: the largest norm must be positive; got 0"):
        AdamW(named.items()).step(max_norm=0)
