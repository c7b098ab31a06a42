"""Encoding a corpus so that a killed run goes on where it stopped: the same bytes as without the stop.

Ids go to `corpus.bin.part`, and every few seconds `corpus.bin.part.json` says how many batches of the corpus they are
of, and their SHA-256. The corpus is cut into the same batches every time, so a later run reads over those that are
done, which costs a fraction of encoding them, and appends the rest. The part takes the final name when it is complete.
A part of another corpus, tokenizer or version is refused, never mixed in.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO

from ..base.errors import DataError
from ..base.files import (
    StrPath,
    canonical_json,
    check_header,
    check_keys,
    check_target,
    read_json,
    reason,
    sync_folder,
    write_json,
)
from ..base.locks import try_lock
from ..text import Tokenizer
from .sources import Documents
from .token_writer import (
    ITEM_BYTES,
    Encoded,
    Progress,
    TokenFileInfo,
    encoded,
    give_name,
    id_format,
    little_endian,
    together,
)

_SECONDS = 2.0  # between two notes of how far a run has come
_BLOCK = 1 << 22  # bytes
_TYPE, _VERSION = "pellucid-tokens-part", 1
_KEYS: dict[str, tuple[type, ...]] = {
    "type": (str,),
    "version": (int,),
    "run": (str,),
    "batches": (int,),
    "tokens": (int,),
    "sha256": (str,),
}


@dataclass(frozen=True)
class _Done:
    """run: what the ids are of, as a hash. batches, tokens: how much of it. sha256: of these ids."""

    run: str
    batches: int
    tokens: int
    sha256: str


def write_resumable(
    path: StrPath,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    eos: int | None,
    on_progress: Callable[[Encoded], object] | None,
) -> int:
    """Writes the ids of the documents, going on from what an earlier call left; returns the number of tokens.

    Whatever fails leaves the part for the next call.

    Raises:
        DataError: documents that aren't those of files; a part of another run, a damaged one, or one that is being
            written; and as `write_ids`.
    """
    shown = os.fspath(path)
    check_target(path)
    if not isinstance(documents, Documents):
        hint = "give what pellucid.data.documents returns"
        raise DataError("TokenFile.write_documents", "only documents of files can be resumed", hint=hint)
    dtype = id_format(tokenizer.vocab_size)
    run = {"files": documents.files, "together": together(), "tokenizer": tokenizer.fingerprint(), "eos": eos}
    key = hashlib.sha256(canonical_json(run)).hexdigest()
    part = os.path.realpath(path) + ".part"
    try:
        with open(part, "a+b") as file:
            _lock(file, part)
            done, digest = _found(file, part, key, ITEM_BYTES[dtype])
            batches, tokens, noted = done.batches, done.tokens, time.monotonic()
            try:
                for ids in encoded(documents, tokenizer, eos, on_progress, done=Progress(batches, tokens)):
                    block = little_endian(ids, dtype, tokens, tokenizer.vocab_size - 1, shown)
                    file.write(block.data)
                    digest.update(block.data)
                    batches, tokens = batches + 1, tokens + len(block)
                    done = _Done(key, batches, tokens, digest.hexdigest())
                    if time.monotonic() - noted > _SECONDS:
                        file.flush()
                        _note(part, done)
                        noted = time.monotonic()
            except BaseException:
                file.flush()
                _note(part, done)
                raise
            if not tokens:
                os.unlink(part)
                raise DataError(shown, "no tokens to write", expected="at least 1")
            file.flush()
            os.fsync(file.fileno())
            # From here on the part is complete: without a note, nothing could append to it.
            os.unlink(_note(part, done))
            info = TokenFileInfo(dtype, tokenizer.fingerprint(), tokenizer.vocab_size, tokens, digest.hexdigest())
            give_name(path, info)
            os.replace(part, os.path.realpath(path))
            sync_folder(os.path.dirname(part))
    except OSError as error:
        raise DataError(shown, f"cannot be written: {reason(error)}") from error
    return tokens


def _lock(file: IO[bytes], part: str) -> None:
    with suppress(OSError):  # no locks here
        if not try_lock(file.fileno()):
            raise DataError(part, "another process is writing this file", hint="wait for it, or stop it")


def _note(part: str, done: _Done) -> str:
    name = part + ".json"
    write_json(name, {"type": _TYPE, "version": _VERSION, **asdict(done)})
    return name


def _found(file: IO[bytes], part: str, key: str, width: int) -> tuple[_Done, hashlib._Hash]:
    """How far the part has come, and the hash of its ids; what stands behind them in the file is cut off."""
    digest, note, cure = hashlib.sha256(), part + ".json", f"remove {part} and {part}.json to begin again"
    if not os.path.exists(note):
        file.truncate(0)
        return _Done(key, 0, 0, digest.hexdigest()), digest
    what = "the note of an unfinished token file"
    content = read_json(note, what)
    check_header(content, (_TYPE,), _VERSION, where=note, what=what)
    check_keys(content, _KEYS, where=note)
    done = _Done(**{name: content[name] for name in ("run", "batches", "tokens", "sha256")})
    if done.run != key:
        what = "of another run: the corpus, the tokenizer or the end of documents has changed"
        raise DataError(part, what, hint=cure)
    left = done.tokens * width
    file.seek(0)
    while left > 0 and (raw := file.read(min(left, _BLOCK))):
        digest.update(raw)
        left -= len(raw)
    if left or digest.hexdigest() != done.sha256:
        raise DataError(part, "damaged: the ids are not those that were written", hint=cure)
    file.truncate(done.tokens * width)
    return done, digest
