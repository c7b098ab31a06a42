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
from collections.abc import Iterable
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
        self._corpus = _Corpus(_without(counted, rare))

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
        objective = np.zeros(_BLOCKS, np.float64)
        arrays = [shared(a) for a in (self._trie, self._scores)]
        compiled("unigram_train").expect(
            _BLOCKS, 1, *corpus.arrays(), *arrays, self._longest, shared(expected), shared(objective)
        )
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


def _characters(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Code points of all words in a row, and the word of each."""
    codes = np.frombuffer(b"".join(words).decode("utf-8").encode("utf-32-le"), "<u4")
    data, starts = _in_a_row(words)
    begins = np.flatnonzero((data & 0xC0) != 0x80)
    return codes, np.searchsorted(starts, begins, side="right") - 1


def _alphabet(words: dict[bytes, int], coverage: float) -> tuple[str, str]:
    """The characters that get a piece, the most frequent first until `coverage` is reached, and those that don't."""
    codes, word = _characters(list(words))
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
    same character always follows: the inner nodes of the suffix tree. They are found length by length: a substring
    can only occur twice if the shorter one that it begins with does.
    """
    words = [corpus.data[a:b].tobytes() for a, b in zip(corpus.starts[:-1], corpus.starts[1:], strict=True)]
    codes, word = _characters(words)
    kinds, which = np.unique(codes, return_inverse=True)
    ends = np.append(word[1:] != word[:-1], True)
    # One place behind each word, where no substring goes on.
    places = np.arange(len(codes)) + word
    single = np.full(len(codes) + len(words), -1, np.int32)
    single[places] = which
    weights = np.zeros(len(single), np.int64)
    weights[places] = corpus.counts[word]
    text = np.full(len(single), ord("\0"), "<u4")
    text[places] = codes
    del ends
    counts = np.bincount(single[places], weights=weights[places], minlength=len(kinds)).astype(np.int64)
    found: list[tuple[int, int, int]] = []
    gram = single.copy()
    first = np.zeros(len(kinds), np.int64)
    table = np.empty(1 << (2 * len(single)).bit_length(), np.int32)
    for length in range(2, options.longest_piece + 2):
        n = int((gram >= 0).sum())
        if not n:
            break
        table = table[: 1 << (2 * n).bit_length()]
        table[:] = -1
        keys, more, at = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        kept, size = np.ones(len(counts), np.bool_), np.empty(1, np.int64)
        arrays = (gram, single, weights)
        results = (counts, table, keys, more, at, kept, size)
        compiled("unigram_train").seeds(1, 1, *map(shared, arrays), length, *map(shared, results))
        if length > 2:
            useful = np.flatnonzero(kept & (counts > 1))
            found += zip(counts[useful].tolist(), [length - 1] * len(useful), first[useful].tolist(), strict=True)
        counts, first = more[: int(size[0])], at[: int(size[0])]
    raw = text.tobytes()
    strings = [(raw[4 * at : 4 * (at + n)].decode("utf-32-le").encode("utf-8"), n * c) for c, n, at in found]
    strings.sort(key=lambda item: (-item[1], item[0]))
    weight = dict(strings[: max(0, options.candidates - len(alphabet))])
    letters = np.bincount(which, weights=corpus.counts[word]).astype(np.int64)
    sizes = dict(zip(kinds.astype("<u4").tobytes().decode("utf-32-le"), letters.tolist(), strict=True))
    required = {character.encode("utf-8") for character in alphabet}
    weight.update({character.encode("utf-8"): sizes[character] for character in alphabet})
    pieces = sorted(weight)
    return pieces, np.array([weight[p] for p in pieces], np.float64), np.array([p in required for p in pieces])


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
