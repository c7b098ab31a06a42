"""A model with mixtures of experts on the command line: trained, described, sampled from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.cli import main
from pellucid.cli.options import TrainCommand, model_config, parse_train
from pellucid.models import TransformerConfig
from pellucid.train import read_metrics

from .conftest import SHORT


def test_options(tmp_path: Path) -> None:
    flags = ["--experts", "8", "--active-experts", "3", "--moe-layers", "1", "3", "--moe-ff", "96", "--shared-expert"]
    flags += ["--aux-weight", "0.02", "--z-weight", "0"]
    file = tmp_path / "run.toml"
    file.write_text(
        "experts = 8\nactive_experts = 3\nmoe_layers = [1, 3]\nmoe_ff = 96\nshared_expert = true\n"
        "aux_weight = 0.02\nz_weight = 0\n"
    )
    expected = TransformerConfig(
        100,
        experts=8,
        active_experts=3,
        moe_layers=(1, 3),
        moe_d_ff=96,
        shared_expert=True,
        aux_weight=0.02,
        z_weight=0.0,
    )
    for arguments in (flags, ["--config", str(file)]):
        found = parse_train(arguments)
        assert isinstance(found, TrainCommand)
        assert model_config(found, 100, precision="float32") == expected


def test_a_run_with_experts(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    options = ["--corpus", str(corpus), "--out", str(folder), *SHORT, "--steps", "4"]
    assert main(["train", *options, "--experts", "4", "--shared-expert"]) == 0
    assert " active (1 layers" in capfd.readouterr().err
    steps = [m for m in read_metrics(folder / "metrics.jsonl") if "loss" in m]
    assert [len(m["load"]["0"]) for m in steps] == [4] * 4
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    one = 3 * 32 * 64  # two experts of four are idle
    assert facts["parameters"] - facts["active_parameters"] == 2 * one
    assert facts["model"]["experts"] == 4
    assert main(["generate", str(folder), "the sea", "--tokens", "5"]) == 0
    assert capfd.readouterr().out.startswith("the sea")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--experts", "4", "--active-experts", "5"],
            "model: --active-experts out of range; got 5, expected 1 to 4, the experts in a layer",
        ),
        (
            ["--experts", "4", "--moe-layers", "0", "1"],
            "model: --moe-layers are not layers of the model; got 1, expected different ones of 0 to 0",
        ),
        (
            ["--experts", "4", "--moe-layers", "0", "x"],
            "--moe-layers: not a list of what it takes: '0', 'x'. hint: pellucid train --help explains every option",
        ),
        (
            ["--experts", "4", "--family", "gpt2"],
            "model: experts are SwiGLU without biases; got activation gelu_tanh, biases True",
        ),
    ],
)
def test_mistakes(flags: list[str], message: str, corpus: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--corpus", str(corpus), *SHORT, *flags]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"pellucid train: {message}\n"
