"""A GGUF file as named float32 tensors: mapped, checked whole before the first number is read, decoded one by one.

The head says where each tensor lies. A tensor outside the file, on top of another, out of step with the alignment, of a
format this library doesn't have, or whose rows are no whole blocks is refused when the file is opened, and no memory is
taken for any of it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from ...base.errors import CheckpointError, DataError
from ...base.files import StrPath, open_regular
from ...base.gguf import ALIGNMENT, DEFAULT_ALIGNMENT, Head, TensorPlace, read_head
from ..storage import unreadable
from ..tensor_format import shown
from .gguf_blocks import BY_NAME, FORMATS, UNKNOWN, BlockFormat, decoded

Host = np.ndarray[Any, Any]

_SPLIT = "split.count"


class GGUFFile(Mapping[str, Host]):
    """`file[name]` is the tensor in float32: a read-only view of the file for F32, else decoded now.

    Attributes:
        path: the file.
        metadata: its keys and values, see `base.gguf.read_metadata`.
        nbytes: length of the file in bytes.
    """

    def __init__(self, path: str, head: Head, data: Host) -> None:
        self.path, self.metadata, self.nbytes = path, head.metadata, head.data_start + len(data)
        self._data = data
        self._places = {place.name: place for place in head.tensors}

    def __getitem__(self, name: str) -> Host:
        return decoded(self.format(name), self.raw(name), self._places[name].shape)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, slowest axis first."""
        return self._places[name].shape

    def format(self, name: str) -> BlockFormat:
        """The format it is stored in."""
        return FORMATS[self._places[name].kind]

    def raw(self, name: str) -> Host:
        """Its bytes, as they lie in the file."""
        place = self._places[name]
        return self._data[place.offset : place.offset + self.format(name).nbytes(prod(place.shape))]

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}, {len(self)} tensors, {self.nbytes:,} bytes)"


def read_gguf(path: StrPath) -> GGUFFile:
    """Maps a GGUF file after checking its head and where its tensors lie.

    Raises:
        CheckpointError: missing, foreign, truncated, damaged, one part of several, or with a tensor in a format this
            library doesn't read.
    """
    where = os.fspath(path)
    try:
        with open_regular(path) as file:
            try:
                head = read_head(file, where)
            except DataError as error:
                raise CheckpointError(
                    error.where, error.what, got=error.got, expected=error.expected, hint=error.hint
                ) from error
            size = os.fstat(file.fileno()).st_size
            if head.metadata.get(_SPLIT, 1) not in (0, 1):
                hint = "join the parts with llama.cpp's llama-gguf-split --merge"
                got, expected = f"{head.metadata[_SPLIT]} parts", "one file"
                raise CheckpointError(
                    where, "one part of a model in several files", got=got, expected=expected, hint=hint
                )
            _check(head, max(0, size - head.data_start), where)
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise unreadable(path, error) from error
    return GGUFFile(where, head, np.frombuffer(mapped, np.uint8)[head.data_start :])


def _check(head: Head, room: int, where: str) -> None:
    """Refuses tensors that can't be read where the head says they are. room: bytes of the data."""
    alignment = head.metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    end, before = 0, ""
    for place in sorted(head.tensors, key=lambda t: t.offset):
        nbytes = _nbytes(place, where)
        name = shown(place.name)
        if place.offset % alignment:
            what = f"damaged GGUF file: tensor {name} is not aligned"
            raise CheckpointError(where, what, got=f"byte {place.offset}", expected=f"a multiple of {alignment}")
        if place.offset < end:
            what = f"damaged GGUF file: tensor {name} lies on tensor {before}"
            raise CheckpointError(where, what, got=f"byte {place.offset}", expected=f"{end} or later")
        end, before = place.offset + nbytes, name
        if end > room:
            got, expected = f"{room:,} bytes of tensors", f"at least {end:,}"
            hint = "the copy or download was cut off; get the file again"
            raise CheckpointError(where, f"truncated in tensor {name}", got=got, expected=expected, hint=hint)


def _nbytes(place: TensorPlace, where: str) -> int:
    form = FORMATS.get(place.kind)
    if form is None:
        got = UNKNOWN.get(place.kind, f"type {place.kind}")
        what = f"tensor {shown(place.name)} is in a format this library doesn't read"
        hint = "convert the model to one of them, for example with llama.cpp's llama-quantize"
        raise CheckpointError(where, what, got=got, expected=", ".join(BY_NAME), hint=hint)
    if place.shape[-1] % form.size:
        what = f"damaged GGUF file: the rows of tensor {shown(place.name)} are not whole blocks"
        got, expected = f"{place.shape[-1]} elements", f"a multiple of {form.size} in {form.name}"
        raise CheckpointError(where, what, got=got, expected=expected)
    return form.nbytes(prod(place.shape))
