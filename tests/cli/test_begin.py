"""A run that begins with a model that exists, and the check a run can begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.checkpoint import checkpoint_path, load_checkpoint, open_model
from pellucid.cli import main
from pellucid.cli.check import LONG, is_long
from pellucid.cli.runs import open_run
from pellucid.models import TransformerConfig
from pellucid.text import load_tokenizer
from pellucid.train import TrainConfig

from .conftest import SHORT, TINY, Refused, text

NEW = ["--sequences", "4", "--warmup", "2", "--sample-tokens", "5", "--precision", "float32"]
Output = pytest.CaptureFixture[str]


def train(capfd: Output, *arguments: object) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["train", *map(str, arguments), "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another text of the same characters."""
    path = tmp_path / "other.txt"
    path.write_text(" ".join(reversed(text().split())) + "\n")
    return path


def weights(folder: Path) -> dict[str, np.ndarray]:
    found = load_checkpoint(folder).tensors
    return {name: np.array(found[name]) for name in found}


def test_a_new_run_goes_on_from_old_weights(finished: Path, other: Path, tmp_path: Path, capfd: Output) -> None:
    run = tmp_path / "new"
    train(capfd, "--corpus", other, "--init-from", finished, "--out", run, *NEW, "--steps", "3", "--keep", "5")
    assert load_tokenizer(run / "tokenizer.json").fingerprint() == (
        load_tokenizer(finished / "tokenizer.json").fingerprint()
    )
    found = open_run(run).config
    assert found.model == open_run(finished).config.model
    assert found.init_from == str(checkpoint_path(finished, 20))
    first, old = weights(checkpoint_path(run, 0)), weights(checkpoint_path(finished, 20))
    assert all(np.array_equal(first[name], old[name]) for name in old)
    # what is cut off before its first checkpoint goes on from these weights, without the model they came from
    last = weights(checkpoint_path(run, 3))
    for path in (checkpoint_path(run, 3), run / "metrics.jsonl"):
        path.rename(tmp_path / path.name)
    assert main(["train", "--resume", str(run)]) == 0
    again = weights(checkpoint_path(run, 3))
    assert all(np.array_equal(last[name], again[name]) for name in last)


@pytest.mark.parametrize("rows", [True, False])
def test_tokens_are_added(rows: bool, finished: Path, other: Path, tmp_path: Path, capfd: Output) -> None:
    run = tmp_path / "new"
    more = ["--new-rows-only"] if rows else []
    train(
        *(capfd, "--corpus", other, "--init-from", finished, "--out", run, *NEW, "--steps", "3", "--keep", "5"),
        *("--add-tokens", "<|user|>", "<|end|>", *more),
    )
    old, new = load_tokenizer(finished / "tokenizer.json"), load_tokenizer(run / "tokenizer.json")
    n = old.vocab_size
    assert dict(new.special) == {"<|user|>": n, "<|end|>": n + 1}
    assert np.array_equal(old.encode("the wind"), new.encode("the wind"))
    before, first = weights(checkpoint_path(finished, 20)), weights(checkpoint_path(run, 0))
    after = weights(checkpoint_path(run, 3))
    table = "model.embed_tokens.weight"
    assert np.array_equal(first[table][:n], before[table])
    np.testing.assert_allclose(first[table][n:], np.tile(before[table].mean(0), (2, 1)), rtol=1e-5, atol=1e-7)
    for name, value in before.items():
        assert np.array_equal(value, after[name][: len(value)]) == rows, name
    assert not np.array_equal(first[table][n:], after[table][n:])
    assert open_model(run).model.config.vocab_size == n + 2


