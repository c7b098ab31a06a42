"""Training a Unigram vocabulary (Kudo 2018, section 3.2): many candidates, then EM and pruning until few are left.

1. Count the distinct words of the corpus.
2. Candidates: substrings of words that occur twice and are not always followed by the same character.
3. EM, twice: expected counts of the pieces over all segmentations, then scores from them.
4. Prune the pieces whose loss costs the corpus least, a quarter of them, and go back to 3 until the size is reached.

Words are sorted and counts are integers, or sums in an order that the words fix; so the same words give the same bits,
whatever the order of the texts and the number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..base.errors import ConfigError, DataError
from .native import compiled, shared
from .words import count_words

_SUB_ITERATIONS = 2
_SHRINK = 0.75  # share of the pieces that a round of pruning keeps
_ROOM = 1.1  # pruning stops this far above the size; the pieces of the smallest probability go last
_RARE = 0.5  # a piece that is expected less often goes
_BLOCKS = 16  # partial sums of expected counts: as many workers can share the E step
_MOST_BYTES = 1 << 29  # of distinct words: places in them are numbered in 32 bits
_LONGEST_WORD = 512  # bytes; a longer one is cut for training


@dataclass(frozen=True)
class UnigramTraining:
    """How a Unigram vocabulary is trained.

    character_coverage: share of the corpus's characters whose kinds get a piece of their own; the rarest don't.
    longest_piece: characters.
    candidates: largest number of pieces that training begins with.
    """

    character_coverage: float = 0.9995
    longest_piece: int = 16
    candidates: int = 1_000_000

    def __post_init__(self) -> None:
        where = "UnigramTraining"
        if not 0 < self.character_coverage <= 1:
            raise ConfigError(where, "character_coverage out of range", got=self.character_coverage, expected="0 to 1")
        if not 1 <= self.longest_piece <= 100:
            raise ConfigError(where, "longest_piece out of range", got=self.longest_piece, expected="1 to 100")
        if self.candidates < 1:
            raise ConfigError(where, "too few candidates", got=self.candidates, expected="1 or more")


class UnigramTrainer:
    """One training: the words of `texts`, then `train(size)`.

    Raises DataError for no text, and for half a surrogate pair in it.
    """

    def __init__(self, texts: Iterable[str], options: UnigramTraining) -> None:
        self._options = options
        counted = count_words(texts, "UnigramTokenizer.train", longest=_LONGEST_WORD)
        if not counted:
            raise DataError("UnigramTokenizer.train", "no text", hint="give at least one character")
        self.alphabet, rare = _alphabet(counted, options.character_coverage)
        words = _without(counted, rare)
        if (size := sum(map(len, words))) > _MOST_BYTES:
            raise DataError(
                "UnigramTokenizer.train",
                "too many distinct words",
                got=f"{size} bytes",
                expected=f"at most {_MOST_BYTES}",
                hint="train on a sample of the texts",
            )
        self._corpus = _Corpus(words)

    def train(self, vocab_size: int, others: int) -> list[tuple[bytes, float]]:
        """The pieces of a vocabulary that has `others` besides, and their scores, in descending order of the scores.

        Raises DataError where the corpus has more characters or fewer pieces.
        """
        where, corpus, size = "UnigramTokenizer.train", self._corpus, vocab_size - others
        if size < len(self.alphabet):
            raise DataError(
                where,
                "vocabulary smaller than the alphabet",
                got=vocab_size,
                expected=f"at least {len(self.alphabet) + others}",
                hint="raise vocab_size, or lower character_coverage",
            )
        pieces = _Pieces(*_candidates(corpus, self.alphabet, self._options))
        if len(pieces) < size:
            raise DataError(
                where,
                "vocabulary larger than the corpus can give",
                got=vocab_size,
                expected=f"at most {len(pieces) + others}",
                hint="lower vocab_size, or give more text",
            )
        enough = int(size * _ROOM)
        while True:
            for _ in range(_SUB_ITERATIONS):
                pieces.improve(corpus, size)
            if len(pieces) <= enough:
                break
            pieces.prune(corpus, max(enough, int(_SHRINK * len(pieces))))
        pieces.cut(size)
        pieces.improve(corpus, size)
        return pieces.ordered()


class _Corpus:
    """Distinct words in a row, their counts, and blocks of about equal size."""

    def __init__(self, words: dict[bytes, int]) -> None:
        order = sorted(words)
        self.data, self.starts = _in_a_row(order)
        self.counts = np.array([words[word] for word in order], np.int64)
        edges = np.searchsorted(self.starts, np.linspace(0, len(self.data), _BLOCKS + 1))
        edges[0], edges[-1] = 0, len(order)
        self.blocks = edges.astype(np.int64)

    def arrays(self) -> list:
        return [shared(a) for a in (self.blocks, self.data, self.starts, self.counts)]


class _Pieces:
    """The pieces that are left, in the order of their bytes, with their scores; `required` ones always stay."""

    def __init__(self, pieces: list[bytes], weights: np.ndarray, required: np.ndarray) -> None:
        self._pieces, self._required = pieces, required
        self._scores = np.log(weights) - np.log(weights.sum())
        self._index()

    def __len__(self) -> int:
        return len(self._pieces)

    def _index(self) -> None:
        self._data, self._starts = _in_a_row(self._pieces)
        self._longest = int(np.diff(self._starts).max())
        numbers = np.arange(len(self._pieces), dtype=np.int32)
        self._trie = compiled("trie").build_trie(self._data, self._starts, numbers)

    def _keep(self, kept: np.ndarray) -> None:
        at = np.flatnonzero(kept)
        self._pieces = [self._pieces[i] for i in at.tolist()]
        self._scores, self._required = self._scores[at], self._required[at]
        self._index()

    def improve(self, corpus: _Corpus, fewest: int) -> None:
        """One E and one M step; pieces that are hardly expected go, but `fewest` stay.

        score = digamma(expected) - digamma(sum of expected): the digamma takes more from small counts than ln
        does, as a sparse Dirichlet prior would.
        """
        expected = np.zeros((_BLOCKS, len(self)), np.float64)
        arrays = [shared(self._trie), shared(np.exp(self._scores)), self._longest, shared(expected)]
        compiled("unigram_train").expect(_BLOCKS, 1, *corpus.arrays(), *arrays)
        total = expected.sum(axis=0)
        kept = self._required | (total >= _RARE)
        if kept.sum() < fewest:
            kept = self._best(total, fewest)
        total = np.maximum(total, _RARE)
        self._scores = digamma(total) - digamma(total[kept].sum())
        if not kept.all():
            self._keep(kept)

    def prune(self, corpus: _Corpus, size: int) -> None:
        """Keeps `size` pieces: those that the corpus would miss most."""
        counts = np.zeros((_BLOCKS, len(self)), np.int64)
        trie, scores = shared(self._trie), shared(self._scores)
        compiled("unigram_train").best_counts(_BLOCKS, 1, *corpus.arrays(), trie, scores, shared(counts))
        uses, loss = counts.sum(axis=0), np.empty(len(self), np.float64)
        outputs = [shared(uses), float(uses.sum()), shared(loss)]
        pieces = [shared(self._data), shared(self._starts)]
        compiled("unigram_train").losses(len(self), 256, *pieces, trie, scores, *outputs)
        self._keep(self._best(loss, size))

    def cut(self, size: int) -> None:
        """Keeps the `size` pieces of the highest scores."""
        self._keep(self._best(self._scores, size))

    def _best(self, values: np.ndarray, size: int) -> np.ndarray:
        """Which pieces are required or among the largest `values`, `size` in all; of equal ones the first."""
        order = np.lexsort((-values, ~self._required))[:size]
        kept = np.zeros(len(self), np.bool_)
        kept[order] = True
        return kept

    def ordered(self) -> list[tuple[bytes, float]]:
        order = np.argsort(-self._scores, kind="stable").tolist()
        return [(self._pieces[i], float(self._scores[i])) for i in order]


def _in_a_row(parts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return np.frombuffer(b"".join(parts), np.uint8), starts


def _characters(data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The code points of words in a row, the word of each, and the byte each begins at (and the end)."""
    codes = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-32-le"), "<u4")
    begins = np.flatnonzero((data & 0xC0) != 0x80)
    return codes, np.searchsorted(starts, begins, side="right") - 1, np.append(begins, len(data))


