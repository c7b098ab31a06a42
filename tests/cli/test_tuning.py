"""`pellucid sft` and `pellucid dpo` from the command line: results, resuming after kill -9, and mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.config import to_dict
from pellucid.checkpoint import is_base, latest_checkpoint, load_checkpoint, open_model, save_checkpoint, save_lora
from pellucid.cli.app import main
from pellucid.nn import LoraConfig, add_lora
from pellucid.text import END_OF_TEXT
from pellucid.train import read_metrics

from .tuned import ASKED, PAIRS, QUICK, base, lines, mistake, result

__all__ = ["base"]


def test_sft_packs_trains_and_leaves_a_model_to_talk_with(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    found = result(capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, "--sequences", 4, *QUICK)
    assert found["layouts"] == {"question / answer": 40}
    assert found["examples"] == 38
    assert found["rows"] < 20
    assert found["filled"] > 0.7
    losses = [m["loss"] for m in read_metrics(out / "metrics.jsonl") if "loss" in m]
    assert len(losses) == found["steps"] == -(-3 * found["rows"] // 4)
    assert losses[-1] < losses[0]
    opened = open_model(out)
    assert opened.chat_template is not None
    assert "Assistant:" in opened.chat_template
    assert opened.eos_ids == (256,)
    assert found["held_out_loss"] < losses[0]


def test_dpo_moves_answers_apart(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = lines(tmp_path / "a.jsonl", PAIRS), tmp_path / "run"
    options = ["--dataset", path, "--init-from", base, "--out", out, "--steps", 8, "--held-out", 0.2]
    found = result(capsys, "dpo", *options, *QUICK)
    assert found["pairs"] == 16
    assert found["margin"] > 0
    assert found["held_out_loss"] < 0.6931
    (measured,) = [m for m in read_metrics(out / "metrics.jsonl") if "held_out_loss" in m]
    assert found["held-out margin"] == round(measured["held_out_margin"], 4) > 0
    assert found["held-out preferred"] == measured["held_out_preferred"] > 0.5


@pytest.mark.parametrize(("command", "records"), [("sft", ASKED), ("dpo", PAIRS)])
def test_an_adapter_alone_is_trained_and_opens_with_its_base(
    command: str, records: list[dict[str, Any]], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = lines(tmp_path / "a.jsonl", records), tmp_path / "run"
    options = ["--dataset", path, "--init-from", base, "--out", out, "--steps", 4, "--lora-rank", 4, "--lora-alpha", 8]
    result(capsys, command, *options, *QUICK)
    (kept,) = (load_checkpoint(p) for p in [latest_checkpoint(out)] if p is not None)
    assert all("lora" in name for name in kept.tensors)
    before, after = (dict(open_model(p).model.named_parameters()) for p in (base, out))
    changed = [n for n in before if before[n].detach().numpy().tobytes() != after[n].detach().numpy().tobytes()]
    assert changed
    assert all("_proj" in name for name in changed)


def test_an_adapter_is_exported_alone_and_merged_again(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run, alone = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run", tmp_path / "adapter"
    options = ["--dataset", path, "--init-from", base, "--out", run, "--steps", 4, "--lora-rank", 4, "--lora-alpha", 8]
    result(capsys, "sft", *options, *QUICK)
    found = result(capsys, "export", run, "--out", alone, "--format", "peft")
    assert found["parity"]["same"] == found["parity"]["tokens"]
    assert found["parity"]["error"] < 1e-6
    assert sorted(p.name for p in alone.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((alone / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    result(capsys, "merge", base, alone, tmp_path / "merged")
    assert is_base(open_model(base).model, alone)
    assert main(["merge", str(tmp_path / "merged"), str(alone), str(tmp_path / "twice")]) == 0
    expected = f"{alone} was trained on other weights than these, or on these held in int8 or bfloat16\n"
    assert capsys.readouterr().err == expected
    a, b = (dict(open_model(p).model.named_parameters()) for p in (run, tmp_path / "merged"))
    assert all(a[n].detach().numpy().tobytes() == b[n].detach().numpy().tobytes() for n in a)
    message = mistake(capsys, "export", base, "--out", tmp_path / "x", "--format", "peft")
    hint = "hint: train one: pellucid sft --lora-rank 16"
    assert message == f"pellucid export: --format peft: not a run that trained an adapter; got {base}. {hint}"


@pytest.mark.parametrize("rank", [[], ["--lora-rank", 4]])
def test_blocks_that_are_computed_again_change_no_bit(
    rank: list[object], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "a.jsonl", ASKED)
    options = ["--dataset", path, "--init-from", base, "--steps", 4, "--sequences", 4, "--accumulate", 3, *rank, *QUICK]
    plain = result(capsys, "sft", *options, "--out", tmp_path / "plain")
    again = result(capsys, "sft", *options, "--out", tmp_path / "again", "--checkpoint-blocks")
    assert plain["held_out_loss"] == again["held_out_loss"]
    a, b = (dict(open_model(tmp_path / n).model.named_parameters()) for n in ("plain", "again"))
    assert all(a[n].detach().numpy().tobytes() == b[n].detach().numpy().tobytes() for n in a)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model"]["checkpoint_blocks"]


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    command: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "a.jsonl", ASKED if command == "sft" else PAIRS)
    options = ["--dataset", path, "--init-from", base, "--steps", 30, "--sequences", 4, "--save-every", 5, *QUICK]
    whole = result(capsys, command, *options, "--out", tmp_path / "whole")
    killed = tmp_path / "killed"
    arguments = [sys.executable, "-m", "pellucid", command, *map(str, options), "--out", str(killed)]
    with subprocess.Popen(arguments, env=os.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 240
        while not (killed / "checkpoints" / "step-00000005").is_dir():
            assert time.monotonic() < deadline
            assert process.poll() is None or (killed / "checkpoints").is_dir()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    path.unlink()  # it is not read again
    found = result(capsys, command, "--resume", killed)
    assert found["held_out_loss"] == whole["held_out_loss"]
    curves = [
        [(m["step"], m["loss"]) for m in read_metrics(tmp_path / name / "metrics.jsonl") if "loss" in m]
        for name in ("whole", "killed")
    ]
    assert curves[0] == curves[1]
    a, b = (dict(open_model(tmp_path / name).model.named_parameters()) for name in ("whole", "killed"))
    assert all(a[n].detach().numpy().tobytes() == b[n].detach().numpy().tobytes() for n in a)


def test_a_run_that_has_begun_needs_its_base_no_more(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    result(capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, "--steps", 2, *QUICK)
    before = {n: p.detach().numpy().tobytes() for n, p in open_model(out).model.named_parameters()}
    base.rename(tmp_path / "elsewhere")
    assert result(capsys, "sft", "--resume", out)["steps"] == 2
    assert before == {n: p.detach().numpy().tobytes() for n, p in open_model(out).model.named_parameters()}


def test_a_template_comes_out_of_a_tokenizer_config(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = "{% for m in messages %}{{ m['role'] }}> {{ m['content'] }}{{ eos_token }}{{ sep_token }}{% endfor %}"
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"chat_template": template, "eos_token": "unused", "sep_token": {"content": "|"}}))
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    options = ["--steps", 1, *QUICK, "--template", file]
    result(capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, *options)
    opened = open_model(out)
    assert opened.chat_template == template
    assert opened.special_tokens == {"eos_token": END_OF_TEXT, "sep_token": "|"}


def test_mistakes_are_one_line_and_leave_no_folder(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    empty = lines(tmp_path / "b.jsonl", [ASKED[0], {"prompt": "a", "response": ""}])
    long = lines(tmp_path / "c.jsonl", [{"prompt": "a", "response": "b" * 200}])
    where = ["--init-from", base, "--out", out]
    for options, message in (
        (["--dataset", good], "pellucid sft: --init-from: is needed. hint: --dataset FILE --init-from MODEL, or "),
        (
            ["--dataset", good, *where],
            f"pellucid sft: {base}: the model has no chat template. "
            "hint: --template transcript teaches one to a model that was trained on text alone",
        ),
        (
            ["--dataset", empty, *where, *QUICK],
            f"pellucid sft: {empty}:2: the response is empty. hint: nothing could be learned from it",
        ),
        (
            ["--dataset", long, *where, *QUICK],
            f"pellucid sft: {long}:1: longer than the window; got 221 tokens, expected at most 97. "
            "hint: a longer window (--seq-len), or leave such examples out or cut them (--too-long skip, cut)",
        ),
        (
            ["--dataset", long, *where, *QUICK, "--too-long", "skip"],
            f"pellucid sft: {out / 'examples.bin'}: no examples; expected at least one",
        ),
        (
            ["--dataset", good, *where, *QUICK, "--seq-len", 97],
            "pellucid sft: --seq-len: does not fit the model; got 97, expected 1 to 96 (the context)",
        ),
        (
            ["--dataset", good, *where, "--template", "chatml"],
            f"pellucid sft: {good}:1: JinjaTemplate: ",
        ),
        (["--dataset", tmp_path / "no", *where], f"pellucid sft: {tmp_path / 'no'}: no such file. hint: a .jsonl file"),
        (
            ["--dataset", good, *where, *QUICK, "--weight-decay", -1],
            "pellucid sft: training: --weight-decay is negative; got -1.0",
        ),
        (["--resume", tmp_path], f"pellucid sft: {tmp_path}: not a run that can be resumed: no config.json. hint: "),
    ):  # fmt: skip
        assert mistake(capsys, "sft", *options).startswith(message)
        assert not out.exists()


def test_a_run_of_another_kind_is_not_resumed(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    result(capsys, "sft", "--dataset", path, "--init-from", base, "--out", out, "--steps", 1, *QUICK)
    assert mistake(capsys, "dpo", "--resume", out) == (
        f"pellucid dpo: {out}: a run of another kind; got 'pellucid sft', expected 'pellucid dpo'"
    )


def test_the_template_of_a_tokenizer_configuration_and_another_kind_of_run(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    about, out = tmp_path / "tokenizer_config.json", tmp_path / "run"
    about.write_text(json.dumps({"chat_template": text}), encoding="utf-8")
    path = lines(tmp_path / "a.jsonl", ASKED)
    options = ["--dataset", path, "--init-from", base, "--out", out, "--steps", 1, *QUICK, "--template", about]
    result(capsys, "sft", *options)
    assert open_model(out).chat_template == text
    assert main(["train", "--resume", str(out)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"pellucid train: {out}: a run of another kind; got 'pellucid sft', expected 'pellucid run'. "
        f"hint: pellucid sft --resume {out}"
    )


def test_the_ids_a_text_begins_with_stay(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = open_model(base)
    begun = save_checkpoint(
        tmp_path / "begun",
        tensors=dict(opened.model.named_parameters()),
        config={"architecture": "TransformerLM", "model": to_dict(opened.model.config), "begin_ids": [256]},
        tokenizer=opened.tokenizer,
        state={},
    )
    path, out = lines(tmp_path / "a.jsonl", ASKED), tmp_path / "run"
    result(capsys, "sft", "--dataset", path, "--init-from", begun, "--out", out, "--steps", 1, *QUICK)
    assert open_model(out).prompt_ids("a").tolist() == [256, 97]
    add_lora(opened.model, LoraConfig(2))
    adapter = save_lora(opened.model, tmp_path / "adapter")
    result(capsys, "merge", begun, adapter, tmp_path / "merged")
    assert open_model(tmp_path / "merged").prompt_ids("a").tolist() == [256, 97]


def test_a_run_that_would_not_fit_is_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lines(tmp_path / "data.jsonl", [{"prompt": "a", "response": "b"}] * 20)
    monkeypatch.setattr("pellucid.cli.tune_start.available_memory", lambda: 1_000_000)
    command = ("sft", "--dataset", data, "--init-from", base, "--out", tmp_path / "run", "--template", "transcript")
    shorter = "fewer --sequences, a shorter --seq-len, more --accumulate, --checkpoint-blocks"
    for more, hint in (((), f"{shorter}, or an adapter (--lora-rank)"), (("--lora-rank", 2), shorter)):
        found = mistake(capsys, *command, *more)
        assert found.startswith("pellucid sft: memory: the run would not fit; got 0.0 GB for 16 x ")
        assert found.endswith(f" tokens at a time, expected at most 0.0 GB, 90% of what is free. hint: {hint}")
    assert not (tmp_path / "run").exists()
