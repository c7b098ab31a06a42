"""Runs of ids are found again wherever they stand, exactly, and text that doesn't repeat isn't taken for it."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.data import asked, overlap, repeated, run_length
from pellucid.data.repeats import run_hashes


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


@pytest.mark.parametrize("kept", [1 << 20, 2500])
def test_what_stood_in_the_text_before(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 500, 20_000)
    assert repeated(noise, 8) == 0
    twice = np.concatenate([noise[:5000], noise[100:5100]])
    monkeypatch.setattr("pellucid.data.repeats._KEPT", kept)  # all hashes, or one in four
    whole = repeated(twice, 16)
    assert whole == pytest.approx(4885 / 9985, abs=1e-12 if kept > 9985 else 0.02)
    monkeypatch.setattr("pellucid.data.repeats._BLOCK", 999)
    assert repeated(twice, 16) == whole
    assert repeated(noise[:15], 16) == 0
