"""The writing half of token files: ids in, little-endian uint32 out, in constant memory, whole or not at all.

A token file is nothing but ids, four bytes each, so that any program can read one. What the ids mean stands in a
small JSON file beside it (`corpus.bin.json`) whenever the tokenizer is known: its fingerprint, vocabulary size, the
number of tokens and the SHA-256 of the file. An old side file is removed before the new ids take their name, so
that a kill at any moment leaves ids without a description, never ids with a wrong one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, check_header, check_keys, check_target, read_json, replacing, write_json
from ..text import Tokenizer
from .sources import Continued

LARGEST = 2**32 - 1
_BLOCK = 1 << 20  # tokens
_TYPE, _VERSION, _DTYPE = "pellucid-tokens", 1, "uint32"
_KEYS: dict[str, tuple[type, ...]] = {
    "type": (str,),
    "version": (int,),
    "dtype": (str,),
    "tokenizer": (str,),
    "vocab_size": (int,),
    "count": (int,),
    "sha256": (str,),
}


@dataclass(frozen=True)
class TokenFileInfo:
    """What the side file of a token file says.

    tokenizer: fingerprint of the tokenizer that made the ids.
    vocab_size: its number of ids.
    count: tokens in the file.
    sha256: of the file's bytes, in hex.
    """

    tokenizer: str
    vocab_size: int
    count: int
    sha256: str

    def save(self, path: StrPath) -> None:
        """Writes the side file of the token file `path`."""
        header: dict[str, Any] = {"type": _TYPE, "version": _VERSION, "dtype": _DTYPE}
        write_json(side_file(path), {**header, **asdict(self)})

    @classmethod
    def load(cls, path: StrPath) -> TokenFileInfo | None:
        """The side file of the token file `path`, or None where there is none. Raises DataError for a bad one."""
        side = side_file(path)
        if not os.path.exists(side):
            return None
        what = "the description of a token file"
        content = read_json(side, what)
        check_header(content, (_TYPE,), _VERSION, where=side, what=what)
        check_keys(content, _KEYS, where=side)
        if content["dtype"] != _DTYPE:
            raise DataError(side, "ids in a format that is not read here", got=content["dtype"], expected=_DTYPE)
        return cls(**{field.name: content[field.name] for field in fields(cls)})


def side_file(path: StrPath) -> str:
    """Name of the JSON file that describes the token file `path`."""
    return os.fspath(path) + ".json"


def write_ids(path: StrPath, parts: Iterable[np.ndarray], *, tokenizer: Tokenizer | None = None) -> int:
    """Writes all ids of all parts as they come; returns their number.

    Whatever fails, in here or in the iterator, leaves the old file (or none) under the name.

    Raises:
        DataError: no ids, an id that is no integer, negative, or outside uint32 or the tokenizer's vocabulary.
    """
    shown = os.fspath(path)
    check_target(path)
    limit = LARGEST if tokenizer is None else tokenizer.vocab_size - 1
    digest, count = hashlib.sha256(), 0
    with replacing(path) as write:
        for ids in parts:
            for begin in range(0, len(ids), _BLOCK):
                raw = _little_endian(ids[begin : begin + _BLOCK], count, limit, shown)
                write(raw)
                digest.update(raw)
                count += len(raw) // 4
        if not count:
            raise DataError(shown, "no tokens to write", expected="at least 1")
        with suppress(FileNotFoundError):
            os.unlink(side_file(path))
    if tokenizer is not None:
        TokenFileInfo(tokenizer.fingerprint(), tokenizer.vocab_size, count, digest.hexdigest()).save(path)
    return count


def encoded(documents: Iterable[str], tokenizer: Tokenizer, eos: int | None) -> Iterator[np.ndarray]:
    """Ids of the documents, piece by piece, with `eos` after each document."""
    waiting, number, position, open_document = "", 0, 0, False
    for text in documents:
        open_document = isinstance(text, Continued)
        waiting = waiting + text if waiting else text
        ready = tokenizer.settled(waiting) if open_document else len(waiting)
        yield _encode(tokenizer, waiting[:ready], number, position)
        waiting, position = waiting[ready:], position + ready
        if not open_document:
            number, position = number + 1, 0
            if eos is not None:
                yield np.array([eos])
    if open_document:
        yield _encode(tokenizer, waiting, number, position)
        if eos is not None:
            yield np.array([eos])


def _encode(tokenizer: Tokenizer, text: str, number: int, position: int) -> np.ndarray:
    try:
        return tokenizer.encode(text)
    except DataError as error:
        where = f"document {number}" + (f", text from character {position} on" if position else "")
        raise DataError(where, f"can't be encoded ({error})") from error


def _little_endian(ids: np.ndarray, position: int, limit: int, shown: str) -> bytes:
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        got = f"{ids.dtype} with shape {ids.shape}"
        raise DataError(shown, "ids are not a list of integers", got=got, expected="one dimension of an integer type")
    if ids.min() < 0 or ids.max() > limit:
        at = int(np.flatnonzero((ids < 0) | (ids > limit))[0])
        raise DataError(shown, f"id out of range at token {position + at}", got=int(ids[at]), expected=f"0 to {limit}")
    return ids.astype("<u4", copy=False).tobytes()
