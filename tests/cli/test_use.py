"""The commands that use what training left: generate, eval, info."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.config import to_dict
from pellucid.checkpoint import ModelSource, OpenedModel, keep_model, read_tensors, save_checkpoint
from pellucid.cli import main
from pellucid.generate import Text
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import BPETokenizer, ByteTokenizer
from pellucid.train import read_metrics

from .conftest import Refused, text

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with --json and returns what it printed."""

    def found(*arguments: object) -> dict[str, Any]:
        capfd.readouterr()
        assert main([*map(str, arguments), "--json"]) == 0
        out, _ = capfd.readouterr()
        assert out.count("\n") == 1
        return json.loads(out)

    return found


# --- generate ---------------------------------------------------------------------------------------------------------


def test_generation_is_streamed_after_the_prompt(finished: Path, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["generate", str(finished), "the sea", "--tokens", "40", "--seed", "5"]
    values = run(*options)
    assert main(options) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out == f"the sea{values['text']}\n"
    # 7 + 40 tokens are more than the context of 32, so it went on from a half.
    assert (values["tokens"], len(values["text"]), values["ended"]) == (40, 40, "tokens")
    assert values["seed"] == 5
    assert values["checkpoint"].endswith("step-00000020")


def test_sampling_options(finished: Path, run: Run) -> None:
    def drawn(*options: object) -> str:
        return run("generate", finished, "the sea", "--tokens", 20, *options)["text"]

    assert drawn("--seed", 1) == drawn("--seed", 1) != drawn("--seed", 2)
    assert drawn("--greedy") == drawn("--greedy", "--seed", 1) == drawn("--top-k", 1) == drawn("--temperature", 0)
    assert drawn("--top-p", 1e-9) == drawn("--greedy")
    assert drawn("--greedy", "--repetition-penalty", 1e6) != drawn("--greedy")
    everything = ["--seed", 1, "--temperature", 5]
    assert drawn(*everything, "--top-k", "None") != drawn(*everything, "--top-k", 2)
    earlier = run("generate", finished / "checkpoints" / "step-00000010", "--greedy")
    assert earlier["checkpoint"].endswith("step-00000010")


def test_a_prompt_from_stdin(finished: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the wind\n")))
    assert run("generate", finished, "-")["prompt"] == "the wind\n"


def test_without_a_prompt(finished: Path, run: Run) -> None:
    assert run("generate", finished, "--tokens", 5)["prompt"] == ""


@pytest.mark.parametrize("command", ["generate RUN --tokens 3000", "info RUN", "train --help"])
def test_a_reader_that_goes_away(command: str, finished: Path) -> None:
    # The reader is gone before the first byte comes.
    line = f"{sys.executable} -m pellucid {command.replace('RUN', str(finished))} | true"
    found = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (141, "", "")


@pytest.mark.parametrize(
    ("content", "stop", "pieces", "ended"),
    [
        ("abc", None, "abc", "tokens"),
        ("abcXYd", "XY", "abc", "stop"),
        ("abXXYd", "XY", "abX", "stop"),
        ("abcX", "XY", "abcX", "tokens"),
        ("abab!abac", "abac", "abab!", "stop"),
        ("é🙂x", "x", "é🙂", "stop"),
    ],
)
def test_stop_texts(content: str, stop: str | None, pieces: str, ended: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(content).tolist()
    found = Text(iter(ids), tokenizer, limit=len(ids), stops=(stop,) if stop else ())
    assert "".join(found) == pieces
    assert found.ended == ended


def test_the_end_of_a_document_ends_the_text() -> None:
    tokenizer = ByteTokenizer(special=["<|endoftext|>"])
    found = Text(iter([97, 256, 98]), tokenizer, limit=3)
    assert ("".join(found), found.ended, found.count) == ("a", "document", 2)
    # Half a character is not shown before the rest has come, and never lost.
    assert list(Text(iter([0xC3, 0xA9, 0xC3]), tokenizer, limit=3)) == ["é", "�"]


# --- eval -------------------------------------------------------------------------------------------------------------


def test_evaluation_of_the_held_out_part(finished: Path, run: Run) -> None:
    expected = read_metrics(finished / "metrics.jsonl")[-1]["held_out_loss"]
    for path in (finished, finished / "checkpoints" / "step-00000020"):
        found = run("eval", path)
        assert found["loss"] == pytest.approx(expected, rel=1e-6)
        assert found["perplexity"] == pytest.approx(exp(found["loss"]))
        assert found["bits_per_byte"] == pytest.approx(found["loss"] / 0.6931471805599453)
    assert run("eval", finished, "--max-batches", 1)["predicted"] == 16 * 32


def test_evaluation_of_other_text(finished: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(text(100))
    found = run("eval", finished, "--text", tmp_path / "other.txt", "--sequences", 3)
    assert found["tokens"] == len(text(100))
    assert found["predicted"] == len(text(100)) // 33 * 32
    ids = run("eval", finished, "--text", finished / "tokens.bin")
    assert ids["tokens"] == len(text())
    (tmp_path / "tiny.txt").write_text("the")
    assert run("eval", finished, "--text", tmp_path / "tiny.txt")["predicted"] == 2


# --- weights in another width -----------------------------------------------------------------------------------------


def test_the_weights_of_generate_and_eval(finished: Path, run: Run) -> None:
    losses, sizes = {}, {}
    for weights in ("float32", "bfloat16", "int8"):
        losses[weights] = run("eval", finished, "--weights", weights)["loss"]
        found = run("generate", finished, "the", "--greedy", "--tokens", 5, "--weights", weights)
        assert found["weights"] == weights
        sizes[weights] = found["weight_bytes"]
    assert sizes["float32"] > sizes["bfloat16"] > sizes["int8"]
    assert abs(losses["int8"] - losses["float32"]) < 0.01 * losses["float32"]
    assert losses["int8"] != losses["float32"]


def test_export(finished: Path, tmp_path: Path, run: Run, refused: Refused) -> None:
    full, small = tmp_path / "full", tmp_path / "small"
    whole = run("export", finished, "--out", full)
    rounded = run("export", finished, "--out", small, "--precision", "int8")
    assert rounded["precision"] == "int8"
    assert rounded["bytes"] == sum(p.stat().st_size for p in small.iterdir()) < whole["bytes"]
    assert run("info", small)["weights"] == "int8 (read as float32)"
    assert run("info", full)["weights"] == "float32"
    corpus = finished / "tokens.bin"
    exact, near = (run("eval", p, "--text", corpus)["loss"] for p in (full, small))
    assert 0 < abs(near - exact) < 0.01 * exact
    # the very weights an int8 file holds are those that int8 makes of what it was saved from
    assert run("eval", small, "--text", corpus, "--weights", "int8")["loss"] == pytest.approx(near, rel=1e-4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    message = refused("export", finished, "--out", tmp_path / "other")
    assert "cannot be replaced: holds other files than a checkpoint's" in message
    assert whole["parity"] == {"tokens": 32, "error": 0.0, "same": 32}
    assert 0 < rounded["parity"]["error"] < 0.1


def test_a_published_folder_there_and_back(tmp_path: Path, run: Run, refused: Refused) -> None:
    text = "the wind and the sea went over the stone " * 20
    tokenizer = BPETokenizer.train([text], vocab_size=270, special=["<|endoftext|>"])
    config = TransformerConfig(270, d_model=32, n_layers=1, n_heads=2, max_seq_len=32, qk_norm=True)
    opened = OpenedModel(
        TransformerLM(config),
        ModelSource(tmp_path, "pellucid", config, {}, tokenizer, "{{ messages }}", {}, (269,)),  # type: ignore[arg-type]
    )
    first = keep_model(tmp_path / "first", opened)
    hub = run("export", first, "--out", tmp_path / "hub", "--format", "hf", "--shard-mb", 1)
    assert hub["parity"] == {"tokens": 32, "error": 0.0, "same": 32}
    narrow = run("export", first, "--out", tmp_path / "narrow", "--format", "hf", "--precision", "bfloat16")
    assert narrow["bytes"] < hub["bytes"]
    assert 0 < narrow["parity"]["error"] < 0.05
    found = run("import", tmp_path / "hub", tmp_path / "back")
    assert found["parity"]["error"] == 0
    weights = [read_tensors(tmp_path / name / "model.safetensors") for name in ("first", "back")]
    assert {n: v.tobytes() for n, v in weights[0].items()} == {n: v.tobytes() for n, v in weights[1].items()}
    texts = [
        run("generate", tmp_path / p, "the sea", "--greedy", "--tokens", 9)["text"] for p in ("hub", "back", "first")
    ]
    assert len(set(texts)) == 1
    (tmp_path / "sea.txt").write_text(text)
    losses = [run("eval", tmp_path / p, "--text", tmp_path / "sea.txt")["loss"] for p in ("hub", "first")]
    assert losses[0] == losses[1]
    about = run("info", tmp_path / "hub")
    assert (about["kind"], about["weights"]) == ("published model (huggingface)", "float32")
    assert about["parameters"] == config.parameter_counts().total
    assert (about["chat_template"], about["eos_ids"]) == (True, [269])

    message = refused("export", first, "--out", tmp_path / "x", "--precision", "bfloat16")
    assert message == (
        "pellucid export: --precision: not one of --format pellucid; got bfloat16, expected float32, int8"
    )
    message = refused("export", first, "--out", tmp_path / "x", "--shard-mb", 3)
    assert message == "pellucid export: --shard-mb: --format pellucid is one file; got 3"
    message = refused("import", tmp_path / "nowhere", tmp_path / "x")
    assert message.startswith(f"pellucid import: {tmp_path}/nowhere: no such checkpoint; got nothing there")
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"half")
    message = refused("import", tmp_path / "hub", tmp_path / "x")
    assert message.startswith(f"pellucid import: {tmp_path}/hub/model.safetensors: ")
    assert not (tmp_path / "x").exists()


def test_export_as_gguf(finished: Path, tmp_path: Path, run: Run, refused: Refused) -> None:
    tokenizer, corpus = BPETokenizer.train([text()], 280), tmp_path / "text.txt"
    corpus.write_text(text(), encoding="utf-8")
    config = TransformerConfig(280, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, max_seq_len=64)
    source = save_checkpoint(
        tmp_path / "source",
        tensors=dict(TransformerLM(config).named_parameters()),
        config={"architecture": "TransformerLM", "model": to_dict(config)},
        state={},
        tokenizer=tokenizer,
    )
    exact, sizes = run("eval", source, "--text", corpus)["loss"], {}
    for precision, error in (("float32", 0.0), ("bfloat16", 2**-6), ("int8", 2**-5)):
        path = tmp_path / f"{precision}.gguf"
        found = run("export", source, "--out", path, "--format", "gguf", "--precision", precision)
        sizes[precision] = found["bytes"]
        assert found["bytes"] == path.stat().st_size
        assert found["parity"]["error"] <= error
        assert run("eval", path, "--text", corpus)["loss"] == pytest.approx(exact, rel=error)
    assert sizes["float32"] > 1.8 * sizes["bfloat16"] > 1.8 * sizes["int8"]
    assert run("info", tmp_path / "int8.gguf")["weights"] == "F32, Q8_0 (read as float32)"
    back = tmp_path / "back"
    assert run("import", tmp_path / "float32.gguf", back)["parity"]["error"] == 0
    assert run("eval", back, "--text", corpus)["loss"] == exact
    message = refused("export", finished, "--out", tmp_path / "x.gguf", "--format", "gguf", "--precision", "float16")
    assert "--precision: not one of --format gguf; got float16, expected float32, bfloat16, int8" in message
    message = refused("export", finished, "--out", tmp_path / "x.gguf", "--format", "gguf")
    assert "GGUF: a tokenizer that llama.cpp doesn't have; got char" in message
    (tmp_path / "mine").write_text("mine")
    message = refused("export", source, "--out", tmp_path / "mine", "--format", "gguf")
    assert f"--out: cannot be replaced: not a GGUF file; got {tmp_path / 'mine'}. hint: " in message


# --- info -------------------------------------------------------------------------------------------------------------


def test_info(finished: Path, stopped: Path, run: Run) -> None:
    checkpoint = finished / "checkpoints" / "step-00000020"
    whole = run("info", finished)
    assert (whole["kind"], whole["steps"], whole["tokens"]) == ("run", "20 of 20", len(text()))
    assert whole["checkpoint"] == str(checkpoint)
    assert run("info", stopped)["steps"].endswith(" of 300")
    found = run("info", checkpoint, "--tensors")
    assert (found["kind"], found["step"], found["resumable"]) == ("checkpoint", 20, True)
    assert found["parameters"] == sum(found["parts"].values()) == whole["parameters"]
    assert found["model"]["d_model"] == 32
    weights = checkpoint / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert found["sha256"]["model.safetensors"] == digest
    tensors = run("info", weights, "--tensors")
    assert tensors["kind"] == "tensor file (safetensors)"
    assert tensors["parameters"] == found["parameters"]
    assert tensors["sha256"] == digest
    assert tensors["tensors"] == found["tensors"]
    assert tensors["tensors"]["model.embed_tokens.weight"] == "float32 [16, 32]"
    tokens = run("info", finished / "tokens.bin")
    assert (tokens["kind"], tokens["vocabulary"], tokens["checksum"]) == ("token file", 16, "verified")
    tokenizer = run("info", finished / "tokenizer.json")
    assert (tokenizer["kind"], tokenizer["type"], tokenizer["vocabulary"]) == ("tokenizer", "char", 16)
    assert tokenizer["fingerprint"] == tokens["tokenizer"] == found["tokenizer"]["fingerprint"]


def test_info_for_people(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(finished)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("kind             run\n")
    assert "held out loss    " in out


def test_info_about_something_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kinds = "'byte' or 'char' or 'unigram' or 'sentencepiece' or 'normalized'"
    expected = "a run, a checkpoint, a .safetensors file, a token file (.bin) or a tokenizer file"
    for name, content, message in (
        ("a.md", b"# hello", f"not a file of a kind known here; got 7 bytes, expected {expected}"),
        ("a.json", b'{"a": 1}', f"not a file of a kind known here; got 8 bytes, expected {expected}"),
        ("b.json", b'{"type": "x"}', f"not a tokenizer file; got type 'x', expected type {kinds}"),
        ("a.txt", b"", "the file is empty"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert main(["info", str(path)]) == 2
        assert capfd.readouterr() == ("", f"pellucid info: {path}: {message}\n")
    assert main(["info", str(tmp_path)]) == 2
    what = "neither a run nor a checkpoint; expected a folder with config.json or state.json"
    assert capfd.readouterr().err == f"pellucid info: {tmp_path}: {what}\n"
