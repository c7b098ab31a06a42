"""An order without an array: every number once, another order for another seed, and the same whenever it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.rng import Generator
from pellucid.data import Shuffled


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 5000])
def test_every_number_stands_at_one_place(n: int) -> None:
    order = Shuffled(n, Generator(7))
    found = order.at(np.arange(n))
    assert sorted(found.tolist()) == list(range(n))
    assert found[n // 2] == order.at(np.array([n // 2]))[0]
    assert len(order) == n


def test_orders_of_three_are_equally_likely() -> None:
    orders = [tuple(Shuffled(3, Generator(seed)).at(np.arange(3)).tolist()) for seed in range(600)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 60  # 100 are expected, with a standard deviation of 9


def test_neighbours_and_orders_have_nothing_to_do_with_one_another() -> None:
    n = 20_000
    first, second = (Shuffled(n, Generator(seed)).at(np.arange(n)) for seed in (0, 1))
    for a, b in ((first[1:], first[:-1]), (first, np.arange(n)), (first, second)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.03  # 4 standard deviations
