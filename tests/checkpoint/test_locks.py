"""Locks: one process a run folder; a dead one is no obstacle."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.base import locks
from pellucid.base.errors import ConfigError
from pellucid.checkpoint import lock_folder, storage

from .helpers import message

HOLD = """
import sys, time
from pellucid.checkpoint import lock_folder
with lock_folder(sys.argv[1]):
    sys.stdout.write("held\\n"); sys.stdout.flush()
    time.sleep(60)
"""
CURE = "hint: wait until it ends, stop it, or choose another folder"


def take(folder: Path) -> None:
    with lock_folder(folder):
        pass


def test_another_process(tmp_path: Path) -> None:
    """While it lives it is named; kill -9 frees the folder at once."""
    run = tmp_path / "new" / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        got = f"process {process.pid} on {socket.gethostname()}"
        assert (
            message(lambda: take(run), ConfigError, run) == f"~: output folder in use by another run; got {got}. {CURE}"
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert str(process.pid) in (run / ".lock").read_text()
    with lock_folder(run) as held:
        assert held == run
    assert (run / ".lock").read_bytes() == b""


def test_twice_in_one_process(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        got = f"process {os.getpid()} on {socket.gethostname()}"
        assert (
            message(lambda: take(tmp_path), ConfigError, tmp_path)
            == f"~: output folder in use by another run; got {got}. {CURE}"
        )
        (tmp_path / ".lock").write_text("[")
        text = message(lambda: take(tmp_path), ConfigError, tmp_path)
        assert text == f"~: output folder in use by another run; got an unnamed process. {CURE}"
    take(tmp_path)


def test_an_error_inside_frees_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path):
        raise ZeroDivisionError
    take(tmp_path)


def test_folders_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert (
        message(lambda: take(tmp_path / "file"), ConfigError, tmp_path)
        == "~/file: cannot be the output folder: file exists"
    )
    monkeypatch.setattr(locks, "fcntl", None)
    assert message(lambda: take(tmp_path / "run"), ConfigError, tmp_path) == (
        "~/run: the output folder cannot be locked: no file locks on this system. hint: choose a folder on a local disk"
    )


def test_a_live_writer_is_not_swept(tmp_path: Path) -> None:
    with storage.replacing(tmp_path / "a", needed=0) as file, storage.building(tmp_path / "b"):
        file.write(b"x")
        storage.sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_takes_the_note_and_not_the_lock(tmp_path: Path) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        with lock_folder(tmp_path), pytest.raises(ConfigError, match="got an unnamed process"):
            take(tmp_path)
    take(tmp_path)
