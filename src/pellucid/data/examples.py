"""A file of examples: ids of many short documents behind one another, and which of them count, memory-mapped.

Between a chat template and the packer. One flat file of little-endian uint32, the highest bit of each set where the
token counts as a target, and beside it where each example begins (uint64) and a description (JSON), which is written
last. Only the places of the examples are in memory; their ids are read where a batch needs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.config import from_dict, to_dict
from ..base.errors import DataError
from ..base.files import read_json, reading, replacing, write_json

_COUNTS = np.uint32(1 << 31)  # ids stay below: `LARGEST_ID` of batches


@dataclass(frozen=True)
class ExamplesInfo:
    """What the description says: examples, tokens, how many of them count; the file's checksum."""

    examples: int
    tokens: int
    targets: int
    sha256: str


class Examples:
    """Examples by number, each `(ids, counts)`. `write` makes the files, `open` maps them."""

    def __init__(self, data: np.ndarray, begins: np.ndarray, lengths: np.ndarray, info: ExamplesInfo, path: Path):
        """lengths: tokens of each example."""
        self._data, self._begins, self.lengths, self.info, self.path = data, begins, lengths, info, path

    @staticmethod
    def write(path: Path, examples: Iterable[tuple[np.ndarray, np.ndarray]]) -> ExamplesInfo:
        """Writes examples as they come, in constant memory but for eight bytes each; what is there already is replaced
        when all of them are written. Raises DataError where there are none."""
        digest, bounds, targets = hashlib.sha256(), [0], 0
        with replacing(path) as write:
            for ids, counts in examples:
                raw = (ids.astype(np.uint32) | np.where(counts, _COUNTS, np.uint32(0))).astype("<u4").tobytes()
                digest.update(raw)
                write(raw)
                bounds.append(bounds[-1] + len(ids))
                targets += int(np.count_nonzero(counts))
            if len(bounds) == 1:
                raise DataError(str(path), "no examples", expected="at least one")
        places = np.array(bounds, "<u8").tobytes()
        digest.update(places)
        with replacing(_places(path)) as write:
            write(places)
        info = ExamplesInfo(len(bounds) - 1, bounds[-1], targets, digest.hexdigest())
        write_json(_description(path), to_dict(info))
        return info

    @classmethod
    def open(cls, path: Path) -> Examples:
        """Maps the files. Raises DataError for one that is missing or damaged: their checksum is read too."""
        info = from_dict(ExamplesInfo, read_json(_description(path), "examples"), where=str(_description(path)))
        digest = hashlib.sha256()
        for part in (path, _places(path)):
            with reading(part) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        if digest.hexdigest() != info.sha256:
            hint = "the file was damaged or replaced; restore it, or start a new run"
            got, expected = digest.hexdigest()[:12], info.sha256[:12]
            raise DataError(str(path), "not the examples that were written", got=got, expected=expected, hint=hint)
        with reading(path) as file:
            data = np.memmap(file, dtype="<u4", mode="r").view(np.ndarray)
        with reading(_places(path)) as file:
            bounds = np.frombuffer(file.read(), "<u8").astype(np.int64)
        return cls(data, bounds[:-1], np.diff(bounds), info, path)

    def subset(self, numbers: np.ndarray) -> Examples:
        """The examples of these numbers, over the same memory."""
        return Examples(self._data, self._begins[numbers], self.lengths[numbers], self.info, self.path)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        raw = self._data[self._begins[number] : self._begins[number] + self.lengths[number]]
        return (raw & ~_COUNTS).astype(np.int64), raw >= _COUNTS

    def fingerprint(self) -> str:
        """Of this part of these files."""
        digest = hashlib.sha256(self.info.sha256.encode())
        digest.update(self._begins.tobytes())
        return digest.hexdigest()


def _places(path: Path) -> Path:
    return path.with_suffix(".places")


def _description(path: Path) -> Path:
    return path.with_suffix(".json")
