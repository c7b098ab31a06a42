"""What every tokenizer is: text to ids and back, special tokens, a file, and a fingerprint.

This is the first step of the flow: text -> ids -> token file -> batches, and the last one of generation. A
tokenizer is immutable. `encode` yields no special token, whatever the text says, so that a document can't
smuggle in an end-of-text; they are placed by id, or by text whose author the caller trusts (`allowed_special`).
Decoding goes through bytes (`decode_bytes`), because a token of a byte-level vocabulary may hold a part of a
character; that alone makes streaming exact for every kind.
"""

from __future__ import annotations

import codecs
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, canonical_json, check_target, write_json
from .batch import IdBatch, not_text
from .special import AddedToken, Piece, SpecialTokens

END_OF_TEXT = "<|endoftext|>"
"""The conventional name (GPT-2's) of the special token between documents."""

Ids = Sequence[int] | np.ndarray


class Tokenizer(ABC):
    """A vocabulary of `vocab_size` ids, 0 to `vocab_size - 1`.

    A subclass sets `kind`, calls `Tokenizer.__init__`, and defines `_encode`, `_bytes` and `to_json` (with a class
    method `from_json` for the way back). `_encode_batch` is for those with a faster way for many texts,
    `_encode_offsets` for those that know where an id comes from, `settled` for those whose ids depend on what follows.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1

    def __init__(self, vocab_size: int, special: Mapping[str, int], *, added: Sequence[AddedToken] = ()) -> None:
        """`special` gives names and ids of special tokens, `added` further tokens with their options.

        Raises DataError for names and ids that can't be.
        """
        self._vocab_size = vocab_size
        tokens = [*(AddedToken(name, number) for name, number in special.items()), *added]
        self._added = SpecialTokens(type(self).__name__, tokens, vocab_size)
        self._special = self._added.ids
        self._special_ids = np.array(sorted(self._special.values()), dtype=np.int64)
        self._position_matters = False  # whether text after a special token is encoded by `_encode_rest`

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return self._vocab_size

    @property
    def special(self) -> Mapping[str, int]:
        """Special tokens by name."""
        return MappingProxyType(self._special)

    @property
    def eot(self) -> int | None:
        """Id of the token that ends a document, or None where the vocabulary has none."""
        return self._special.get(END_OF_TEXT)

    def encode(self, text: str, *, allowed_special: str | Collection[str] = ()) -> np.ndarray:
        """Ids of `text`, uint32. Names of special tokens in it are text like any other, unless `allowed_special` has
        them ("all" for every one). Raises DataError for text the vocabulary can't express, and for a name it lacks."""
        self._check_text(text, "encode")
        allowed = self._added.allowed(allowed_special)
        if not allowed:
            return self._encode(text)
        parts = [
            np.array([number], np.uint32)
            if number is not None
            else self._encode(text[begin:end])
            if begin == 0
            else self._encode_rest(text[begin:end])
            for begin, end, number in self._added.cut(text, allowed)
        ]
        return np.concatenate([np.empty(0, np.uint32), *parts])

    def encode_batch(self, texts: Sequence[str], *, allowed_special: str | Collection[str] = ()) -> IdBatch:
        """Ids of many texts, the same as `encode` of each."""
        if isinstance(texts, str):
            where = f"{type(self).__name__}.encode_batch"
            raise DataError(where, "one text", expected="a list of texts", hint="encode takes one text")
        allowed = self._added.allowed(allowed_special)
        if not self._added.any_in(texts, allowed, f"{type(self).__name__}.encode"):
            return self._encode_batch(texts)
        if self._position_matters:
            return IdBatch.of([self.encode(text, allowed_special=allowed_special) for text in texts])
        cuts = [self._added.cut(text, allowed) for text in texts]
        plain = self._encode_batch(
            [text[b:e] for text, cut in zip(texts, cuts, strict=True) for b, e, number in cut if number is None]
        )
        numbers = np.array([-1 if number is None else number for cut in cuts for _, _, number in cut], np.int64)
        named = numbers >= 0
        edges, firsts = np.zeros(len(numbers) + 1, np.int64), np.zeros(len(cuts) + 1, np.int64)
        sizes = np.ones(len(numbers), np.int64)
        sizes[~named] = np.diff(plain.starts)
        np.cumsum(sizes, out=edges[1:])
        np.cumsum(list(map(len, cuts)), out=firsts[1:])
        ids = np.empty(int(edges[-1]), np.uint32)
        ids[np.repeat(~named, sizes)] = plain.ids
        ids[edges[:-1][named]] = numbers[named]
        return IdBatch(ids, edges[firsts])

    def encode_bytes(self, raw: bytes | bytearray | memoryview) -> np.ndarray:
        """Ids of bytes that may be no UTF-8; without a normaliser, `decode_bytes` gives exactly these bytes back. Of
        UTF-8 they are `encode`'s, and no special token is among them. Raises DataError for other bytes, where the kind
        has no ids for them."""
        if not isinstance(raw, bytes | bytearray | memoryview):
            where = f"{type(self).__name__}.encode_bytes"
            raise DataError(where, "not bytes", got=type(raw).__name__, expected="bytes", hint="encode takes text")
        raw = bytes(raw)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            return self._encode_other(raw, error.start)
        return self.encode(text)

    def _check_text(self, text: str, name: str) -> None:
        if not isinstance(text, str):
            raise not_text(f"{type(self).__name__}.{name}", text)

    def encode_offsets(
        self, text: str, *, allowed_special: str | Collection[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of `text`, and (ids, 2) begin and end of the characters each stands for; of a character that is spread
        over several ids, every one has all of it. Where a normaliser changes text, the characters are those of `text`
        that the id's own came from (`align.py`). Raises DataError as `encode`, and where the kind can't tell."""
        self._check_text(text, "encode_offsets")
        ids, offsets = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int64)]
        for begin, end, number in self._added.cut(text, self._added.allowed(allowed_special)):
            if number is None:
                found, where = self._encode_offsets(text[begin:end], first=begin == 0)
                ids.append(found)
                offsets.append(where + begin)
            else:
                ids.append(np.array([number], np.uint32))
                offsets.append(np.array([[begin, end]], np.int64))
        return np.concatenate(ids), np.concatenate(offsets)

    def cut_special(self, text: str, *, allowed_special: str | Collection[str]) -> list[Piece]:
        """Where `encode` would find special tokens: begin and end of every piece of the text, and the id it stands for
        or None."""
        return self._added.cut(text, self._added.allowed(allowed_special))

    @abstractmethod
    def _encode(self, text: str) -> np.ndarray:
        """Ids of text without special tokens, uint32."""

    def _encode_rest(self, text: str) -> np.ndarray:
        """`_encode` of text that stands behind a special token."""
        return self._encode(text)

    def _encode_other(self, raw: bytes, valid: int) -> np.ndarray:
        """Ids of bytes of which the first `valid` are UTF-8 and the next one is not."""
        raise DataError(
            f"{type(self).__name__}.encode_bytes",
            f"byte {valid} is no UTF-8, and this tokenizer has no ids for such bytes",
            got=f"0x{raw[valid]:02X}",
            hint="decode them with errors='replace', or take a tokenizer of bytes",
        )

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        """`_encode` of many texts."""
        return IdBatch.of([self._encode(text) for text in texts])

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """`_encode`, or `_encode_rest` if not `first`, with the characters of each id."""
        raise DataError(f"{type(self).__name__}.encode_offsets", "this tokenizer doesn't know where an id comes from")

    def settled(self, text: str) -> int:
        """How many leading characters of `text` get the same ids whatever follows them.

        Text that comes in pieces is encoded up to here; the rest waits for the next piece. All of it, unless a
        token may span the cut.
        """
        return len(text)

    def decode(self, ids: Ids, *, show_special: bool = False) -> str:
        """Text of `ids`. Special tokens stand for no text; `show_special` writes their names. Bytes that are no
        UTF-8 become U+FFFD. Raises DataError for an id outside the vocabulary."""
        return self.decode_bytes(ids, show_special=show_special).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Ids, *, show_special: bool = False) -> bytes:
        """The exact UTF-8 bytes `ids` stand for, complete characters or not."""
        checked = self._checked(ids)
        if not len(self._special_ids):
            return self._bytes(checked)
        at = np.flatnonzero(np.isin(checked, self._special_ids))
        if not show_special:
            return self._bytes(np.delete(checked, at) if len(at) else checked)
        names = {number: name.encode("utf-8") for name, number in self._special.items()}
        parts, begin = [], 0
        for i in at.tolist():
            parts += [self._bytes(checked[begin:i]), names[int(checked[i])]]
            begin = i + 1
        return b"".join([*parts, self._bytes(checked[begin:])])

    def stream_decoder(self, *, show_special: bool = False, after: Ids = ()) -> StreamDecoder:
        """A decoder for ids that arrive one by one. `after`: the ids before them, whose text is there already; a kind
        whose text depends on what came before looks at their end."""
        return StreamDecoder(self, show_special=show_special)

    @abstractmethod
    def _bytes(self, ids: np.ndarray) -> bytes:
        """UTF-8 bytes of ids that are known to be in the vocabulary and not special."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything that defines the tokenizer, as `save` writes it; `type` and `version` come first."""

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON of what ids depend on: equal exactly when two tokenizers give equal ids
        for every text."""
        return hashlib.sha256(canonical_json(self._identity())).hexdigest()

    def _identity(self) -> dict[str, Any]:
        """What of `to_json` ids depend on."""
        return self.to_json()

    def save(self, path: StrPath) -> None:
        """Writes the JSON file `load_tokenizer` reads, atomically. Raises DataError where it can't."""
        check_target(path)
        write_json(path, self.to_json())

    def _checked(self, ids: Ids) -> np.ndarray:
        where = f"{type(self).__name__}.decode"
        array = np.asarray(ids)
        if array.ndim != 1:
            raise DataError(where, "not a list of ids", got=f"shape {array.shape}", expected="one dimension")
        if array.size == 0:
            return np.empty(0, dtype=np.int64)
        if array.dtype.kind not in "iu":
            raise DataError(where, "ids are not integers", got=array.dtype, expected="an integer type")
        if array.min() < 0 or array.max() >= self._vocab_size:
            at = int(np.flatnonzero((array < 0) | (array >= self._vocab_size))[0])
            raise DataError(
                where,
                f"id outside the vocabulary at position {at}",
                got=int(array[at]),
                expected=f"0 to {self._vocab_size - 1}",
                hint="use the tokenizer the ids were made with",
            )
        return array

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, special={list(self._special)})"


class StreamDecoder:
    """Text of ids as they come, never half a character: `"".join` of all that is returned equals `decode` of all ids.

    `push` returns what has become complete; `finish` returns what is left (U+FFFD for a character that never ended)
    and makes the decoder ready for new text.
    """

    def __init__(self, tokenizer: Tokenizer, *, show_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: int | Ids) -> str:
        """Takes one id or several; returns the characters they complete (often none)."""
        several = [ids] if isinstance(ids, int | np.integer) else ids
        return self._utf8.decode(self._tokenizer.decode_bytes(several, show_special=self._show_special))

    def finish(self) -> str:
        """Ends the text."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def character_error(where: str, text: str, at: int, *, expected: str, hint: str) -> DataError:
    """The refusal of the character at position `at`, named in a form that can be read and searched."""
    shown, line = text[at], text.count("\n", 0, at) + 1
    return DataError(
        where,
        f"character {at} (line {line}) is not in the vocabulary",
        got=f"{shown!r} (U+{ord(shown):04X})",
        expected=expected,
        hint=hint,
    )
