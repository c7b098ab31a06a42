"""Repeated text is found wherever it stands, and text that doesn't repeat isn't taken for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pellucid.data import TokenFile
from pellucid.data.overlap import contained_share, repeated_share, run_hashes, sampling


def token_file(path: Path, ids: np.ndarray) -> TokenFile:
    TokenFile.write(path, ids)
    return TokenFile.open(path)


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 500, 20_000)


def test_every_run_has_a_hash_and_equal_runs_have_equal_ones(noise: np.ndarray, tmp_path: Path) -> None:
    hashes = run_hashes(token_file(tmp_path / "a", noise), 8, every=1)
    assert len(hashes) == len(noise) - 7
    assert repeated_share(hashes) == 0
    moved = run_hashes(token_file(tmp_path / "b", noise[13:2000]), 8, every=1)
    assert np.array_equal(moved, hashes[13 : 2000 - 7])
    swapped = noise[:8].copy()
    swapped[[2, 3]] = swapped[[3, 2]]
    assert run_hashes(token_file(tmp_path / "c", swapped), 8, every=1)[0] != hashes[0]


@pytest.mark.parametrize("every", [1, 4])
def test_shares(every: int, noise: np.ndarray, tmp_path: Path) -> None:
    twice = token_file(tmp_path / "a", np.concatenate([noise[:5000], noise[100:5100]]))
    assert repeated_share(run_hashes(twice, 16, every=every)) == pytest.approx(0.49, abs=0.02)
    train = run_hashes(token_file(tmp_path / "b", noise[:15_000]), 16, every=every)
    half = np.concatenate([noise[3001:5001], np.random.default_rng(1).integers(0, 500, 2000)])
    assert contained_share(run_hashes(token_file(tmp_path / "c", half), 16, every=every), train) == pytest.approx(
        0.5, abs=0.04
    )


def test_small_texts_and_blocks(noise: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = token_file(tmp_path / "a", noise)
    whole = run_hashes(tokens, 16, every=3)
    monkeypatch.setattr("pellucid.data.overlap._BLOCK", 999)
    assert np.array_equal(run_hashes(tokens, 16, every=3), whole)
    short = token_file(tmp_path / "b", noise[:15])
    assert len(run_hashes(short, 16, every=1)) == 0
    assert repeated_share(np.empty(0, np.uint64)) == contained_share(np.empty(0, np.uint64), whole) == 0
    assert sampling(tokens) == 1
