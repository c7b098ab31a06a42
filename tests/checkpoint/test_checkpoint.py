"""Checkpoint folders: what is saved comes back; damage anywhere is refused; a full disk leaves the old one whole."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import CheckpointError, ConfigError
from pellucid.base.rng import Generator
from pellucid.checkpoint import (
    Checkpoint,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    storage,
    write_tensors,
)
from pellucid.tape import Tensor
from pellucid.text import CharTokenizer

from .helpers import bits, message, samples, tensor

AGAIN = "hint: copy or save it again, or use an earlier checkpoint"
CONFIG = {"architecture": "TransformerLM", "model": {"d_model": 64, "rope": True, "eps": 1e-5, "note": "π"}}


def save(folder: Path, value: float = 1.0, **more: Any) -> Path:
    return save_checkpoint(folder, tensors={"w": tensor([value])}, config=CONFIG, state={"step": int(value)}, **more)


def full(folder: Path) -> None:
    """A checkpoint with every file there can be."""
    tokenizer = CharTokenizer.train("hello, world")
    save(folder, 3, optimizer_tensors=samples(), tokenizer=tokenizer)


def facts(found: Checkpoint) -> Any:
    tensors = [{k: bits(v) for k, v in f.items()} for f in (found.tensors, found.optimizer or {})]
    return tensors, found.config, found.state, found.tokenizer and found.tokenizer.to_json()


def test_all_of_it_comes_back(tmp_path: Path) -> None:
    generator = Generator(2**64 - 1, 2**70)
    state = {"step": 200, "generators": {"dropout": generator.state()}, "best": 0.1 + 0.2, "none": None, "text": "π\n"}
    tokenizer = CharTokenizer.train("hello")
    weights, moments = samples(1), samples(2)
    path = save_checkpoint(
        tmp_path / "new" / "run" / "c",
        tensors=weights,
        optimizer_tensors=moments,
        config=CONFIG,
        tokenizer=tokenizer,
        state=state,
    )
    assert path == tmp_path / "new" / "run" / "c"
    found = load_checkpoint(path)
    assert found.path == path
    assert found.config == CONFIG
    assert found.state == state
    assert Generator.from_state(found.state["generators"]["dropout"]).state() == generator.state()
    assert found.tokenizer is not None
    assert found.tokenizer.fingerprint() == tokenizer.fingerprint()
    assert found.optimizer is not None
    assert {k: bits(v) for k, v in found.tensors.items()} == {k: bits(t.numpy()) for k, t in weights.items()}
    assert {k: bits(v) for k, v in found.optimizer.items()} == {k: bits(t.numpy()) for k, t in moments.items()}
    assert found.tensors.metadata == {"format": "pt"}
    assert sorted(p.name for p in path.iterdir()) == [
        "config.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json",
    ]  # fmt: skip


def test_only_weights(tmp_path: Path) -> None:
    found = load_checkpoint(save(tmp_path / "c"))
    assert (found.optimizer, found.tokenizer) == (None, None)


def test_replacing_removes_what_is_no_longer_there(tmp_path: Path) -> None:
    full(tmp_path / "c")
    save(tmp_path / "c", 2.0)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["config.json", "model.safetensors", "state.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert load_checkpoint(tmp_path / "c").state == {"step": 2}


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    full(tmp_path / "a")
    full(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_messages_of_saving(tmp_path: Path) -> None:
    def text(folder: str, **options: Any) -> str:
        arguments = {"tensors": {}, "config": {}, "state": {}} | options
        return message(lambda: save_checkpoint(tmp_path / folder, **arguments), CheckpointError, tmp_path)

    cure = "hint: store numbers, texts, lists and dicts; None for a number that is not finite"
    infinite = text("c", state={"best": float("inf")})  # Python's own words vary with its version
    assert infinite.startswith("~/c: state: cannot be stored as JSON: Out of range float values are not JSON compliant")
    assert infinite.endswith(f". {cure}")
    assert (
        text("c", config={"x": {1}})
        == f"~/c: config: cannot be stored as JSON: Object of type set is not JSON serializable. {cure}"
    )
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    assert text("c", state={"x": deep}) == "~/c: state: JSON nested too deeply; expected at most 64 levels"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    assert text("file") == "~/file: cannot be written: a file of that name exists. hint: choose another name"
    assert text("file/c") == "~/file/c: cannot be written: not a directory"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    assert text("home") == (
        "~/home: cannot be replaced: holds other files than a checkpoint's; got 'thesis.tex'. "
        "hint: choose another name, or move these files away"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "home"]


def test_messages_of_loading(tmp_path: Path) -> None:
    def text(folder: Path) -> str:
        return message(lambda: load_checkpoint(folder), CheckpointError, tmp_path)

    full(tmp_path / "c")

    def changed(name: str, change: Callable[[Path], object]) -> str:
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        shutil.copytree(tmp_path / "c", tmp_path / "d")
        change(tmp_path / "d" / name)
        return text(tmp_path / "d")

    none = "no such checkpoint; got"
    assert text(tmp_path / "x") == f"~/x: {none} nothing there, expected a checkpoint folder"
    assert text(tmp_path / "c" / "config.json") == f"~/c/config.json: {none} a file, expected a checkpoint folder"
    assert text(tmp_path) == (
        "~: not a complete checkpoint: no state.json. "
        "hint: give the folder that holds state.json; in a run it lies in checkpoints/"
    )
    assert changed("tokenizer.json", os.unlink) == "~/d/tokenizer.json: cannot be read: no such file or directory"
    size = (tmp_path / "c" / "model.safetensors").stat().st_size
    assert changed("model.safetensors", lambda p: os.truncate(p, 9)) == (
        f"~/d/model.safetensors: the file is truncated; got 9 bytes, expected {size}. {AGAIN}"
    )
    assert changed("model.safetensors", lambda p: os.truncate(p, 999)) == (
        f"~/d/model.safetensors: the file is too long; got 999 bytes, expected {size}. {AGAIN}"
    )

    def replace(a: str, b: str) -> Callable[[Path], object]:
        return lambda p: p.write_text(p.read_text("utf-8").replace(a, b, 1), "utf-8")

    assert changed("config.json", replace("64", "65")).startswith(
        "~/d/config.json: the file was changed since it was saved; got sha256 "
    )
    assert changed("state.json", replace('"step": 3', '"step": 4')).startswith(
        "~/d/state.json: the file is damaged: its content does not match its checksum; got sha256 "
    )
    assert changed("state.json", replace('"version": 1', '"version": 2')) == (
        "~/d/state.json: a version this library does not read; got 2, expected 1. "
        "hint: use the version of Pellucid that saved it, or a newer one"
    )
    assert changed("state.json", lambda p: p.write_text("{}")) == (
        "~/d/state.json: not the state of a checkpoint; got None, expected 'pellucid checkpoint'"
    )
    assert (
        changed("state.json", lambda p: p.write_text("[]"))
        == "~/d/state.json: not a JSON object; got list, expected an object"
    )
    digest = load_checkpoint(tmp_path / "c").tensors.sha256
    assert digest is not None

    def foreign(path: Path) -> None:
        write_tensors(path, {"w": tensor([4.0])}, metadata={"format": "pt"})

    facts = f"got sha256 {_digest(tmp_path)}, expected {digest[:16]}"
    assert changed("model.safetensors", foreign) == (
        f"~/d/model.safetensors: not the file of this checkpoint; {facts}. "
        "hint: use the file that was saved with this checkpoint"
    )


def _digest(folder: Path) -> str:
    return write_tensors(folder / "again", {"w": tensor([4.0])}, metadata={"format": "pt"})[:16]


def test_fuzz_of_the_whole_folder(tmp_path: Path) -> None:
    """Bits flipped, cuts, and files swapped with another checkpoint's: refused, or just what was saved."""
    full(tmp_path / "c")
    save(tmp_path / "other", 9, optimizer_tensors=samples(7), tokenizer=CharTokenizer.train("another"))
    saved = facts(load_checkpoint(tmp_path / "c"))
    names = sorted(p.name for p in (tmp_path / "c").iterdir())
    refused = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        path = tmp_path / "c" / names[seed % len(names)]
        raw = path.read_bytes()
        new = bytearray(raw)
        kind = rng.integers(0, 10)
        if kind < 7:
            for at in rng.integers(0, len(raw), int(rng.integers(1, 4))):
                new[at] ^= 1 << int(rng.integers(0, 8))
        elif kind < 9:
            new = new[: int(rng.integers(0, len(raw)))]
        else:
            new = bytearray((tmp_path / "other" / path.name).read_bytes())
        path.unlink()
        path.write_bytes(new)
        try:
            assert facts(load_checkpoint(tmp_path / "c")) == saved
        except CheckpointError as error:
            refused.append(str(error))
        path.write_bytes(raw)
    assert len(refused) >= 195
    assert all(text.startswith(f"{tmp_path / 'c'}/") and "\n" not in text for text in refused)
    assert facts(load_checkpoint(tmp_path / "c")) == saved


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte; only root can make one, and not in every container."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def big() -> dict[str, Tensor]:
    return {"w": tensor(np.ones(1 << 18, np.float64))}


