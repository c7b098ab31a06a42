"""The loop over a model with mixtures of experts: resumed bit for bit, routing in the metrics, older checkpoints."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.config import to_dict
from pellucid.checkpoint import latest_checkpoint, load_checkpoint, open_model, save_checkpoint
from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.train import Event, Stepped, TrainConfig, Trainer, read_metrics

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 16, "seed": 4}
MODEL = TransformerConfig(40, **SIZES, experts=4, moe_layers=(1,), shared_expert=True, checkpoint_blocks=True)
TRAIN = TrainConfig(steps=8, sequences=4, seq_len=16, accumulate=2, warmup=2, eval_every=4, save_every=4, seed=9)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    TokenFile.write(tmp_path / "tokens.bin", np.random.default_rng(0).integers(0, 40, 2000))
    return TokenFile.open(tmp_path / "tokens.bin", seed=9)


def trainer(tokens: TokenFile, folder: Path, config: TransformerConfig = MODEL, **options: object) -> Trainer:
    folder.mkdir(exist_ok=True)
    train, held_out = tokens.split(0.9)
    return Trainer(TransformerLM(config), train, TRAIN, held_out=held_out, folder=folder, **options)  # type: ignore[arg-type]


def test_a_resumed_run_equals_the_straight_one_and_tells_its_loads(tokens: TokenFile, tmp_path: Path) -> None:
    straight = trainer(tokens, tmp_path / "a")
    straight.run()

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            first.stop()

    first = trainer(tokens, tmp_path / "b", on_event=stop)
    first.run()
    second = trainer(tokens, tmp_path / "b")
    assert second.resume()
    second.run()
    for name, p in straight.model.named_parameters():
        other = dict(second.model.named_parameters())[name]
        assert np.array_equal(p.detach().numpy(), other.detach().numpy()), name
    records = [[m for m in read_metrics(tmp_path / f / "metrics.jsonl") if "loss" in m] for f in "ab"]
    for one, two in zip(*records, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
        assert list(one["load"]) == ["1"]
        assert sum(one["load"]["1"]) == pytest.approx(1, abs=3e-4)
        assert 0.9 < one["balance_loss"] < 4
        assert one["z_loss"] > 0
    model = open_model(tmp_path / "a").model
    assert model.config == MODEL
    assert straight.held_out_loss == pytest.approx(np.log(40), abs=0.6)  # no penalty in it


def test_a_dense_run_has_no_routing(tokens: TokenFile, tmp_path: Path) -> None:
    trainer(tokens, tmp_path / "a", TransformerConfig(40, **SIZES)).run()  # type: ignore[arg-type]
    assert all("load" not in line for line in read_metrics(tmp_path / "a" / "metrics.jsonl"))


def test_a_checkpoint_from_before_there_were_experts_resumes(tokens: TokenFile, tmp_path: Path) -> None:
    run = trainer(tokens, tmp_path / "a", TransformerConfig(40, **SIZES))  # type: ignore[arg-type]
    run.run()
    newest = latest_checkpoint(tmp_path / "a")
    assert newest is not None
    found = load_checkpoint(newest)
    since = [f.name for f in fields(TransformerConfig)]
    old = {
        name: value for name, value in to_dict(run.model.config).items() if name not in since[since.index("experts") :]
    }
    save_checkpoint(
        tmp_path / "old",
        tensors=dict(run.model.named_parameters()),
        optimizer_tensors=run.optimizer.state,
        config={"architecture": "TransformerLM", "model": old},
        state=found.state,
    )
    again = trainer(tokens, tmp_path / "b", TransformerConfig(40, **SIZES))  # type: ignore[arg-type]
    again.restore(load_checkpoint(tmp_path / "old"))
    assert again.step == TRAIN.steps
