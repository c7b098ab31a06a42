"""`pellucid train` from corpus to run folder, in this process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.config import to_dict
from pellucid.checkpoint import open_model
from pellucid.cli import main
from pellucid.cli.runs import open_run
from pellucid.data import TokenFile
from pellucid.text import END_OF_TEXT, ByteTokenizer, CharTokenizer, load_tokenizer
from pellucid.train import read_metrics

from .conftest import SHORT, text

Output = pytest.CaptureFixture[str]


def train(capfd: Output, *arguments: object) -> dict[str, Any]:
    """The JSON of a run."""
    capfd.readouterr()
    assert main(["train", *map(str, arguments), *SHORT, "--json"]) == 0
    out, _ = capfd.readouterr()
    assert out.count("\n") == 1
    return json.loads(out)


def test_a_run_folder(finished: Path, corpus: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {
        *(".lock", "config.json", "tokenizer.json", "tokens.bin", "tokens.bin.json"),
        *("checkpoints", "metrics.jsonl", "loss.png"),
    }
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["step-00000010", "step-00000020"]
    assert (finished / "loss.png").read_bytes().startswith(b"\x89PNG")
    run = open_run(finished)
    assert run.config.corpus == str(corpus)
    assert isinstance(run.tokenizer, CharTokenizer)
    tokens, held_out = run.tokens()
    assert held_out is not None
    assert run.tokenizer.decode(tokens.ids) + run.tokenizer.decode(held_out.ids) == text()
    assert len(tokens) == int(len(text()) * 0.9)
    records = read_metrics(finished / "metrics.jsonl")
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 21))
    assert [r["step"] for r in records if "held_out_loss" in r] == [10, 20]
    opened = open_model(finished)
    assert opened.model.config == run.config.model
    assert opened.source.checkpoint is not None
    assert opened.source.checkpoint.state["train"] == to_dict(run.config.train)


def test_the_text_that_is_printed(corpus: Path, tmp_path: Path, capfd: Output) -> None:
    run = tmp_path / "run"
    options = ["--steps", "4", "--eval-every", "2", "--sample-every", "2", "--seed", "3"]
    assert main(["train", "--corpus", str(corpus), "--out", str(run), *SHORT, *options]) == 0
    out, err = capfd.readouterr()
    assert "a sample:" in out
    assert f"run folder     {run}\n" in out
    assert "held-out loss  2." in out
    assert f"generate       pellucid generate {run} " in out
    assert "resume" not in out
    assert err.count("a sample:\n  | ") == 2
    assert re.search(r"step 1/4  loss \d\.\d+", err)
    assert "of peak" in err
    assert "held-out loss" in err
    assert "\x1b" not in out + err  # no terminal, no colours


def test_names_of_run_folders(corpus: Path, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(corpus, tmp_path / "my book (1).txt")
    found = [train(capfd, "--corpus", "my book (1).txt", "--steps", "1")["run"] for _ in range(2)]
    assert found == ["runs/my-book-1", "runs/my-book-1-2"]


def test_json(corpus: Path, tmp_path: Path, capfd: Output) -> None:
    found = train(capfd, "--corpus", corpus, "--out", tmp_path / "run", "--steps", "3")
    assert list(found) == [
        *("run", "checkpoint", "parameters", "steps", "stopped", "seconds"),
        *("held_out_loss", "perplexity", "bits_per_byte", "sample"),
        *("ended_early", "best", "best_held_out_loss"),
    ]
    assert (found["steps"], found["stopped"]) == (3, False)
    assert found["bits_per_byte"] == pytest.approx(found["held_out_loss"] / 0.6931471805599453)
    assert len(found["sample"]) == 20


def test_tokenizers(tmp_path: Path, capfd: Output) -> None:
    wide = tmp_path / "wide.txt"
    wide.write_text("".join(chr(0x4E00 + i % 300) for i in range(1000)), encoding="utf-8")
    found = train(capfd, "--corpus", wide, "--out", tmp_path / "a", "--steps", "1")
    assert isinstance(load_tokenizer(tmp_path / "a" / "tokenizer.json"), ByteTokenizer)
    assert found["bits_per_byte"] == pytest.approx(found["held_out_loss"] / 0.6931471805599453)
    found = train(capfd, "--corpus", wide, "--out", tmp_path / "b", "--steps", "1", "--tokenizer", "char")
    assert found["bits_per_byte"] == pytest.approx(found["held_out_loss"] / 0.6931471805599453 / 3)
    CharTokenizer("".join(chr(0x4E00 + i) for i in range(400))).save(tmp_path / "mine.json")
    train(capfd, "--corpus", wide, "--out", tmp_path / "c", "--steps", "1", "--tokenizer", tmp_path / "mine.json")
    assert open_model(tmp_path / "c").model.config.vocab_size == 400


def test_kinds_of_corpora(tmp_path: Path, capfd: Output) -> None:
    lines = [json.dumps({"text": part}) for part in (text(400), text(300))]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text(text(400))
    (tmp_path / "folder" / "inner" / "b.md").write_text(text(300))
    for source in ("docs.jsonl", "folder"):
        run = tmp_path / f"run-{source}"
        train(capfd, "--corpus", tmp_path / source, "--out", run, "--steps", "1")
        tokenizer, tokens = load_tokenizer(run / "tokenizer.json"), TokenFile.open(run / "tokens.bin")
        assert tokenizer.eot is not None
        expected = f"{text(400)}{END_OF_TEXT}{text(300)}{END_OF_TEXT}"
        assert tokenizer.decode(tokens.ids, show_special=True) == expected
    ids = tmp_path / "run-folder" / "tokens.bin"
    train(
        *(capfd, "--corpus", ids, "--out", tmp_path / "again", "--steps", "1"),
        *("--tokenizer", tmp_path / "run-folder" / "tokenizer.json"),
    )
    assert (tmp_path / "again" / "tokens.bin").read_bytes() == ids.read_bytes()


def test_nothing_held_out(corpus: Path, tmp_path: Path, capfd: Output) -> None:
    found = train(capfd, "--corpus", corpus, "--out", tmp_path / "run", "--steps", "2", "--held-out", "0")
    assert found["held_out_loss"] is None
    assert found["bits_per_byte"] is None


@pytest.mark.parametrize(
    "options",
    [
        ["--family", "gpt2", "--dropout", "0.1", "--optimizer", "sgd", "--max-norm", "None"],
        ["--kv-heads", "1", "--no-tie", "--accumulate", "2", "--checkpoint-blocks", "--ff", "48", "--seq-len", "16"],
        ["--precision", "bfloat16", "--save-every", "None", "--eval-every", "None", "--eval-batches", "None"],
        ["--optimizer", "muon", "--rate-schedule", "wsd", "--cooldown", "0.5", "--tokens-per-step", "200"],
        ["--optimizer", "lion", "--freeze", "model.layers.0.*", "--groups", "*norm*:rate=0.5", "--order", "shuffled"],
    ],
)
def test_models(options: list[str], corpus: Path, tmp_path: Path, capfd: Output) -> None:
    found = train(capfd, "--corpus", corpus, "--out", tmp_path / "run", "--steps", "2", *options)
    assert found["parameters"] == open_model(tmp_path / "run").model.config.parameter_counts().total
    assert 1 < found["held_out_loss"] < 4


def test_resuming_what_is_complete(finished: Path, tmp_path: Path, capfd: Output) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = (run / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    assert main(["train", "--resume", str(run), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["steps"] == 20
    assert found["held_out_loss"] == read_metrics(finished / "metrics.jsonl")[-1]["held_out_loss"]
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_failed_start_leaves_an_older_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    (tmp_path / "c.txt").write_text("short")
    assert main(["train", "--corpus", str(tmp_path / "c.txt"), "--out", str(tmp_path / "run"), *SHORT]) == 2
    assert (tmp_path / "run" / "notes").read_text() == "mine"
