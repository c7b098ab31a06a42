"""What users do wrong: each mistake is one line that says what is wrong and what would help, and exit status 2."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.checkpoint import latest_checkpoint, load_checkpoint, lock_folder, save_checkpoint
from pellucid.cli import main
from pellucid.data import TokenFile
from pellucid.ops import zeros
from pellucid.text import ByteTokenizer, CharTokenizer

from .conftest import SHORT, TINY, Refused


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run folder that must not be there in the end."""
    return tmp_path / "out"


# --- command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "pellucid: unknown command 'trian'. hint: did you mean 'train'?"),
        (["--versoin"], "pellucid: unknown option '--versoin'. hint: did you mean '--version'?"),
        (
            ["zzz"],
            "pellucid: unknown command 'zzz'. hint: the commands are train, sft, dpo, generate, chat, eval, import, "
            "export, merge, tokenizer, info, doctor, demo",
        ),
        (["train", "--stepz", "3"], "pellucid train: --stepz: unknown option. hint: did you mean --steps?"),
        (
            ["train", "--qqq"],
            "pellucid train: --qqq: unknown option. hint: pellucid train --help explains every option",
        ),
        (
            ["train", "--steps", "many"],
            "pellucid train: --steps: not a whole number: 'many'. hint: pellucid train --help explains every option",
        ),
        (
            ["train", "--learning-rate", "x"],
            "pellucid train: --learning-rate: not a number: 'x'. hint: pellucid train --help explains every option",
        ),
        (
            ["train", "--steps"],
            "pellucid train: --steps: no value given. hint: pellucid train --help explains every option",
        ),
        (
            ["train", "--family", "bert"],
            "pellucid train: --family: not one of the choices; got 'bert', expected 'gpt2', 'llama'",
        ),
        (
            ["train", "--preset", "big"],
            "pellucid train: --preset: not one of the choices; got 'big', expected 'balanced', 'eco', 'nanogpt', "
            "'performance', 'reference', 'small'",
        ),
        (
            ["train", "--steps", ""],
            "pellucid train: --steps: not a whole number: ''. hint: pellucid train --help explains every option",
        ),
        (["train", ""], "pellucid train: '': unexpected argument. hint: pellucid train --help explains every option"),
        *(
            (
                arguments,
                f"pellucid {arguments[0]}: {name}: an empty path. hint: name a file or folder; . is the folder you are "
                "in",
            )
            for arguments, name in (
                (["train", "--corpus", ""], "--corpus"),
                (["train", "--corpus="], "--corpus"),
                (["train", "--corpus", "c", "--out", ""], "--out"),
                (["train", "--config", ""], "--config"),
                (["train", "--resume", ""], "--resume"),
                (["generate", ""], "path"),
                (["eval", "run", "--text", ""], "--text"),
                (["eval", "run", ""], "models"),
                (["info", ""], "path"),
                (["demo", "--out", ""], "--out"),
            )
        ),
        (
            ["train", "book.txt"],
            "pellucid train: book.txt: unexpected argument. hint: pellucid train --help explains every option",
        ),
        (
            ["train"],
            "pellucid train: --corpus: nothing to train on: no corpus was given. hint: pellucid train --corpus FILE; "
            "pellucid demo needs none",
        ),
        (
            ["train", "--resume", "runs/x", "--steps", "5"],
            "pellucid train: --resume: cannot be combined with --steps: a run goes on with its own options. hint: "
            "leave it out, or start a new run",
        ),
        (
            ["train", "--resume", "nowhere"],
            "pellucid train: nowhere: no such run; got nothing there, expected a folder that pellucid train has made",
        ),
        (
            ["generate"],
            "pellucid generate: MODEL: missing argument. hint: pellucid generate --help explains every option",
        ),
        (
            ["generate", "nowhere", "--temprature", "1"],
            "pellucid generate: --temprature: unknown option. hint: did you mean --temperature?",
        ),
        (
            ["generate", "nowhere", "--top-p", "2"],
            "pellucid generate: sampling: --top-p is not a share; got 2.0, expected 0 < top_p <= 1. "
            "hint: None keeps all",
        ),
        (["generate", "nowhere", "--tokens", "0"], "pellucid generate: --tokens: must be at least 1; got 0"),
        (
            ["generate", "nowhere"],
            "pellucid generate: nowhere: no such checkpoint; got nothing there, expected a checkpoint folder",
        ),
        (
            ["eval", "nowhere"],
            "pellucid eval: nowhere: no such checkpoint; got nothing there, expected a checkpoint folder",
        ),
        (["info", "nowhere"], "pellucid info: nowhere: cannot be read: no such file or directory"),
        (["demo", "--minutes", "0"], "pellucid demo: --minutes: not a time; got 0.0, expected more than 0"),
    ],
)
def test_command_lines(
    arguments: list[str], message: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(*arguments) == message


def test_a_checkpoint_is_no_run_to_resume(refused: Refused, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "alone", tensors={"x": zeros((2,))}, config={"a": 1}, state={})
    assert refused("train", "--resume", folder) == (
        f"pellucid train: {folder}: a checkpoint alone, not a run. hint: training goes on from the folder of a run, "
        "with its optimizer and its tokens"
    )


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        main(["info", str(tmp_path / "nothing"), "--debug"])


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--width", "64", "--heads", "5"],
            "model: --width is not a multiple of --heads; got 64 and 5. hint: choose numbers that divide",
        ),
        (
            ["--heads", "4", "--kv-heads", "3"],
            "model: --heads is not a multiple of --kv-heads; got 4 and 3. hint: choose numbers that divide",
        ),
        (["--heads", "0"], "model: --heads must be at least 1; got 0"),
        (["--kv-heads", "0"], "model: --kv-heads must be at least 1; got 0"),
        (["--context", "0"], "training: --seq-len must be at least 1; got 0"),
        (["--dropout", "1"], "model: dropout is not a probability; got 1.0, expected 0 <= dropout < 1"),
        (["--steps", "0"], "training: steps must be at least 1; got 0"),
        (["--eval-every", "0"], "training: --eval-every must be at least 1; got 0. hint: None switches it off"),
        (
            ["--learning-rate", "-1"],
            "training: rates out of order; got peak -1.0, floor -0.1, expected 0 <= floor <= peak, peak > 0",
        ),
        (["--context", "64", "--seq-len", "65"], "--seq-len: longer than the context; got 65, expected at most 64"),
        (["--held-out", "1"], "--held-out: not a share; got 1.0, expected 0 <= share < 1"),
        (["--sample-tokens", "0"], "--sample-tokens: must be at least 1; got 0"),
        (["--seed", "-1"], "model: seed out of range; got -1, expected 0 to 2**64 - 1"),
    ],
)
def test_impossible_options(options: list[str], message: str, corpus: Path, out: Path, refused: Refused) -> None:
    assert refused("train", "--corpus", corpus, "--out", out, *options) == f"pellucid train: {message}"
    assert not out.exists()