def test_the_averaged_weights_are_exported(other: Path, tmp_path: Path, capfd: Output) -> None:
    run, out = tmp_path / "run", tmp_path / "model"
    train(capfd, "--corpus", other, "--out", run, *SHORT, "--steps", "4", "--ema", "0.5")
    assert main(["export", str(run), "--out", str(out), "--average"]) == 0
    found = load_checkpoint(checkpoint_path(run, 4))
    assert found.average is not None
    assert all(np.array_equal(value, found.average[name]) for name, value in weights(out).items())
    assert not all(np.array_equal(value, found.tensors[name]) for name, value in weights(out).items())


def test_epochs_decide_the_steps(other: Path, tmp_path: Path, capfd: Output) -> None:
    found = train(capfd, "--corpus", other, "--out", tmp_path / "run", *SHORT, "--epochs", "0.1")
    run = open_run(tmp_path / "run")
    tokens, _ = run.tokens()
    assert found["steps"] == -(-(len(tokens) - 1) // 32) // 40 + 1
    assert run.config.train.order == "shuffled"


def test_a_run_that_gets_worse_ends_early(tmp_path: Path, capfd: Output) -> None:
    noise = tmp_path / "noise.txt"
    noise.write_bytes(bytes(np.random.default_rng(0).integers(97, 123, 1200).astype(np.uint8)))
    found = train(
        *(capfd, "--corpus", noise, "--out", tmp_path / "run", *SHORT, "--steps", "500", "--held-out", "0.5"),
        *("--learning-rate", "1e-2", "--eval-every", "5", "--patience", "2", "--keep-best"),
    )
    assert found["ended_early"]
    assert not found["stopped"]
    assert found["steps"] < 500
    assert Path(found["best"]).is_dir()
    assert found["best_held_out_loss"] <= found["held_out_loss"]
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0  # which finds it at its end
    assert "no better" not in capfd.readouterr().err


# --- the check --------------------------------------------------------------------------------------------------------


def test_a_check_alone_leaves_nothing(
    corpus: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    assert main(["train", "--corpus", str(corpus), *SHORT, "--check", "--json"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)["check"]
    assert list(found) == [
        *("vocabulary", "repetition", "memory", "disk", "first_loss", "gradients", "time", "learning")
    ]
    assert {f["level"] for name, f in found.items() if name != "repetition"} == {"ok"}
    assert err.count("  ok  ") + err.count("WARNING") == 8
    assert list(tmp_path.iterdir()) == []


def test_a_checked_run_is_the_run_without_the_check(
    corpus: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--corpus", corpus, *SHORT, "--steps", "3", "--dropout", "0.1"]
    train(capfd, *options, "--out", tmp_path / "a")
    monkeypatch.setattr("pellucid.cli.check.LONG", 0.0)
    capfd.readouterr()
    assert main(["train", *map(str, options), "--out", str(tmp_path / "b")]) == 0
    assert "checking whether the run is worth starting" in capfd.readouterr().err
    a, b = weights(checkpoint_path(tmp_path / "a", 3)), weights(checkpoint_path(tmp_path / "b", 3))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert main(["train", *map(str, options), "--out", str(tmp_path / "c"), "--no-check"]) == 0
    assert "checking" not in capfd.readouterr().err


def test_what_is_long() -> None:
    model = TransformerConfig(256)
    steps = TrainConfig(steps=10**6)
    assert is_long(model, steps, 1e11)
    assert not is_long(model, TrainConfig(steps=10), 1e11)
    assert LONG == 600


def test_a_run_not_worth_starting(
    corpus: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.train.readiness.available_memory", lambda: 1_000_000)
    line = refused("train", "--corpus", corpus, "--out", tmp_path / "run", *SHORT, "--check", notes=6)
    assert line.startswith("pellucid train: check: not worth starting: memory; got ")
    assert line.endswith(
        "MB at most of 1 MB available. hint: fewer sequences at a time (--sequences, --tokens-per-step), "
        "--checkpoint-blocks, or a smaller model; --no-check starts it all the same"
    )
    assert not (tmp_path / "run").exists()


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--init-from", "FINISHED", "--width", "64"],
            "--init-from: cannot be combined with --width: the model has a shape and a tokenizer. hint: leave it out, "
            "or begin with random weights",
        ),
        (
            ["--init-from", "FINISHED", "--no-tie"],
            "--init-from: cannot be combined with --no-tie: the model has a shape and a tokenizer. hint: leave it out, "
            "or begin with random weights",
        ),
        (
            ["--init-from", "FINISHED", "--preset", "small"],
            "--init-from: cannot be combined with --preset small: the model has a shape. hint: leave the preset out "
            "and give its other options one by one",
        ),
        (
            ["--init-from", "FINISHED", "--new-rows-only"],
            "--new-rows-only: no tokens are added. hint: add some with --add-tokens",
        ),
        (
            ["--init-from", "FINISHED", "--add-tokens", "a", "a"],
            "with_special: the same special token twice; got a, a",
        ),
        (
            ["--init-from", "nowhere"],
            "nowhere: no such checkpoint; got nothing there, expected a checkpoint folder",
        ),
        (["--add-tokens", "a"], "--add-tokens: is for a model that exists. hint: name it with --init-from"),
        (["--new-rows-only"], "--new-rows-only: is for a model that exists. hint: name it with --init-from"),
        (["--check", "--no-check"], "--check: cannot be combined with --no-check. hint: leave one of them out"),
        (["--epochs", "0"], "--epochs: must be positive; got 0.0"),
        (
            ["--patience", "2", "--held-out", "0"],
            "--patience: nothing is held out to judge by. hint: hold text out with --held-out 0.1",
        ),
        (["--ema", "1"], "training: ema out of range; got 1.0, expected 0 < ema < 1. hint: 0.999 is usual"),
        (
            ["--patience", "2", "--eval-every", "None"],
            "training: patience without evaluations; got 2. hint: set --eval-every",
        ),
        (
            ["--tokens-per-step", "100", "--accumulate", "2"],
            "training: --tokens-per-step and accumulate both cut a step; got 2. hint: leave accumulate at 1: parts of "
            "`sequences` windows follow from the tokens of a step",
        ),
        (
            ["--rate-schedule", "constant", "--min-learning-rate", "1e-5"],
            "training: a constant rate has no floor; got 1e-05. hint: leave the floor out",
        ),
        (
            ["--groups", "*"],
            "training: not a group of parameters; got '*', expected PATTERN:rate=FACTOR,decay=NUMBER, one of the two "
            "or both, from 0 on",
        ),
        (
            ["--optimizer", "adam"],
            "--optimizer: not one of the choices; got 'adam', expected 'adamw', 'lion', 'muon', 'sgd'",
        ),
    ],
)
def test_mistakes(
    options: list[str],
    message: str,
    corpus: Path,
    finished: Path,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(finished) if o == "FINISHED" else o for o in options]
    assert refused("train", "--corpus", corpus, *given) == f"pellucid train: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--freeze", "layers.*"],
            "freeze: a pattern matches no parameter; got 'layers.*'. hint: names are like "
            '"model.layers.0.self_attn.q_proj.weight"',
        ),
        (
            ["--groups", "x*:rate=1"],
            "AdamW: a group matches no parameter; got 'x*'. hint: names are like "
            '"model.layers.0.self_attn.q_proj.weight"',
        ),
        (["--freeze", "*"], "AdamW: nothing to optimise; got every parameter frozen"),
        (
            ["--train-rows-from", "16"],
            "train_rows_from: no new rows; got 16, expected below 16, the rows of the table",
        ),
    ],
)
def test_mistakes_that_show_with_the_model(
    options: list[str], message: str, corpus: Path, tmp_path: Path, refused: Refused
) -> None:
    run = tmp_path / "run"
    assert refused("train", "--corpus", corpus, "--out", run, *TINY, *options, notes=1) == f"pellucid train: {message}"
    assert not run.exists()
