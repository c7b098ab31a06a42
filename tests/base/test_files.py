"""Files open for reading: regular ones only, so that no name makes a program wait."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from pellucid.base import files
from pellucid.base.errors import CheckpointError, DataError
from pellucid.base.files import open_regular, read_json, reading
from pellucid.checkpoint import load_llama2c, read_tensors
from pellucid.checkpoint.storage import read_small
from pellucid.data import TokenFile
from pellucid.text import load_tokenizer


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.bin")
    return tmp_path / "pipe.bin"


@pytest.mark.parametrize("when", ["open", "fstat"])
def test_an_interrupt_is_not_taken_for_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Ctrl-C as the file is opened: what was open by then is closed once."""
    (tmp_path / "a").write_bytes(b"abc")
    seen: list[int] = []

    def interrupted(*arguments: Any, **options: Any) -> None:
        if when == "open":
            seen.append(open(*arguments, **options).fileno())  # noqa: SIM115 - closed as it is dropped
        else:
            seen.append(arguments[0])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        if when == "open":
            patch.setattr(files, "open", interrupted, raising=False)
        else:
            patch.setattr(files.os, "fstat", interrupted)
        with pytest.raises(KeyboardInterrupt), reading(tmp_path / "a"):
            pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])


def test_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"abc"
    with reading(tmp_path / "a") as file:
        assert file.read() == b"abc"


def test_a_pipe_is_refused_and_not_waited_for(pipe: Path) -> None:
    for read in (TokenFile.open, load_tokenizer, lambda path: read_json(path, "JSON")):
        with pytest.raises(DataError, match=r"pipe.bin: cannot be read: not a regular file$"):
            read(pipe)
    for read in (read_small, read_tensors, load_llama2c):
        with pytest.raises(CheckpointError, match=r"pipe.bin: cannot be read: not a regular file$"):
            read(pipe)


def test_devices_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("/dev/zero")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(DataError, match="cannot be read: no such file or directory"), reading(tmp_path / "none"):
        pass
