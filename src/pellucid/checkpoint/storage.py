"""Storage: how files and folders of a checkpoint reach the disk whole or not at all, and how JSON is read back.

Everything is written under a temporary name beside its target, pushed to the disk, and renamed. A writer holds the
lock of its temporary file or folder, so that the next writer can tell what a killed process left (and removes it)
from what another process is writing now. A folder can't be exchanged in one step everywhere: the old one first takes
the name `previous_of(target)`, and readers look there when the target is missing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..base.errors import CheckpointError
from ..base.files import StrPath, open_regular, reason, sync_folder
from ..base.locks import try_lock

_TEMPORARY = ".pellucid-tmp"
_PREVIOUS = ".pellucid-old"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ATTEMPTS = 20
_LARGEST_JSON = 1 << 28  # bytes; a vocabulary of a million entries takes 30 MB
_DEEPEST_JSON = 64
# A string, complete or cut off by the end, or one bracket. Possessive, so that no input makes it walk back.
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def unreadable(path: StrPath, error: OSError) -> CheckpointError:
    return CheckpointError(os.fspath(path), f"cannot be read: {reason(error)}")


def unwritable(path: StrPath, error: OSError, *, needed: int) -> CheckpointError:
    """The refusal of a write; on a full disk it names the bytes needed and free. Call it after the clean-up."""
    shown, what = os.fspath(path), f"cannot be written: {reason(error)}"
    if error.errno not in _FULL:
        return CheckpointError(shown, what)
    hint = "free some space or choose another folder; what was saved before is unchanged"
    return CheckpointError(shown, what, got=f"{_free(path):,} bytes free", expected=f"{needed:,} bytes", hint=hint)


def _free(path: StrPath) -> int:
    folder = Path(os.path.realpath(path))
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


# --- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: StrPath, *, needed: int) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` when the block ends; `path` is untouched if the block raises.

    Raises:
        CheckpointError: the file can't be created, written or renamed.
    """
    target = Path(os.path.realpath(path))
    sweep(target.parent)
    temporary = _temporary(target)
    try:
        try:
            with open(temporary, "xb", buffering=1 << 16) as file:
                _claim(file.fileno(), temporary)
                yield file
                push(file)
                os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(target.parent)
    except OSError as error:
        raise unwritable(path, error, needed=needed) from error


def write_folder(
    folder: StrPath,
    files: Mapping[str, Callable[[BinaryIO], object]],
    *,
    needed: int,
    belongs: Callable[[str], object],
    whose: str,
) -> Path:
    """Writes a folder in place of the one that is there, each file by its function, in their order. Folders above it
    are made.

    needed: bytes. belongs: whether a file of that name may be in the folder that is replaced; whose: what such files
    are of ("a checkpoint's").

    Raises:
        CheckpointError: the disk is full or refuses, or something else is there. What was there before is unchanged.
    """
    shown, target = os.fspath(folder), Path(os.path.realpath(folder))
    try:
        if target.parent.is_file():  # else the system says "file exists", which sounds like the folder
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(target, shown, belongs, whose)
        sweep(target.parent)
        with building(target) as temporary:
            for name, write in files.items():
                with open(temporary / name, "xb") as file:
                    write(file)
                    push(file)
            _install(temporary, target)
    except OSError as error:
        raise unwritable(folder, error, needed=needed) from error
    return Path(folder)


def write_bytes(raw: bytes) -> Callable[[BinaryIO], object]:
    """The function that writes these bytes into a file."""
    return lambda file: file.write(raw)


