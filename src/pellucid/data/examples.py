"""A file of examples: ids of many short documents behind one another, and which of them count, memory-mapped.

Between a chat template and the packer. One flat file of little-endian uint32, the highest bit of each set where the
token counts as a target, and beside it where each example begins (uint64) and a description (JSON), which is written
last. Both are mapped and neither is loaded: of a part of the examples only their numbers are in memory.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.config import from_dict, to_dict
from ..base.errors import DataError
from ..base.files import read_json, reading, replacing, write_json

_COUNTS = np.uint32(1 << 31)  # ids stay below: `LARGEST_ID` of batches
_END = struct.Struct("<Q")
BLOCK = 1024
"""Examples that are looked through at a time."""


@dataclass(frozen=True)
class ExamplesInfo:
    """What the description says: examples, tokens, how many of them count; the file's checksum."""

    examples: int
    tokens: int
    targets: int
    sha256: str


class Examples:
    """Examples by number, each `(ids, counts)`. `write` makes the files, `open` maps them."""

    def __init__(
        self, data: np.ndarray, places: np.ndarray, info: ExamplesInfo, path: Path, numbers: np.ndarray | None = None
    ):
        """places: (examples + 1,), where each begins and the last one ends. numbers: uint32, which of them these are
        (None: all)."""
        self._data, self._places, self._numbers, self.info, self.path = data, places, numbers, info, path

    @staticmethod
    def write(path: Path, examples: Iterable[tuple[np.ndarray, np.ndarray]]) -> ExamplesInfo:
        """Writes examples as they come, in constant memory; what is there already is replaced when all of them are
        written. Raises DataError where there are none."""
        digest, count, tokens, targets = hashlib.sha256(), 0, 0, 0
        with replacing(_places(path)) as place:
            place(_END.pack(0))
            with replacing(path) as write:
                for ids, counts in examples:
                    raw = (ids.astype(np.uint32) | np.where(counts, _COUNTS, np.uint32(0))).astype("<u4").tobytes()
                    digest.update(raw)
                    write(raw)
                    count, tokens, targets = count + 1, tokens + len(ids), targets + int(np.count_nonzero(counts))
                    place(_END.pack(tokens))
                if not count:
                    raise DataError(str(path), "no examples", expected="at least one")
        _read_into(digest, _places(path))
        info = ExamplesInfo(count, tokens, targets, digest.hexdigest())
        write_json(_description(path), to_dict(info))
        return info

    @classmethod
    def open(cls, path: Path) -> Examples:
        """Maps the files. Raises DataError for one that is missing or damaged: their checksum is read too."""
        info = from_dict(ExamplesInfo, read_json(_description(path), "examples"), where=str(_description(path)))
        digest = hashlib.sha256()
        for part in (path, _places(path)):
            _read_into(digest, part)
        if digest.hexdigest() != info.sha256:
            hint = "the file was damaged or replaced; restore it, or start a new run"
            got, expected = digest.hexdigest()[:12], info.sha256[:12]
            raise DataError(str(path), "not the examples that were written", got=got, expected=expected, hint=hint)
        return cls(_mapped(path, "<u4"), _mapped(_places(path), "<u8"), info, path)

    def subset(self, numbers: np.ndarray) -> Examples:
        """The examples of these numbers, over the same files: four bytes each."""
        kept = numbers if self._numbers is None else self._numbers[numbers]
        return Examples(self._data, self._places, self.info, self.path, kept.astype(np.uint32, copy=False))

    def lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Tokens of each of these examples, int64."""
        at = numbers if self._numbers is None else self._numbers[numbers].astype(np.int64)
        return (self._places[at + 1] - self._places[at]).astype(np.int64)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """All of them in order, up to `BLOCK` at a time: ids, counts, and the length of each."""
        for first in range(0, len(self), BLOCK):
            numbers = range(first, min(first + BLOCK, len(self)))
            ids, counts = (np.concatenate(part) for part in zip(*(self[i] for i in numbers), strict=True))
            yield ids, counts, self.lengths(np.array(numbers))

    def __len__(self) -> int:
        return len(self._places) - 1 if self._numbers is None else len(self._numbers)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        at = number if self._numbers is None else int(self._numbers[number])
        raw = self._data[int(self._places[at]) : int(self._places[at + 1])]
        return (raw & ~_COUNTS).astype(np.int64), raw >= _COUNTS

    def fingerprint(self) -> str:
        """Of this part of these files."""
        digest = hashlib.sha256(self.info.sha256.encode())
        if self._numbers is not None:
            digest.update(np.ascontiguousarray(self._numbers, "<u4").data)
        return digest.hexdigest()


def _read_into(digest: hashlib._Hash, path: Path) -> None:
    with reading(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)


def _mapped(path: Path, dtype: str) -> np.ndarray:
    with reading(path) as file:
        return np.memmap(file, dtype=dtype, mode="r").view(np.ndarray)


def _places(path: Path) -> Path:
    return path.with_suffix(".places")


def _description(path: Path) -> Path:
    return path.with_suffix(".json")
