"""The loop: stopped and resumed runs against straight ones, what a run leaves behind, and whom it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.config import to_dict
from pellucid.base.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from pellucid.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint, open_model, save_checkpoint
from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.train import (
    Evaluated,
    Event,
    Saved,
    Stepped,
    TrainConfig,
    Trainer,
    evaluate_file,
    read_metrics,
)
from pellucid.train.metrics import Metrics

MODEL = TransformerConfig(40, d_model=32, n_layers=1, n_heads=2, max_seq_len=16, dropout=0.1, seed=4)
TRAIN = TrainConfig(
    steps=12,
    sequences=4,
    seq_len=16,
    accumulate=2,
    warmup=3,
    eval_every=5,
    eval_batches=1,
    save_every=4,
    keep=2,
    seed=9,
)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    TokenFile.write(tmp_path / "tokens.bin", np.random.default_rng(0).integers(0, 40, 2000))
    return TokenFile.open(tmp_path / "tokens.bin", seed=9)


def trainer(tokens: TokenFile, folder: Path, config: TrainConfig = TRAIN, **options: object) -> Trainer:
    folder.mkdir(exist_ok=True)
    train, held_out = tokens.split(0.9)
    return Trainer(TransformerLM(MODEL), train, config, held_out=held_out, folder=folder, **options)  # type: ignore[arg-type]


def weights(t: Trainer) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in t.model.named_parameters()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(m["step"], m["loss"]) for m in read_metrics(folder / "metrics.jsonl") if "loss" in m]


@pytest.mark.parametrize("stop_after", [1, 4, 6, 11])
def test_a_stopped_and_resumed_run_equals_the_straight_one(tokens: TokenFile, tmp_path: Path, stop_after: int) -> None:
    straight = trainer(tokens, tmp_path / "a")
    straight.run()

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == stop_after:
            first.stop()

    first = trainer(tokens, tmp_path / "b", on_event=stop)
    assert first.run().stopped
    second = trainer(tokens, tmp_path / "b")
    assert second.resume()
    assert second.step == stop_after
    result = second.run()
    assert not result.stopped
    assert same(weights(straight), weights(second))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert result.held_out_loss == straight.held_out_loss


def test_a_run_cut_off_between_checkpoints_equals_the_straight_one(tokens: TokenFile, tmp_path: Path) -> None:
    straight = trainer(tokens, tmp_path / "a")
    straight.run()

    class Cut(Exception):
        pass

    def cut(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 7:
            raise Cut

    with pytest.raises(Cut):
        trainer(tokens, tmp_path / "b", on_event=cut).run()
    second = trainer(tokens, tmp_path / "b")
    assert second.resume()
    assert second.step == 4
    second.run()
    assert same(weights(straight), weights(second))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_without_a_checkpoint_there_is_nothing_to_resume(tokens: TokenFile, tmp_path: Path) -> None:
    assert not trainer(tokens, tmp_path / "a").resume()


def test_a_loaded_model_is_the_trained_one_bit_for_bit(tokens: TokenFile, tmp_path: Path) -> None:
    t = trainer(tokens, tmp_path / "a")
    result = t.run()
    opened = open_model(tmp_path / "a")
    assert opened.source.checkpoint is not None
    assert opened.source.checkpoint.state["step"] == 12
    model = opened.model
    assert same(weights(t), {name: p.detach().numpy() for name, p in model.named_parameters()})
    assert t.held_out is not None
    found = evaluate_file(model, t.held_out.tokens, sequences=4, seq_len=16)
    assert found.loss == result.held_out_loss == t.held_out_loss


def test_events_and_metrics_tell_the_same_story(tokens: TokenFile, tmp_path: Path) -> None:
    events: list[Event] = []
    trainer(tokens, tmp_path / "a", on_event=events.append, peak=1e11).run()
    steps = [e for e in events if isinstance(e, Stepped)]
    assert [e.step for e in steps] == list(range(1, 13))
    assert all(e.tokens == 64 and e.share_of_peak and e.share_of_peak > 0 for e in steps)
    assert [(e.step, e.loss) for e in steps] == losses(tmp_path / "a")
    assert [(e.step, e.whole) for e in events if isinstance(e, Evaluated)] == [(5, False), (10, False), (12, True)]
    assert [e.step for e in events if isinstance(e, Saved)] == [0, 4, 8, 12, 12]
    assert sorted(p.name for p in (tmp_path / "a" / "checkpoints").iterdir()) == ["step-00000008", "step-00000012"]
    newest = latest_checkpoint(tmp_path / "a")
    assert newest is not None
    assert newest.name == "step-00000012"


def test_samples_are_asked_for_and_leave_the_run_as_it_was(tokens: TokenFile, tmp_path: Path) -> None:
    plain = trainer(tokens, tmp_path / "a")
    plain.run()
    sampled: list[int] = []

    def sample(model: TransformerLM, step: int) -> str:
        sampled.append(step)
        return "text"

    other = trainer(tokens, tmp_path / "b", sample=sample)
    other.config = replace(TRAIN, sample_every=5)
    other.run()
    assert sampled == [5, 10]
    assert same(weights(plain), weights(other))


def test_another_configuration_is_refused(tokens: TokenFile, tmp_path: Path) -> None:
    trainer(tokens, tmp_path / "a").run()
    other = trainer(tokens, tmp_path / "a", replace(TRAIN, learning_rate=0.5))
    before = weights(other)
    with pytest.raises(CheckpointError, match="a checkpoint of another training configuration"):
        other.resume()
    assert same(before, weights(other))
    assert other.step == 0


def test_a_corpus_shorter_than_a_window_is_refused(tokens: TokenFile, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the window is longer than the tokens"):
        Trainer(TransformerLM(MODEL), tokens.part(0, 16), TRAIN).run()


def test_a_cut_metrics_line_is_left_out_and_a_foreign_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]
    path.write_text("hello\n")
    with pytest.raises(DataError, match=r"line 1 is not a record of a run; got b'hello'"):
        read_metrics(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "TrainConfig: steps must be at least 1; got 0"),
        ({"eval_every": 0}, "TrainConfig: eval_every must be at least 1; got 0. hint: None switches it off"),
        ({"accumulate": 9}, "TrainConfig: more micro-batches than sequences; got accumulate 9, sequences 4"),
        ({"max_norm": 0.0}, "TrainConfig: max_norm must be positive; got 0.0. hint: None switches clipping off"),
        ({"warmup": -1}, "TrainConfig: warmup is negative; got -1"),
        ({"learning_rate": float("inf")}, "TrainConfig: learning_rate is not a finite number; got inf"),
        ({"max_norm": float("inf")}, "TrainConfig: max_norm is not a finite number; got inf"),
        ({"weight_decay": float("nan")}, "TrainConfig: weight_decay is not a finite number; got nan"),
        ({"weight_decay": -1.0}, "TrainConfig: weight_decay is negative; got -1.0"),
        ({"beta2": 1.0}, "TrainConfig: beta2 out of range; got 1.0, expected 0 <= beta2 < 1"),
        ({"momentum": -0.1}, "TrainConfig: momentum out of range; got -0.1, expected 0 <= momentum < 1"),
        ({"eps": 0.0}, "TrainConfig: eps must be positive; got 0.0"),
        (
            {"learning_rate": 0.0},
            "Schedule: rates out of order; got peak 0.0, floor 0.0, expected 0 <= floor <= peak, peak > 0",
        ),
    ],
)
def test_impossible_configurations(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(TRAIN, **changes)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_a_held_out_loss_that_is_not_finite_ends_the_run(tokens: TokenFile, tmp_path: Path) -> None:
    config = replace(TRAIN, steps=1, warmup=0, learning_rate=1e10, max_norm=None)
    with pytest.raises(NonFiniteError, match=r"^step 1: the held-out loss is not a finite number; got loss (nan|inf)"):
        trainer(tokens, tmp_path / "a", config).run()
    assert all("held_out_loss" not in line for line in read_metrics(tmp_path / "a" / "metrics.jsonl"))


def test_a_checkpoint_of_no_training_run_is_refused(tokens: TokenFile, tmp_path: Path) -> None:
    fresh = trainer(tokens, tmp_path / "a")
    config = {"architecture": "TransformerLM", "model": to_dict(MODEL)}
    tensors = dict(fresh.model.named_parameters())
    save_checkpoint(tmp_path / "c", tensors=tensors, config=config, state={"step": 3})
    with pytest.raises(CheckpointError, match="got a state without dropout, held_out_loss, optimizer, train"):
        fresh.restore(load_checkpoint(tmp_path / "c"))


def test_training_does_not_go_on_from_int8(tokens: TokenFile, tmp_path: Path) -> None:
    fresh = trainer(tokens, tmp_path / "a")
    config, tensors = {"architecture": "TransformerLM", "model": to_dict(MODEL)}, dict(fresh.model.named_parameters())
    save_checkpoint(tmp_path / "c", tensors=tensors, config=config, state=fresh._state(), precision="int8")
    before = weights(fresh)
    with pytest.raises(CheckpointError) as error:
        fresh.restore(load_checkpoint(tmp_path / "c"))
    assert str(error.value) == (
        f"{tmp_path}/c: weights rounded to int8, which the loss curve would show; got int8, expected float32. "
        "hint: resume from a float32 checkpoint, or load the weights alone into a new run"
    )
    assert same(weights(fresh), before)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk that is always full")
def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl.tmp").symlink_to("/dev/full")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl: can't write the metrics; got no space left on device$"):
        Metrics(tmp_path / "metrics.jsonl", after_step=1)
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 2.0}]


def test_a_run_planned_anew(tokens: TokenFile, tmp_path: Path) -> None:
    """Shortened on the way, it goes on and ends as a run of the new length, and can be resumed as such."""
    rates: list[float] = []

    def shorten(event: Event) -> None:
        if isinstance(event, Stepped):
            rates.append(event.learning_rate)
            if event.step == 6:
                first.replan(8)

    first = trainer(tokens, tmp_path / "a", on_event=shorten)
    assert first.run().steps == 8
    assert not first._stop
    shorter = replace(TRAIN, steps=8)
    assert first.config == shorter
    assert rates == [(TRAIN if s < 6 else shorter).schedule().rate(s) for s in range(8)]
    again = trainer(tokens, tmp_path / "a", shorter)
    again.restore(load_checkpoint(checkpoint_path(tmp_path / "a", 6)))
    again.run()
    assert same(weights(again), weights(first))
    with pytest.raises(ConfigError) as error:
        again.replan(7)
    assert str(error.value) == "Trainer.replan: more steps are done; got 7, expected at least 8"
