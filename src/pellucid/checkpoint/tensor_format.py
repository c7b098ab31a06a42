"""The safetensors layout: eight bytes with the length of a JSON header, the header, then the elements of every tensor.

Nothing here touches a file or a device: `layout` says where each tensor goes and gives the header, `parse` checks a
header and gives it back. The order is the one the format's own library writes, widest elements first and then by
name, so every tensor is aligned to its elements and equal tensors give equal bytes.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import CheckpointError
from .storage import decode_json

CHECKSUM = "pellucid.sha256"
"""Metadata entry: SHA-256 (hex) of the whole file, read with these 64 digits as zeros."""

LARGEST_HEADER = 100_000_000  # bytes, the limit of the format
BLANK = "0" * 64
"""The digits of a checksum before it is known."""

LENGTH = 8  # bytes before the header
_METADATA = "__metadata__"
_LARGEST = 2**63  # sizes and offsets stay below
_MOST_AXES = 64  # of a NumPy array
_DEEPEST = 3  # levels: header, tensor, shape

# Widest first: the order of tensors in a file.
_NAMES: dict[DType, str] = {
    dtypes.int64: "I64",
    dtypes.float64: "F64",
    dtypes.float32: "F32",
    dtypes.int32: "I32",
    dtypes.bfloat16: "BF16",
    dtypes.float16: "F16",
    dtypes.int16: "I16",
    dtypes.int8: "I8",
    dtypes.uint8: "U8",
    dtypes.bool_: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_RANK = {dtype: i for i, dtype in enumerate(_NAMES)}


@dataclass(frozen=True)
class Entry:
    """One tensor: its bytes are `begin` to `end` of the data, which starts behind the header."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def layout(
    tensors: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str], *, where: str
) -> tuple[bytes, dict[str, Entry]]:
    """(prefix, entries): the bytes before the data, a multiple of 8 with the checksum still blank, and every tensor's
    place, in file order. Raises CheckpointError for names or metadata the format can't hold."""
    _check_texts(tensors, metadata, where)
    if CHECKSUM in metadata:
        raise CheckpointError(where, "a metadata entry has a name that is reserved", got=repr(CHECKSUM))
    entries: dict[str, Entry] = {}
    at = 0
    for name in sorted(tensors, key=lambda n: (_RANK[tensors[n][0]], n)):
        dtype, shape = tensors[name]
        end = at + prod(shape) * dtype.itemsize
        entries[name] = Entry(dtype, shape, at, end)
        at = end
    content: dict[str, Any] = {_METADATA: dict(sorted({**metadata, CHECKSUM: BLANK}.items()))}
    for name, e in entries.items():
        content[name] = {"dtype": _NAMES[e.dtype], "shape": list(e.shape), "data_offsets": [e.begin, e.end]}
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    header += b" " * (-len(header) % 8)
    if len(header) > LARGEST_HEADER:
        got, expected = f"{len(header):,} bytes", f"at most {LARGEST_HEADER:,}"
        raise CheckpointError(
            where, "too many tensors for one file: the header is too long", got=got, expected=expected
        )
    return len(header).to_bytes(LENGTH, "little") + header, entries


def checksum_at(prefix: bytes, digest: str) -> int | None:
    """Where the digits of the checksum lie in the bytes before the data; None if not exactly once in our spelling."""
    spelled = f'"{CHECKSUM}":"{digest}"'.encode()
    if prefix.count(spelled) != 1:
        return None
    return prefix.index(spelled) + len(spelled) - 1 - len(BLANK)


def blanked(prefix: bytes, at: int) -> bytes:
    """The bytes before the data as they enter the checksum."""
    return prefix[:at] + BLANK.encode() + prefix[at + len(BLANK) :]