def _check_replaceable(target: Path, shown: str, belongs: Callable[[str], object], whose: str) -> None:
    """Refuses to put a folder in the place of any other kind: replacing removes what was there."""
    try:
        names = os.listdir(target)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        what = "cannot be written: a file of that name exists"
        raise CheckpointError(shown, what, hint="choose another name") from None
    if others := sorted(name for name in names if not belongs(name)):
        got = ", ".join(map(repr, others[:5])) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        hint = "choose another name, or move these files away"
        raise CheckpointError(shown, f"cannot be replaced: holds other files than {whose}", got=got, hint=hint)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A new folder beside `target` to write into. What has its name when the block ends or raises is removed.

    Raises:
        OSError: the folder can't be made.
    """
    temporary, handle = _made(target)
    try:
        yield temporary
    finally:
        try:
            shutil.rmtree(temporary, ignore_errors=True)
        finally:  # once more, where Ctrl-C came
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(handle)


def _made(target: Path) -> tuple[Path, int]:
    """A new folder beside `target`, and the open handle that holds its lock."""
    for left in reversed(range(_ATTEMPTS)):
        temporary = _temporary(target)
        temporary.mkdir()
        handle = None
        try:
            handle = os.open(temporary, os.O_RDONLY)
            _claim(handle, temporary)
            return temporary, handle
        except BaseException as error:
            if handle is not None:
                os.close(handle)
            shutil.rmtree(temporary, ignore_errors=True)
            # A sweep may have taken it for abandoned before it had its lock.
            if left == 0 or not isinstance(error, OSError) or error.errno not in (errno.ENOENT, errno.EAGAIN):
                raise
    raise AssertionError


def _install(temporary: Path, target: Path) -> None:
    """Gives a finished folder its name, and its own name to the folder that was there. At every moment `target` or
    `previous_of(target)` is a complete folder."""
    sync_folder(temporary)
    for left in reversed(range(_ATTEMPTS)):
        try:
            _exchange(temporary, target)
            break
        except OSError as error:
            # Another process replaces the same folder at this very moment: whoever comes last stays.
            if left == 0 or error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                raise
    sync_folder(target.parent)


def _exchange(temporary: Path, target: Path) -> None:
    old = previous_of(target)
    try:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(target, old)
        os.rename(temporary, target)
    except BaseException:  # Ctrl-C may come between the two
        with suppress(OSError):
            if not target.exists():
                os.rename(old, target)
        raise
    finally:
        with suppress(OSError):
            if not temporary.exists():
                os.rename(old, temporary)


def remove(folder: Path) -> None:
    """Removes a folder so that a kill on the way leaves it whole or gone: it loses its name first."""
    hidden = _temporary(folder)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def previous_of(target: Path) -> Path:
    """Where the old folder lies for the instant in which a new one takes its name."""
    return target.with_name(f".{target.name}{_PREVIOUS}")


def current(folder: Path) -> Path:
    """The folder itself, or the old one where a kill fell between the two renames of a replacement."""
    if not folder.exists():
        old = previous_of(Path(os.path.realpath(folder)))
        if old.is_dir():
            return old
    return folder


def name_of_previous(entry: str) -> str | None:
    """The name of the folder that `previous_of` made `entry` of, or None for any other name."""
    ours = entry.startswith(".") and entry.endswith(_PREVIOUS)
    return entry[1 : -len(_PREVIOUS)] if ours else None


def sweep(folder: Path) -> None:
    """Removes temporary files and folders that no live process is writing. Never fails: it is only tidying."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
                _remove_abandoned(entry)


def _claim(handle: int, temporary: Path) -> None:
    """Locks what was just made. Between the making and the lock, a sweep may have taken it for abandoned."""
    try:
        kept = try_lock(handle) and temporary.exists()
    except OSError:
        return  # no locks here, so nothing is ever swept here either
    if not kept:
        raise OSError(errno.EAGAIN, "another process tidied up at this very moment; try again")


def _remove_abandoned(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        handle = os.open(entry.path, os.O_RDONLY)
        try:
            if try_lock(handle):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
        finally:
            os.close(handle)


def push(file: BinaryIO) -> None:
    """Everything written so far is on the disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(6).hex()}{_TEMPORARY}")


# --- JSON -------------------------------------------------------------------------------------------------------------


def encode_json(content: dict[str, Any], *, where: str) -> bytes:
    """One JSON object as readable UTF-8. Raises CheckpointError for what JSON can't hold exactly."""
    try:
        raw = (json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        hint = "store numbers, texts, lists and dicts; None for a number that is not finite"
        raise CheckpointError(where, f"cannot be stored as JSON: {str(error).splitlines()[0]}", hint=hint) from error
    decode_json(raw, where=where)
    return raw


def decode_json(raw: bytes, *, where: str, depth: int = _DEEPEST_JSON) -> dict[str, Any]:
    """The JSON object in `raw`. The nesting is measured before the parser, which recurses, sees it.

    Raises:
        CheckpointError: not UTF-8, not JSON, nested deeper than `depth`, a key twice, or not an object.
    """
    level = 0
    for found in _BRACKETS.finditer(raw):
        level += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(found.group()[:1], 0)
        if level > depth:
            raise CheckpointError(where, "JSON nested too deeply", expected=f"at most {depth} levels")
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except ValueError as error:
        first = (str(error).splitlines() or ["?"])[0]
        raise CheckpointError(where, f"damaged or foreign JSON ({first})") from error
    if not isinstance(content, dict):
        raise CheckpointError(where, "not a JSON object", got=type(content).__name__, expected="an object")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the same key twice")
    return result


def read_small(path: StrPath) -> bytes:
    """A JSON file's bytes. Raises CheckpointError if it can't be read or is far larger than any such file."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _LARGEST_JSON:
                return file.read()
    except OSError as error:
        raise unreadable(path, error) from error
    got, expected = f"{size:,} bytes", f"at most {_LARGEST_JSON:,}"
    raise CheckpointError(os.fspath(path), "too large for a JSON file", got=got, expected=expected)


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
