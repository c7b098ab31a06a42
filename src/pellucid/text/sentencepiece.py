"""What a SentencePiece vocabulary says, and the files it comes in: `.model` (a protocol buffer), llama2.c's `tok.bin`.

A `SentencePieceVocabulary` holds pieces with score and type, and how text is prepared for them. The tokenizer that does
what it says is in `sentencepiece_tokenizer.py`. A model asks for more than SentencePiece's two main kinds (Unigram and
BPE) only rarely; what we don't do is refused by its name.

Numbers of fields and their defaults: sentencepiece_model.proto of SentencePiece 0.2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import DataError
from ..base.files import StrPath, reading
from .charsmap import CharsMap
from .protobuf import Field, block, fields, integer, single, text
from .unigram import LONGEST_PIECE, is_score

#: Types of a piece.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
_MODELS = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}
_SPACE = "▁"
_LARGEST = 1 << 28  # bytes of a file
_MOST_PIECES = 1 << 21


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """Pieces, and the rules for text.

    model: "unigram" or "bpe". pieces, scores (float32 values), types: of each id. charsmap: the normalisation of
    characters, or None. unknown_text: what the unknown piece decodes to. The rest as SentencePiece names it.

    Raises DataError for a vocabulary that can't be: see `__post_init__`.
    """

    model: str
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    byte_fallback: bool = False
    charsmap: CharsMap | None = None
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    unknown_text: str = " \u2047 "
    unknown: int = field(init=False)

    def __post_init__(self) -> None:
        where, n = "SentencePieceVocabulary", len(self.pieces)
        if self.model not in ("unigram", "bpe"):
            raise DataError(where, "a kind of model that is not supported", got=self.model, expected="unigram or bpe")
        if not n or len(self.scores) != n or len(self.types) != n:
            raise DataError(where, "not a score and a type for each piece", got=f"{n} pieces")
        if n > _MOST_PIECES:
            raise DataError(where, "too many pieces", got=n, expected=f"at most {_MOST_PIECES}")
        for i, (piece, score, kind) in enumerate(zip(self.pieces, self.scores, self.types, strict=True)):
            if not isinstance(piece, str) or not piece or "\0" in piece:
                raise DataError(where, f"piece {i} is no piece", got=repr(piece))
            if len(piece.encode("utf-8", "surrogatepass")) > LONGEST_PIECE:
                got = f"{len(piece)} characters"
                raise DataError(where, f"piece {i} is too long", got=got, expected=f"at most {LONGEST_PIECE} bytes")
            if not is_score(score):
                raise DataError(where, f"the score of piece {i} is no finite number", got=repr(score))
            if kind not in range(NORMAL, BYTE + 1) or isinstance(kind, bool):
                raise DataError(where, f"the type of piece {i} is unknown", got=kind, expected=f"1 to {BYTE}")
        if len(set(self.pieces)) != n:
            raise DataError(where, "the same piece twice")
        unknown = [i for i, kind in enumerate(self.types) if kind == UNKNOWN]
        if len(unknown) != 1:
            raise DataError(where, "not one unknown piece", got=len(unknown))
        object.__setattr__(self, "unknown", unknown[0])
        if self.byte_fallback:
            names = {piece for piece, kind in zip(self.pieces, self.types, strict=True) if kind == BYTE}
            if names != {byte_name(byte) for byte in range(256)}:
                raise DataError(where, "byte fallback without pieces for the 256 bytes", got=f"{len(names)} of them")

    def ids(self, kind: int) -> list[int]:
        """The ids of the pieces of one type."""
        return [i for i, found in enumerate(self.types) if found == kind]


def byte_name(byte: int) -> str:
    """The piece that stands for a byte."""
    return f"<0x{byte:02X}>"


def read_sentencepiece(path: StrPath) -> SentencePieceVocabulary:
    """The vocabulary in a SentencePiece `.model` file.

    Raises:
        DataError: unreadable, damaged, or it asks for what is not supported; the message names the file.
    """
    where = os.fspath(path)
    return parse_sentencepiece(_content(path, where), where)


def parse_sentencepiece(content: bytes, where: str) -> SentencePieceVocabulary:
    """The vocabulary in the bytes of a `.model` file. Raises DataError in the name of `where`."""
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in fields(content, where):
        if number == 1:
            pieces.append(_piece(fields(block(value, where), where), where))
        elif number == 2:
            trainer.update(fields(block(value, where), where))
        elif number == 3:
            normalizer.update(fields(block(value, where), where))
        elif number == 5 and dict(fields(block(value, where), where)).get(2):
            raise DataError(where, "asks for a denormaliser, which is not supported")
    if trainer.get(24):
        raise DataError(where, "asks for treat_whitespace_as_suffix, which is not supported")
    model = integer(trainer.get(3, UNIGRAM), where)
    chars = block(normalizer.get(2, b""), where)
    options: dict[str, Any] = {
        "byte_fallback": bool(trainer.get(35, 0)),
        "add_dummy_prefix": bool(normalizer.get(3, 1)),
        "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
        "escape_whitespaces": bool(normalizer.get(5, 1)),
    }
    if 44 in trainer:
        options["unknown_text"] = text(trainer[44], where)
    try:
        return SentencePieceVocabulary(
            _MODELS.get(model, f"type {model}"),
            tuple(piece for piece, _, _ in pieces),
            tuple(score for _, score, _ in pieces),
            tuple(kind for _, _, kind in pieces),
            charsmap=CharsMap.of(chars) if chars else None,
            **options,
        )
    except DataError as error:
        raise DataError(where, f"not a SentencePiece model ({error})") from error


def _piece(message: Iterator[Field], where: str) -> tuple[str, float, int]:
    name, score, kind = "", 0.0, NORMAL
    for number, value in message:
        if number == 1:
            name = text(value, where)
        elif number == 2:
            score = single(value, where)
        elif number == 3:
            kind = integer(value, where)
    return name, score, kind


def read_llama2c_vocabulary(path: StrPath) -> SentencePieceVocabulary:
    """The vocabulary in llama2.c's `tok.bin`: a SentencePiece BPE model's pieces and scores, with spaces spelled out.

    The file holds the length of the longest piece, then a float32 score, a length and the bytes of each; ids 0 to 2 are
    the unknown and the ends of a text, 3 to 258 the bytes.

    Raises:
        DataError: unreadable, damaged, or another layout; the message names the file.
    """
    where = os.fspath(path)
    content = _content(path, where)
    pieces: list[str] = []
    scores: list[float] = []
    at = 4
    while at < len(content):
        if len(content) - at < 8:
            raise DataError(where, "not a llama2.c vocabulary: it ends inside a piece")
        score, size = struct.unpack_from("<fi", content, at)
        at += 8
        if not 0 <= size <= len(content) - at:
            raise DataError(where, "not a llama2.c vocabulary: a piece longer than the file", got=f"{size} bytes")
        try:
            pieces.append(content[at : at + size].decode("utf-8").replace(" ", _SPACE))
        except UnicodeDecodeError as error:
            raise DataError(where, f"not a llama2.c vocabulary: piece {len(pieces)} is not UTF-8") from error
        scores.append(score)
        at += size
    if len(pieces) < 259:
        raise DataError(where, "not a llama2.c vocabulary: too few pieces", got=len(pieces), expected="259 or more")
    # The exporter writes line feeds around the names of the two ends.
    pieces[:3] = [name.strip() for name in pieces[:3]]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(pieces) - 259)]
    try:
        return SentencePieceVocabulary(
            "bpe", tuple(pieces), tuple(scores), tuple(types), byte_fallback=True, remove_extra_whitespaces=False
        )
    except DataError as error:
        raise DataError(where, f"not a llama2.c vocabulary ({error})") from error


def _content(path: StrPath, where: str) -> bytes:
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:
            raise DataError(where, "too large for a vocabulary", got=f"{size} bytes", expected=f"at most {_LARGEST}")
        return file.read()
