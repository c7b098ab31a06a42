"""Sources of batches: token files in windows, and anything else that knows the batch of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, DataError
from pellucid.data import TokenBatch, TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.train import TokenWindows, TrainConfig, Trainer, evaluate_batches, read_metrics

MODEL = TransformerConfig(40, d_model=16, n_layers=1, n_heads=2, max_seq_len=16)
TRAIN = TrainConfig(steps=4, sequences=2, seq_len=8, warmup=1, eval_every=2, save_every=2)


class Rows:
    """Random packed rows; those of a step follow from its number."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def batch(self, step: int, /) -> TokenBatch:
        random = np.random.default_rng((self.seed, step))
        rows = [[(random.integers(0, 40, n), np.ones(n, bool)) for n in (5, 4)] for _ in range(2)]
        return TokenBatch.packed(rows)

    def batches(self, most: int | None, /) -> Iterator[TokenBatch]:
        return (self.batch(1000 + i) for i in range(3 if most is None else min(most, 3)))

    def fingerprint(self) -> str:
        return f"{self.seed:064d}"


def test_any_source_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    def trainer(folder: Path, **options: object) -> Trainer:
        folder.mkdir(exist_ok=True)
        return Trainer(TransformerLM(MODEL), Rows(), TRAIN, held_out=Rows(1), folder=folder, **options)  # type: ignore[arg-type]

    straight = trainer(tmp_path / "a")
    straight.run()
    first = trainer(tmp_path / "b", on_event=lambda event: first.stop() if first.step == 2 else None)
    first.run()
    second = trainer(tmp_path / "b")
    assert second.resume()
    second.run()
    for (name, want), (_, got) in zip(straight.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes(), name
    losses = [[r["loss"] for r in read_metrics(tmp_path / f / "metrics.jsonl") if "loss" in r] for f in "ab"]
    assert losses[0] == losses[1]
    assert straight.held_out_loss == second.held_out_loss


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    Trainer(TransformerLM(MODEL), Rows(), TRAIN, folder=tmp_path).run()
    other = Trainer(TransformerLM(MODEL), Rows(7), TRAIN, folder=tmp_path)
    with pytest.raises(CheckpointError) as caught:
        other.resume()
    path = tmp_path / "checkpoints" / "step-00000004"
    assert str(caught.value) == (
        f"{path}: a checkpoint of a run on other data; got 000000000000, expected 000000000000. "
        "hint: resume with the data the run began with, cut in the same way"
    )


def test_windows_of_a_token_file_know_their_file(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 40, 500)
    TokenFile.write(tmp_path / "a.bin", ids)
    TokenFile.write(tmp_path / "b.bin", ids[::-1])
    a, b = (TokenFile.open(tmp_path / name) for name in ("a.bin", "b.bin"))
    found = {TokenWindows(t, TRAIN).fingerprint() for t in (a, b, a.part(0, 400), TokenFile.open(a.path, seed=1))}
    assert len(found) == 4
    assert TokenWindows(a, TRAIN).fingerprint() == TokenWindows(TokenFile.open(a.path), TRAIN).fingerprint()
    assert TokenWindows(a, TRAIN).batch(3).ids.tolist() == a.batch(3, 2, 9).ids.tolist()
    shuffled = TokenWindows(a, replace(TRAIN, order="shuffled"))
    assert shuffled.batch(3).ids.tolist() == a.shuffled(3, 2, 9).ids.tolist()


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(DataError, match=r"^evaluate_batches: nothing to evaluate; expected at least one batch$"):
        evaluate_batches(TransformerLM(MODEL), [])
