"""Tensor files: named tensors on disk in the safetensors format, written straight from memory, read by mapping.

Writing takes one tensor at a time and copies none that lies contiguous on the host, so saving needs no room beside
the model. The file carries its own checksum in a metadata entry of fixed length, filled in after the last byte;
reading verifies it, so a file that was cut, flipped or spliced is refused before a number of it is used. Files of
other writers have no checksum: their structure is checked as strictly, their numbers can't be.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from ..base.dtypes import DType
from ..base.errors import CheckpointError
from ..base.files import StrPath, open_regular
from ..tape import Tensor
from .storage import replacing, unreadable
from .tensor_format import BLANK, CHECKSUM, LARGEST_HEADER, LENGTH, Entry, blanked, checksum_at, layout, parse, shown

Host = np.ndarray[Any, Any]

_BLOCK = 1 << 20  # bytes hashed and written at a time

# First bytes of what people try to load instead.
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?)"),
    (b"GGUF", "a GGUF model"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was never downloaded"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
)


def write_tensors(path: StrPath, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> str:
    """Writes named tensors to one file, atomically; returns its checksum (see `TensorFile.sha256`).

    A file of that name stays whole until the new one is on the disk. Equal tensors and metadata give equal bytes.

    Raises:
        CheckpointError: the file can't be written, or a name or metadata entry can't be stored.
    """
    plan = Plan(tensors, metadata or {}, where=os.fspath(path))
    with replacing(path, needed=plan.nbytes) as file:
        return plan.write(file)


class Plan:
    """A tensor file before it is written. Attributes: nbytes: length of the file."""

    def __init__(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, where: str) -> None:
        facts = {name: (t.dtype, t.shape) for name, t in tensors.items()}
        self._prefix, self._entries = layout(facts, metadata, where=where)
        self._tensors = tensors
        self.nbytes = len(self._prefix) + sum(e.end - e.begin for e in self._entries.values())

    def write(self, file: BinaryIO) -> str:
        """Writes the file from its start; returns the checksum. Raises OSError."""
        digest = hashlib.sha256(self._prefix)
        file.write(self._prefix)
        for name in self._entries:
            _copy(self._tensors[name], file, digest)
        at = checksum_at(self._prefix, BLANK)
        assert at is not None
        file.seek(at)
        file.write(digest.hexdigest().encode("ascii"))
        return digest.hexdigest()


def _copy(tensor: Tensor, file: BinaryIO, digest: hashlib._Hash) -> None:
    """Writes one tensor. A function of its own, so that a download is gone before the next one comes."""
    for block in _blocks(tensor.detach().numpy()):
        digest.update(block)
        file.write(block)


def _blocks(host: Host) -> Iterator[memoryview]:
    """The elements in row-major order as bytes; only what is not contiguous is copied, a block at a time."""
    if host.flags.c_contiguous:
        raw = host.reshape(-1).view(np.uint8).data
        for i in range(0, len(raw), _BLOCK):
            yield raw[i : i + _BLOCK]
        return
    step = _BLOCK // host.itemsize
    for i in range(0, host.size, step):
        yield np.ascontiguousarray(host.flat[i : i + step]).view(np.uint8).data


class TensorFile(Mapping[str, Host]):
    """The tensors of a file, mapped: `file[name]` is a read-only NumPy view, read from disk when it is used.

    Attributes:
        path: the file.
        metadata: the texts stored beside the tensors.
        sha256: checksum of the file (with the digits of the checksum itself as zeros), verified at opening; None for
            a file of a writer that stores none.
        nbytes: length of the file in bytes.
    """

    def __init__(
        self, path: str, entries: dict[str, Entry], data: Host, *, metadata: dict[str, str], nbytes: int
    ) -> None:
        self.path, self.nbytes = path, nbytes
        self.sha256 = metadata.get(CHECKSUM)
        self.metadata: Mapping[str, str] = {k: v for k, v in metadata.items() if k != CHECKSUM}
        self._entries, self._data = entries, data

    def __getitem__(self, name: str) -> Host:
        if name not in self._entries:
            raise KeyError(name)
        return self.numpy(name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> DType:
        return self._entry(name).dtype

    def numpy(self, name: str) -> Host:
        """The tensor as a read-only view of the file, which stays mapped as long as the view lives.

        Raises:
            CheckpointError: no such tensor, or a bool that is neither 0 nor 1.
        """
        entry = self._entry(name)
        raw = self._data[entry.begin : entry.end]
        if entry.dtype.kind == "bool" and raw.size and raw.max() > 1:
            raise CheckpointError(
                self.path, f"tensor {shown(name)} is damaged", got=f"bool {raw.max()}", expected="0 or 1"
            )
        return raw.view(entry.dtype.numpy).reshape(entry.shape)

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            known = ", ".join(shown(n) for n in list(self._entries)[:5]) or "no tensors"
            more = f", ... ({len(self)} in all)" if len(self) > 5 else ""
            raise CheckpointError(self.path, "no such tensor", got=shown(name), expected=f"one of {known}{more}")
        return self._entries[name]

    def __repr__(self) -> str:
        return f"TensorFile({self.path!r}, {len(self)} tensors, {self.nbytes:,} bytes)"


def read_tensors(path: StrPath, *, expected_sha256: str | None = None) -> TensorFile:
    """Maps a tensor file after checking all of it: structure, and checksum where it has one.

    expected_sha256: the checksum it must have; None takes any, and files without one.

    Raises:
        CheckpointError: missing, empty, foreign, truncated, damaged, or another file than expected.
    """
    where = os.fspath(path)
    try:
        with open_regular(path) as file:
            return _read(file, where, expected_sha256)
    except IsADirectoryError as error:
        hint = "load_checkpoint reads a folder"
        raise CheckpointError(where, "not a tensor file: it is a folder", hint=hint) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _read(file: BinaryIO, where: str, expected: str | None) -> TensorFile:
    size = os.fstat(file.fileno()).st_size
    header = _header(file, size, where)
    start = LENGTH + len(header)
    metadata, entries = parse(header, size - start, where=where)
    prefix = len(header).to_bytes(LENGTH, "little") + header
    if CHECKSUM in metadata:
        _verify(file, prefix, metadata[CHECKSUM], where)
    if expected is not None and metadata.get(CHECKSUM) != expected:
        got = f"sha256 {metadata.get(CHECKSUM, 'none')[:16]}"
        hint = "use the file that was saved with this checkpoint"
        raise CheckpointError(where, "not the file of this checkpoint", got=got, expected=expected[:16], hint=hint)
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, np.uint8)[start:]
    return TensorFile(where, entries, data, metadata=metadata, nbytes=size)


def _header(file: BinaryIO, size: int, where: str) -> bytes:
    """The header's bytes, once their length is known to be possible."""
    first = file.read(32)
    if not first:
        raise CheckpointError(where, "the file is empty", expected="a safetensors file")
    length = int.from_bytes(first[:LENGTH], "little")
    opens = first[LENGTH : LENGTH + 1]
    if opens not in (b"{", b"") or length > LARGEST_HEADER or (length < 2 and len(first) >= LENGTH):
        kind = next((text for magic, text in _FOREIGN if first.startswith(magic)), None)
        got = kind or f"first bytes {first[:10]!r}"
        raise CheckpointError(where, "not a safetensors file", got=got, expected="a header length, then a JSON header")
    if size < LENGTH + length:
        got, needed = f"{size:,} bytes", f"at least {LENGTH + length:,}"
        hint = "the copy or download was cut off; get the file again"
        raise CheckpointError(where, "the file is truncated", got=got, expected=needed, hint=hint)
    file.seek(LENGTH)
    return file.read(length)


def _verify(file: BinaryIO, prefix: bytes, expected: str, where: str) -> None:
    """Reads the whole file once and compares its checksum."""
    at = checksum_at(prefix, expected)
    found = "unreadable"
    if at is not None and len(expected) == len(BLANK):
        digest = hashlib.sha256(blanked(prefix, at))
        block = memoryview(bytearray(_BLOCK))
        file.seek(len(prefix))
        while n := file.readinto(block):  # type: ignore[attr-defined]
            digest.update(block[:n])
        found = digest.hexdigest()
    if found != expected:
        raise CheckpointError(
            where,
            "the file is damaged: its content does not match its checksum",
            got=f"sha256 {found[:16]}",
            expected=expected[:16],
            hint=f"use an intact copy; a program that edits the file must drop its metadata entry {CHECKSUM!r}",
        )
