"""Documents out of files: plain text, JSONL, parquet and folders, compressed or not, read in constant memory.

The start of the flow: files -> documents -> ids. `documents` gives strings. A text file is one document however
large it is, so it comes in pieces: every piece but the last is a `Continued`, a `str` that says "the next string
goes on with this document". A plain `str` therefore always ends a document, and any list of strings is a valid
iterable of documents.

Text is taken as it is: carriage returns stay, nothing is normalised; only a leading byte order mark is dropped.
"""

from __future__ import annotations

import codecs
import fnmatch
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..base.errors import DataError
from ..base.files import StrPath, reason
from ..text.chat import strings_in
from .parquet import read_parquet
from .streams import inner_name, opened

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".jsonl", ".parquet")
"""What `documents` reads out of a folder, in lower case, when no pattern is given; also with .gz or .zst behind."""

_PIECE = 1 << 20  # bytes
_LONGEST_LINE = 1 << 28  # bytes; one JSONL document has to fit into memory


class Continued(str):
    """A part of a document that goes on in the next string of the iterator."""

    __slots__ = ()


class Documents(Iterator[str]):
    """The strings of `documents`, and how far the files have been read.

    bytes_total: of all files, as they lie on the disk. bytes_read: how many of them the strings so far came from; a
    little more, since files are read ahead. files: name, size, time (ns) of each file, and the field read: what the
    strings are of.
    """

    def __init__(self, files: list[Path], field: str) -> None:
        found = [file.stat() for file in files]
        self._sizes = [stat.st_size for stat in found]
        self.files = [[os.fspath(f), s.st_size, s.st_mtime_ns, field] for f, s in zip(files, found, strict=True)]
        self.bytes_total = sum(self._sizes)
        self._done = 0
        self._tell: Callable[[], int] = int
        self._texts = self._read(files, field)

    @property
    def bytes_read(self) -> int:
        return min(self._done + self._tell(), self.bytes_total)

    def __next__(self) -> str:
        return next(self._texts)

    def _read(self, files: list[Path], field: str) -> Iterator[str]:
        for file, size in zip(files, self._sizes, strict=True):
            name = inner_name(file)
            if name.endswith(".parquet"):
                for text, share in read_parquet(file, field):
                    self._tell = lambda share=share, size=size: int(share * size)
                    yield text
            else:
                with opened(file) as (stream, self._tell):
                    yield from _jsonl(stream, str(file), field) if name.endswith(".jsonl") else _text(stream, file)
                    # The stream ends with this block.
                    self._tell = int
            self._done, self._tell = self._done + size, int


def documents(path: StrPath, *, field: str = "text", pattern: str | None = None) -> Documents:
    """The documents of a file or folder, in order.

    A `.jsonl` file holds one document a line, the string in `field`; blank lines are skipped. A `.parquet` file holds
    one document a row, the string in column `field`. Any other file is one document of UTF-8 text. Files that end in
    `.gz` or `.zst` besides are unpacked on the way. A folder is read recursively in sorted order; hidden files and
    folders and empty files in it are skipped.

    Args:
        path: a file or a folder.
        field: the key of the text in JSONL lines, or the column of a parquet file.
        pattern: file names to read out of a folder ("*.tex"), instead of those that end in `TEXT_SUFFIXES`.

    Raises:
        DataError: missing, empty, unreadable or binary file, a folder without text (at the call, where it can be
            known by then); a bad JSONL line, named by file and line number (when it is reached).
    """
    root = Path(path)
    try:
        found = root.stat()
    except OSError as error:
        raise DataError(os.fspath(path), f"cannot be read: {reason(error)}") from error
    if stat.S_ISDIR(found.st_mode):
        return Documents(_text_files(root, pattern), field)
    if not stat.S_ISREG(found.st_mode):
        raise DataError(os.fspath(path), "not a regular file", hint="give a file or a folder of text")
    if found.st_size == 0:
        raise DataError(os.fspath(path), "the file is empty")
    return Documents([root], field)


def holds_several(path: StrPath) -> bool:
    """Whether a path may be of several documents: a folder, or a file with one a line or row."""
    return Path(path).is_dir() or inner_name(Path(path)).endswith((".jsonl", ".parquet"))


