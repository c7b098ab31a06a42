"""Bytes out of files, compressed or not, and how far each file has been read.

Below the sources of documents: `opened` gives a buffered stream of plain bytes for `x`, `x.gz` and `x.zst`, in constant
memory whatever a file unpacks to. Damage and a cut end are errors that name the file, not shorter text.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..base.errors import DataError
from ..base.files import reading
from .optional import optional

COMPRESSED = (".gz", ".zst")
_PACKED = 1 << 13  # bytes handed to zstd at a time: what they unpack to is held at once
_WINDOW = 1 << 27  # bytes a zstd stream may look back
_BUFFER = 1 << 16  # bytes


def inner_name(path: Path) -> str:
    """The file's name in lower case, without the ending that says how it is compressed."""
    name = path.name.lower()
    return name.rpartition(".")[0] if name.endswith(COMPRESSED) else name


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """A stream of a file's bytes, unpacked, and a function that says how many bytes of the file itself were read.

    Raises:
        DataError: a file that can't be read or unpacked, also while reading.
    """
    ending = path.suffix.lower()
    with reading(path) as file:
        if ending == ".gz":
            yield io.BufferedReader(_Unpacked(str(path), "gzip", _gzip(file)), _BUFFER), file.tell
        elif ending == ".zst":
            zstandard = optional("zstandard", package="zstandard", path=str(path))
            unpacked = _Unpacked(str(path), "zstd", _zstd(file, zstandard), zstandard.ZstdError)
            yield io.BufferedReader(unpacked, _BUFFER), file.tell
        else:
            yield file, file.tell


class _Unpacked(io.RawIOBase):
    """Chunks of bytes as a stream; what goes wrong with them is a DataError."""

    def __init__(self, path: str, kind: str, chunks: Iterator[bytes], *faults: type[Exception]) -> None:
        self._path, self._kind, self._chunks = path, kind, chunks
        self._faults = (EOFError, zlib.error, gzip.BadGzipFile, *faults)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            try:
                chunk = next(self._chunks, None)
            except self._faults as error:
                raise DataError(self._path, f"damaged {self._kind} data: {error}") from error
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        while chunk := unpacked.read(_BUFFER):
            yield chunk


def _zstd(file: BinaryIO, zstandard: Any) -> Iterator[bytes]:
    """Frames one after the other. The library's own reader takes a cut frame for the end of the file."""
    frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    frame = None
    while packed := file.read(_PACKED):
        while packed:
            frame = frame or frames.decompressobj()
            yield frame.decompress(packed)
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends in the middle of a frame")
