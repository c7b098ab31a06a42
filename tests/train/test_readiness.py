"""The readiness check: what it calls wrong is wrong, and a sound run passes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.data import TokenFile
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import ByteTokenizer, CharTokenizer, Tokenizer
from pellucid.train import TrainConfig
from pellucid.train.readiness import Finding, Plan, inspect
from pellucid.train.readiness_data import token_plan

MODEL = TransformerConfig(64, d_model=32, n_layers=2, n_heads=2, max_seq_len=32, dropout=0.1)
TRAIN = TrainConfig(steps=50, sequences=4, seq_len=32)
LETTERS = CharTokenizer("".join(chr(48 + i) for i in range(64)))


def noise(seed: int, n: int = 8000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, n)


def plan(tmp_path: Path, ids: np.ndarray, held_out: np.ndarray | None = None, **changes: Any) -> Plan:
    TokenFile.write(tmp_path / "train.bin", ids)
    held = None
    if held_out is not None:
        TokenFile.write(tmp_path / "held.bin", held_out)
        held = TokenFile.open(tmp_path / "held.bin")
    tokenizer, fresh = changes.pop("tokenizer", LETTERS), changes.pop("fresh", True)
    tokens, folder = TokenFile.open(tmp_path / "train.bin"), tmp_path / "run"
    made = token_plan(lambda: TransformerLM(MODEL), TRAIN, tokens, held, tokenizer, folder, fresh=fresh)
    return replace(made, **changes)


def found(plan: Plan) -> dict[str, Finding]:
    return {f.name: f for f in inspect(plan)}


def test_a_sound_run_passes(tmp_path: Path) -> None:
    findings = found(plan(tmp_path, noise(0), noise(1, 1000)))
    assert list(findings) == [
        *("vocabulary", "repetition", "memory", "disk", "first loss", "gradients", "time", "learning")
    ]
    assert {f.level for f in findings.values()} == {"ok"}
    assert all(f.cure is None for f in findings.values())
    assert findings["first loss"].facts["guess"] == pytest.approx(np.log(64))
    assert findings["gradients"].value == "in all 20 parameters"
    seconds = findings["time"].facts
    assert seconds["seconds"] > TRAIN.steps * seconds["seconds_per_step"] > 0
    assert not (tmp_path / "run").exists()


def test_ids_outside_the_vocabulary_end_the_check(tmp_path: Path) -> None:
    ids = noise(0)
    ids[77] = 64
    findings = found(plan(tmp_path, ids))
    assert list(findings) == ["vocabulary", "repetition", "memory", "disk"]
    assert findings["vocabulary"].level == "error"
    assert findings["vocabulary"].value.startswith(
        f"{tmp_path}/train.bin: id outside the vocabulary at token 77; got 64, expected 0 to 63"
    )


def test_unknown_and_unused_tokens(tmp_path: Path) -> None:
    with_unknown: Tokenizer = CharTokenizer("".join(chr(48 + i) for i in range(63)), unknown=True)
    ids = noise(0)
    ids[::20] = 63
    unknown = found(plan(tmp_path, ids, tokenizer=with_unknown))["vocabulary"]
    assert unknown.level == "warning"
    assert unknown.facts["unknown_share"] == pytest.approx(0.065, abs=0.01)
    assert unknown.cure == "use a tokenizer of this text, or one with bytes to fall back on"
    unused = found(plan(tmp_path, noise(0) % 20))["vocabulary"]
    assert (unused.level, unused.value) == ("warning", "20 of 64 ids occur")


def test_repetition_and_overlap(tmp_path: Path) -> None:
    text = noise(0)
    twice = found(plan(tmp_path, np.concatenate([text, text])))["repetition"]
    assert (twice.level, twice.cure) == ("warning", "remove duplicates, or train for fewer steps")
    assert twice.facts["repeated_share"] == pytest.approx(0.5, abs=0.01)
    leaked = found(plan(tmp_path, text, np.concatenate([noise(2, 500), text[100:600]])))["repetition"]
    assert leaked.level == "warning"
    assert leaked.facts["overlap"] == pytest.approx(0.45, abs=0.06)
    assert leaked.cure is not None
    assert leaked.cure.startswith("the held-out loss will look too good")


def test_too_little_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.train.readiness.available_memory", lambda: 100_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    findings = found(plan(tmp_path, noise(0)))
    assert list(findings) == ["vocabulary", "repetition", "memory", "disk"]
    assert findings["memory"].level == findings["disk"].level == "error"
    assert findings["disk"].facts["needed_bytes"] == 3 * 12 * MODEL.parameter_counts().total


def changed(change: Callable[[TransformerLM], None]) -> Callable[[], TransformerLM]:
    def build() -> TransformerLM:
        model = TransformerLM(MODEL)
        change(model)
        return model

    return build


def scale(factor: float) -> Callable[[TransformerLM], None]:
    def change(model: TransformerLM) -> None:
        model.model.norm.weight.detach().numpy()[...] = factor  # type: ignore[attr-defined]

    return change


def test_weights_that_are_wrong(tmp_path: Path) -> None:
    loud = found(plan(tmp_path, noise(0), build=changed(scale(30.0))))
    assert loud["first loss"].level == "warning"
    damaged = found(plan(tmp_path, noise(0), build=changed(scale(float("nan")))))
    assert damaged["first loss"].level == "error"
    assert damaged["gradients"].level == "error"
    worse = found(plan(tmp_path, noise(0), build=changed(scale(30.0)), fresh=False))
    assert worse["first loss"].cure == (
        "the weights do worse than a guess: they belong to another tokenizer or another kind of text"
    )
    deaf = found(plan(tmp_path, noise(0), build=changed(scale(0.0))))
    assert deaf["gradients"].level == "error"
    assert deaf["gradients"].value.startswith("none in model.embed_tokens.weight, ")


def test_what_can_not_be_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.train.readiness._TRIES", 2)
    finding = found(plan(tmp_path, noise(0)))["learning"]
    assert finding.level == "error"
    assert finding.facts["steps"] == 2


def test_bytes_have_no_unknown(tmp_path: Path) -> None:
    build = changed(lambda model: None)
    finding = found(plan(tmp_path, noise(0), tokenizer=ByteTokenizer(), build=build))["vocabulary"]
    assert finding.facts["unknown_share"] == 0
