"""The head of a GGUF file (llama.cpp's format for models): its keys and values, and the list of its tensors.

A GGUF file begins with a magic word, a version, the numbers of tensors and of keys; then come the keys, each with the
type of its value, then name, sizes, type and place of each tensor, then, aligned, the tensors themselves. Every length
is checked against what is left of the file before anything of it is read, so a damaged or hostile file costs no more
than its own size. What the bytes of a tensor mean is not known here (`checkpoint/published/gguf_blocks.py`).

Source: the specification in ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from .errors import DataError
from .files import StrPath, reading

MAGIC = b"GGUF"
ALIGNMENT = "general.alignment"
#: Bytes that the place of a tensor is a multiple of, where the file says nothing else.
DEFAULT_ALIGNMENT = 32

_VERSIONS = (2, 3)
_MOST_KEYS = 1 << 16
_MOST_AXES = 4
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
# What the shortest tensor takes in the list: a name without letters, one axis, type and place.
_SHORTEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class TensorPlace:
    """One row of the list of tensors. shape: slowest axis first, so the reverse of the file's; kind: number of ggml's
    type; offset: bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Head:
    """Keys and values, the tensors in file order, and where the data begins, in bytes from the start of the file."""

    metadata: dict[str, Any]
    tensors: tuple[TensorPlace, ...]
    data_start: int


def read_metadata(path: StrPath) -> dict[str, Any]:
    """Keys and values: bool, int, float, str, lists of strings, and NumPy arrays of numbers.

    Raises DataError for a file that is none, is cut, or whose lengths go beyond its end.
    """
    with reading(path) as file:
        return _Reader(file, os.fspath(path)).metadata()


def read_head(file: BinaryIO, where: str) -> Head:
    """All of the head of an open file. Where the tensors lie is taken as written; see `GGUFFile` for the check.

    Raises DataError as `read_metadata`, and for a list of tensors that is impossible.
    """
    reader = _Reader(file, where)
    metadata = reader.metadata()
    tensors = reader.tensors()
    alignment = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise DataError(where, f"a damaged GGUF file: {ALIGNMENT}", got=alignment, expected="a power of two")
    start = -(-reader.position // alignment) * alignment
    return Head(metadata, tensors, start)


class _Reader:
    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        self._size = self._left = os.fstat(file.fileno()).st_size
        self._tensors = 0

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._size - self._left

    def metadata(self) -> dict[str, Any]:
        if self._left < 24 or self._take(4) != MAGIC:
            raise DataError(self._where, "not a GGUF file")
        version, self._tensors, keys = struct.unpack("<IQQ", self._take(20))
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

    def tensors(self) -> tuple[TensorPlace, ...]:
        """The list of tensors, which begins where the keys end."""
        if _SHORTEST_TENSOR * self._tensors > self._left:
            expected = f"at most {self._left // _SHORTEST_TENSOR}"
            raise self._damaged("it ends too early", got=f"{self._tensors} tensors", expected=expected)
        found: dict[str, TensorPlace] = {}
        for _ in range(self._tensors):
            name = self._string()
            if name in found:
                raise self._damaged("the same tensor twice", got=repr(name))
            axes = self._number("<I")
            if not 1 <= axes <= _MOST_AXES:
                expected = f"1 to {_MOST_AXES}"
                raise self._damaged(f"tensor {name!r} of a wrong number of axes", got=axes, expected=expected)
            shape = struct.unpack(f"<{axes}Q", self._take(8 * axes))[::-1]
            kind, offset = struct.unpack("<IQ", self._take(12))
            if 0 in shape:
                raise self._damaged(f"tensor {name!r} without elements", got=shape)
            found[name] = TensorPlace(name, shape, kind, offset)
        return tuple(found.values())

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

    def _strings(self, n: int) -> list[str]:
        """What `_string` does, n times, written out: a vocabulary has a hundred thousand."""
        read, left, found = self._file.read, self._left, []
        try:
            for _ in range(n):
                length = int.from_bytes(read(8), "little")
                left -= 8 + length
                if left < 0:
                    raise self._damaged("it ends too early", got=f"{length} bytes", expected="less than are left")
                raw = read(length)
                if len(raw) != length:
                    raise DataError(self._where, "the file became shorter while it was read")
                found.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._damaged("text that is not UTF-8") from error
        self._left = left
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, n = struct.unpack("<IQ", self._take(12))
            if inner == _STRING:
                # A string takes eight bytes at least.
                if 8 * n > self._left:
                    raise self._damaged("it ends too early", got=f"{n} strings", expected=f"at most {self._left // 8}")
                return self._strings(n)
            return self._array(inner, n)
        return self._array(kind, 1).tolist()[0]

    def _array(self, kind: int, n: int) -> np.ndarray:
        if kind == _BOOL:
            return np.frombuffer(self._take(n), np.uint8) != 0
        if kind not in _NUMBERS:
            raise self._damaged("an unknown type of value", got=kind)
        layout = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(n * layout.itemsize), layout)
