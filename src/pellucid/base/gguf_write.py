"""The head of a GGUF file, to bytes: keys and values, then the list of tensors; the reverse of `gguf.py`.

Numbers take the types llama.cpp expects of its own keys: whole ones are uint32, real ones float32. An array has the
type of its elements.

Source: the specification in ggml's docs/gguf.md, version 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .gguf import DEFAULT_ALIGNMENT, MAGIC, TensorPlace

_VERSION = 3
_TYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def head_bytes(metadata: Mapping[str, Any], tensors: Iterable[TensorPlace]) -> bytes:
    """Everything before the data, padded to where that begins.

    metadata: bool, int (below 2**32, not negative), float, str, list of str, or a NumPy array of numbers.
    """
    tensors = list(tensors)
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    for t in tensors:
        axes = struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape[::-1])
        parts += [_text(t.name), axes, struct.pack("<IQ", t.kind, t.offset)]
    found = b"".join(parts)
    return found + bytes(aligned(len(found)) - len(found))


def aligned(n: int) -> int:
    """The next place from byte n on where a tensor can begin."""
    return -(-n // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    assert isinstance(value, np.ndarray), type(value)
    little = value.astype(value.dtype.newbyteorder("<"))
    return struct.pack("<IIQ", _ARRAY, _TYPES[little.dtype.str[1:]], value.size) + little.tobytes()
