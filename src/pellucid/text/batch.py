"""Many texts at once: as one array of UTF-8 bytes on the way in, as one array of ids on the way out.

A list of Python objects for every line of a corpus would cost more than encoding it, so a batch is two arrays each
way: everything in a row, and where each text begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np

from ..base.errors import DataError


class IdBatch(Sequence[np.ndarray]):
    """Ids of many texts: `batch[i]` are those of text i, a view of `ids`.

    ids: uint32, of all texts in a row. starts: int64 (texts + 1); text i has ids[starts[i] : starts[i + 1]].
    """

    __slots__ = ("ids", "starts")

    def __init__(self, ids: np.ndarray, starts: np.ndarray) -> None:
        self.ids, self.starts = ids, starts

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> IdBatch:
        """The batch of ids given one by one."""
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=starts[1:])
        return cls(np.concatenate([np.empty(0, np.uint32), *parts], dtype=np.uint32), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"text {index} of a batch of {len(self)}")
        return self.ids[self.starts[at] : self.starts[at + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        edges = self.starts.tolist()
        return (self.ids[begin:end] for begin, end in pairwise(edges))

    def __repr__(self) -> str:
        return f"IdBatch(texts={len(self)}, ids={len(self.ids)})"


def not_text(where: str, text: object) -> DataError:
    """The refusal of what is no string."""
    hint = "encode_bytes takes bytes" if isinstance(text, bytes) else None
    return DataError(where, "not text", got=type(text).__name__, expected="a string", hint=hint)


def utf8(text: str, where: str) -> bytes:
    """The bytes of a text. Raises DataError, in the name of `where`, for half a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            where,
            f"character {error.start} is half a surrogate pair and has no bytes",
            got=f"U+{ord(text[error.start]):04X}",
            hint="decode the source with errors='replace', or repair it",
        ) from error


def utf8_batch(texts: Sequence[str], where: str) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 of all texts in a row (uint8), and where each begins (int64, texts + 1).

    Raises DataError for half a surrogate pair and for what is no string, with the number of the text.
    """
    try:
        joined = "".join(texts)
    except TypeError:
        number = next(i for i, text in enumerate(texts) if not isinstance(text, str))
        raise not_text(f"{where}, text {number}", texts[number]) from None
    try:
        raw = joined.encode("utf-8")
    except UnicodeEncodeError:
        for number, text in enumerate(texts):
            utf8(text, f"{where}, text {number}")
        raise AssertionError("a pair that was split between two texts") from None
    data = np.frombuffer(raw, np.uint8)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    if len(raw) != len(joined):
        # Byte 10xxxxxx continues a character: every other byte begins one.
        first = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(raw))
        starts = first[starts]
    return data, starts


def character_offsets(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """From bytes to characters: (n, 2), for pieces of bytes starts to ends - 1 of one text the characters that any of
    these bytes belongs to. An empty piece has no characters: begin and end are equal."""
    before = np.zeros(len(data) + 1, np.int64)
    np.cumsum((data & 0xC0) != 0x80, out=before[1:])
    if not len(data):
        return np.zeros((len(starts), 2), np.int64)
    last = before[ends]
    # The character of byte i is the last one that begins at or before it.
    first = np.where(ends > starts, before[np.minimum(starts + 1, len(data))] - 1, last)
    return np.stack([first, last], axis=1)