def _text_files(root: Path, pattern: str | None) -> list[Path]:
    def failed(error: OSError) -> None:
        raise DataError(str(error.filename or root), f"cannot be read: {reason(error)}")

    found: list[Path] = []
    for folder, inner, names in os.walk(root, onerror=failed):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if pattern is None:
                wanted = inner_name(Path(name)).endswith(TEXT_SUFFIXES)
            else:
                wanted = fnmatch.fnmatchcase(name, pattern)
            file = Path(folder, name)
            if wanted and not name.startswith(".") and file.is_file() and file.stat().st_size > 0:
                found.append(file)
    if not found:
        expected = f"names like {pattern}" if pattern else f"files that end in {', '.join(TEXT_SUFFIXES)}"
        raise DataError(str(root), "no text in this folder", expected=expected, hint="choose the files with a pattern")
    # Sorted by the parts of the path, so that the order is the same on every system.
    return sorted(found, key=lambda file: file.relative_to(root).parts)


def _text(stream: BinaryIO, path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset, held = 0, ""
    while True:
        raw = stream.read(_PIECE)
        if (nul := raw.find(b"\0")) >= 0:
            raise DataError(str(path), f"a binary file: NUL byte at offset {offset + nul}", expected="UTF-8 text")
        unfinished = len(decoder.getstate()[0])
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise DataError(
                str(path),
                f"not UTF-8 text: bad byte at offset {offset - unfinished + error.start}",
                hint="convert it first, for example with iconv -t UTF-8",
            ) from error
        offset += len(raw)
        # One piece is held back, for only the last one is a plain str.
        if text and held:
            yield Continued(held)
        held = text or held
        if not raw:
            break
    if not held:
        raise DataError(str(path), "the file is empty")
    yield held


def read_jsonl(path: StrPath, field: str) -> Iterator[str]:
    """The documents of one JSONL file, whatever its name. Raises DataError as `documents` does."""
    with opened(Path(path)) as (stream, _):
        yield from _jsonl(stream, os.fspath(path), field)


def _jsonl(stream: BinaryIO, shown: str, field: str) -> Iterator[str]:
    count = 0
    for number, line in enumerate(_lines(stream, shown), 1):
        if line.isspace():
            continue
        yield _field_of(line, field, f"{shown}:{number}")
        count += 1
    if not count:
        raise DataError(shown, "no documents: the file is empty or every line is blank")


def _lines(file: BinaryIO, shown: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise DataError(
                f"{shown}:{number}",
                "line too long for one document",
                got=f"more than {_LONGEST_LINE} bytes",
                hint="JSONL holds one document a line; write a long text as a .txt file",
            )
        yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_objects(path: StrPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of one JSONL file, each with its file and line. Raises DataError as `documents` does."""
    shown, count = os.fspath(path), 0
    with opened(Path(path)) as (stream, _):
        for number, line in enumerate(_lines(stream, shown), 1):
            if line.isspace():
                continue
            where = f"{shown}:{number}"
            value = _object_of(line, where, "{...}")
            if b"\\u" in line:
                check_whole(value, where)
            yield where, value
            count += 1
    if not count:
        raise DataError(shown, "no examples: the file is empty or every line is blank")


def check_whole(value: object, where: str) -> None:
    """Raises DataError where a text somewhere in `value` holds half a surrogate pair, which no encoding takes."""
    if any(map(_is_broken, strings_in(value))):
        raise DataError(where, "holds half a surrogate pair", hint="repair the escape in the line")


def _is_broken(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _object_of(line: bytes, where: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(line.strip().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(where, f"not UTF-8 text: bad byte {error.start} in the line") from error
    except json.JSONDecodeError as error:
        raise DataError(where, f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(where, "not JSON this reader takes: nested too deeply, or a number too long") from error
    if not isinstance(value, dict):
        raise DataError(where, "not a JSON object", got=type(value).__name__, expected=expected)
    return value


def _field_of(line: bytes, field: str, where: str) -> str:
    value = _object_of(line, where, f'{{"{field}": "..."}}')
    if field not in value:
        names = ", ".join(map(str, value)) or "no fields"
        raise DataError(where, f"no field {field!r}", got=names, hint="name the field that holds the text")
    text = value[field]
    if not isinstance(text, str):
        raise DataError(where, f"field {field!r} is not text", got=type(text).__name__, expected="a string")
    # Only an escape can bring half a surrogate pair into a line that is valid UTF-8.
    if b"\\u" in line and _is_broken(text):
        raise DataError(where, f"field {field!r} holds half a surrogate pair", hint="repair the escape in the line")
    return text
