"""`pellucid sft` and `dpo`: what is looked at before they begin, weights that are held, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.checkpoint import base_fingerprint, latest_checkpoint, load_checkpoint, open_model
from pellucid.cli.app import main
from pellucid.data import Examples
from pellucid.device import pool
from pellucid.models import TransformerLM
from pellucid.nn import add_lora
from pellucid.train import Stepped, read_metrics

from .tuned import ASKED, PAIRS, QUICK, base, lines, mistake, result

__all__ = ["base"]

RECORDS: list[tuple[str, list[dict[str, Any]]]] = [("sft", ASKED), ("dpo", PAIRS)]
NAMES = ["vocabulary", "repetition", "memory", "disk", "first_loss", "gradients", "time", "learning"]


def weights(path: Path) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in open_model(path).model.named_parameters()}


@pytest.mark.parametrize(("command", "records"), RECORDS)
def test_a_check_alone_leaves_nothing(
    command: str, records: list[dict[str, Any]], base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "a.jsonl", records)
    before = sorted(tmp_path.rglob("*"))
    options = ["--dataset", path, "--init-from", base, "--out", tmp_path / "run", "--steps", 4, "--lora-rank", 4]
    capfd.readouterr()
    assert main([*map(str, [command, *options, *QUICK]), "--check", "--json"]) == 0
    out, err = capfd.readouterr()
    assert list(json.loads(out)["check"]) == NAMES
    assert err.count("  ok  ") + err.count("WARNING") == 8
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("command", "records"), RECORDS)
def test_a_checked_run_is_the_run_without_the_check(
    command: str,
    records: list[dict[str, Any]],
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = lines(tmp_path / "a.jsonl", records)
    options = [command, "--dataset", path, "--init-from", base, "--steps", 3, *QUICK]
    monkeypatch.setattr("pellucid.cli.check.LONG", 0.0)
    checked = result(capsys, *options, "--out", tmp_path / "a")
    capsys.readouterr()
    plain = result(capsys, *options, "--out", tmp_path / "b", "--no-check")
    assert "checking" not in capsys.readouterr().err
    assert checked["held_out_loss"] == plain["held_out_loss"]
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    states = [load_checkpoint(p) for p in map(latest_checkpoint, (tmp_path / "a", tmp_path / "b")) if p is not None]
    assert states[0].state == states[1].state
    moments = [{n: s.optimizer.numpy(n).tobytes() for n in s.optimizer} for s in states if s.optimizer is not None]
    assert moments[0] == moments[1]


@pytest.mark.parametrize(
    ("command", "records", "held"), [("sft", ASKED, "int8"), ("sft", ASKED, "bfloat16"), ("dpo", PAIRS, "int8")]
)
def test_an_adapter_beside_held_weights(
    command: str,
    records: list[dict[str, Any]],
    held: str,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, run = lines(tmp_path / "a.jsonl", records), tmp_path / "run"
    options = [command, "--dataset", path, "--init-from", base, "--lora-rank", 4, "--weights", held, *QUICK]
    whole = result(capsys, *options, "--steps", 6, "--out", tmp_path / "whole")
    losses = [m["loss"] for m in read_metrics(tmp_path / "whole" / "metrics.jsonl") if "loss" in m]
    assert losses[-1] < losses[0]
    # stopped after three steps, and gone on with
    from pellucid.train import Trainer

    told = Trainer.__init__

    def init(self: Trainer, *arguments: Any, on_event: Any, **more: Any) -> None:
        def watch(event: Any) -> None:
            on_event(event)
            if isinstance(event, Stepped) and event.step == 3:
                self.stop()

        told(self, *arguments, on_event=watch, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__init__", init)
        main([*map(str, options), "--steps", "6", "--out", str(run)])
    assert result(capsys, command, "--resume", run)["held_out_loss"] == whole["held_out_loss"]
    opened = open_model(run)
    assert weights(run) == weights(tmp_path / "whole")
    # what is opened predicts what was trained: the rounded base with the adapter
    saved = latest_checkpoint(run)
    assert saved is not None
    kept = load_checkpoint(saved)
    assert kept.config["base"]["weights"] == held
    model = open_model(base).model
    model.hold_weights(held)
    assert whole["base_sha256"] == kept.config["base"]["sha256"] == base_fingerprint(model)
    expected = _beside(model, kept)
    ids = np.arange(40)[None] + 60
    opened.model.eval()
    np.testing.assert_allclose(opened.model(ids).detach().numpy(), expected(ids), atol=2e-5)
    assert all(p.requires_grad for p in opened.model.parameters())
    merged = result(capsys, "export", run, "--out", tmp_path / "merged")
    assert merged["parity"]["error"] == 0
    alone = result(capsys, "export", run, "--out", tmp_path / "alone", "--format", "peft")
    assert 0 < alone["parity"]["error"] < 0.1  # beside the base as it is, which was never rounded
    result(capsys, "merge", base, tmp_path / "alone", tmp_path / "exact")
    assert weights(tmp_path / "exact") != weights(tmp_path / "merged")


def _beside(model: TransformerLM, kept: Any) -> Any:
    from pellucid.base.config import from_dict
    from pellucid.checkpoint.adapters import adapter_tensors
    from pellucid.checkpoint.load import load_into
    from pellucid.nn import LoraConfig

    add_lora(model, from_dict(LoraConfig, kept.config["lora"], where="test"))
    load_into(adapter_tensors(model), kept.tensors)
    model.eval()
    return lambda ids: model(ids).detach().numpy()


def test_options_that_can_not_be(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    for options, message in (
        (
            ["--weights", "int8"],
            "pellucid sft: --weights: only float32 weights can be trained; got int8. "
            "hint: add --lora-rank 16: an adapter is trained beside them",
        ),
        (
            ["--lora-rank", 1_000_000],
            "pellucid sft: --lora-rank: above the rank of the smallest projection; got 1000000, expected at most 16. "
            "hint: usual ranks are 4 to 64; without --lora-rank every weight is trained",
        ),
        (["--threads", 0], "pellucid sft: --threads: not a thread count; got 0, expected 1 to 1024"),
        (
            ["--device", "cuda"],
            "pellucid sft: --device: no such device; got 'cuda', expected one of cpu, reference. "
            "hint: `pellucid doctor` shows what this machine offers",
        ),
        (
            ["--check", "--no-check"],
            "pellucid sft: --check: cannot be combined with --no-check. hint: leave one of them out",
        ),
    ):
        assert mistake(capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, *QUICK, *options) == message
    assert not out.exists()
    assert result(
        capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, *QUICK, "--lora-rank", 16, "--steps", 1
    )["steps"] == 1  # fmt: skip


def test_pairs_a_step_decide_its_parts_and_its_measures_are_told(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = lines(tmp_path / "a.jsonl", PAIRS), tmp_path / "run"
    options = ["--dataset", path, "--init-from", base, "--out", out, "--steps", 2, "--sequences", 2, "--threads", 1]
    before = pool.threads()
    try:
        assert main([*map(str, ["dpo", *options, *QUICK])]) == 0
        assert pool.threads() == 1
    finally:
        pool.set_threads(before)
    assert json.loads((out / "config.json").read_text())["train"]["accumulate"] == 2
    err = capsys.readouterr().err
    assert "perplexity" not in err
    assert "nats/token" not in err
    (line,) = [line for line in err.splitlines() if "held-out loss" in line]
    (measured,) = [m for m in read_metrics(out / "metrics.jsonl") if "held_out_loss" in m]
    loss, margin, preferred = (measured[f"held_out_{name}"] for name in ("loss", "margin", "preferred"))
    told = f"held-out loss {loss:.4f}, margin {margin:.4f}, preferred {preferred:.4f} (all held-out text)"
    assert line == f"step 2: {told}"


def test_any_number_of_threads_and_the_definition(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, before = lines(tmp_path / "a.jsonl", ASKED[:8]), pool.threads()
    options = ["sft", "--dataset", path, "--init-from", base, "--steps", 2, "--sequences", 2, *QUICK]
    found = {}
    try:
        for name, more in (
            ("one", ["--threads", 1]),
            ("two", ["--threads", 2]),
            ("defined", ["--device", "reference"]),
        ):
            result(capsys, *options, "--out", tmp_path / name, *more)
            found[name] = open_model(tmp_path / name).model
    finally:
        pool.set_threads(before)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    ids = np.arange(30)[None] + 60
    one, defined = (found[name].eval()(ids).detach().numpy() for name in ("one", "defined"))
    np.testing.assert_allclose(one, defined, atol=2e-4)
    assert Examples.open(tmp_path / "one" / "examples.bin").info.examples == 8
