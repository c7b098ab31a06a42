"""The Unigram model: a word becomes the pieces whose probabilities have the largest product (Kudo 2018).

    p(x) = max over segmentations x = x1 x2 ... of p(x1) p(x2) ...

The model knows pieces and their scores (ln p), finds the best segmentation by Viterbi over a trie, draws random ones
(subword regularisation) and lists the n best. What a word is, and what is done to the text before, is its user's
business: a tokenizer hands over bytes.

Of two segmentations with the same score the one counts whose last piece begins first; SentencePiece and `tokenizers`
decide so too. Scores are added up from left to right, in float64 as `tokenizers` does, or rounding as SentencePiece
does (`single`): which of two nearly equal segmentations wins can depend on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..base.errors import ConfigError, DataError
from ..base.rng import Generator
from ..device import Array
from .native import compiled, shared
from .words import chunks_of, joined

#: How far the score of the unknown piece lies below the smallest score of the vocabulary (SentencePiece's choice).
UNKNOWN_PENALTY = 10.0
#: Bytes of a piece: the work for every character of a text is bounded by it.
LONGEST_PIECE = (1 << 12) - 1
_MOST_BYTES = 1 << 26  # of all pieces; a million of them takes a sixth
_LARGEST_SCORE = 1e38
_CHUNK = 1 << 15  # bytes of text that one worker takes at a time


def is_score(value: object) -> bool:
    """Whether a value of a file can be a score: a number that float32 holds, and no NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_SCORE


