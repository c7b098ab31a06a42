"""What a training configuration can ask for beyond the plain loop; each is resumed bit for bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.config import to_dict
from pellucid.base.errors import CheckpointError, ConfigError
from pellucid.checkpoint import checkpoint_path, load_checkpoint, open_model, save_checkpoint
from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import Muon
from pellucid.train import (
    EndedEarly,
    Evaluated,
    Event,
    Stepped,
    TrainConfig,
    Trainer,
    evaluate_file,
    read_metrics,
)

MODEL = TransformerConfig(40, d_model=32, n_layers=2, n_heads=2, max_seq_len=16, dropout=0.1, seed=4)
TRAIN = TrainConfig(steps=9, sequences=4, seq_len=16, warmup=3, eval_every=2, eval_batches=1, save_every=4, seed=9)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    TokenFile.write(tmp_path / "tokens.bin", np.random.default_rng(0).integers(0, 40, 2000))
    return TokenFile.open(tmp_path / "tokens.bin", seed=9)


def trainer(tokens: TokenFile, folder: Path | None, config: TrainConfig, **options: Any) -> Trainer:
    if folder is not None:
        folder.mkdir(exist_ok=True)
    train, held_out = tokens.split(0.9)
    return Trainer(TransformerLM(MODEL), train, config, held_out=held_out, folder=folder, **options)


def weights(model: TransformerLM) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "lion", "learning_rate": 1e-4},
        {"optimizer": "muon", "momentum": 0.95},
        {"optimizer": "sgd", "rate_schedule": "linear"},
        {"rate_schedule": "wsd", "cooldown": 0.5},
        {"rate_schedule": "constant"},
        {"tokens_per_step": 100},
        {"order": "shuffled", "sequences": 30},
        {"ema": 0.9, "keep_best": True},
        {"freeze": ("model.layers.0.*", "model.embed_*")},
        {"groups": ("*norm*:rate=0.1,decay=0.3", "*:rate=2")},
        {"train_rows_from": 30},
        {"patience": 2, "keep_best": True},
    ],
    ids=lambda changes: next(iter(changes)) + str(next(iter(changes.values()))),
)
def test_every_option_is_resumed_bit_for_bit(changes: dict[str, Any], tokens: TokenFile, tmp_path: Path) -> None:
    config = replace(TRAIN, **changes)
    straight = trainer(tokens, tmp_path / "a", config)
    straight.run()

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            first.stop()

    first = trainer(tokens, tmp_path / "b", config, on_event=stop)
    first.run()
    second = trainer(tokens, tmp_path / "b", config)
    assert second.resume()
    assert second.step == 3
    second.run()
    assert second.step == straight.step
    assert same(weights(straight.model), weights(second.model))
    assert second.judge.state() == straight.judge.state()
    assert second.held_out_loss == straight.held_out_loss
    for name, t in straight.optimizer.state.items():
        assert np.array_equal(t.numpy(), second.optimizer.state[name].numpy()), name
    if straight.average is not None and second.average is not None:
        for name, t in straight.average.tensors.items():
            assert np.array_equal(t.numpy(), second.average.tensors[name].numpy()), name


def test_a_step_of_so_many_tokens_is_the_same_in_one_part_or_several(tokens: TokenFile) -> None:
    """100 tokens are seven windows of 16, two at a time; the same windows at once give the same step."""
    parts = replace(TRAIN, tokens_per_step=100, sequences=2, steps=3, eval_every=None)
    assert (parts.step_sequences, parts.micro_batches, parts.part_sequences) == (7, 4, 2)
    losses: list[list[float]] = []
    for config in (parts, replace(parts, tokens_per_step=None, sequences=7)):
        found: list[float] = []

        def on_event(event: Event, found: list[float] = found) -> None:
            if isinstance(event, Stepped):
                assert event.tokens == 7 * 16
                found.append(event.loss)

        model = TransformerLM(replace(MODEL, dropout=0.0))
        Trainer(model, tokens, config, on_event=on_event).run()
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_epoch_reads_every_window_once(tokens: TokenFile) -> None:
    config = replace(TRAIN, sequences=3).for_epochs(2, len(tokens))
    windows = (2000 - 1) // 16
    assert config.steps == -(-2 * windows // 3)
    assert config.order == "shuffled"
    run = Trainer(TransformerLM(MODEL), tokens, replace(config, eval_every=None))
    seen: Counter[bytes] = Counter()
    for step in range(config.steps):
        batch = run.source.batch(step)
        for row in batch.inputs[: min(3, 2 * windows - 3 * step)]:
            seen[row.tobytes()] += 1
    assert len(seen) == windows
    assert set(seen.values()) == {2}
    first = np.concatenate([run.source.batch(step).inputs for step in range(10)])
    second = np.concatenate([run.source.batch(step + windows // 3 + 1).inputs for step in range(10)])
    assert not np.array_equal(first, second)  # every epoch has an order of its own
    with pytest.raises(ConfigError, match=r"^TrainConfig: epochs must be positive; got 0$"):
        TRAIN.for_epochs(0, 100)


def test_frozen_parameters_stay_and_have_no_state(tokens: TokenFile) -> None:
    run = trainer(tokens, None, replace(TRAIN, freeze=("model.layers.0.*",), weight_decay=0.5))
    before = weights(run.model)
    run.run()
    after = weights(run.model)
    for name in before:
        assert np.array_equal(before[name], after[name]) == name.startswith("model.layers.0."), name
    assert not any(name.startswith("model.layers.0.") for name in run.optimizer.state)
    with pytest.raises(ConfigError) as error:
        trainer(tokens, None, replace(TRAIN, freeze=("layers.0.*",)))
    assert str(error.value) == (
        "freeze: a pattern matches no parameter; got 'layers.0.*'. hint: names are like "
        '"model.layers.0.self_attn.q_proj.weight"'
    )
    with pytest.raises(ConfigError, match=r"^AdamW: nothing to optimise; got every parameter frozen$"):
        trainer(tokens, None, replace(TRAIN, freeze=("*",)))


@pytest.mark.parametrize("tied", [True, False])
def test_only_new_rows_are_trained(tied: bool, tokens: TokenFile) -> None:
    model = TransformerLM(replace(MODEL, tie_embeddings=tied))
    before = weights(model)
    Trainer(model, tokens, replace(TRAIN, train_rows_from=30, weight_decay=0.5, eval_every=None)).run()
    after = weights(model)
    for name, value in before.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert np.array_equal(value[:30], after[name][:30])
            assert (value[30:] != after[name][30:]).any(axis=1).all()
        else:
            assert np.array_equal(value, after[name]), name
    with pytest.raises(ConfigError) as error:
        Trainer(model, tokens, replace(TRAIN, train_rows_from=40, eval_every=None))
    assert str(error.value) == "train_rows_from: no new rows; got 40, expected below 40, the rows of the table"


def test_the_running_mean_is_that_of_its_equation_and_changes_no_weight(tokens: TokenFile, tmp_path: Path) -> None:
    plain = trainer(tokens, None, TRAIN)
    plain.run()
    means = {name: v.astype(np.float64) for name, v in weights(TransformerLM(MODEL)).items()}

    def on_event(event: Event) -> None:
        if isinstance(event, Stepped):
            d = min(0.6, (1 + event.step) / (10 + event.step))
            for name, w in weights(run.model).items():
                means[name] = d * means[name] + (1 - d) * w
        elif isinstance(event, Evaluated):
            assert event.average_loss is not None
            evaluated.append(event.average_loss)

    evaluated: list[float] = []
    run = trainer(tokens, tmp_path / "a", replace(TRAIN, ema=0.6), on_event=on_event)
    run.run()
    assert same(weights(plain.model), weights(run.model))
    model = open_model(tmp_path / "a", average=True).model
    for name, value in weights(model).items():
        np.testing.assert_allclose(value, means[name], rtol=1e-5, atol=1e-6)
    assert run.held_out is not None
    assert evaluated[-1] == evaluate_file(model, run.held_out.tokens, sequences=4, seq_len=16).loss
    assert read_metrics(tmp_path / "a" / "metrics.jsonl")[-1]["average_held_out_loss"] == evaluated[-1]
    trainer(tokens, tmp_path / "b", TRAIN).run()
    with pytest.raises(CheckpointError) as error:
        open_model(tmp_path / "b", average=True)
    assert str(error.value) == (
        f"{checkpoint_path(tmp_path / 'b', 9)}: no running mean of the weights was kept. hint: train with ema "
        "(--ema 0.999)"
    )


def test_the_mean_leaves_what_is_frozen_as_it_is(tokens: TokenFile, tmp_path: Path) -> None:
    run = trainer(tokens, tmp_path / "a", replace(TRAIN, ema=0.6, freeze=("*mlp*",)))
    run.run()
    assert run.average is not None
    assert not any("mlp" in name for name in run.average.tensors)
    with run.average.in_place():
        means = weights(run.model)
    assert same(weights(open_model(tmp_path / "a", average=True).model), means)


def test_a_run_whose_held_out_loss_rises_ends_and_keeps_its_best(tokens: TokenFile, tmp_path: Path) -> None:
    """The text is noise: whatever is learned of 300 tokens of it makes the rest less likely."""
    train, held_out = tokens.part(0, 300), tokens.part(300)
    events: list[Event] = []
    config = replace(
        TRAIN, steps=400, learning_rate=5e-3, eval_every=5, eval_batches=None, patience=3, keep=1, keep_best=True
    )
    folder = tmp_path / "a"
    folder.mkdir()
    run = Trainer(TransformerLM(MODEL), train, config, held_out=held_out, folder=folder, on_event=events.append)
    result = run.run()
    losses = {e.step: e.loss for e in events if isinstance(e, Evaluated)}
    best = min(losses, key=lambda step: losses[step])
    assert result.ended_early
    assert not result.stopped
    assert result.steps == best + 3 * 5 < 400
    assert [e for e in events if isinstance(e, EndedEarly)] == [EndedEarly(result.steps, best, losses[best])]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [
        f"step-{step:08d}" for step in (best, result.steps)
    ]
    model = open_model(checkpoint_path(folder, best)).model
    assert evaluate_file(model, held_out, sequences=4, seq_len=16).loss == losses[best]
    again = Trainer(TransformerLM(MODEL), train, config, held_out=held_out, folder=folder)
    assert again.resume()
    assert again.done
    with pytest.raises(ConfigError, match=r"^Trainer: patience without held-out text\. hint: hold text out, or leave"):
        Trainer(TransformerLM(MODEL), train, config)


def test_a_checkpoint_from_before_these_options_can_be_resumed(tokens: TokenFile, tmp_path: Path) -> None:
    first = trainer(tokens, tmp_path / "a", TRAIN)
    state, old = first._state(), {"tokens_per_step", "order", "groups", "freeze", "ema", "patience", "keep_best"}
    state["train"] = {name: value for name, value in state["train"].items() if name not in old}
    del state["best"]
    save_checkpoint(
        tmp_path / "old",
        tensors=dict(first.model.named_parameters()),
        optimizer_tensors=first.optimizer.state,
        config={"architecture": "TransformerLM", "model": to_dict(MODEL)},
        state=state,
    )
    first.restore(load_checkpoint(tmp_path / "old"))
    other = trainer(tokens, tmp_path / "a", replace(TRAIN, ema=0.9))
    with pytest.raises(CheckpointError, match="a checkpoint of another training configuration"):
        other.restore(load_checkpoint(tmp_path / "old"))


def test_muon_rounds_as_the_model_does(tokens: TokenFile) -> None:
    train = replace(TRAIN, optimizer="muon")
    assert isinstance(trainer(tokens, None, train).optimizer, Muon)
    narrow = Trainer(TransformerLM(replace(MODEL, precision="bfloat16")), tokens, replace(train, eval_every=None))
    assert isinstance(narrow.optimizer, Muon)
    assert narrow.optimizer.operand_dtype is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens_per_step": 100, "accumulate": 2},
            "TrainConfig: tokens_per_step and accumulate both cut a step; got 2. hint: leave accumulate at 1: parts of "
            "`sequences` windows follow from the tokens of a step",
        ),
        (
            {"tokens_per_step": 0},
            "TrainConfig: tokens_per_step must be at least 1; got 0. hint: None switches it off",
        ),
        (
            {"patience": 2, "eval_every": None},
            "TrainConfig: patience without evaluations; got 2. hint: set eval_every",
        ),
        ({"ema": 1.0}, "TrainConfig: ema out of range; got 1.0, expected 0 < ema < 1. hint: 0.999 is usual"),
        ({"train_rows_from": -1}, "TrainConfig: train_rows_from is negative; got -1"),
        (
            {"train_rows_from": 3, "freeze": ("a",)},
            "TrainConfig: train_rows_from already freezes everything else; got ('a',)",
        ),
        (
            {"groups": ("*",)},
            "groups: not a group of parameters; got '*', expected PATTERN:rate=FACTOR,decay=NUMBER, one of the two or "
            "both, from 0 on",
        ),
        (
            {"cooldown": 0.0},
            "Schedule: cooldown is not a share; got 0.0, expected 0 < cooldown <= 1",
        ),
    ],
)
def test_impossible_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(TRAIN, **changes)
    assert str(error.value) == message