def parse(header: bytes, nbytes: int, *, where: str) -> tuple[dict[str, str], dict[str, Entry]]:
    """(metadata, entries in file order) of a header whose data has `nbytes` bytes.

    Raises:
        CheckpointError: not such a header, or entries that don't fill the data exactly, each byte once.
    """
    content = decode_json(header, where=where, depth=_DEEPEST)
    metadata = content.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(where, f"damaged header: {_METADATA} does not hold texts only")
    entries = {name: _entry(name, value, where) for name, value in content.items()}
    _check_texts(entries, metadata, where)
    _check_filled(entries, len(header), nbytes, where)
    return metadata, dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))


def shown(name: str, limit: int = 80) -> str:
    """A name for a message: quoted, and cut if it is long."""
    return repr(name if len(name) <= limit else name[: limit - 3] + "...")


def _check_texts(names: Mapping[str, Any], metadata: Mapping[str, str], where: str) -> None:
    for text in [*names, *metadata, *metadata.values()]:
        if not isinstance(text, str) or not text.isascii():
            try:
                text.encode("utf-8")
            except (UnicodeEncodeError, AttributeError):
                raise CheckpointError(where, "a name or metadata entry is no text", got=ascii(text)[:80]) from None
    if _METADATA in names:
        raise CheckpointError(where, "a tensor has a name the format reserves", got=repr(_METADATA))


def _entry(name: str, value: Any, where: str) -> Entry:
    """One entry, each field of the right type and within its bounds."""
    what = f"damaged header: tensor {shown(name)}"
    keys = {"dtype", "shape", "data_offsets"}
    if not isinstance(value, dict) or set(value) != keys:
        raise CheckpointError(where, f"{what} does not have just the keys {', '.join(sorted(keys))}")
    dtype = _DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        got, expected = shown(str(value["dtype"])), f"one of {', '.join(_DTYPES)}"
        raise CheckpointError(where, f"tensor {shown(name)} has an unknown element type", got=got, expected=expected)
    shape, offsets = value["shape"], value["data_offsets"]
    if not _are_sizes(shape) or len(shape) > _MOST_AXES:
        expected = f"at most {_MOST_AXES} sizes from 0 to 2**63 - 1"
        raise CheckpointError(where, f"{what} has an impossible shape", got=_short(shape), expected=expected)
    # Sizes of 0 don't excuse the others: strides are computed from all of them.
    if prod(n for n in shape if n) * dtype.itemsize >= _LARGEST:
        raise CheckpointError(where, f"{what} is impossibly large", got=_short(shape), expected="under 2**63 bytes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(where, f"{what} has impossible offsets", got=_short(offsets), expected="[begin, end]")
    begin, end = offsets
    size = prod(shape) * dtype.itemsize
    if end - begin != size:
        got, expected = f"{end - begin:,} bytes", f"{size:,} for {_short(shape)} {dtype.name}"
        raise CheckpointError(where, f"{what} has offsets that do not fit its shape", got=got, expected=expected)
    return Entry(dtype, tuple(shape), begin, end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < _LARGEST for n in value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_filled(entries: dict[str, Entry], header: int, nbytes: int, where: str) -> None:
    at, before = 0, ""
    total = max((e.end for e in entries.values()), default=0)
    start = LENGTH + header
    if total > nbytes:
        got, expected = f"{start + nbytes:,} bytes", f"{start + total:,}"
        hint = "the copy or download was cut off; get the file again"
        raise CheckpointError(where, "the file is truncated", got=got, expected=expected, hint=hint)
    for name, e in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if e.begin != at:
            fault = "overlap" if e.begin < at else "leave a gap"
            what = f"damaged header: tensors {shown(before)} and {shown(name)} {fault}"
            if not before:
                what = f"damaged header: there is a gap before tensor {shown(name)}"
            raise CheckpointError(where, what, got=f"offset {e.begin:,}", expected=f"{at:,}")
        at, before = e.end, name
    if at != nbytes:
        got, expected = f"{start + nbytes:,} bytes", f"{start + at:,}"
        raise CheckpointError(where, "bytes after the last tensor", got=got, expected=expected)