def test_a_missing_tokenizer(corpus: Path, out: Path, refused: Refused) -> None:
    found = refused("train", "--corpus", corpus, "--out", out, "--tokenizer", "bpe", notes=1)
    assert found == (
        "pellucid train: bpe: no such tokenizer; expected auto, byte, char or a tokenizer file. hint: "
        "--train-tokenizer --tokenizer bpe trains one"
    )


def test_configuration_files(corpus: Path, out: Path, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"

    def found(content: str) -> str:
        path.write_text(content)
        line = refused("train", "--corpus", corpus, "--out", out, "--config", path)
        assert line.startswith("pellucid train: ")
        return line.removeprefix("pellucid train: ").replace(str(path), "FILE")

    assert found("kv-heads = 2") == "FILE: unknown key; got 'kv-heads', hint: did you mean 'kv_heads'?".replace(
        ", hint", ". hint"
    )
    assert found('steps = "many"') == "FILE.steps: wrong type; got 'many', expected int"
    assert found('family = "bert"') == "FILE.family: not one of the choices; got 'bert', expected 'llama', 'gpt2'"
    assert found("steps = ") == "FILE: not a TOML file: Invalid value (at end of document)"
    assert found("debug = true").startswith("FILE: unknown key; got 'debug'. hint: known keys: corpus, out, tokenizer,")
    path.unlink()
    line = refused("train", "--config", path)
    assert line == f"pellucid train: {path}: cannot be read: no such file or directory"


# --- corpora ----------------------------------------------------------------------------------------------------------


def test_values_of_configuration_files_that_are_no_paths(out: Path, refused: Refused, tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text('corpus = ""')
    line = refused("train", "--config", toml, "--out", out)
    assert line == f"pellucid train: {toml}.corpus: is empty. hint: leave the key out"
    toml.write_text('corpus = "a\\u0000b"')
    line = refused("train", "--config", toml, "--out", out)
    assert line == "pellucid train: --corpus: not a path: it holds a NUL; got 'a\\x00b'"


def test_pipes_are_not_waited_for(corpus: Path, finished: Path, out: Path, refused: Refused, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.bin"
    os.mkfifo(pipe)
    tokenizer = finished / "tokenizer.json"
    for notes, arguments in (
        (0, ["train", "--out", out, *SHORT, "--corpus", pipe, "--tokenizer", tokenizer]),
        (1, ["train", "--out", out, *SHORT, "--corpus", corpus, "--tokenizer", pipe]),
        (0, ["eval", finished, "--text", pipe]),
        (0, ["info", pipe]),
    ):
        line = refused(*arguments, notes=notes)
        assert line == f"pellucid {arguments[0]}: {pipe}: cannot be read: not a regular file"
    assert not out.exists()


def test_a_damaged_token_file_is_not_copied(finished: Path, out: Path, refused: Refused, tmp_path: Path) -> None:
    for name in ("tokens.bin", "tokens.bin.json"):
        shutil.copyfile(finished / name, tmp_path / name)
    exchange(tmp_path / "tokens.bin")
    arguments = ["--corpus", tmp_path / "tokens.bin", "--tokenizer", finished / "tokenizer.json", "--out", out]
    assert refused("train", *arguments, *SHORT, notes=1).startswith(
        f"pellucid train: {out / 'tokens.bin'}: damaged: the checksum differs; got "
    )
    assert not out.exists()


def test_corpora(out: Path, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"

    def found(content: bytes | None, *options: str, notes: int = 0) -> str:
        if content is not None:
            path.write_bytes(content)
        line = refused("train", "--corpus", path, "--out", out, *TINY, *options, notes=notes)
        assert not out.exists()
        return line.removeprefix("pellucid train: ").replace(str(path), "FILE")

    assert found(None) == "FILE: cannot be read: no such file or directory"
    assert found(b"") == "FILE: the file is empty"
    assert found(b"ab\0cd", notes=1) == "FILE: a binary file: NUL byte at offset 2; expected UTF-8 text"
    assert found(b"ab\xff", "--tokenizer", "byte", notes=1) == (
        "FILE: not UTF-8 text: bad byte at offset 2. hint: convert it first, for example with iconv -t UTF-8"
    )
    assert found(b"0123456789", notes=1) == (
        "FILE: too short for a window; got 9 tokens to train on (10 in all, 0.1 held out), expected at least 33. "
        "hint: use --context 8 or less, or more text"
    )
    assert found(b"0123456789" * 4, "--held-out", "0.01", notes=1) == (
        "FILE: too short to hold anything out; got 1 of 40 tokens, expected at least 2. hint: hold out more "
        "(--held-out) or nothing (--held-out 0), or use more text"
    )
    path.unlink()
    path.mkdir()
    assert found(None).startswith("FILE: no text in this folder; expected files that end in .txt,")
    jsonl = tmp_path / "text.jsonl"
    jsonl.write_text('{"text": "a"}\n{"body": "b"}\n')
    line = refused("train", "--corpus", jsonl, "--out", out, *TINY, notes=1)
    assert line == f"pellucid train: {jsonl}:2: no field 'text'; got body. hint: name the field that holds the text"


def test_an_unreadable_corpus(out: Path, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("secret")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    line = refused("train", "--corpus", path, "--out", out, notes=1)
    assert line == f"pellucid train: {path}: cannot be read: permission denied"


def test_token_files(out: Path, refused: Refused, tmp_path: Path) -> None:
    path, vocabulary = tmp_path / "tokens.bin", tmp_path / "tokenizer.json"
    CharTokenizer("abc").save(vocabulary)
    TokenFile.write(path, [0, 1, 2, 3] * 100)
    line = refused("train", "--corpus", path, "--out", out, *TINY, notes=1)
    assert line == (
        f"pellucid train: --tokenizer: needed for a token file ({path}); got 'auto'. hint: name the tokenizer file "
        "the ids were made with"
    )
    options = ["--corpus", path, "--out", out, "--tokenizer", vocabulary, *TINY]
    assert refused("train", *options, notes=1) == (
        f"pellucid train: {path}: id outside the vocabulary at token 3; got 3, expected 0 to 2. hint: the file was "
        "made with another tokenizer, is damaged, or lost its description"
    )
    other = ByteTokenizer()
    TokenFile.write(path, [0, 1, 2, 3] * 100, tokenizer=other)
    mine = CharTokenizer("abc").fingerprint()[:12]
    assert refused("train", *options, notes=1) == (
        f"pellucid train: {path}: the ids were made with another tokenizer; got char {mine} (3 ids), expected "
        f"{other.fingerprint()[:12]} (256 ids). hint: load the tokenizer the file was written with"
    )
    path.write_bytes(b"12345")
    assert refused("train", *options).startswith(f"pellucid train: {path}: not a token file: its length is not")


# --- run folders ------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run(corpus: Path, finished: Path, refused: Refused) -> None:
    assert refused("train", "--corpus", corpus, "--out", finished, *SHORT, notes=1) == (
        f"pellucid train: {finished}: the output folder holds a run already. hint: continue it with "
        f"--resume {finished}, or choose another folder"
    )


def test_a_folder_that_holds_files_of_ours(corpus: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "tokenizer.json").write_text("precious")
    assert refused("train", "--corpus", corpus, "--out", tmp_path, *SHORT, notes=1) == (
        f"pellucid train: {tmp_path}: the output folder holds other files; got tokenizer.json. hint: choose another "
        "folder, or move them away"
    )
    assert (tmp_path / "tokenizer.json").read_text() == "precious"


def test_a_folder_in_use(corpus: Path, stopped: Path, tmp_path: Path, refused: Refused) -> None:
    script = "import sys, time; from pellucid.checkpoint import lock_folder\n"
    script += "with lock_folder(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    other = subprocess.Popen([sys.executable, "-c", script, str(run)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        host = os.uname().nodename
        message = (
            f"pellucid train: {run}: output folder in use by another run; got process {other.pid} on {host}. hint: "
            "wait until it ends, stop it, or choose another folder"
        )
        assert refused("train", "--resume", run) == message
        assert refused("train", "--corpus", corpus, "--out", run, *SHORT, notes=1) == message
    finally:
        other.kill()
        other.communicate()
    with lock_folder(run):
        pass


def test_folders_that_cannot_be_made(
    corpus: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "run"
    line = refused("train", "--corpus", corpus, "--out", inside, *SHORT, notes=1)
    assert line == f"pellucid train: {inside}: cannot be the output folder: not a directory"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    line = refused("train", "--corpus", corpus, *SHORT, notes=1)
    assert line == "pellucid train: runs/night: cannot be made: not a directory. hint: choose a folder with --out"


def test_a_folder_without_permission(corpus: Path, tmp_path: Path, refused: Refused) -> None:
    tmp_path.chmod(0o555)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    line = refused("train", "--corpus", corpus, "--out", tmp_path / "run", *SHORT, notes=1)
    assert line == f"pellucid train: {tmp_path / 'run'}: cannot be the output folder: permission denied"


def test_resuming_what_is_no_run(tmp_path: Path, refused: Refused) -> None:
    assert refused("train", "--resume", tmp_path) == (
        f"pellucid train: {tmp_path}: not a run that can be resumed: no config.json. hint: a run stopped while it was "
        "prepared has to be started again"
    )
    (tmp_path / "config.json").write_text('{"format": "pellucid run"')
    assert refused("train", "--resume", tmp_path).startswith(
        f"pellucid train: {tmp_path / 'config.json'}: not the configuration of a run: damaged or foreign JSON ("
    )


def exchange(tokens: Path) -> None:
    """Makes the last id of a token file another one of the vocabulary."""
    with tokens.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        last = file.read(1)
        file.seek(-4, os.SEEK_END)
        file.write(b"\1" if last != b"\1" else b"\2")


def test_other_tokens_than_the_run_began_with(stopped: Path, tmp_path: Path, refused: Refused) -> None:
    """One id was exchanged, and then the description made to fit, as a file of another run would have it."""
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    exchange(run / "tokens.bin")
    start = f"{run / 'tokens.bin'}: not the tokens of this run: the checksum differs; got "
    assert refused("train", "--resume", run).startswith(f"pellucid train: {start}")
    (run / "tokens.bin.json").unlink()
    assert refused("train", "--resume", run).startswith(f"pellucid train: {start}")
    assert refused("eval", run).startswith(f"pellucid eval: {start}")


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def weights(finished: Path, tmp_path: Path) -> Path:
    """The weights in a copy of a checkpoint, to be damaged."""
    shutil.copytree(finished / "checkpoints" / "step-00000020", tmp_path / "copy")
    return tmp_path / "copy" / "model.safetensors"


@pytest.mark.parametrize("command", ["generate", "eval", "info"])
def test_a_truncated_checkpoint(command: str, weights: Path, refused: Refused) -> None:
    raw = weights.read_bytes()
    weights.write_bytes(raw[:-100])
    assert refused(command, weights.parent) == (
        f"pellucid {command}: {weights}: the file is truncated; got {len(raw) - 100:,} bytes, expected {len(raw):,}. "
        "hint: copy or save it again, or use an earlier checkpoint"
    )


@pytest.mark.parametrize("command", ["generate", "eval", "info"])
def test_a_flipped_bit(command: str, weights: Path, refused: Refused) -> None:
    raw = bytearray(weights.read_bytes())
    raw[-100] ^= 4
    weights.write_bytes(raw)
    line = refused(command, weights.parent)
    start = f"pellucid {command}: {weights}: the file is damaged: its content does not match its checksum; got sha256 "
    assert line.startswith(start)


def test_foreign_checkpoints(weights: Path, tmp_path: Path, refused: Refused) -> None:
    home = weights.parent
    weights.write_bytes(b"PK\x03\x04" + bytes(200))
    assert refused("info", weights) == (
        f"pellucid info: {weights}: not a safetensors file; got a zip archive (a PyTorch checkpoint?), expected a "
        "header length, then a JSON header"
    )
    (home / "state.json").write_text(json.dumps({"epoch": 3}))
    assert refused("generate", home) == (
        f"pellucid generate: {home / 'state.json'}: not the state of a checkpoint; got None, expected 'pellucid "
        "checkpoint'"
    )
    other = save_checkpoint(tmp_path / "other", tensors={"w": zeros((2,))}, config={"architecture": "CNN"}, state={})
    line = refused("generate", other)
    assert line == f"pellucid generate: {other}: unknown architecture; got 'CNN', expected 'TransformerLM'"


def test_a_damaged_checkpoint_is_not_resumed(stopped: Path, tmp_path: Path, refused: Refused) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    newest = max((run / "checkpoints").glob("step-*"))
    with (newest / "optimizer.safetensors").open("r+b") as file:
        file.seek(-50, os.SEEK_END)
        file.write(b"\xff\xff")
    line = refused("train", "--resume", run, notes=3)
    assert line.startswith(f"pellucid train: {newest / 'optimizer.safetensors'}: the file is damaged: its content")


def test_a_full_disk_during_a_save(stopped: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the weights no longer fit, what was saved stays whole."""
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    before = max((run / "checkpoints").glob("step-*"))
    done = load_checkpoint(before).state["step"]
    limit = (before / "model.safetensors").stat().st_size // 2

    def cap() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "pellucid", "train", "--resume", str(run)]
    found = subprocess.run(command, preexec_fn=cap, capture_output=True, text=True, check=False)
    assert found.returncode == 2, found.stderr
    assert found.stdout == ""
    last = found.stderr.splitlines()[-1]
    assert last == f"pellucid train: {run / 'checkpoints/step-00000100'}: cannot be written: file too large"
    assert load_checkpoint(before).state["step"] == done
    assert latest_checkpoint(run) == before


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_closed_streams(finished: Path) -> None:
    """A program started without stdin or stdout has nothing to flush, and nothing to read."""
    command = f'exec "{sys.executable}" -m pellucid generate "{finished}" --tokens 3'
    found = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    found = subprocess.run(["sh", "-c", f"{command} - <&-"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "pellucid generate: stdin: cannot be read: it is closed\n")


def test_a_negative_temperature(finished: Path, refused: Refused) -> None:
    assert refused("generate", finished, "--temperature", "-1") == (
        "pellucid generate: --temperature: is negative; got -1.0, expected 0 (greedy) or more"
    )


def test_a_file_in_place_of_a_run(corpus: Path, refused: Refused) -> None:
    for command in ("generate", "eval"):
        line = refused(command, corpus)
        assert line == f"pellucid {command}: {corpus}: no such checkpoint; got a file, expected a checkpoint folder"


def test_prompts(finished: Path, refused: Refused) -> None:
    assert refused("generate", finished, "the " * 10) == (
        "pellucid generate: prompt: longer than the model's context; got 40 tokens, expected at most 32. "
        "hint: shorten it"
    )
    assert refused("generate", finished, "the Sea") == (
        "pellucid generate: prompt: character 4 (line 1) is not in the vocabulary; got 'S' (U+0053), expected one of "
        "its 16 characters. hint: the model can only read characters of its training text"
    )


def test_texts_to_evaluate(finished: Path, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "other.txt"
    path.write_text("THE SEA")
    assert refused("eval", finished, "--text", path, notes=1) == (
        f"pellucid eval: {path}: document 0: can't be encoded (CharTokenizer.encode: character 0 (line 1) is not in "
        "the vocabulary; got 'T' (U+0054), expected one of its 16 characters. hint: train the tokenizer on text that "
        "has it, or with unknown=True)"
    )
    path.write_text("a")
    line = refused("eval", finished, "--text", path, notes=1)
    assert line == f"pellucid eval: {path}: too short to predict anything; got 1 tokens, expected at least 2"
    line = refused("eval", finished, "--seq-len", "33")
    assert line == "pellucid eval: --seq-len: does not fit the model; got 33, expected 1 to 32 (the context)"
    copy = tmp_path / "copy"
    shutil.copytree(finished / "checkpoints" / "step-00000020", copy)
    assert refused("eval", copy) == (
        f"pellucid eval: {copy}: no run with held-out text here. hint: name a text: pellucid eval {copy} --text PATH"
    )
