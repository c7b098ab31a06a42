"""The metadata of a GGUF file (llama.cpp's format for models): its keys and values, without the tensors behind them.

A GGUF file begins with a magic word, a version, the numbers of tensors and of keys, and then the keys, each with the
type of its value. Every length is checked against what is left of the file before anything of it is read, so a
damaged or hostile file costs no more than its own size.

Source: the specification in ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO

import numpy as np

from .errors import DataError
from .files import StrPath, reading

MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_MOST_KEYS = 1 << 16
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


def read_metadata(path: StrPath) -> dict[str, Any]:
    """Keys and values: bool, int, float, str, lists of strings, and NumPy arrays of numbers.

    Raises DataError for a file that is none, is cut, or whose lengths go beyond its end.
    """
    with reading(path) as file:
        return _Reader(file, os.fspath(path)).metadata()


class _Reader:
    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        self._left = os.fstat(file.fileno()).st_size

    def metadata(self) -> dict[str, Any]:
        if self._left < 24 or self._take(4) != MAGIC:
            raise DataError(self._where, "not a GGUF file")
        version, _, keys = struct.unpack("<IQQ", self._take(20))
        if version not in _VERSIONS:
            raise DataError(self._where, "a version of GGUF this library does not read", got=version, expected="2 or 3")
        if keys > _MOST_KEYS:
            raise self._damaged("too many keys", got=keys, expected=f"at most {_MOST_KEYS}")
        found: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            if key in found:
                raise self._damaged("the same key twice", got=repr(key))
            found[key] = self._value(self._number("<I"))
        return found

    def _damaged(self, what: str, *, got: object = None, expected: object = None) -> DataError:
        return DataError(self._where, f"a damaged GGUF file: {what}", got=got, expected=expected)

    def _take(self, n: int) -> bytes:
        if n > self._left:
            raise self._damaged("it ends too early", got=f"{n} bytes", expected=f"at most {self._left}")
        self._left -= n
        raw = self._file.read(n)
        if len(raw) != n:
            raise DataError(self._where, "the file became shorter while it was read")
        return raw

    def _number(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _string(self) -> str:
        try:
            return self._take(self._number("<Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged("text that is not UTF-8") from error

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, n = struct.unpack("<IQ", self._take(12))
            if inner == _STRING:
                # A string takes eight bytes at least.
                if 8 * n > self._left:
                    raise self._damaged("it ends too early", got=f"{n} strings", expected=f"at most {self._left // 8}")
                return [self._string() for _ in range(n)]
            return self._array(inner, n)
        return self._array(kind, 1).tolist()[0]

    def _array(self, kind: int, n: int) -> np.ndarray:
        if kind == _BOOL:
            return np.frombuffer(self._take(n), np.uint8) != 0
        if kind not in _NUMBERS:
            raise self._damaged("an unknown type of value", got=kind)
        layout = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(n * layout.itemsize), layout)