def _alphabet(words: dict[bytes, int], coverage: float) -> tuple[str, str]:
    """The characters that get a piece, the most frequent first until `coverage` is reached, and those that don't."""
    codes, word, _ = _characters(*_in_a_row(list(words)))
    kinds, which = np.unique(codes, return_inverse=True)
    counts = np.zeros(len(kinds), np.int64)
    np.add.at(counts, which, np.fromiter(words.values(), np.int64, len(words))[word])
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    n = max(1, int((before < coverage * counts.sum()).sum()))
    text = kinds[order].astype("<u4").tobytes().decode("utf-32-le")
    return "".join(sorted(text[:n])), "".join(sorted(text[n:]))


def _without(words: dict[bytes, int], rare: str) -> dict[bytes, int]:
    """The words cut at the `rare` characters, which go."""
    if not rare:
        return words
    cut = re.compile(f"[{re.escape(rare)}]")
    total: dict[bytes, int] = {}
    for word, count in words.items():
        for part in cut.split(word.decode("utf-8")):
            if part:
                key = part.encode("utf-8")
                total[key] = total.get(key, 0) + count
    return total


def _candidates(corpus: _Corpus, alphabet: str, options: UnigramTraining) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """The pieces training begins with, sorted; the weight of each, count x characters; and which are characters.

    The alphabet, and substrings of words of up to `longest_piece` characters that occur twice, without those that the
    same character always follows: the inner nodes of the suffix tree.
    """
    codes, word, begins = _characters(corpus.data, corpus.starts)
    kinds, which = np.unique(codes, return_inverse=True)
    totals = np.bincount(which, weights=corpus.counts[word]).astype(np.int64).tolist()
    names = [name.encode("utf-8") for name in kinds.astype("<u4").tobytes().decode("utf-32-le")]
    required = {character.encode("utf-8") for character in alphabet}
    raw = corpus.data.tobytes()
    found: list[tuple[bytes, int]] = []
    for length, counts, first in _repeats(which, word, corpus.counts, options.longest_piece):
        places = zip(begins[first].tolist(), begins[first + length].tolist(), (counts * length).tolist(), strict=True)
        found += [(raw[begin:end], weight) for begin, end, weight in places]
    if len(found) + len(required) > options.candidates:
        found = sorted(found, key=lambda item: (-item[1], item[0]))[: max(0, options.candidates - len(required))]
    weight = dict(found)
    weight.update({name: total for name, total in zip(names, totals, strict=True) if name in required})
    pieces = sorted(weight)
    return pieces, np.array([weight[p] for p in pieces], np.float64), np.array([p in required for p in pieces])


