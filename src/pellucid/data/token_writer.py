"""The writing half of token files: ids in, little-endian integers out, in constant memory, whole or not at all.

A token file is nothing but ids, so that any program can read one. What they mean stands in a small JSON file beside it
(`corpus.bin.json`) whenever the tokenizer is known: its fingerprint, vocabulary size, the width of an id, the number of
tokens and the SHA-256 of the file. Ids take two bytes where the vocabulary allows, and four where it is large or nobody
knows it. Since ids without their description could be read at the wrong width, the old file goes first, then the
description is exchanged, then the new file takes its name: a kill at any moment leaves a file and a description that
belong together, or no file.

Documents are encoded in batches of about a million characters, by all threads of the tokenizer; meanwhile the next
batch is read and the one before is written.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, check_header, check_keys, check_target, read_json, reason, replacing, write_json
from ..text import Tokenizer
from .sources import Continued, Documents

LARGEST = 2**32 - 1
ITEM_BYTES = {"uint16": 2, "uint32": 4}
"""Bytes of an id by the name of its format."""

_TOGETHER = 1 << 20  # characters of a batch
_BLOCK = 1 << 20  # tokens
_TYPE, _VERSION = "pellucid-tokens", 1
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

    dtype: format of an id, "uint16" or "uint32".
    tokenizer: fingerprint of the tokenizer that made the ids.
    vocab_size: its number of ids.
    count: tokens in the file.
    sha256: of the file's bytes, in hex.
    """

    dtype: str
    tokenizer: str
    vocab_size: int
    count: int
    sha256: str

    def save(self, path: StrPath) -> None:
        """Writes the side file of the token file `path`."""
        write_json(side_file(path), {"type": _TYPE, "version": _VERSION, **asdict(self)})

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
        if content["dtype"] not in ITEM_BYTES:
            expected = " or ".join(ITEM_BYTES)
            raise DataError(side, "ids in a format that is not read here", got=content["dtype"], expected=expected)
        return cls(**{field.name: content[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Encoded:
    """How far a corpus has been encoded and written.

    documents: those that are complete. tokens: in the file so far. bytes_read, bytes_total: of the source, None where
    nobody knows. seconds: since the beginning. bytes_skipped: of bytes_read, those that an earlier run had encoded.
    """

    documents: int
    tokens: int
    bytes_read: int | None
    bytes_total: int | None
    seconds: float
    bytes_skipped: int = 0

    @property
    def seconds_left(self) -> float | None:
        """Time to the end at the rate so far, or None where that isn't known."""
        if not self.bytes_read or self.bytes_total is None or self.bytes_read <= self.bytes_skipped:
            return None
        return self.seconds * (self.bytes_total - self.bytes_read) / (self.bytes_read - self.bytes_skipped)


def side_file(path: StrPath) -> str:
    """Name of the JSON file that describes the token file `path`."""
    return os.fspath(path) + ".json"


def id_format(vocab_size: int) -> str:
    """The narrowest format for the ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write_ids(path: StrPath, parts: Iterable[np.ndarray], *, tokenizer: Tokenizer | None = None) -> int:
    """Writes all ids of all parts as they come; returns their number.

    Whatever fails, in here or in the iterator, leaves the old file (or none) under the name. What a killed writer of
    the same file left behind is removed.

    Raises:
        DataError: no ids, an id that is no integer, negative, or outside uint32 or the tokenizer's vocabulary.
    """
    shown = os.fspath(path)
    check_target(path)
    limit = LARGEST if tokenizer is None else tokenizer.vocab_size - 1
    dtype = "uint32" if tokenizer is None else id_format(tokenizer.vocab_size)
    digest, count = hashlib.sha256(), 0
    with replacing(path, sweep=True) as write:
        for ids in parts:
            for begin in range(0, len(ids), _BLOCK):
                block = little_endian(ids[begin : begin + _BLOCK], dtype, count, limit, shown)
                write(block.data)
                digest.update(block.data)
                count += len(block)
        if not count:
            raise DataError(shown, "no tokens to write", expected="at least 1")
        info = None
        if tokenizer is not None:
            info = TokenFileInfo(dtype, tokenizer.fingerprint(), tokenizer.vocab_size, count, digest.hexdigest())
        give_name(path, info)
    return count


def give_name(path: StrPath, info: TokenFileInfo | None) -> None:
    """Makes way for a new token file: the old one goes, then the description is exchanged. Raises DataError."""
    try:
        for name in (os.path.realpath(path), side_file(path)):
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise DataError(os.fspath(path), f"cannot be written: {reason(error)}") from error
    if info is not None:
        info.save(path)


@dataclass(frozen=True)
class Progress:
    """Batches and tokens of a corpus that have been written before."""

    batches: int
    tokens: int


NOTHING = Progress(0, 0)


def together() -> int:
    """Characters of a batch, on which the batches of a corpus depend."""
    return _TOGETHER


def encoded(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    eos: int | None,
    on_progress: Callable[[Encoded], object] | None = None,
    *,
    done: Progress = NOTHING,
) -> Iterator[np.ndarray]:
    """Ids of the documents, a batch at a time, with `eos` after each document. Batches that are done are read over."""
    began, tokens, complete, skipped = time.perf_counter(), done.tokens, 0, 0
    source = documents if isinstance(documents, Documents) else None
    for batch, read, ahead in _ahead(_ready(documents, tokenizer), tokenizer, done.batches):
        if ahead is None:
            complete, skipped, began = complete + int(batch.ends.sum()), read or 0, time.perf_counter()
            continue
        ids, starts = ahead.result()
        out = ids if eos is None else _with_ends(ids, starts, batch.ends, eos)
        tokens, complete = tokens + len(out), complete + int(batch.ends.sum())
        yield out
        # By now it has been written.
        if on_progress is not None:
            total = None if source is None else source.bytes_total
            on_progress(Encoded(complete, tokens, read, total, time.perf_counter() - began, skipped))


@dataclass(frozen=True)
class _Batch:
    """Texts to encode, each a document or a part of one. ends: bool (texts), whether a document ends with it. number:
    of the first document; position: of its first character here."""

    texts: list[str]
    ends: np.ndarray
    number: int
    position: int


def _ready(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[_Batch, int | None]]:
    """Batches of what can be encoded by now, and how many bytes of the source they took."""
    waiting, number, position, read, open_document = "", 0, 0, None, False
    batches = _read_ahead(documents) if isinstance(documents, Documents) else _batches(documents)
    for texts, read in batches:
        first, begin = number, position
        if not open_document and set(map(type, texts)) == {str}:
            # Whole documents, of which there may be very many.
            number += len(texts)
            yield _Batch(texts, np.ones(len(texts), np.bool_), first, 0), read
            continue
        pieces, ends = [], np.array([not isinstance(text, Continued) for text in texts])
        for text, last in zip(texts, ends.tolist(), strict=True):
            waiting += text
            ready = len(waiting) if last else tokenizer.settled(waiting)
            pieces.append(waiting[:ready])
            waiting, position = waiting[ready:], 0 if last else position + ready
            number += last
        open_document = not ends[-1]
        yield _Batch(pieces, ends, first, begin), read
    if open_document:
        yield _Batch([waiting], np.ones(1, np.bool_), number, position), read


def _batches(documents: Iterable[str]) -> Iterator[tuple[list[str], int | None]]:
    source = documents if isinstance(documents, Documents) else None
    texts, size = [], 0
    for text in documents:
        texts.append(text)
        size += len(text)
        if size >= _TOGETHER:
            yield texts, None if source is None else source.bytes_read
            texts, size = [], 0
    if texts:
        yield texts, None if source is None else source.bytes_read


def _read_ahead(documents: Documents) -> Iterator[tuple[list[str], int | None]]:
    """The batches, each read while the one before it is encoded. Only for our own files: an iterator of somebody
    else's may belong to its thread."""
    batches = _batches(documents)
    with ThreadPoolExecutor(1, thread_name_prefix="pellucid-reader") as reader:
        ahead = reader.submit(next, batches, None)
        while (batch := ahead.result()) is not None:
            ahead = reader.submit(next, batches, None)
            yield batch


def _ahead(
    batches: Iterator[tuple[_Batch, int | None]], tokenizer: Tokenizer, done: int
) -> Iterator[tuple[_Batch, int | None, Future[tuple[np.ndarray, np.ndarray]] | None]]:
    """The batches with their ids to come, each encoded while the one before it is written; None for those that are
    done."""
    with ThreadPoolExecutor(1, thread_name_prefix="pellucid-encoder") as encoder:
        before, number = None, 0
        while True:
            try:
                found = next(batches, None)
            except Exception:
                if before is not None:  # what was read before the bad place is written
                    yield before
                raise
            following = None
            if found is not None:
                following = (*found, encoder.submit(_encode, tokenizer, found[0]) if number >= done else None)
            if before is not None:
                yield before
            if following is None:
                return
            before, number = following, number + 1


def _encode(tokenizer: Tokenizer, batch: _Batch) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all texts, and where those of each begin."""
    try:
        found = tokenizer.encode_batch(batch.texts)
    except DataError as refusal:
        # Which of them it was: they are encoded once more, one by one.
        number, position = batch.number, batch.position
        for text, last in zip(batch.texts, batch.ends.tolist(), strict=True):
            try:
                tokenizer.encode(text)
            except DataError as error:
                where = f"document {number}" + (f", text from character {position} on" if position else "")
                raise DataError(where, f"can't be encoded ({error})") from error
            number, position = number + last, 0 if last else position + len(text)
        raise refusal
    return found.ids, found.starts


def _with_ends(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray, eos: int) -> np.ndarray:
    """The ids with `eos` after each piece that ends a document."""
    places = starts[1:][ends] + np.arange(np.count_nonzero(ends))
    out = np.empty(len(ids) + len(places), np.int64 if eos < 0 or eos > LARGEST else np.uint32)
    keep = np.ones(len(out), np.bool_)
    keep[places] = False
    out[keep] = ids
    out[places] = eos
    return out


def little_endian(ids: np.ndarray, dtype: str, position: int, limit: int, shown: str) -> np.ndarray:
    """Ids as they stand in a file. Raises DataError for what is no id from 0 to `limit`."""
    if not len(ids):
        return np.empty(0, f"<u{ITEM_BYTES[dtype]}")
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        got = f"{ids.dtype} with shape {ids.shape}"
        raise DataError(shown, "ids are not a list of integers", got=got, expected="one dimension of an integer type")
    if ids.min() < 0 or ids.max() > limit:
        at = int(np.flatnonzero((ids < 0) | (ids > limit))[0])
        raise DataError(shown, f"id out of range at token {position + at}", got=int(ids[at]), expected=f"0 to {limit}")
    return np.ascontiguousarray(ids, dtype=f"<u{ITEM_BYTES[dtype]}")
