"""Options: one dataclass for flags, TOML and presets; which of them wins; what --help says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from pellucid.base.config import from_dict
from pellucid.base.errors import ConfigError
from pellucid.cli import main
from pellucid.cli.app import COMMANDS
from pellucid.cli.options import (
    ResumeCommand,
    TrainCommand,
    TrainOptions,
    model_config,
    parse_train,
    train_config,
)
from pellucid.cli.presets import PRESETS, about_presets, preset_configs
from pellucid.models import TransformerConfig
from pellucid.train import TrainConfig


def options(*arguments: str) -> TrainCommand:
    found = parse_train(arguments)
    assert isinstance(found, TrainCommand)
    return found


def test_defaults_are_those_of_the_library() -> None:
    assert train_config(TrainOptions()) == TrainConfig()
    assert model_config(TrainOptions(), 100, precision="float32") == TransformerConfig(100)


def test_every_field_of_a_training_is_an_option() -> None:
    mine = {f.name: f.default for f in dataclasses.fields(TrainOptions)}
    for field in dataclasses.fields(TrainConfig):
        assert field.name in mine
        if field.name != "seq_len":
            assert mine[field.name] == field.default, field.name


def test_families() -> None:
    gpt2 = model_config(TrainOptions(family="gpt2"), 100, precision="float32")
    assert gpt2 == TransformerConfig.gpt2(100)
    plain = model_config(TrainOptions(family="gpt2", biases=False), 100, precision="float32")
    assert plain == TransformerConfig.gpt2(100, biases=False)
    assert model_config(TrainOptions(), 100, precision="bfloat16").precision == "bfloat16"
    assert model_config(TrainOptions(precision="float32"), 100, precision="bfloat16").precision == "float32"


def test_a_flag_wins_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('width = 64\nsteps = 7\nsave_every = "none"\nlearning_rate = 1\ncorpus = "a.txt"\nbiases = true\n')
    found = options("--preset", "small", "--config", str(path), "--steps", "9", "--eval-every", "None")
    assert (found.context, found.layers) == (PRESETS["small"]["context"], PRESETS["small"]["layers"])
    assert (found.width, found.save_every, found.learning_rate, found.biases) == (64, None, 1.0, True)
    assert (found.steps, found.eval_every) == (9, None)
    assert found.corpus == Path("a.txt")
    assert found.kv_heads is None


def test_presets_hold_known_options() -> None:
    for name, values in PRESETS.items():
        found = from_dict(TrainOptions, values, where=name)
        train_config(found)
        model_config(found, 65, precision="bfloat16")


def test_help_tells_what_presets_come_to() -> None:
    table = about_presets()
    for name in PRESETS:
        model, train = preset_configs(name)
        assert model_config(from_dict(TrainOptions, PRESETS[name]), model.vocab_size, precision="float32") == replace(
            model, biases=False, dropout=0.0
        )
        assert train_config(from_dict(TrainOptions, PRESETS[name])) == train
        line = next(line for line in table.splitlines() if line.startswith(f"  {name} "))
        assert f"{model.parameter_counts().total / 1e6:.1f}M parameters" in line
        assert f"{train.steps:,} steps" in line
    sizes = {name: preset_configs(name)[0].parameter_counts().total for name in PRESETS}
    assert round(sizes["reference"] / 1e6, 1) == 101.7
    assert round(sizes["balanced"] / 1e6, 1) == 3.2
    assert 5.4e6 < sizes["performance"] < 5.7e6


def test_lists_come_from_flags_and_files(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('freeze = ["model.embed_*"]\ngroups = ["*.weight:decay=0"]\nema = 0.99\ncheck = true\n')
    with pytest.raises(ConfigError, match="unknown key; got 'check'"):
        options("--config", str(path))
    path.write_text('freeze = ["model.embed_*"]\ngroups = ["*.weight:decay=0"]\nema = 0.99\n')
    found = options("--config", str(path), "--groups", "*norm*:rate=0", "*:decay=1", "--patience", "3")
    assert found.freeze == ("model.embed_*",)
    assert found.groups == ("*norm*:rate=0", "*:decay=1")
    assert (found.ema, found.patience) == (0.99, 3)


def test_the_nanogpt_preset_is_its_recipe() -> None:
    """4 layers, 4 heads, width 128, context 64, no biases, exact GELU; 804,096 parameters with 65 characters, of
    which nanoGPT reports 795,904 because it does not count positions."""
    found = options("--preset", "nanogpt")
    model = model_config(found, 65, precision="bfloat16")
    assert model == TransformerConfig(
        65,
        d_model=128,
        n_layers=4,
        n_heads=4,
        max_seq_len=64,
        norm="layernorm",
        positions="learned",
        activation="gelu",
        precision="bfloat16",
    )
    assert model_config(options("--preset", "nanogpt", "--precision", "float32"), 65, precision="bfloat16") == replace(
        model, precision="float32"
    )
    assert model.parameter_counts().total - 64 * 128 == 795_904
    train = train_config(found)
    assert train.steps * train.sequences * train.seq_len == 2000 * 12 * 64
    rates = [train.schedule().rate(step) for step in (0, 99, 1999)]
    assert rates == pytest.approx([1e-5, 1e-3, 1e-4], rel=1e-2)
    assert (train.beta1, train.beta2, train.weight_decay, train.max_norm) == (0.9, 0.99, 0.1, 1.0)
    assert (train.eval_every, train.eval_batches, found.held_out, found.tokenizer) == (250, 20, 0.1, "char")


def test_resume_stands_alone() -> None:
    assert parse_train(["--resume", "runs/a", "--json"]) == ResumeCommand(Path("runs/a"), json=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith(f"usage: pellucid {command}")
    assert f"pellucid {command}" in out.split("Examples:")[1]


def test_help_explains_every_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    out = capfd.readouterr().out
    for field in dataclasses.fields(TrainCommand):
        assert f"--{field.name.replace('_', '-')}" in out
    assert out.count("(default: None)") == 1  # sample_every
    # A preset shows in the defaults.
    assert main(["train", "--preset", "nanogpt", "--help"]) == 0
    assert "(default: 2000)" in capfd.readouterr().out


def test_the_top_level(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        out = capfd.readouterr().out
        assert all(f"  {name} " in out for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"pellucid {version('pellucid')}\n"


def test_it_runs_as_a_module_and_loads_no_compiler_for_help() -> None:
    script = "import sys; from pellucid.cli import main; main(['train', '--help']); print('numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"
    for module in ("pellucid", "pellucid.cli"):
        found = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert found.stdout.startswith("pellucid ")
