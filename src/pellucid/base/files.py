"""Files written whole or not at all, and JSON read strictly: what every file of this library goes through.

`replacing` gives a temporary file beside the target; it takes the target's name only after every byte has reached
the disk, so that neither a kill nor a full disk can leave half a file under the final name. `read_json` accepts one
object whose type and keys are known and refuses everything else with the name of the file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from .errors import DataError
from .locks import try_lock

StrPath = str | os.PathLike[str]

# A vocabulary of a million entries takes 30 MB; a file far above that is something else.
_LARGEST_JSON = 1 << 28


def reason(error: OSError) -> str:
    """What the system says about an error, in the middle of a sentence."""
    return (error.strerror or type(error).__name__).lower()


def open_regular(path: StrPath) -> BinaryIO:
    """A file open for reading. Raises OSError also for a pipe or a device, which might never end or even begin."""
    # The handle is the file's own from the start: whoever closed it here after an interrupt might come second.
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - it is what is returned
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return file
    except BaseException:
        file.close()
        raise


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def reading(path: StrPath) -> Iterator[BinaryIO]:
    """A regular file open for reading; any OSError on the way is a DataError that names the file."""
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise DataError(os.fspath(path), f"cannot be read: {reason(error)}") from error


@contextmanager
def replacing(path: StrPath, *, sweep: bool = False) -> Iterator[Callable[[bytes | memoryview], object]]:
    """Gives a `write(bytes)`; the file at `path` is replaced when the block ends, and untouched if the block raises.

    Only a kill leaves the temporary file behind. `sweep` removes those of earlier writers of this file that are no
    longer alive: worth it where such a file may be large.

    Raises:
        DataError: the file can't be created, written or renamed.
    """
    shown, target = os.fspath(path), os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")

    def failed(error: OSError) -> DataError:
        return DataError(shown, f"cannot be written: {reason(error)}")

    def write(data: bytes | memoryview) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise failed(error) from error

    try:
        file = open(temporary, "xb", buffering=1 << 20)  # noqa: SIM115 - closed below, before the rename
    except OSError as error:
        raise failed(error) from error
    try:
        if sweep:
            with suppress(OSError):  # no locks here: nothing can be told from a live writer's, so nothing is swept
                try_lock(file.fileno())
                _sweep(folder, re.compile(rf"\.{re.escape(name)}\.\d+\.[0-9a-f]{{8}}\.tmp"))
        yield write
        try:
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, target)
        except OSError as error:
            raise failed(error) from error
    except BaseException:
        with suppress(OSError):  # closing flushes, and on a full disk that fails once more
            file.close()
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def _sweep(folder: str, names: re.Pattern[str]) -> None:
    """Removes files whose writers no longer hold their locks. Raises OSError where there are no locks."""
    for entry in os.scandir(folder):
        if names.fullmatch(entry.name):
            handle = os.open(entry.path, os.O_RDONLY)
            try:
                if try_lock(handle):
                    os.unlink(entry.path)
            finally:
                os.close(handle)


def sync_folder(folder: StrPath) -> None:
    """Makes names in `folder` last through a power cut, where the system lets a folder be opened at all."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: StrPath, content: dict[str, Any]) -> None:
    """Writes one JSON object as readable UTF-8, atomically."""
    with replacing(path) as write:
        write((json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))


def canonical_json(content: dict[str, Any]) -> bytes:
    """The one spelling of a JSON object: sorted keys, no spaces, ASCII. Equal contents give equal bytes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def read_json(path: StrPath, what: str) -> dict[str, Any]:
    """The JSON object in a file. `what` names the kind of file expected, for the messages.

    Raises:
        DataError: unreadable, not UTF-8, not JSON, nested too deeply, a key twice, or not an object.
    """
    shown = os.fspath(path)
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST_JSON:
            raise DataError(shown, f"too large for {what}", got=f"{size} bytes", expected=f"at most {_LARGEST_JSON}")
        raw = file.read()
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        # Decoding, syntax, a doubled key, or brackets nested beyond the parser's stack.
        raise DataError(shown, f"not {what}: damaged or foreign JSON ({_first_line(error)})") from error
    if not isinstance(content, dict):
        raise DataError(shown, f"not {what}", got=f"JSON {type(content).__name__}", expected="a JSON object")
    return content


def check_keys(
    content: dict[str, Any],
    types: dict[str, tuple[type, ...]],
    *,
    where: str,
    optional: frozenset[str] = frozenset(),
) -> None:
    """Refuses a missing key, an unknown key and a value of another type. `bool` is not taken for an int."""
    if unknown := sorted(set(content) - set(types)):
        raise DataError(where, "unknown keys", got=", ".join(unknown), expected=f"only {', '.join(sorted(types))}")
    if missing := sorted(set(types) - set(content) - optional):
        raise DataError(where, "missing keys", got=f"no {', '.join(missing)}", expected=", ".join(sorted(types)))
    for key, value in content.items():
        kinds = types[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise DataError(where, f"wrong type of {key!r}", got=type(value).__name__, expected=names)


def check_header(content: dict[str, Any], kinds: tuple[str, ...], version: int, *, where: str, what: str) -> str:
    """The value of `type`, if it and `version` are known here.

    Raises:
        DataError: a foreign file, an unknown type, or a version this code doesn't read.
    """
    kind = content.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        got = "no 'type'" if "type" not in content else f"type {kind!r}"
        raise DataError(where, f"not {what}", got=got, expected=f"type {' or '.join(map(repr, kinds))}")
    found = content.get("version")
    if found != version or isinstance(found, bool):
        raise DataError(where, "a version this library does not read", got=repr(found), expected=version)
    return kind


def check_target(path: StrPath) -> None:
    """Refuses early, before long work, a target whose folder doesn't exist or that is itself a folder."""
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise DataError(os.fspath(path), "cannot be written: is a folder", hint="give the name of a file")
    if not os.path.isdir(os.path.dirname(target)):
        raise DataError(os.fspath(path), "cannot be written: its folder does not exist", hint="create the folder first")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the same key twice")
    return result


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