class UnigramModel:
    """Pieces with scores, found in words.

    Args:
        pieces: the bytes of each piece; the id of a piece is its place.
        scores: ln p of each piece.
        byte_fallback: characters that no piece covers become the ids of their bytes, instead of `unk_id`.
        unk_id: the id of characters that no piece covers, one for a run of them; None where they are an error.
        byte_ids: the ids of the 256 bytes; by default those of the pieces <0x00> to <0xFF>.
        matched: which pieces are looked for in text; all by default.
        floor: the smallest score, from which that of the unknown piece follows; of all `matched` pieces by default.
        single: sums of scores are rounded to float32, and begin anew when they are large, as in SentencePiece 0.2.3.

    Raises:
        DataError: no pieces, an empty one, the same twice, a score that is no finite number, no ids for bytes.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        scores: np.ndarray,
        *,
        byte_fallback: bool,
        unk_id: int | None,
        byte_ids: Sequence[int] | None = None,
        matched: np.ndarray | None = None,
        floor: float | None = None,
        single: bool = False,
    ) -> None:
        self.pieces = tuple(pieces)
        self.scores = np.array(scores, np.float64)
        self.byte_fallback, self.unk_id, self.single = byte_fallback, unk_id, single
        self.matched = np.ones(len(self.pieces), np.bool_) if matched is None else np.array(matched, np.bool_)
        self._check()
        if floor is None:
            floor = float(self.scores[self.matched].min()) if self.matched.any() else 0.0
        self._unknown = float(np.float32(floor - UNKNOWN_PENALTY)) if single else floor - UNKNOWN_PENALTY
        self._byte_ids = self._find_byte_ids(byte_ids) if byte_fallback else np.zeros(256, np.int32)

    def _check(self) -> None:
        n, where = len(self.pieces), "UnigramModel"
        if not n:
            raise DataError(where, "no pieces")
        if self.scores.shape != (n,) or self.matched.shape != (n,):
            raise DataError(where, "not a score for each piece", got=f"{self.scores.shape}", expected=f"({n},)")
        if not np.isfinite(self.scores).all():
            at = int(np.flatnonzero(~np.isfinite(self.scores))[0])
            raise DataError(where, f"the score of piece {at} is no finite number", got=self.scores[at])
        if self.unk_id is not None and not 0 <= self.unk_id < n:
            raise DataError(where, "an unknown piece outside the vocabulary", got=self.unk_id, expected=f"below {n}")
        seen: dict[bytes, int] = {}
        for i, piece in enumerate(self.pieces):
            if not self.matched[i]:
                continue
            if not piece:
                raise DataError(where, f"piece {i} is empty")
            if seen.setdefault(piece, i) != i:
                raise DataError(where, "the same piece twice", got=f"{piece!r} as {seen[piece]} and {i}")
            if len(piece) > LONGEST_PIECE:
                raise DataError(
                    where, f"piece {i} is too long", got=f"{len(piece)} bytes", expected=f"at most {LONGEST_PIECE}"
                )
        if (total := sum(map(len, seen))) > _MOST_BYTES:
            raise DataError(where, "too large a vocabulary", got=f"{total} bytes", expected=f"at most {_MOST_BYTES}")
        self._places = seen

    @property
    def byte_ids(self) -> list[int] | None:
        """Ids of the 256 bytes, or None without byte fallback."""
        return self._byte_ids.tolist() if self.byte_fallback else None

    def _find_byte_ids(self, given: Sequence[int] | None) -> np.ndarray:
        if given is None:
            names = {piece: i for i, piece in enumerate(self.pieces)}
            given = [names.get(b"<0x%02X>" % byte, -1) for byte in range(256)]
        ids = np.array(given, np.int64)
        if ids.shape != (256,) or ids.min() < 0 or ids.max() >= len(self.pieces):
            got = f"{int(((ids >= 0) & (ids < len(self.pieces))).sum())} of them"
            raise DataError("UnigramModel", "byte fallback without pieces for the 256 bytes", got=got)
        return ids.astype(np.int32)

    @cached_property
    def trie(self) -> np.ndarray:
        order = sorted(self._places)
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum([len(piece) for piece in order], out=starts[1:])
        data = np.frombuffer(b"".join(order) or b"\0", np.uint8)
        numbers = np.array([self._places[piece] for piece in order], np.int32)
        return compiled("trie").build_trie(data, starts, numbers)

    @cached_property
    def _constants(self) -> list[Array]:
        return [shared(self.trie), shared(self.scores), shared(self._byte_ids)]

    def encode_words(self, data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids of words. Returns ids: uint32, in a row; id_starts: int64 (n + 1), where those of each word begin.

        data: uint8, the UTF-8 of all words in a row; starts: int64 (n + 1), where each begins.
        Raises DataError for a character that no piece covers, without `byte_fallback` and `unk_id`.
        """
        ids, id_starts, _ = self._run(data, starts, ends=False, random=None)
        return ids, id_starts

    def encode_ends(self, data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`encode_words`, and ends: int32, the byte of its word behind the last one of each id."""
        return self._run(data, starts, ends=True, random=None)

    def sample_words(
        self, data: np.ndarray, starts: np.ndarray, *, generator: Generator, alpha: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a random segmentation of each word: of probability proportional to p(x1)**alpha p(x2)**alpha ...

        Subword regularisation (Kudo 2018, section 3.1, over all segmentations): a small `alpha` is wild, a large one
        gives the best segmentation nearly always. Arrays as in `encode_words`.
        """
        if not 0 <= alpha < np.inf:
            raise ConfigError("sample_words", "alpha out of range", got=alpha, expected="0 or more")
        ids, id_starts, _ = self._run(data, starts, ends=False, random=(generator, float(alpha)))
        return ids, id_starts

    def _run(
        self, data: np.ndarray, starts: np.ndarray, *, ends: bool, random: tuple[Generator, float] | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        words, total = len(starts) - 1, len(data)
        id_starts = np.zeros(words + 1, np.int64)
        if not total:
            return np.empty(0, np.uint32), id_starts, np.empty(0, np.int32)
        chunks = chunks_of(starts, _CHUNK)
        n = len(chunks) - 1
        ids, counts = np.empty(total, np.int32), np.empty(words, np.int64)
        at = np.empty(total if ends else 1, np.int32)
        split, unknown_id = self.byte_fallback, -1 if self.unk_id is None else self.unk_id
        trie, scores, byte_ids = self._constants
        inputs = [*map(shared, map(np.ascontiguousarray, (chunks, data, starts))), trie, scores]
        outputs = [split, byte_ids, unknown_id, shared(ids), shared(at), shared(counts), ends]
        if random is None:
            compiled("unigram").encode(n, 1, *inputs, self._unknown, self.single, *outputs)
        else:
            generator, alpha = random
            first, seed = generator.reserve(4 * total) // 4, generator.seed
            seeds = (seed & 0xFFFFFFFF, seed >> 32, first)
            compiled("unigram").sample(n, 1, *inputs, self._unknown, alpha, *outputs, *seeds)
        np.cumsum(counts, out=id_starts[1:])
        found = joined(ids, starts[chunks[:-1]], id_starts[chunks])
        if unknown_id < 0 and not split and len(found) and found.min() < 0:
            word = int(np.searchsorted(id_starts, int(found.argmin()), side="right")) - 1
            text = bytes(data[starts[word] : starts[word + 1]])[:40]
            raise DataError("UnigramModel", "a character that no piece covers", got=f"in {text!r}")
        return found.view(np.uint32), id_starts, joined(at, starts[chunks[:-1]], id_starts[chunks]) if ends else at

    def n_best(self, word: bytes, n: int) -> list[tuple[list[int], float]]:
        """The `n` best segmentations of one word, fewer if there are no more: ids and score of each, best first.

        Raises ConfigError for n below 1.
        """
        if n < 1:
            raise ConfigError("n_best", "too few", got=n, expected="1 or more")
        # A path: its score, and its last piece (id or None, begin, end) with the path before it.
        start: _Path = (0.0, None, 0, 0, None)
        paths: list[list[_Path]] = [[] for _ in range(len(word) + 1)]
        paths[0].append(start)
        begins = [i for i in range(len(word)) if i == 0 or word[i] & 0xC0 != 0x80]
        for i, following in pairwise([*begins, len(word)]):
            # A stable sort: of equal scores, what begins first comes first.
            here = heapq.nsmallest(n, paths[i], key=lambda path: -path[0])
            edges: list[tuple[int | None, int, float]] = []
            for j in range(i + 1, min(len(word), i + self._longest) + 1):
                found = self._places.get(word[i:j])
                if found is not None:
                    edges.append((found, j, float(self.scores[found])))
            if not any(j == following for _, j, _ in edges):
                edges.append((None, following, self._unknown))
            for number, j, score in edges:
                paths[j] += [(self._add(path[0], score), number, i, j, path) for path in here]
        best = heapq.nsmallest(n, paths[len(word)], key=lambda path: -path[0])
        return [(self._path_ids(path, word), path[0]) for path in best]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._places), default=0)

    def _add(self, total: float, score: float) -> float:
        return float(np.float32(total + score)) if self.single else total + score

    def _path_ids(self, path: _Path, word: bytes) -> list[int]:
        ids: list[int] = []
        run, step = False, path
        while True:
            _, number, begin, end, before = step
            if before is None:
                return ids[::-1]
            if number is not None:
                ids.append(number)
            elif self.byte_fallback:
                ids += [int(self._byte_ids[byte]) for byte in reversed(word[begin:end])]
            elif self.unk_id is None:
                raise DataError("UnigramModel", "a character that no piece covers", got=f"in {word[:40]!r}")
            elif not run:
                ids.append(self.unk_id)
            run, step = number is None, before


_Path = tuple[float, int | None, int, int, "_Path | None"]
