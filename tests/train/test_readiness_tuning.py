"""The readiness check before fine-tuning: adapters, examples and pairs, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from pellucid.data import Copies, Examples, PackedRows, copies
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora
from pellucid.text import CharTokenizer
from pellucid.train import Pairs, PreferenceLoss, TrainConfig
from pellucid.train.readiness import Finding, Plan, inspect
from pellucid.train.readiness_data import pairs_plan, rows_plan

MODEL = TransformerConfig(64, d_model=32, n_layers=2, n_heads=2, max_seq_len=32, dropout=0.1)
TRAIN = TrainConfig(steps=50, sequences=4, seq_len=32, accumulate=2)
LETTERS = CharTokenizer("".join(chr(48 + i) for i in range(64)))
NAMES = ["vocabulary", "repetition", "memory", "disk", "first loss", "gradients", "time", "learning"]
Build = Callable[[], TransformerLM]


def made(path: Path, count: int, seed: int = 0) -> Examples:
    """Examples of 20 ids, the last 10 of which count."""
    random, counts = np.random.default_rng(seed), np.arange(20) >= 10
    Examples.write(path, ((random.integers(0, 64, 20), counts) for _ in range(count)))
    return Examples.open(path)


def plain() -> TransformerLM:
    return TransformerLM(MODEL)


def adapted(held: str | None = None) -> Build:
    def build() -> TransformerLM:
        model = TransformerLM(MODEL)
        if held is not None:
            model.hold_weights(held)
        add_lora(model, LoraConfig(4))
        return model

    return build


def rows(examples: Examples) -> PackedRows:
    return PackedRows(examples, seq_len=32, sequences=4, seed=0)


def sft(tmp_path: Path, build: Build = plain, *, base: str = "float32", examples: Examples | None = None) -> Plan:
    found = examples or made(tmp_path / "a.bin", 40)
    trained, held = rows(found.subset(np.arange(4, len(found)))), rows(found.subset(np.arange(4)))
    return rows_plan(build, TRAIN, trained, held, LETTERS, tmp_path / "run", base=base, less="a cure")


def found(plan: Plan) -> dict[str, Finding]:
    return {f.name: f for f in inspect(plan)}


@pytest.mark.parametrize(("build", "base", "count"), [(plain, "float32", 20), (adapted(), "float32", 28)])
def test_a_sound_run_passes(tmp_path: Path, build: Build, base: str, count: int) -> None:
    findings = found(sft(tmp_path, build, base=base))
    assert list(findings) == NAMES
    assert {f.level for name, f in findings.items() if name != "first loss"} == {"ok"}
    assert findings["first loss"].facts["guess"] == log(64)
    assert findings["gradients"].value == f"in all {count} parameters"
    assert not (tmp_path / "run").exists()


def test_an_adapter_takes_less_and_one_over_int8_less_again(tmp_path: Path) -> None:
    plans = [sft(tmp_path, plain), sft(tmp_path, adapted()), sft(tmp_path, adapted("int8"), base="int8")]
    findings = [found(plan) for plan in plans]
    peaks = [f["memory"].facts["predicted_bytes"] for f in findings]
    assert peaks[0] > peaks[1] > peaks[2]
    disk = [f["disk"].facts["needed_bytes"] for f in findings]
    assert disk[0] == 3 * 12 * MODEL.parameter_counts().total
    adapter = 2 * 4 * sum(4 * n for n in (32 + 32 + 32 + 32, 32 + 32 + 32 + 32, 3 * (32 + MODEL.hidden)))
    assert disk[1] == disk[2] == 3 * 3 * adapter
    assert {f["gradients"].level for f in findings} == {f["learning"].level for f in findings} == {"ok"}


def test_copies_are_told_by_whole_examples_and_by_answers(tmp_path: Path) -> None:
    random, counts = np.random.default_rng(0), np.arange(32) >= 8
    texts = [np.concatenate([np.arange(8), random.integers(0, 64, 24)]) for _ in range(2000)]
    # every tenth twice; of the last 100, half are copies of others and a quarter have an answer of others
    texts[1000:1100] = texts[:100]
    texts[1900:1950] = texts[:50]
    for i in range(1950, 1975):
        texts[i] = np.concatenate([np.arange(8) + 20, texts[i - 1800][8:]])
    Examples.write(tmp_path / "a.bin", ((ids, counts) for ids in texts))
    every = Examples.open(tmp_path / "a.bin")
    measured = copies(every.subset(np.arange(1900)), every.subset(np.arange(1900, 2000)), 16)
    assert measured.again == pytest.approx(100 / 1900)
    assert measured.held_out == 0.5
    assert measured.answers == pytest.approx(0.75, abs=0.02)
    assert copies(every.subset(np.arange(1900)), None, 16) == Copies(measured.again, None, None)
    findings = found(sft(tmp_path, examples=every.subset(np.arange(1896, 2000)[::-1].copy())))
    assert findings["repetition"].level == "ok"
    leaked = found(sft(tmp_path, examples=every.subset(np.concatenate([np.arange(4), np.arange(900, 1100)]))))
    assert leaked["repetition"].level == "warning"
    assert leaked["repetition"].cure == "the held-out loss will look too good: remove duplicates from the dataset"


def test_ids_outside_the_vocabulary_and_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.arange(20) >= 10
    Examples.write(tmp_path / "a.bin", ((np.full(20, 60 + i), counts) for i in range(8)))
    findings = found(sft(tmp_path, examples=Examples.open(tmp_path / "a.bin")))
    assert list(findings) == ["vocabulary", "memory", "disk"]
    assert findings["vocabulary"].level == "error"
    assert findings["vocabulary"].value == "an id outside the vocabulary: 67, expected 0 to 63"
    monkeypatch.setattr("pellucid.train.readiness.available_memory", lambda: 100_000)
    short = found(sft(tmp_path, examples=made(tmp_path / "b.bin", 40)))["memory"]
    assert (short.level, short.cure) == ("error", "a cure")


def test_an_adapter_that_learns_slowly_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tries, level in ((12, "warning"), (2, "error")):
        monkeypatch.setattr("pellucid.train.readiness._TRIES", tries)
        finding = found(sft(tmp_path, adapted()))["learning"]
        assert (finding.level, finding.facts["steps"]) == (level, tries)


def test_what_gets_no_gradient_is_named(tmp_path: Path) -> None:
    def deaf() -> TransformerLM:
        model = adapted()()
        model.model.norm.weight.detach().numpy()[...] = 0  # type: ignore[attr-defined]
        return model

    finding = found(sft(tmp_path, deaf))["gradients"]
    assert finding.level == "error"
    assert finding.value.startswith("none in model.layers.0.")


@pytest.mark.parametrize("build", [plain, adapted()])
def test_pairs_begin_at_the_loss_of_a_guess(tmp_path: Path, build: Build) -> None:
    examples = made(tmp_path / "a.bin", 48)
    pairs = Pairs(examples, np.full(48, np.nan), sequences=4, seed=0)  # nothing reads the reference
    how = {"base": "float32", "less": "a cure", "objective": PreferenceLoss(beta=0.5)}
    train = replace(TRAIN, accumulate=4)
    plan = pairs_plan(
        build, train, pairs.subset(np.arange(4, 24)), pairs.subset(np.arange(4)), LETTERS, tmp_path, **how
    )
    findings = found(plan)
    assert list(findings) == NAMES
    assert {f.level for f in findings.values()} == {"ok"}
    # dropout is on in a step and off in the reference
    assert findings["first loss"].facts["loss"] == pytest.approx(log(2), abs=0.1)
    assert findings["learning"].facts["first_loss"] == pytest.approx(log(2), abs=1e-5)
    assert "nats/pair" in findings["learning"].value
