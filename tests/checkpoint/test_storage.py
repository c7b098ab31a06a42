"""Folders that take the place of others: Ctrl-C at every rename, and several writers of one name."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pellucid.checkpoint import storage


def write(folder: Path, content: bytes) -> None:
    files = dict.fromkeys(("a", "b"), storage.write_bytes(content))
    storage.write_folder(folder, files, needed=0, belongs=files.__contains__, whose="a test's")


def content(folder: Path) -> bytes:
    """What is in both files, which is the same."""
    found = {path.read_bytes() for path in folder.iterdir()}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    ("number", "done", "left"),
    [
        (1, False, b"old"),
        (1, True, b"old"),
        (2, False, b"old"),
        (2, True, b"new"),
        (3, False, b"new"),
        (3, True, b"new"),
    ],
)
def test_ctrl_c_at_every_rename(
    number: int, done: bool, left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the rename of that number or after it: the old folder is there, or the new one."""
    write(tmp_path / "x", b"old")
    calls, rename = 0, os.rename

    def interrupted(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls != number or done:
            rename(source, target)
        if calls == number:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "x", b"new")
    assert content(tmp_path / "x") == left
    write(tmp_path / "x", b"next")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_several_writers_of_one_folder(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def repeat(number: int) -> None:
        try:
            for i in range(10):
                write(tmp_path / "x", f"{number} {i}".encode())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert content(tmp_path / "x").endswith(b" 9")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
