"""The schedule is a pure function of the step, with the corner values its docstring promises."""

from __future__ import annotations

import itertools
import math

import pytest

from pellucid.base.errors import ConfigError
from pellucid.optim import Schedule


def test_corner_values() -> None:
    s = Schedule.warmup_cosine(3e-4, 2000, 100_000)
    assert s.rate(0) == 3e-4 / 2000
    assert s.rate(1999) == s.rate(2000) == 3e-4
    assert s.rate(100_000) == s.rate(10**9) == 3e-4 / 10
    assert s.rate(51_000) == pytest.approx((3e-4 + 3e-5) / 2)


def test_it_rises_then_falls_then_holds() -> None:
    s = Schedule(1e-3, 100, 2000, 1e-4)
    rates = [s.rate(i) for i in range(2200)]
    assert all(a < b for a, b in itertools.pairwise(rates[:100]))
    assert all(a >= b for a, b in itertools.pairwise(rates[99:]))
    assert rates[2000:] == [1e-4] * 200


def test_without_warmup_and_constant() -> None:
    assert Schedule(1.0, 0, 10).rate(0) == 1.0
    assert {Schedule.constant(0.5).rate(i) for i in range(5)} == {0.5}
    assert Schedule(1.0, 10, 10, 0.25).rate(10) == 0.25


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant", "wsd"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 50), (10, 50), (45, 50), (50, 50), (1, 3)])
def test_every_kind_rises_to_the_peak_and_never_rises_again(kind: str, warmup: int, total: int) -> None:
    s = Schedule(2e-3, warmup, total, None if kind == "constant" else 1e-4, kind=kind)  # type: ignore[arg-type]
    rates = [s.rate(i) for i in range(total + 20)]
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert max(rates) == (2e-3 if warmup or kind != "linear" else rates[0])
    assert all(a >= b for a, b in itertools.pairwise(rates[max(warmup - 1, 0) :]))
    assert all(s.lowest <= r <= s.peak for r in rates[warmup:])
    assert rates[total:] == [s.lowest] * 20
    assert s.lowest == (2e-3 if kind == "constant" else 1e-4)


def test_linear_is_straight() -> None:
    s = Schedule(1.0, 10, 110, 0.0, kind="linear")
    assert s.rate(60) == pytest.approx(0.5)
    assert s.rate(109) == pytest.approx(0.01)


def test_wsd_holds_the_peak_until_the_cooldown() -> None:
    s = Schedule(1.0, 10, 100, 0.0, kind="wsd", cooldown=0.25)
    assert {s.rate(i) for i in range(9, 76)} == {1.0}
    assert s.rate(76) == pytest.approx(24 / 25)
    assert s.rate(99) == pytest.approx(1 / 25)
    # a run that is planned to be longer has the same rates up to the cooldown of the shorter one
    longer = Schedule(1.0, 10, 300, 0.0, kind="wsd", cooldown=0.25)
    assert [longer.rate(i) for i in range(75)] == [s.rate(i) for i in range(75)]


def test_bad_kinds() -> None:
    with pytest.raises(ConfigError, match=r"^Schedule: a constant rate has no floor; got 0\.1\. hint: leave the floor"):
        Schedule(1.0, 0, 10, 0.1, kind="constant")
    with pytest.raises(ConfigError, match=r"^Schedule: cooldown is not a share; got 0, expected 0 < cooldown <= 1$"):
        Schedule(1.0, 0, 10, kind="wsd", cooldown=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1, 2), "Schedule: rates out of order; got peak 0.0, floor 0.0, expected 0 <= floor <= peak, peak > 0"),
        (
            (math.nan, 1, 2),
            "Schedule: rates out of order; got peak nan, floor nan, expected 0 <= floor <= peak, peak > 0",
        ),
        ((1.0, 3, 2), "Schedule: steps out of order; got warmup 3, total 2, expected 0 <= warmup <= total"),
    ],
)
def test_impossible_schedules(arguments: tuple[float, int, int], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Schedule(*arguments)
    assert str(error.value) == message


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Schedule\.rate: negative step; got -1$"):
        Schedule(1.0, 1, 2).rate(-1)
