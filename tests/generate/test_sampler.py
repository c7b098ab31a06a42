"""Every rule of the sampler, on rows of logits chosen to show it."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import ConfigError
from pellucid.generate import Sampler

ROW = np.array([1.0, 3.0, -2.0, 3.0, 0.5])


def drawn(sampler: Sampler, row: np.ndarray, n: int = 400) -> set[int]:
    return {sampler.sample(row) for _ in range(n)}


def test_greedy_takes_the_largest_and_the_lowest_id_on_a_tie() -> None:
    assert Sampler.greedy().sample(ROW) == 1
    assert Sampler(temperature=0).sample(ROW) == Sampler(temperature=-1).sample(ROW) == 1


def test_top_k_of_one_is_greedy() -> None:
    assert drawn(Sampler(top_k=1, seed=0), ROW) == {1}


def test_top_k_keeps_the_k_most_likely() -> None:
    assert drawn(Sampler(top_k=3, temperature=5.0, seed=0), ROW) == {0, 1, 3}
    assert drawn(Sampler(top_k=100, temperature=9.0, seed=0), ROW) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    assert drawn(Sampler(top_p=0.4, seed=0), row) == {0}  # below the first probability
    assert drawn(Sampler(top_p=0.6, seed=0), row) == {0, 1}
    assert drawn(Sampler(top_p=1.0, seed=0), row, 2000) == {0, 1, 2, 3}


def test_top_p_comes_after_top_k() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    # Of the two kept by top-k the first has 4/7 > 0.55 of the probability.
    assert drawn(Sampler(top_k=2, top_p=0.55, seed=0), row) == {0}


def test_frequencies_follow_the_probabilities() -> None:
    p = np.array([0.6, 0.3, 0.1])
    sampler = Sampler(seed=7)
    counts = np.bincount([sampler.sample(np.log(p)) for _ in range(6000)], minlength=3) / 6000
    np.testing.assert_allclose(counts, p, atol=0.025)


def test_temperature_sharpens() -> None:
    p = np.array([0.6, 0.4])
    sampler = Sampler(temperature=0.5, seed=3)
    share = np.mean([sampler.sample(np.log(p)) == 0 for _ in range(4000)])
    assert share == pytest.approx(0.36 / (0.36 + 0.16), abs=0.03)


def test_equal_seeds_draw_equal_ids() -> None:
    row = np.zeros(50)
    a, b, c = Sampler(seed=1), Sampler(seed=1), Sampler(seed=2)
    first = [a.sample(row) for _ in range(40)]
    assert first == [b.sample(row) for _ in range(40)]
    assert first != [c.sample(row) for _ in range(40)]


def test_repetition_penalty_counts_each_id_once() -> None:
    row = np.array([4.0, 3.0, -1.0])
    once = Sampler.greedy(repetition_penalty=1.2)
    assert once.sample(row, [0]) == once.sample(row, [0] * 50) == 0  # 4 / 1.2 > 3, however often
    assert Sampler.greedy(repetition_penalty=1.5).sample(row, [0]) == 1


def test_repetition_penalty_pushes_negative_logits_down() -> None:
    assert Sampler.greedy(repetition_penalty=2.0).sample(np.array([-1.0, -1.5]), [0]) == 1


def test_history_outside_the_vocabulary_is_ignored() -> None:
    assert Sampler.greedy(repetition_penalty=2.0).sample(ROW, [99, -1, 5]) == 1


@pytest.mark.parametrize("sampler", [Sampler.greedy(), Sampler(seed=0), Sampler(top_k=2, top_p=0.5, seed=0)])
def test_rows_that_are_not_numbers_still_give_an_id(sampler: Sampler) -> None:
    nan, inf = np.nan, np.inf
    assert sampler.sample(np.array([nan, nan, nan])) in (0, 1, 2)
    assert sampler.sample(np.array([-inf, -inf])) in (0, 1)
    assert sampler.sample(np.array([nan, 1.0, -inf])) == 1
    assert sampler.sample(np.array([0.0, inf, nan])) == 1
    assert sampler.sample(np.array([1e300, -1e300])) == 0


def test_impossible_ids_are_never_drawn() -> None:
    assert drawn(Sampler(seed=0), np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])) == {1, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "Sampler: top_k keeps nothing; got 0, expected at least 1. hint: None keeps all"),
        ({"top_p": 0.0}, "Sampler: top_p is not a share; got 0.0, expected 0 < top_p <= 1. hint: None keeps all"),
        ({"top_p": 1.5}, "Sampler: top_p is not a share; got 1.5, expected 0 < top_p <= 1. hint: None keeps all"),
        (
            {"repetition_penalty": 0.0},
            "Sampler: repetition_penalty must be positive; got 0.0. hint: None switches it off",
        ),
        ({"temperature": float("nan")}, "Sampler: temperature is not a finite number; got nan"),
    ],
)
def test_mistakes(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Sampler(**options)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_ids_of_any_size_in_the_history_are_ignored() -> None:
    assert Sampler.greedy(repetition_penalty=2.0).sample(ROW, [2**70, -(2**70), 1]) == 3


def test_top_k_is_a_whole_number() -> None:
    with pytest.raises(ConfigError, match=r"^Sampler: top_k is not a whole number; got 1.5$"):
        Sampler(top_k=1.5)  # type: ignore[arg-type]
