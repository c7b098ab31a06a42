"""The tensors of a Hugging Face folder as one mapping: one safetensors file, or several with an index of names.

All headers are read and compared with the index before a tensor is asked for: a shard that is missing, cut, or of
another download is refused then. The files are mapped, so a tensor is read from the disk when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base.dtypes import DType
from ...base.errors import CheckpointError
from ..storage import decode_json, read_small
from ..tensor_file import TensorFile, read_tensors
from ..tensor_format import shown

Host = np.ndarray[Any, Any]

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MOST_SHARDS = 10_000
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_AGAIN = "get the files again, all of one download"


class Shards:
    """Tensors by the names they have in the files.

    path: the folder. files: the names of the files, in order.
    """

    def __init__(self, path: str, files: dict[str, TensorFile]) -> None:
        self.path, self.files = path, tuple(files)
        self._home = {name: file for file in files.values() for name in file}

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def __getitem__(self, name: str) -> Host:
        return self._home[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home[name].shape(name)

    def dtype(self, name: str) -> DType:
        return self._home[name].dtype(name)

    def file_of(self, name: str) -> str:
        """The file that holds a tensor, for messages."""
        return self._home[name].path


def read_shards(folder: Path) -> Shards:
    """The tensors of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` lists.

    Raises:
        CheckpointError: no such files, both kinds, a shard that is missing, damaged, or does not hold just what the
            index says.
    """
    where = os.fspath(folder)
    one, several = (folder / MODEL).is_file(), (folder / INDEX).is_file()
    if one and several:
        hint = "move away the one that belongs to another download"
        raise CheckpointError(where, f"holds both {MODEL} and {INDEX}", hint=hint)
    if one:
        return Shards(where, {MODEL: read_tensors(folder / MODEL)})
    if not several:
        hint = None
        if any((folder / name).exists() for name in _PICKLES):
            hint = "pytorch_model.bin holds code of others; convert it to safetensors where you trust it"
        raise CheckpointError(where, "no weights", expected=f"{MODEL}, or shards with {INDEX}", hint=hint)
    index = _index(folder / INDEX)
    files: dict[str, TensorFile] = {}
    for name in dict.fromkeys(index.values()):
        if not (folder / name).exists():
            got = f"{len(set(index.values()))} files listed in {INDEX}"
            raise CheckpointError(os.fspath(folder / name), "a shard is missing", got=got, hint=_AGAIN)
        files[name] = read_tensors(folder / name)
    for name, file in files.items():
        listed = {tensor for tensor, home in index.items() if home == name}
        if missing := sorted(listed - set(file)):
            what = f"tensor {shown(missing[0])} is missing, which {INDEX} places here"
            raise CheckpointError(file.path, what, got=f"{len(file)} tensors", expected=len(listed), hint=_AGAIN)
        if more := sorted(set(file) - listed):
            home = index.get(more[0])
            what = f"tensor {shown(more[0])} is not placed here by {INDEX}"
            raise CheckpointError(file.path, what, got="no such entry" if home is None else f"{home}", hint=_AGAIN)
    return Shards(where, files)


def _index(path: Path) -> dict[str, str]:
    """File by tensor. Raises CheckpointError for an index that is none, or names files outside the folder."""
    where = os.fspath(path)
    table = decode_json(read_small(path), where=where).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(where, "not an index of tensors", expected="a table weight_map of tensors and files")
    for tensor, name in table.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or name != os.path.basename(name):
            what = f"tensor {shown(tensor)} lies in no file of this folder"
            raise CheckpointError(where, what, got=repr(name)[:80], expected="the name of a .safetensors file")
    if len(set(table.values())) > _MOST_SHARDS:
        raise CheckpointError(where, "too many shards", got=len(set(table.values())), expected=f"up to {_MOST_SHARDS}")
    return table
