"""Doubts: runs of tokens found again exactly, and the rules that call a score memorised."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.train import ChoiceResult, asked, doubts, overlap, run_length
from pellucid.train.doubts import run_hashes


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 50, 64])
def test_hashes_of_runs(length: int) -> None:
    ids = np.random.default_rng(0).integers(0, 60000, 200).astype(np.uint16)
    found = run_hashes(ids, length)
    assert len(found) == 200 - length + 1
    for i in (0, 7, 200 - length):
        expected = 0
        for token in ids[i : i + length].tolist():
            expected = (expected * 0x9E3779B97F4A7C15 + token + 1) % 2**64
        assert int(found[i]) == expected
    assert len(run_hashes(ids[: length - 1], length)) == 0


def test_the_share_of_runs_found_again() -> None:
    draw = np.random.default_rng(1)
    training, other = (draw.integers(0, 5000, n).astype(np.uint32) for n in (1 << 21, 50_000))
    assert overlap(training, other, 13) == 0
    assert overlap(training, training[1000:2000], 13) == 1
    # over the border of two blocks, too
    assert overlap(training, training[(1 << 20) - 20 : (1 << 20) + 20], 13) == 1
    half = np.concatenate([training[5000:10_000], other[:5000]])
    assert overlap(training, half, 13) == pytest.approx(4988 / 9988)
    assert overlap(training, other[:12], 13) is None
    assert overlap(training, training, 13) == 1


def test_the_share_of_questions_asked_before() -> None:
    draw = np.random.default_rng(2)
    training = draw.integers(0, 500, 20_000)
    fresh = [draw.integers(0, 500, n) for n in (13, 20, 40)]
    known = np.concatenate([fresh[2], training[700:713], fresh[0]])
    assert asked(training, fresh, 13) == 0
    assert asked(training, [*fresh, known], 13) == 0.25
    assert asked(training, [known[:5], known], 13) == 1
    assert asked(training, [known[:5]], 13) is None


def test_the_length_of_a_run() -> None:
    assert [run_length(size) for size in (1.0, 2.0, 4.0, 5.1, 100.0)] == [50, 25, 13, 10, 8]


def test_scores_too_good_to_be_true() -> None:
    # 99% right, and a loss of 0.05 nats for a token of four bytes: 0.018 bits/byte.
    known = ChoiceResult(questions=100, correct=99, correct_per_byte=99, chance=0.25, cut=0)
    assert doubts(bits_per_byte=0.018, overlap=0.31, choices=known, asked=0.5) == [
        "31% of the evaluation text is in the training text: the score says what was learned by heart",
        "0.018 bits per byte is less than any model needs for text it has not seen (0.2): the text looks memorised",
        "50% of the questions are in the training text: their answers were learned by heart",
        "99% of 100 questions answered rightly: they were seen in training, or are too easy to tell models apart",
    ]
    honest = ChoiceResult(questions=500, correct=180, correct_per_byte=190, chance=0.25, cut=0)
    few = ChoiceResult(questions=19, correct=19, correct_per_byte=19, chance=0.25, cut=0)
    assert doubts(bits_per_byte=0.21, overlap=0.04, choices=honest, asked=0.04) == []
    assert doubts(choices=few) == []
