"""Reading protocol buffers' wire format, the little of it that vocabulary files use: fields of one message, in order.

A message is a sequence of (number, wire type, value). Four wire types exist: a variable-length integer, eight bytes, a
length with so many bytes, four bytes. Source: the encoding specification of Protocol Buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..base.errors import DataError

Field = tuple[int, int | bytes]
"""Number and value of a field: an int, or the bytes of text, a message, a float or a double."""

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def fields(message: bytes, where: str) -> Iterator[Field]:
    """The fields of a message. Raises DataError where the bytes end too early or are none of a message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at, where)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise _damaged(where, "a field without number")
        if kind == _VARINT:
            value, at = _varint(message, at, where)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at, where)
        elif kind in (_DOUBLE, _FLOAT):
            size = 8 if kind == _DOUBLE else 4
        else:
            raise _damaged(where, f"a field of wire type {kind}")
        if size > len(message) - at:
            raise _damaged(where, f"a field of {size} bytes with {len(message) - at} left")
        yield number, message[at : at + size]
        at += size


def text(value: int | bytes, where: str) -> str:
    """The value of a field as a string."""
    try:
        return block(value, where).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(where, f"text that is not UTF-8 ({error.reason})") from error


def block(value: int | bytes, where: str) -> bytes:
    """The value of a field as bytes."""
    if isinstance(value, int):
        raise _damaged(where, "a number where text or a message belongs")
    return value


def integer(value: int | bytes, where: str) -> int:
    """The value of a field as an integer of 32 bits with sign."""
    if not isinstance(value, int):
        raise _damaged(where, "bytes where a number belongs")
    return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)


def single(value: int | bytes, where: str) -> float:
    """The value of a field as a float32."""
    if isinstance(value, int) or len(value) != 4:
        raise _damaged(where, "no float where one belongs")
    return struct.unpack("<f", value)[0]


def _varint(message: bytes, at: int, where: str) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _damaged(where, "it ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _damaged(where, "a number of more than ten bytes")


def _damaged(where: str, what: str) -> DataError:
    return DataError(where, f"a damaged protocol buffer: {what}")
