"""The Unigram tokenizer: our own vocabulary, trained by `unigram_train.py`, encoded by the model of `unigram.py`.

Text is cut into words (`words.py`) and each word into the pieces of the largest probability. Nothing is normalised:
with `byte_fallback`, the default, every text comes back from its ids exactly.

A word at the beginning of a line has no space before it, and would need pieces of its own beside those of the same word
elsewhere. So `encode` writes one space before every line that isn't empty, and `decode` takes one away where a line
begins (`started.py`). A line that begins with a space gets a second one, so nothing is lost.

With byte fallback the ids 0 to 255 are the bytes, as in the byte tokenizer, and a piece of one ASCII character is the
byte it consists of; the other pieces follow. Without, id 0 stands for what no piece covers. Special tokens are last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DataError
from ..base.files import check_keys
from ..base.rng import Generator
from .batch import IdBatch, character_offsets, utf8
from .special import check_size, has_surrogate, numbered
from .started import StartedTokenizer
from .unigram import UnigramModel, is_score
from .unigram_train import UnigramTrainer, UnigramTraining
from .words import marked, marked_utf8, split_words

_BYTES = 256
_REPLACEMENT = "�".encode()
_LINE_START = re.compile(rb"(?<=\n) ")
_NO_UTF8 = re.compile("([\udc80-\udcff]+)")  # what surrogateescape makes of bytes
_KEYS = {
    "type": (str,),
    "version": (int,),
    "byte_fallback": (bool,),
    "pieces": (list,),
    "scores": (list,),
    "special": (list,),
}


class UnigramTokenizer(StartedTokenizer):
    """Pieces of words, found by their probabilities.

    Args:
        pieces, scores: the vocabulary, with ln p of each piece. Ids follow this order.
        byte_fallback: what no piece covers becomes bytes, instead of the unknown id 0.
        special: names of special tokens.

    Raises:
        DataError: what is no piece, the same twice, a score that is no finite number.
    """

    kind: ClassVar[str] = "unigram"

    def __init__(
        self, pieces: Sequence[str], scores: Sequence[float], *, byte_fallback: bool = True, special: Sequence[str] = ()
    ) -> None:
        where = "UnigramTokenizer"
        for piece in pieces:
            if not isinstance(piece, str) or not piece or has_surrogate(piece):
                raise DataError(where, "not a piece", got=repr(piece), expected="one or more characters")
        if len(set(pieces)) != len(pieces):
            raise DataError(where, "the same piece twice")
        if len(scores) != len(pieces):
            raise DataError(where, "not a score for each piece", got=len(scores), expected=len(pieces))
        for piece, score in zip(pieces, scores, strict=True):
            if not is_score(score):
                raise DataError(where, f"the score of {piece!r} is no finite number", got=repr(score))
        self._pieces, self._scores = tuple(pieces), tuple(map(float, scores))
        self._fallback = byte_fallback
        self._model = self._make_model()
        ordinary = len(self._model.pieces)
        super().__init__(ordinary + len(special), numbered(where, special, ordinary))
        self._data = np.frombuffer(b"".join(self._model.pieces), np.uint8)
        self._sizes = np.array([len(piece) for piece in self._model.pieces], np.int64)
        self._begins = np.cumsum(self._sizes) - self._sizes

    def _make_model(self) -> UnigramModel:
        """The vocabulary in the order of the ids. Bytes and the unknown are in it, but not looked for in text."""
        names = [bytes([byte]) for byte in range(_BYTES)] if self._fallback else [_REPLACEMENT]
        values, matched = [0.0] * len(names), [False] * len(names)
        for piece, score in zip(self._pieces, self._scores, strict=True):
            if self._fallback and len(piece) == 1 and piece.isascii():
                values[ord(piece)], matched[ord(piece)] = score, True
            else:
                names.append(piece.encode("utf-8"))
                values.append(score)
                matched.append(True)
        return UnigramModel(
            names,
            np.array(values),
            byte_fallback=self._fallback,
            unk_id=None if self._fallback else 0,
            byte_ids=range(_BYTES) if self._fallback else None,
            matched=np.array(matched),
        )

    @classmethod
    def train(
        cls,
        texts: str | Iterable[str],
        vocab_size: int,
        *,
        byte_fallback: bool = True,
        special: Sequence[str] = (),
        options: UnigramTraining | None = None,
    ) -> UnigramTokenizer:
        """A vocabulary of `vocab_size` ids, bytes and special tokens included, for `texts`, which are read once.

        The same words in any order, on any number of threads, give the same tokenizer, bit for bit.

        Raises:
            DataError: no text, half a surrogate pair in it, or a vocabulary smaller than the alphabet of the corpus or
                larger than the corpus can give; the message says how large it may be.
        """
        options = UnigramTraining() if options is None else options
        check_size("UnigramTokenizer.train", vocab_size)
        numbered("UnigramTokenizer.train", special, 0)
        trainer = UnigramTrainer([texts] if isinstance(texts, str) else texts, options)
        # Pieces of one ASCII character need no id beside that of their byte.
        given = _BYTES - sum(c.isascii() for c in trainer.alphabet) if byte_fallback else 1
        found = trainer.train(vocab_size, given + len(special))
        names = [piece.decode("utf-8") for piece, _ in found]
        return cls(names, [score for _, score in found], byte_fallback=byte_fallback, special=special)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes that each id stands for; those of special tokens are not among them."""
        return self._model.pieces

    @property
    def scores(self) -> np.ndarray:
        """ln p of each of `pieces`, float64; 0 for bytes and the unknown, which have none."""
        return self._model.scores.copy()

    @property
    def unknown(self) -> int | None:
        """Id of what no piece covers, or None with byte fallback."""
        return self._model.unk_id

    def _encode(self, text: str) -> np.ndarray:
        data, starts = marked_utf8([text], "UnigramTokenizer.encode")
        words, _ = split_words(data, starts)
        return self._model.encode_words(data, words)[0]

    def _encode_batch(self, texts: Sequence[str]) -> IdBatch:
        data, starts = marked_utf8(texts, "UnigramTokenizer.encode_batch")
        words, firsts = split_words(data, starts)
        ids, id_starts = self._model.encode_words(data, words)
        return IdBatch(ids, id_starts[firsts])

    def _encode_other(self, raw: bytes, valid: int) -> np.ndarray:
        """Words and pieces are those of the text between: a run of bytes that are no UTF-8 is a word of its own."""
        if not self._fallback:
            return super()._encode_other(raw, valid)
        escaped = marked(raw.decode("utf-8", errors="surrogateescape"))
        parts = [part.encode("utf-8", errors="surrogateescape") for part in _NO_UTF8.split(escaped)]
        edges = np.cumsum([0, *map(len, parts)])
        data = np.frombuffer(b"".join(parts), np.uint8)
        words, _ = split_words(data, edges)
        return self._model.encode_words(data, words)[0]

    def _encode_offsets(self, text: str, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
        data, starts = marked_utf8([text], "UnigramTokenizer.encode_offsets")
        words, _ = split_words(data, starts)
        ids, id_starts, ends = self._model.encode_ends(data, words)
        last = ends.astype(np.int64) + np.repeat(words[:-1], np.diff(id_starts))
        begin = np.concatenate([[0], last[:-1]])[: len(last)]
        # A space where a line begins was written there by `marked_utf8`, and has no place in the text.
        begins = np.concatenate([[True], data[:-1] == ord("\n")])[: len(data)]
        before = np.concatenate([[0], np.cumsum(begins & (data == ord(" ")))])
        own = np.frombuffer(text.encode("utf-8"), np.uint8)
        return ids, character_offsets(own, begin - before[begin], last - before[last])

    def sample(self, text: str, *, generator: Generator, alpha: float = 0.1) -> np.ndarray:
        """Ids of a random segmentation of the same text (subword regularisation, Kudo 2018): each word is cut as
        `UnigramModel.sample_words` does. Training on them makes a model less dependent on one segmentation.

        Raises ConfigError for a negative `alpha`.
        """
        data, starts = marked_utf8([text], "UnigramTokenizer.sample")
        words, _ = split_words(data, starts)
        return self._model.sample_words(data, words, generator=generator, alpha=alpha)[0]

    def n_best(self, word: str, n: int) -> list[tuple[list[int], float]]:
        """The `n` best segmentations of one word, as it stands in a text (" word" after a space): ids, and ln p.

        Raises:
            DataError: more than one word. ConfigError: `n` below 1.
        """
        raw = utf8(word, "UnigramTokenizer.n_best")
        words, _ = split_words(np.frombuffer(raw, np.uint8), np.array([0, len(raw)]))
        if len(words) > 2:
            raise DataError("UnigramTokenizer.n_best", "more than one word", got=f"{len(words) - 1}")
        return self._model.n_best(raw, n)

    def settled(self, text: str) -> int:
        """Up to the last beginning of a line: a line is never cut, for the next one begins like a text."""
        at = len(text)
        while (at := text.rfind("\n", 0, at)) >= 0:
            if at + 1 < len(text) and text[at + 1] != "\n":
                return at + 1
        return 0

    def _started(self, ids: np.ndarray, start: bool) -> tuple[bytes, bool]:
        sizes = self._sizes[ids]
        ends = np.cumsum(sizes)
        # Byte k of the result is byte k - (begin of its piece there) of the piece.
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(self._begins[ids] - (ends - sizes), sizes)
        raw = self._data[places].tobytes()
        text = _LINE_START.sub(b"", raw)
        if start and text.startswith(b" "):
            text = text[1:]
        return text, raw.endswith(b"\n") if raw else start

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            "version": self.version,
            "byte_fallback": self._fallback,
            "pieces": list(self._pieces),
            "scores": list(self._scores),
            "special": list(self._special),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> UnigramTokenizer:
        """The tokenizer `to_json` describes. Raises DataError."""
        check_keys(content, _KEYS, where="UnigramTokenizer")
        return cls(
            content["pieces"],
            content["scores"],
            byte_fallback=content["byte_fallback"],
            special=content["special"],
        )
