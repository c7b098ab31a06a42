"""A tokenizer that does what a SentencePiece vocabulary says: the same ids as SentencePiece for every text.

Text is normalised (the vocabulary's character map, white space, a space before the text), spaces are written as "▁",
and the Unigram model or BPE cuts what comes out. Pieces that the vocabulary calls user defined are cut out whole, and
are not normalised. Control pieces are the special tokens: no text yields them unless the caller allows it.

SentencePiece works on the whole text. BPE does here too where it has to; mostly no piece goes over a "▁", and words can
be encoded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, check_keys
from ..base.rng import Generator
from .align import origins_of, sizes_of_unknown
from .batch import IdBatch, character_offsets, utf8_batch
from .charsmap import CharsMap
from .native import compiled, shared
from .sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    SentencePieceVocabulary,
    byte_name,
    read_sentencepiece,
)
from .started import StartedTokenizer
from .unigram import UnigramModel
from .words import chunks_of, joined

_SPACE = "▁"
_MARK = np.frombuffer(_SPACE.encode(), np.uint8)
_SPACES = re.compile("  +")
_INNER = re.compile(f"[^{_SPACE}]{_SPACE}")
_CHUNK = 1 << 17  # bytes of text one worker takes at a time
# What the keys of the compiled loop have room for (`compiled/sentencepiece_bpe.py`); a vocabulary's own size is bounded
# where it is read.
_LONGEST_WORD = 1 << 30
_KEYS = {
    "type": (str,),
    "version": (int,),
    "model": (str,),
    "pieces": (list,),
    "scores": (list,),
    "types": (list,),
    "byte_fallback": (bool,),
    "charsmap": (str, type(None)),
    "add_dummy_prefix": (bool,),
    "remove_extra_whitespaces": (bool,),
    "escape_whitespaces": (bool,),
    "unknown_text": (str,),
}


class SentencePieceTokenizer(StartedTokenizer):
    """The tokenizer of a vocabulary. `SentencePieceTokenizer.read(path)` opens a `.model` file.

    Attributes:
        vocabulary: what it does, as the file said it.
    """

    kind: ClassVar[str] = "sentencepiece"
    restarts: ClassVar[bool] = False

    def __init__(self, vocabulary: SentencePieceVocabulary) -> None:
        self.vocabulary = vocabulary
        super().__init__(len(vocabulary.pieces), {vocabulary.pieces[i]: i for i in vocabulary.ids(CONTROL)})
        self._bytes_of = [self._spelled(i) for i in range(len(vocabulary.pieces))]

    @classmethod
    def read(cls, path: StrPath) -> SentencePieceTokenizer:
        """The tokenizer in a SentencePiece `.model` file. Raises DataError, which names the file."""
        return cls(read_sentencepiece(path))

    @property
    def unknown(self) -> int:
        """Id of what no piece covers; with byte fallback no text gets it."""
        return self.vocabulary.unknown

    def _spelled(self, i: int) -> bytes:
        kind, piece = self.vocabulary.types[i], self.vocabulary.pieces[i]
        if kind == BYTE:
            return bytes([int(piece[3:5], 16)])
        if i == self.vocabulary.unknown:
            return self.vocabulary.unknown_text.encode("utf-8")
        return piece.replace(_SPACE, " ").encode("utf-8")

    # --- text to pieces ---------------------------------------------------------------------------------------------

    @cached_property
    def _user_defined(self) -> re.Pattern[str] | None:
        names = sorted((self.vocabulary.pieces[i] for i in self.vocabulary.ids(USER_DEFINED)), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    @cached_property
    def _plain_ascii(self) -> bool:
        """Whether the character map leaves printable ASCII as it is."""
        chars = self.vocabulary.charsmap
        printable = map(chr, range(0x20, 0x7F))
        return chars is None or all(chars(c) == c and not chars.continues(c) for c in printable)

    def normalize(self, text: str) -> str:
        """The text as the model sees it."""
        normal = self._spaced(text)
        return normal.replace(" ", _SPACE) if self.vocabulary.escape_whitespaces else normal

    def _spaced(self, text: str) -> str:
        """The text normalised, with a space where the model sees "▁"."""
        v = self.vocabulary
        if not text:
            return text
        text = self._mapped(text)
        if v.remove_extra_whitespaces:
            if "  " in text:
                text = _SPACES.sub(" ", text)
            text = text.lstrip(" ")
            if not text:
                return text
        if v.add_dummy_prefix:
            text = " " + text
        if v.remove_extra_whitespaces:
            # SentencePiece looks for what the spaces have become by then, so a "▁" of the text goes with them.
            text = text.rstrip(" " + _SPACE if v.escape_whitespaces else " ")
        return text

    def _mapped(self, text: str) -> str:
        """The text with its characters replaced by the vocabulary's map."""
        v = self.vocabulary
        if v.charsmap is None or (self._plain_ascii and text.isascii() and text.isprintable()):
            return text
        if self._user_defined is None:
            return v.charsmap(text)
        parts = self._user_defined.split(text)
        parts[::2] = map(v.charsmap, parts[::2])
        return "".join(parts)

    @cached_property
    def _matched(self) -> np.ndarray:
        return np.isin(np.array(self.vocabulary.types), (NORMAL, USER_DEFINED, UNUSED))

    @cached_property
    def _model(self) -> UnigramModel:
        """The pieces as a Unigram model. BPE uses its trie."""
        v = self.vocabulary
        types, scores = np.array(v.types), np.array(v.scores, np.float32).astype(np.float64)
        pieces = [piece.encode("utf-8") for piece in v.pieces]
        normal = scores[types == NORMAL]
        for i in v.ids(USER_DEFINED):
            # As SentencePiece 0.2.3: above any other way to cut the same bytes, where scores are negative.
            scores[i] = float(np.float32(0.1 * len(pieces[i]) - 0.1))
        matched = self._matched & (types != UNUSED) if v.model == "unigram" else self._matched
        return UnigramModel(
            pieces,
            scores,
            byte_fallback=v.byte_fallback,
            unk_id=v.unknown,
            matched=matched,
            floor=float(normal.min()) if len(normal) else 0.0,
            single=True,
            byte_ids=self._byte_ids if v.byte_fallback else None,
        )

    @cached_property
    def _byte_ids(self) -> list[int]:
        at = {piece: i for i, piece in enumerate(self.vocabulary.pieces)}
        return [at[byte_name(byte)] for byte in range(256)]

    def _encode(self, text: str) -> np.ndarray:
        return self._encode_batch([text]).ids

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        data, starts = self._seen(texts, "SentencePieceTokenizer.encode")
        if self.vocabulary.model == "unigram":
            return IdBatch(*self._model.encode_words(data, starts))
        return self._encode_bpe(data, starts)

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """As SentencePiece has it: what was dropped or put together belongs to what it was replaced by, or else to the
        character before it."""
        data, starts = self._seen([text], "SentencePieceTokenizer.encode_offsets")
        v = self.vocabulary
        if v.model == "unigram":
            ids, _, ends = self._model.encode_ends(data, starts)
        else:
            ids = self._encode_bpe(data, starts).ids
            sizes = self._sizes[ids]
            if not v.byte_fallback and (ids == v.unknown).any():
                raw, matched = data.tobytes(), self._matched_bytes
                known = lambda begin, end: raw[begin:end] in matched  # noqa: E731
                sizes_of_unknown(raw, ids.tolist(), sizes, v.unknown, known, fuse=True)
            ends = np.cumsum(sizes)
        last = ends.astype(np.int64)
        inner = character_offsets(data, np.concatenate([[0], last[:-1]])[: len(last)], last)
        begins, end = self._begins(text)
        # A character reaches to the next one that came from another place.
        edges = np.append(begins, end)
        reach = edges[np.minimum(np.searchsorted(edges, begins, side="right"), len(begins))]
        begin = edges[inner[:, 0]]
        return ids, np.stack([begin, np.where(inner[:, 1] > inner[:, 0], reach[inner[:, 1] - 1], begin)], axis=1)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Bytes of each piece in the text that the model sees."""
        v = self.vocabulary
        return np.array([1 if t == BYTE else len(p.encode()) for p, t in zip(v.pieces, v.types, strict=True)], np.int64)

    @cached_property
    def _matched_bytes(self) -> frozenset[bytes]:
        return frozenset(self.vocabulary.pieces[i].encode() for i in np.flatnonzero(self._matched).tolist())

    def _begins(self, text: str) -> tuple[np.ndarray, int]:
        """Where what became each character of `_spaced(text)` begins in `text`, and where the last of it ends."""
        v = self.vocabulary
        mapped, begins, end, spaces = text, np.arange(len(text)), len(text), " "
        if v.charsmap is not None:
            parts = [text] if self._user_defined is None else self._user_defined.split(text)
            changes, at = [], 0
            for i, part in enumerate(parts):
                if i % 2 == 0:
                    changes += [(at + b, at + e, [at + b] * len(c), c) for b, e, c in v.charsmap.changes(part)]
                at += len(part)
            begins = origins_of(len(text), (change[:3] for change in changes))
            mapped = self._mapped(text)
            spaces += "".join(text[b:e] for b, e, _, c in changes if c == " ")
        start = len(text) - len(text.lstrip(spaces)) if v.remove_extra_whitespaces else 0
        if v.remove_extra_whitespaces:
            codes = np.array([c == " " for c in mapped], np.bool_)
            kept = ~(codes & np.append(True, codes[:-1])[: len(codes)])
            mapped, begins = "".join(c for c, k in zip(mapped, kept.tolist(), strict=True) if k), begins[kept]
        if v.add_dummy_prefix and mapped:
            mapped, begins = " " + mapped, np.concatenate([[start], begins])
        if v.remove_extra_whitespaces and mapped:
            n = len(mapped.rstrip(" " + _SPACE if v.escape_whitespaces else " "))
            end = int(begins[n]) if n < len(begins) else end
            begins = begins[:n]
        return begins, end

    def _seen(self, texts: Sequence[str], where: str) -> tuple[np.ndarray, np.ndarray]:
        """UTF-8 of the texts as the model sees them, in a row, and where each begins."""
        parts = list(map(self._spaced, texts))
        joined = "".join(parts)
        if self.vocabulary.escape_whitespaces:
            joined = joined.replace(" ", _SPACE)
        try:
            data = np.frombuffer(joined.encode("utf-8"), np.uint8)
        except UnicodeEncodeError:
            utf8_batch(texts, where)  # names the place in the text as it came
            raise
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=starts[1:])
        first = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))
        return data, first[starts]

    @cached_property
    def _by_word(self) -> bool:
        """Whether no piece goes over a space between words, so that each word can be encoded by itself."""
        v = self.vocabulary
        joins = any(_INNER.search(v.pieces[i]) for i in np.flatnonzero(self._matched).tolist())
        return not joins and not v.ids(UNUSED) and _SPACE in v.pieces

    @cached_property
    def _cut_out(self) -> np.ndarray:
        """The trie of the user-defined pieces."""
        names = sorted(self.vocabulary.pieces[i].encode("utf-8") for i in self.vocabulary.ids(USER_DEFINED))
        starts = np.cumsum([0, *map(len, names)])
        data = np.frombuffer(b"".join(names) or b"\0", np.uint8)
        return compiled("trie").build_trie(data, starts, np.arange(len(names), dtype=np.int32))

    @cached_property
    def _bpe_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each piece, how many better scores there are; which ones are unused; and the ids of the bytes."""
        v = self.vocabulary
        ranks = np.unique(-np.array(v.scores, np.float32), return_inverse=True)[1].astype(np.int32)
        return ranks, np.array(v.types) == UNUSED, np.array(self._byte_ids if v.byte_fallback else [0] * 256, np.int32)

    def _encode_bpe(self, data: np.ndarray, starts: np.ndarray) -> IdBatch:
        if not len(data):
            return IdBatch(np.empty(0, np.uint32), starts)
        words = self._word_starts(data, starts) if self._by_word else starts
        if (longest := int(np.diff(words).max())) >= _LONGEST_WORD:
            expected = f"less than {_LONGEST_WORD}"
            raise DataError(
                "SentencePieceTokenizer.encode", "too long a word", got=f"{longest} bytes", expected=expected
            )
        chunks = chunks_of(words, _CHUNK)
        ids, counts = np.empty(len(data), np.int32), np.empty(len(words) - 1, np.int64)
        ranks, unused, byte_ids = self._bpe_arrays
        inputs = [shared(a) for a in (chunks, data, words, self._model.trie, ranks, self._cut_out, unused)]
        v = self.vocabulary
        outputs = [v.byte_fallback, shared(byte_ids), v.unknown, shared(ids), shared(counts)]
        compiled("sentencepiece_bpe").encode(len(chunks) - 1, 1, *inputs, *outputs)
        id_starts = np.concatenate([[0], np.cumsum(counts)])
        found = joined(ids, words[chunks[:-1]], id_starts[chunks])
        return IdBatch(found.view(np.uint32), id_starts[np.searchsorted(words, starts)])

    def _word_starts(self, data: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Where texts begin, and every "▁" behind another character; and the end."""
        mark = np.zeros(len(data) + 3, np.bool_)
        mark[: max(0, len(data) - 2)] = (data[:-2] == _MARK[0]) & (data[1:-1] == _MARK[1]) & (data[2:] == _MARK[2])
        begins = mark[: len(data)].copy()
        begins[3:] &= ~mark[: max(0, len(data) - 3)]
        begins[starts[:-1][starts[:-1] < len(data)]] = True
        words = np.flatnonzero(begins)
        # Empty texts begin where the next one does; those at the end have no byte there.
        return np.append(words, len(data))

    def sample(self, text: str, *, generator: Generator, alpha: float = 0.1) -> np.ndarray:
        """Ids of a random segmentation of a Unigram vocabulary (`UnigramModel.sample_words`).

        Raises DataError for a BPE vocabulary.
        """
        self._only_unigram("sample")
        data, starts = self._seen([text], "SentencePieceTokenizer.sample")
        return self._model.sample_words(data, starts, generator=generator, alpha=alpha)[0]

    def n_best(self, text: str, n: int) -> list[tuple[list[int], float]]:
        """The `n` best segmentations of a text with a Unigram vocabulary: ids and score of each.

        Raises DataError for a BPE vocabulary.
        """
        self._only_unigram("n_best")
        return self._model.n_best(self.normalize(text).encode("utf-8"), n)

    def _only_unigram(self, name: str) -> None:
        if self.vocabulary.model != "unigram":
            where = f"SentencePieceTokenizer.{name}"
            raise DataError(where, "a BPE vocabulary has no probabilities", expected="a Unigram vocabulary")

    def settled(self, text: str) -> int:
        """None: white space at the ends, and the space before a text, belong to the whole of it."""
        return 0

    # --- pieces to text ---------------------------------------------------------------------------------------------

    def _started(self, ids: np.ndarray, start: bool) -> tuple[bytes, bool]:
        v, parts = self.vocabulary, []
        for number in ids.tolist():
            part = self._bytes_of[number]
            if start:
                written = v.types[number] not in (BYTE, CONTROL) and number != v.unknown and part.startswith(b" ")
                if written and (v.add_dummy_prefix or v.remove_extra_whitespaces):
                    part = part[1:]
                    # Only of a text without extra spaces, every space at the beginning goes.
                    start = not part and v.remove_extra_whitespaces
                else:
                    start = not part
            parts.append(part)
        return b"".join(parts), start

    # --- files ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        v = self.vocabulary
        return {
            "type": self.kind,
            "version": self.version,
            "model": v.model,
            "pieces": list(v.pieces),
            "scores": list(v.scores),
            "types": list(v.types),
            "byte_fallback": v.byte_fallback,
            "charsmap": None if v.charsmap is None else v.charsmap.data,
            "add_dummy_prefix": v.add_dummy_prefix,
            "remove_extra_whitespaces": v.remove_extra_whitespaces,
            "escape_whitespaces": v.escape_whitespaces,
            "unknown_text": v.unknown_text,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SentencePieceTokenizer:
        """The tokenizer `to_json` describes. Raises DataError."""
        check_keys(content, _KEYS, where="SentencePieceTokenizer")
        given = {key: value for key, value in content.items() if key not in ("type", "version")}
        for key in ("pieces", "scores", "types"):
            given[key] = tuple(given[key])
        if given["charsmap"] is not None:
            given["charsmap"] = CharsMap(given["charsmap"])
        return cls(SentencePieceVocabulary(**given))