def _repeats(
    which: np.ndarray, word: np.ndarray, counts: np.ndarray, longest: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Substrings of 2 to `longest` characters that occur twice and are not always followed by the same character:
    their length, the count of each, and its first character.

    which: the number of each character's kind; word: the word it is in; counts: of the words. They are found length by
    length: a substring can only occur twice if the shorter one that it begins with does.
    """
    # One place behind each word, where no substring goes on: character k is at place k + its word.
    places = np.arange(len(which)) + word
    single = np.full(len(which) + len(counts), -1, np.int32)
    weights = np.zeros(len(single), np.int64)
    single[places], weights[places] = which, counts[word]
    shorter = np.bincount(which, weights=counts[word]).astype(np.int64)
    gram, first = single.copy(), np.zeros(len(shorter), np.int64)
    # One length more than asked for, which tells what always goes on.
    for length in range(2, longest + 2):
        n = int((gram >= 0).sum())
        if not n:
            return
        table = np.full(1 << (2 * n).bit_length(), -1, np.int32)
        keys, found, at = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        kept, size = np.ones(len(shorter), np.bool_), np.empty(1, np.int64)
        arrays, results = (gram, single, weights), (shorter, table, keys, found, at, kept, size)
        compiled("unigram_train").seeds(1, 1, *map(shared, arrays), length, *map(shared, results))
        if length > 2:
            useful = kept & (shorter > 1)
            yield length - 1, shorter[useful], np.searchsorted(places, first[useful])
        shorter, first = found[: int(size[0])], at[: int(size[0])]


def digamma(x: np.ndarray) -> np.ndarray:
    """d/dx ln gamma(x) for x > 0: psi(x) = psi(x + 1) - 1 / x up to 6, then the asymptotic series in 1 / x**2, whose
    first term left out is below 1e-11 there."""
    x = np.array(x, np.float64)
    result = np.zeros_like(x)
    for _ in range(6):
        small = x < 6
        result -= np.where(small, 1 / x, 0.0)
        x = x + small
    r = 1 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760))))))
    return result + np.log(x) - 0.5 / x - series
