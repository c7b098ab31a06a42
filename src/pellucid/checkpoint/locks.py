"""Locks: one run per output folder, and a way to tell a live writer's temporary files from abandoned ones.

Both rest on the operating system's file lock, which ends with the process that holds it however that process ends:
a killed run leaves nothing that has to be removed by hand. The lock is advisory. Where a system or a file system has
none (Windows, some network folders), `lock_folder` refuses rather than let two runs write into one folder.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..base.errors import ConfigError
from ..base.files import StrPath, reason
from ..base.locks import try_lock

LOCK_FILE = ".lock"
_LONGEST_NOTE = 4096  # bytes


@contextmanager
def lock_folder(path: StrPath) -> Iterator[Path]:
    """Holds the output folder of a run for the block; makes the folder if it isn't there.

    The file `.lock` in it names the process and stays behind, empty, so that nobody ever locks a file that another
    has just removed.

    Raises:
        ConfigError: another live process (or this one) holds the folder, or it can't be made or locked.
    """
    shown, folder = os.fspath(path), Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(shown, f"cannot be the output folder: {reason(error)}") from error
    try:
        try:
            taken = try_lock(handle)
        except OSError as error:
            hint = "choose a folder on a local disk"
            raise ConfigError(shown, f"the output folder cannot be locked: {reason(error)}", hint=hint) from error
        if not taken:
            hint = "wait until it ends, stop it, or choose another folder"
            raise ConfigError(shown, "output folder in use by another run", got=_holder(handle), hint=hint)
        _note(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode("utf-8"))
        try:
            yield folder
        finally:
            _note(handle, b"")
    finally:
        os.close(handle)


def _note(handle: int, text: bytes) -> None:
    """Leaves a note in the lock file. It is for people: a full disk is no reason to stop here."""
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text)


def _holder(handle: int) -> str:
    """The process that holds the lock, as its note says; the note may be missing for an instant."""
    os.lseek(handle, 0, os.SEEK_SET)
    try:
        note = json.loads(os.read(handle, _LONGEST_NOTE))
        return f"process {int(note['pid'])} on {note['host']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "an unnamed process"
