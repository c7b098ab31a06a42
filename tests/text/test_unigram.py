"""The Unigram model against a brute-force search in Python: best, n best and random segmentations, ties, unknowns."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from pellucid.base.errors import ConfigError, DataError
from pellucid.base.rng import Generator
from pellucid.device import pool
from pellucid.text import unigram
from pellucid.text.unigram import UNKNOWN_PENALTY, UnigramModel

ALPHABET = "abcdیه‌🙂"


def random_model(seed: int, *, byte_fallback: bool = False, single: bool = False, grid: float = 0.0) -> UnigramModel:
    """A random vocabulary without some of the characters; `grid` rounds scores, so that there are ties."""
    random = np.random.default_rng(seed)
    names = {"".join(random.choice(list(ALPHABET[1:]), size=random.integers(1, 5))) for _ in range(60)}
    pieces = ["<unk>", *sorted(names)]
    if byte_fallback:
        pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    scores = -random.random(len(pieces)) * 8
    if grid:
        scores = np.round(scores / grid) * grid
    matched = np.array([not piece.startswith("<") for piece in pieces])
    return UnigramModel(
        [piece.encode() for piece in pieces],
        scores.astype(np.float32) if single else scores,
        byte_fallback=byte_fallback,
        unk_id=0,
        matched=matched,
        single=single,
    )


def random_words(seed: int, n: int, longest: int = 9) -> list[str]:
    random = np.random.default_rng(seed)
    return ["".join(random.choice(list(ALPHABET), size=random.integers(0, longest))) for _ in range(n)]


def arrays(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    raw = [word.encode() for word in words]
    starts = np.zeros(len(raw) + 1, np.int64)
    starts[1:] = np.cumsum([len(part) for part in raw])
    return np.frombuffer(b"".join(raw), np.uint8), starts


def lists(ids: np.ndarray, starts: np.ndarray) -> list[list[int]]:
    return [ids[a:b].tolist() for a, b in pairwise(starts)]


def segmentations(model: UnigramModel, word: str) -> list[tuple[list[int | None], float]]:
    """Every segmentation: ids (None: an unknown character) and the score, summed from left to right."""
    names = {p.decode(): i for i, p in enumerate(model.pieces) if model.matched[i]}
    unknown = float(model.scores[model.matched].min()) - UNKNOWN_PENALTY
    found: list[tuple[list[int | None], float]] = []

    def extend(at: int, ids: list[int | None], score: float) -> None:
        if at == len(word):
            found.append((ids, score))
        for end in range(at + 1, len(word) + 1):
            if word[at:end] in names:
                number = names[word[at:end]]
                extend(end, [*ids, number], score + float(model.scores[number]))
            elif end == at + 1:
                extend(end, [*ids, None], score + unknown)

    extend(0, [], 0.0)
    return found


def visible(model: UnigramModel, ids: list[int | None], word: str) -> list[int]:
    """Ids as the model gives them: bytes for an unknown character, or one id for a run."""
    shown: list[int] = []
    at = 0
    for k, number in enumerate(ids):
        if number is not None:
            shown.append(number)
            at += len(model.pieces[number].decode())
            continue
        if model.byte_fallback:
            shown += [model.pieces.index(b"<0x%02X>" % byte) for byte in word[at].encode()]
        elif k == 0 or ids[k - 1] is not None:
            shown.append(0)
        at += 1
    return shown


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_best_and_n_best_segmentations(seed: int, byte_fallback: bool) -> None:
    model = random_model(seed, byte_fallback=byte_fallback)
    words = random_words(seed + 100, 120)
    found = lists(*model.encode_words(*arrays(words)))
    for word, ids in zip(words, found, strict=True):
        every = sorted(segmentations(model, word), key=lambda path: -path[1])
        assert ids == visible(model, every[0][0], word)
        some = model.n_best(word.encode(), 5)
        assert [score for _, score in some] == [score for _, score in every[:5]]
        assert [ids for ids, _ in some] == [visible(model, path, word) for path, _ in every[:5]]


def begins(model: UnigramModel, path: list[int | None]) -> list[int]:
    """Where the pieces of a segmentation begin, from the last one to the first."""
    sizes = [1 if n is None else len(model.pieces[n].decode()) for n in path]
    return np.cumsum([0, *sizes])[:-1][::-1].tolist()


@pytest.mark.parametrize("single", [False, True])
def test_ties_go_to_the_last_piece_that_begins_first(single: bool) -> None:
    tied = 0
    for seed in range(8):
        model = random_model(seed, grid=2.0, single=single)
        words = random_words(seed + 7, 200)
        for word, ids in zip(words, lists(*model.encode_words(*arrays(words))), strict=True):
            every = segmentations(model, word)
            top = max(score for _, score in every)
            best = [path for path, score in every if score == top]
            tied += len(best) > 1
            assert ids == visible(model, min(best, key=partial(begins, model)), word)
            assert ids == model.n_best(word.encode(), 3)[0][0]
    assert tied > 50


def test_sums_in_float32() -> None:
    # The way over "ba" is better by 0.001, which float32 does not hold at 2**16: a tie, so what begins first counts.
    pieces, scores = [b"bac", b"ba", b"c"], np.array([-(2.0**16), -(2.0**16) + 1, -0.999])
    for single, ids in ((False, [1, 2]), (True, [0])):
        model = UnigramModel(pieces, scores, byte_fallback=False, unk_id=None, single=single)
        assert model.encode_words(*arrays(["bac"]))[0].tolist() == ids
        assert model.n_best(b"bac", 1)[0][0] == ids


# What SentencePiece 0.2.3 gives where sums begin anew beyond 1e5; "?" is unknown.
FAR = [
    ({"a": -973354.06, "aa": -2.58, "ab": -3.84, "b": -2.67}, "aaaaa", "a aa aa"),
    ({"a": -5.41, "aa": -831075.35, "ab": -38994.36, "ba": -593423.37, "bb": -29925.58}, "bbb", "? bb"),
    ({"a": -10.81, "aaa": -530307.18, "aab": -11.6, "ba": -7.49, "bb": -10.96}, "abbb", "a ? bb"),
    ({"a": -85986.24, "aa": -9.28, "b": -104141.05, "ba": -5.15, "bb": -3.73}, "ababbb", "a ba b bb"),
]


@pytest.mark.parametrize(("scores", "text", "expected"), FAR)
def test_sums_that_begin_anew(scores: dict[str, float], text: str, expected: str) -> None:
    names = ["?", *scores]
    values = np.array([0.0, *scores.values()], np.float32)
    model = UnigramModel(
        [name.encode() for name in names],
        values,
        byte_fallback=False,
        unk_id=0,
        matched=np.arange(len(names)) > 0,
        single=True,
    )
    assert [names[i] for i in model.encode_words(*arrays([text]))[0]] == expected.split()


def test_threads_chunks_and_ends() -> None:
    model = random_model(1, byte_fallback=True)
    words = random_words(3, 20_000)
    data, starts = arrays(words)
    before = pool.threads()
    try:
        pool.set_threads(1)
        alone = model.encode_words(data, starts)
        drawn = model.sample_words(data, starts, generator=Generator(5))
        pool.set_threads(2)
        ids, id_starts, ends = model.encode_ends(data, starts)
        again = model.sample_words(data, starts, generator=Generator(5))
    finally:
        pool.set_threads(before)
    assert np.array_equal(alone[0], ids)
    assert np.array_equal(alone[1], id_starts)
    assert np.array_equal(drawn[0], again[0])
    assert ids.dtype == np.uint32
    some = model.encode_words(*arrays(words[100:300]))[0]
    assert np.array_equal(some, ids[id_starts[100] : id_starts[300]])
    # The ends of a word's ids go up to its length, and every id stands for its bytes.
    shown = [bytes([int(p[3:5], 16)]) if p.startswith(b"<0x") else p for p in model.pieces]
    for word in range(0, len(words), 97):
        edges = [0, *ends[id_starts[word] : id_starts[word + 1]].tolist()]
        raw = words[word].encode()
        parts = [raw[a:b] for a, b in pairwise(edges)]
        assert b"".join(parts) == raw
        assert parts == [shown[i] for i in ids[id_starts[word] : id_starts[word + 1]]]


def test_random_segmentations_have_their_probabilities() -> None:
    model = random_model(2, byte_fallback=True)
    word, n, alpha = "bcdbc", 20_000, 0.3
    every = segmentations(model, word)
    weights = {tuple(visible(model, path, word)): math.exp(alpha * score) for path, score in every}
    total = sum(weights.values())
    ids, starts = model.sample_words(*arrays([word] * n), generator=Generator(1), alpha=alpha)
    counts = Counter(map(tuple, lists(ids, starts)))
    assert set(counts) <= set(weights)
    for path, weight in weights.items():
        p = weight / total
        assert abs(counts[path] / n - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-9
    # A large alpha is the best segmentation; another generator another draw.
    best, _ = model.encode_words(*arrays([word] * 50))
    assert np.array_equal(model.sample_words(*arrays([word] * 50), generator=Generator(1), alpha=100.0)[0], best)
    assert not np.array_equal(model.sample_words(*arrays([word] * n), generator=Generator(2), alpha=alpha)[0], ids)


def test_a_random_segmentation_is_one_of_the_word() -> None:
    for byte_fallback in (False, True):
        model = random_model(3, byte_fallback=byte_fallback)
        words = random_words(5, 400, 6)
        ids, starts = model.sample_words(*arrays(words), generator=Generator(9), alpha=0.1)
        for word, found in zip(words, lists(ids, starts), strict=True):
            assert found in [visible(model, path, word) for path, _ in segmentations(model, word)]


def test_many_pieces_in_the_trie() -> None:
    random = np.random.default_rng(4)
    pieces = sorted({bytes(random.integers(0, 256, random.integers(1, 7), np.uint8)) for _ in range(30_000)})
    model = UnigramModel(pieces, np.full(len(pieces), -1.0), byte_fallback=False, unk_id=0)
    from pellucid.text.native import compiled

    words = compiled("trie").WORDS
    nodes = model.trie.reshape(-1, words).tolist()
    for number, piece in enumerate(pieces):
        at = 0
        for byte in piece:
            child = nodes[at][0] + byte
            assert nodes[child][1] == at
            at = child
        assert nodes[at][2] == number
    assert sum(node[2] >= 0 for node in nodes) == len(pieces)
    assert len(nodes) < 3 * sum(map(len, pieces))


def test_no_text_and_long_text() -> None:
    model = random_model(1)
    for words in ([], [""], ["", "b", ""]):
        ids, starts = model.encode_words(*arrays(words))
        assert lists(ids, starts) == [model.encode_words(*arrays([word]))[0].tolist() for word in words]
    # One word of a megabyte: unknown characters are one run.
    assert model.encode_words(*arrays(["a" * 1_000_000]))[0].tolist() == [0]
    assert model.n_best(b"", 2) == [([], 0.0)]


def test_too_large_a_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram, "_MOST_BYTES", 4)
    UnigramModel([b"ab", b"cd"], np.zeros(2), byte_fallback=False, unk_id=None)
    with pytest.raises(DataError) as refused:
        UnigramModel([b"ab", b"cde"], np.zeros(2), byte_fallback=False, unk_id=None)
    assert str(refused.value) == "UnigramModel: too large a vocabulary; got 5 bytes, expected at most 4"


def test_bad_models() -> None:
    def refused(message: str, pieces: list[bytes], scores: list[float], **options: object) -> None:
        with pytest.raises(DataError) as error:
            UnigramModel(pieces, np.array(scores), **{"byte_fallback": False, "unk_id": None, **options})  # type: ignore[arg-type]
        assert str(error.value) == message

    refused("UnigramModel: no pieces", [], [])
    refused("UnigramModel: not a score for each piece; got (1,), expected (2,)", [b"a", b"b"], [0.0])
    refused("UnigramModel: the same piece twice; got b'a' as 0 and 2", [b"a", b"b", b"a"], [0.0, 0.0, 0.0])
    long = [bytes([byte]) * 4096 for byte in range(2)]
    refused("UnigramModel: piece 0 is too long; got 4096 bytes, expected at most 4095", long, [0.0, 0.0])
    refused("UnigramModel: piece 1 is empty", [b"a", b""], [0.0, 0.0])
    refused("UnigramModel: the score of piece 1 is no finite number; got nan", [b"a", b"b"], [0.0, math.nan])
    refused("UnigramModel: an unknown piece outside the vocabulary; got 1, expected below 1", [b"a"], [0.0], unk_id=1)
    refused("UnigramModel: byte fallback without pieces for the 256 bytes; got 0 of them", [b"a"], [0.0],
            byte_fallback=True)  # fmt: skip
    model = UnigramModel([b"a"], np.zeros(1), byte_fallback=False, unk_id=None)
    with pytest.raises(DataError) as error:
        model.encode_words(*arrays(["a", "ab"]))
    assert str(error.value) == "UnigramModel: a character that no piece covers; got in b'ab'"
    with pytest.raises(ConfigError, match="alpha out of range"):
        model.sample_words(*arrays(["a"]), generator=Generator(0), alpha=-1.0)
    with pytest.raises(ConfigError, match="n_best: too few"):
        model.n_best(b"a", 0)
