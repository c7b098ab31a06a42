"""Every example runs, and says what it promises."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from pellucid.train import read_metrics

SAYS = {
    "01_tensors_and_gradients": ("loss Tensor(", "bytes kept for backward", "dw   Tensor("),
    "02_a_custom_operation": ("largest difference: ", "the mistake is found: gradcheck: backward disagrees"),
    "03_xor": ("SGD: loss ", "AdamW: loss "),
    "04_a_character_model": ("parameters: ", "held out: loss ", "\nthe wind "),
    "05_the_first_bad_number": ("called from", "finite inputs gave a number that is not finite"),
    "08_tokenizers_and_chat": ("from anybody: ", "marks in the conversation: 4", "'over the stone<|im_end|>'"),
    "06_save_and_continue": ("stopped after 7 steps: step-00000007", "continued to step 20", "equal weights"),
}


def folder(repository: Path) -> Path:
    return repository / "examples"


def test_every_example_is_tested(repository: Path) -> None:
    assert sorted(p.stem for p in folder(repository).glob("*.py")) == sorted(
        [*SAYS, "07_nanogpt", "09_the_whole_story"]
    )


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(folder(repository) / f"{name}.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert err == ""
    for part in SAYS[name]:
        assert part in out


def test_the_whole_story(
    repository: Path,
    corpus_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, poems = folder(repository) / "09_the_whole_story.py", corpus_folder / "persian" / "khayyam.txt"
    monkeypatch.setattr(sys, "argv", [str(path), str(poems), str(tmp_path), "100"])
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    commands = [line.split("pellucid ")[1].split()[0] for line in out.splitlines() if line.startswith("$ ")]
    assert commands == ["tokenizer", "train", "sft", "export", "export", "eval", "chat"]
    assert "accuracy" in out
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit, match="usage: "):
        runpy.run_path(str(path), run_name="__main__")


def test_the_nanogpt_recipe(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run = tmp_path / "input.txt", tmp_path / "run"
    text.write_text("to be or not to be, that is the question.\n" * 200)
    path = folder(repository) / "07_nanogpt.py"
    options = ["--out", str(run), "--steps", "5", "--sample-tokens", "10", "--json"]
    monkeypatch.setattr(sys, "argv", [str(path), str(text), *options])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    assert len([r for r in read_metrics(run / "metrics.jsonl") if "loss" in r]) == 5
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit, match="usage: "):
        runpy.run_path(str(path), run_name="__main__")
