"""The steps of the Unigram trainer against plain Python: substrings, expected counts, and what losing a piece costs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.text import unigram_train
from pellucid.text.native import compiled, shared
from pellucid.text.unigram_train import (
    UnigramTrainer,
    UnigramTraining,
    _candidates,
    _Corpus,
    _Pieces,
    digamma,
)

LETTERS = "abcی🙂"


def random_corpus(seed: int, long: tuple[int, ...] = ()) -> dict[bytes, int]:
    source = np.random.default_rng(seed)
    sizes = [*source.integers(1, 9, 200).tolist(), *long]
    return {"".join(source.choice(list(LETTERS), size=n)).encode(): int(source.integers(1, 9)) for n in sizes}


def random_pieces(seed: int, spread: float) -> _Pieces:
    source = np.random.default_rng(seed)
    names = {"".join(source.choice(list(LETTERS), size=source.integers(1, 4))) for _ in range(40)} | set(LETTERS)
    pieces = sorted(name.encode() for name in names)
    weights = np.exp(-source.random(len(pieces)) * spread)
    return _Pieces(pieces, weights, np.array([len(piece.decode()) == 1 for piece in pieces]))


def slow_best(pieces: _Pieces, word: bytes, *, whole: bool) -> list[int] | None:
    """The best segmentation, by trying all."""
    at = {piece: i for i, piece in enumerate(pieces._pieces)}

    def ways(begin: int) -> list[tuple[float, list[int]]]:
        if begin == len(word):
            return [(0.0, [])]
        found = []
        for end in range(begin + 1, len(word) + 1):
            if word[begin:end] in at and (whole or end - begin < len(word)):
                i = at[word[begin:end]]
                found += [(pieces._scores[i] + score, [i, *rest]) for score, rest in ways(end)]
        return found

    every = ways(0)
    return max(every, key=lambda way: way[0])[1] if every else None


@pytest.mark.parametrize("longest", [1, 3, 16])
def test_candidates(longest: int) -> None:
    words = random_corpus(1) | {b"bcbc": 2, "ییییی".encode(): 1, b"x": 1, "🙂🙂🙂🙂".encode(): 7}
    counts: Counter[str] = Counter()
    after: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for raw, count in words.items():
        word = raw.decode()
        for a in range(len(word)):
            for b in range(a + 1, len(word) + 1):
                counts[word[a:b]] += count
                after[word[a:b]][word[b : b + 1]] += count
    expected = {text: count for text, count in counts.items() if len(text) == 1}
    for text, count in counts.items():
        always = [c for c in after[text] if c and after[text][c] == count]
        if 2 <= len(text) <= longest and count > 1 and not always:
            expected[text] = count * len(text)
    alphabet = "".join(sorted(set("".join(counts))))
    pieces, weights, required = _candidates(_Corpus(words), alphabet, UnigramTraining(longest_piece=longest))
    assert dict(zip((piece.decode() for piece in pieces), weights.tolist(), strict=True)) == expected
    assert pieces == sorted(pieces)
    assert [len(piece.decode()) == 1 for piece in pieces] == required.tolist()
    # The heaviest ones if there are too many.
    few, weights, _ = _candidates(_Corpus(words), alphabet, UnigramTraining(longest_piece=longest, candidates=9))
    assert len(few) == max(len(alphabet), min(9, len(pieces)))
    kept = sorted((weight for text, weight in expected.items() if len(text) > 1), reverse=True)
    assert sorted((w for p, w in zip(few, weights, strict=True) if len(p.decode()) > 1), reverse=True) == [
        *kept[: len(few) - len(alphabet)]
    ]


@pytest.mark.parametrize("spread", [5.0, 60.0])
def test_expected_counts(spread: float) -> None:
    """Forward and backward in logarithms; with long words and tiny probabilities, whose products have no float64."""
    words, pieces = random_corpus(2, (120, 300)), random_pieces(3, spread)
    at = {piece.decode(): i for i, piece in enumerate(pieces._pieces)}
    expected = np.zeros(len(pieces))
    for raw, count in words.items():
        word, n = raw.decode(), len(raw.decode())
        edges = [(i, j, at[word[i:j]]) for i in range(n) for j in range(i + 1, min(n, i + 3) + 1) if word[i:j] in at]
        before, rest = np.full(n + 1, -math.inf), np.full(n + 1, -math.inf)
        before[0] = rest[n] = 0.0
        for i, j, v in edges:
            before[j] = np.logaddexp(before[j], before[i] + pieces._scores[v])
        for i, j, v in reversed(edges):
            rest[i] = np.logaddexp(rest[i], rest[j] + pieces._scores[v])
        for i, j, v in edges:
            expected[v] += count * math.exp(before[i] + pieces._scores[v] + rest[j] - before[n])
    corpus = _Corpus(words)
    found = np.zeros((len(corpus.blocks) - 1, len(pieces)))
    arrays = [shared(pieces._trie), shared(np.exp(pieces._scores)), pieces._longest, shared(found)]
    compiled("unigram_train").expect(len(found), 1, *corpus.arrays(), *arrays)
    assert found.sum(axis=0) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # Every character of the corpus is in exactly one piece.
    sizes = [len(piece.decode()) for piece in pieces._pieces]
    characters = sum(len(raw.decode()) * count for raw, count in words.items())
    assert found.sum(axis=0) @ sizes == pytest.approx(characters, rel=1e-9)


def test_losses() -> None:
    words, pieces = random_corpus(4), random_pieces(5, 8.0)
    corpus = _Corpus(words)
    uses = np.zeros(len(pieces), np.int64)
    for raw, count in words.items():
        for v in slow_best(pieces, raw, whole=True) or []:
            uses[v] += count
    blocks = len(corpus.blocks) - 1
    counts, loss = np.zeros((blocks, len(pieces)), np.int64), np.empty(len(pieces))
    trie, scores = shared(pieces._trie), shared(pieces._scores)
    compiled("unigram_train").best_counts(blocks, 1, *corpus.arrays(), trie, scores, shared(counts))
    assert counts.sum(axis=0).tolist() == uses.tolist()
    pieces_ = [shared(pieces._data), shared(pieces._starts)]
    total = float(uses.sum())
    compiled("unigram_train").losses(len(pieces), 7, *pieces_, trie, scores, shared(uses), total, shared(loss))
    for v, piece in enumerate(pieces._pieces):
        other = slow_best(pieces, piece, whole=False)
        if other is None or uses[v] == 0:
            assert loss[v] == (math.inf if other is None else -math.inf)
            continue
        after = total + uses[v] * (len(other) - 1)
        change = math.log(uses[v] / total) - sum(math.log((uses[k] + uses[v]) / after) for k in other)
        assert loss[v] == pytest.approx(uses[v] * change, rel=1e-9)


def test_rare_characters_get_no_piece() -> None:
    texts = ["abab baba" * 1000, "abZab"]
    trainer = UnigramTrainer(texts, UnigramTraining(character_coverage=0.999))
    assert trainer.alphabet == " ab"
    pieces = [piece.decode() for piece, _ in trainer.train(6, 0)]
    assert {" ", "a", "b"} <= set(pieces)
    assert not any("Z" in piece for piece in pieces)
    assert UnigramTrainer(texts, UnigramTraining(character_coverage=1.0)).alphabet == " Zab"


def test_too_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram_train, "_MOST_BYTES", 5)
    assert UnigramTrainer(["ab ab"], UnigramTraining()).alphabet == " ab"
    with pytest.raises(DataError) as refused:
        UnigramTrainer(["ab abc"], UnigramTraining())
    assert str(refused.value) == (
        "UnigramTokenizer.train: too many distinct words; got 7 bytes, expected at most 5. "
        "hint: train on a sample of the texts"
    )


def test_scores_are_those_of_the_last_expected_counts() -> None:
    trainer = UnigramTrainer(["abab baba ab ab b"] * 20, UnigramTraining())
    found = trainer.train(7, 0)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert all(a[1] > b[1] or a[0] < b[0] for a, b in pairwise(found))
    # ln p as digamma sees it: a little less than ln p, so the sum stays below 1.
    assert 0.9 < sum(math.exp(score) for _, score in found) < 1.0


def test_digamma() -> None:
    # psi(1) = -gamma, psi(1/2) = -gamma - 2 ln 2, psi(x + 1) = psi(x) + 1 / x.
    gamma = 0.5772156649015329
    assert digamma(np.array([1.0, 0.5])) == pytest.approx([-gamma, -gamma - 2 * np.log(2)], abs=1e-10)
    x = np.geomspace(0.01, 1e6, 50)
    assert digamma(x + 1) == pytest.approx(digamma(x) + 1 / x, rel=1e-9, abs=1e-10)