def test_a_full_disk(tiny_disk: Path, tmp_path: Path) -> None:
    save(tiny_disk / "c")
    write_tensors(tiny_disk / "a", {"w": tensor([1.0])})
    free = shutil.disk_usage(tiny_disk).free
    cure = "hint: free some space or choose another folder; what was saved before is unchanged"
    checkpoint = message(
        lambda: save_checkpoint(tiny_disk / "c", tensors=big(), config={}, state={}), CheckpointError, tmp_path
    )
    write_tensors(tmp_path / "whole", big())
    save_checkpoint(tmp_path / "c", tensors=big(), config={}, state={})
    whole = sum(p.stat().st_size for p in (tmp_path / "c").iterdir())
    text = "cannot be written: no space left on device; got {:,} bytes free, expected {:,} bytes. {}"
    assert checkpoint == "~/disk/c: " + text.format(free, whole, cure)
    file = message(lambda: write_tensors(tiny_disk / "a", big()), CheckpointError, tmp_path)
    assert file == "~/disk/a: " + text.format(free, (tmp_path / "whole").stat().st_size, cure)
    assert sorted(p.name for p in tiny_disk.iterdir()) == ["a", "c"]
    assert load_checkpoint(tiny_disk / "c").state == {"step": 1}


def test_a_disk_that_fills_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every push to the disk fails in its turn; each time the old checkpoint is whole and nothing else is left."""
    full(tmp_path / "c")
    saved = facts(load_checkpoint(tmp_path / "c"))
    turns = 0
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == turns:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", fsync)
    for turn in (1, 2, 3):  # weights, configuration, state
        turns, calls = turn, 0
        text = message(lambda: save(tmp_path / "c", 5.0), CheckpointError)
        assert "cannot be written: no space left on device; got " in text
        assert [p.name for p in tmp_path.iterdir()] == ["c"]
        assert facts(load_checkpoint(tmp_path / "c")) == saved
    turns, calls = 4, 0  # a folder's names: pushed where the system can, and no reason to give the checkpoint up
    save(tmp_path / "c", 5.0)
    assert calls == 5
    assert load_checkpoint(tmp_path / "c").state == {"step": 5}


# --- runs -------------------------------------------------------------------------------------------------------------


def test_latest_and_prune(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert prune_checkpoints(tmp_path, keep=1) == []
    paths = {step: save(checkpoint_path(tmp_path, step), step) for step in (9, 100, 20, 123456789)}
    assert paths[9] == tmp_path / "checkpoints" / "step-00000009"
    assert paths[123456789].name == "step-123456789"
    assert latest_checkpoint(tmp_path) == paths[123456789]
    for name in ("step-5", "step-0000000000000500", "best", ".step-99999999.0123.pellucid-tmp"):
        (tmp_path / "checkpoints" / name).mkdir()
    (paths[100].parent / "step-999999999").mkdir()  # unfinished copies
    shutil.copytree(paths[9], paths[100].parent / "step-999999998")
    os.unlink(paths[100].parent / "step-999999998" / "model.safetensors")
    assert latest_checkpoint(tmp_path) == paths[123456789]
    (paths[123456789] / "state.json").write_text("damaged")
    assert latest_checkpoint(tmp_path) == paths[123456789]
    with pytest.raises(CheckpointError, match="damaged or foreign JSON"):
        load_checkpoint(paths[123456789])
    (tmp_path / "file").write_text("")
    assert latest_checkpoint(tmp_path / "file") is None
    assert prune_checkpoints(tmp_path, keep=2, always=(9,)) == [paths[20]]
    assert prune_checkpoints(tmp_path, keep=2, always=(9,)) == []
    assert sorted(p.name for p in paths[9].parent.iterdir()) == [
        "best", "step-0000000000000500", "step-00000009", "step-00000100", "step-123456789", "step-5",
        "step-999999998", "step-999999999",
    ]  # fmt: skip
    assert message(lambda: prune_checkpoints(tmp_path, keep=0), ConfigError) == (
        "prune_checkpoints: at least one checkpoint must be kept; got keep=0"
    )
    assert message(lambda: checkpoint_path(tmp_path, -1), ConfigError) == "checkpoint_path: negative step; got -1"


def test_a_truncated_file_is_damage_and_not_an_unfinished_copy(tmp_path: Path) -> None:
    """Going back to an older step is the user's decision."""
    save(checkpoint_path(tmp_path, 1), 1)
    newest = save(checkpoint_path(tmp_path, 2), 2)
    os.truncate(newest / "model.safetensors", 10)
    assert latest_checkpoint(tmp_path) == newest
    with pytest.raises(CheckpointError, match="the file is truncated"):
        load_checkpoint(newest)
