"""Byte-pair models and their trainer against the definition written out in Python; round trips; repeatability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.device import pool
from pellucid.text import END_OF_TEXT, BPEModel, BPETokenizer, Normalizer, Parts, Persian, Pretokenizer, load_tokenizer
from pellucid.text.alphabet import ORDER, spelled, unspelled
from pellucid.text.batch import utf8_batch
from pellucid.text.patterns import PATTERNS, SIMPLE
from pellucid.text.split import split
from pellucid.text.words import distinct

HARD = "می‌خواهم ي ی ك ک 123 ۱۲۳ مُحَمَّد\r\né 𝔘𝕟𝕚 👩‍👩‍👧 \u0000\u0001\t\ufeff\U0010ffff don't  WE'LL   \n\n x"
CORPUS = [
    *["the cat sat on the mat, then that cat ran.\n", "a cat can't catch the rat; the hat can.\n"] * 8,
    *["می‌خواهم کتاب را بخوانم، کتاب خوب است\n", "aaaaaaa aaaaa bababab 12345 123 12\n"] * 6,
    HARD,
    HARD,
]


def words_of(texts: list[str], name: str) -> list[bytes]:
    data, starts, _ = split(*utf8_batch(texts, "test"), {**PATTERNS, **SIMPLE}[name])
    return [data.tobytes()[begin:end] for begin, end in pairwise(starts.tolist())]


def merged(symbols: list[bytes], ranks: dict[tuple[bytes, bytes], int]) -> list[bytes]:
    """The definition: as long as there is a pair with a rank, the one of the lowest, the leftmost of equals."""
    symbols = list(symbols)
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not found:
            return symbols
        at = min(found)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def learned(words: list[bytes], size: int, fewest: int) -> list[tuple[bytes, bytes]]:
    """The definition of training: the most frequent pair, of equals the one with the smaller ids."""
    ids = {bytes([byte]): i for i, byte in enumerate(ORDER)}
    rows = [([word[i : i + 1] for i in range(len(word))], n) for word, n in Counter(words).items()]
    merges: list[tuple[bytes, bytes]] = []
    while len(ids) < size:
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for row, n in rows:
            for pair in pairwise(row):
                counts[pair] += n
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        if counts[best] < fewest:
            break
        merges.append(best)
        ids.setdefault(best[0] + best[1], len(ids))
        rows = [(merged(row, {best: 0}), n) for row, n in rows]
    return merges


def encoded(model: BPEModel, words: list[bytes]) -> list[list[int]]:
    starts = np.cumsum([0, *map(len, words)])
    ids, id_starts = model.encode_words(np.frombuffer(b"".join(words), np.uint8), starts)
    return [ids[begin:end].tolist() for begin, end in pairwise(id_starts.tolist())]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.train(CORPUS, 340, special=["<|user|>", END_OF_TEXT])


@pytest.fixture
def random_words() -> list[bytes]:
    stream = Generator(3)
    words = []
    for length in [0, 1, 2, 3, 5, 8, 13, 47, 48, 49, 50, 100, 400] * 3:
        words.append(bytes(b"abt heca"[i] for i in stream.integers(8, length).tolist()))
    return [*words, b"a" * 300, b"ab" * 200, *words_of(CORPUS, "gpt2")]


def test_training_follows_the_definition(tokenizer: BPETokenizer) -> None:
    assert tokenizer.model.merges == learned(words_of(CORPUS, "gpt2"), 338, 2)
    assert tokenizer.vocab_size == 340
    assert dict(tokenizer.special) == {"<|user|>": 338, END_OF_TEXT: 339}
    assert tokenizer.model.tokens[:256] == [bytes([byte]) for byte in ORDER]


def test_runs_of_one_letter_are_learned_as_defined() -> None:
    texts = ["a" * n for n in (2, 3, 5, 7, 9, 13, 20)] + ["ba" * 9, "ab" * 7 + "a"]
    found = BPETokenizer.train(texts, 266, min_frequency=1)
    assert found.model.merges == learned(words_of(texts, "gpt2"), 266, 1)


@pytest.mark.parametrize("letters", [2, 3, 4])
def test_random_words_are_learned_as_defined(letters: int) -> None:
    """Few letters: runs, pairs that come back, and tokens that come about in two ways."""
    stream = Generator(letters)
    for fewest in (1, 1, 1, 3):
        lengths = (1 + stream.integers(24, 30)).tolist()
        words = ["".join("abcd"[i] for i in stream.integers(letters, n).tolist()) for n in lengths]
        corpus = [word for i, word in enumerate(words) for _ in range(1 + i % 5)]
        counted = words_of(corpus, "gpt2")
        most = 256 + len({left + right for left, right in learned(counted, 320, fewest)})
        for size, texts in ((most, corpus), (most - 9, corpus[::-1])):
            # A pair that comes back after all were merged is merged again, under the rank it has.
            merges = list(dict.fromkeys(learned(counted, size, fewest)))
            assert BPETokenizer.train(texts, size, min_frequency=fewest).model.merges == merges


def test_words_of_many_chunks_and_blocks_are_counted_once() -> None:
    words = [f"{'xyz'[i % 3]}{i * i % 1009}" for i in range(400_000)]
    data = np.frombuffer("".join(words).encode(), np.uint8)
    starts = np.cumsum([0, *map(len, words)])
    whole = distinct([(data, starts)])
    cut = 123_456
    parts = distinct(
        [(data, starts[: cut + 1]), (data[:0], starts[:1]), (data[starts[cut] :], starts[cut:] - starts[cut])]
    )
    for found in (whole, parts):
        spelled = found.data.tobytes()
        edges = pairwise(found.starts.tolist())
        counts = {spelled[a:b].decode(): n for (a, b), n in zip(edges, found.counts.tolist(), strict=True)}
        assert counts == Counter(words)
        assert list(counts) == list(dict.fromkeys(words))
    assert len(distinct([]).counts) == 0


def test_encoding_follows_the_definition(tokenizer: BPETokenizer, random_words: list[bytes]) -> None:
    model = tokenizer.model
    assert model.merges is not None
    ranks = {pair: rank for rank, pair in enumerate(model.merges)}
    for word, ids in zip(random_words, encoded(model, random_words), strict=True):
        expected = merged([word[i : i + 1] for i in range(len(word))], ranks)
        assert [model.tokens[i] for i in ids] == expected


def test_tokens_without_merges_join_by_their_own_rank(tokenizer: BPETokenizer, random_words: list[bytes]) -> None:
    """As tiktoken does it: any two tokens that are one together; and a word that is a token is that token."""
    model = BPEModel(tokenizer.model.tokens, None, whole=True)
    ids = model.ids
    ranks = {(t[:i], t[i:]): n for t, n in ids.items() for i in range(1, len(t)) if t[:i] in ids and t[i:] in ids}
    for word, found in zip(random_words, encoded(model, random_words), strict=True):
        expected = [word] if word in ids else merged([word[i : i + 1] for i in range(len(word))], ranks)
        assert [model.tokens[i] for i in found] == expected


def test_characters_suffixes_and_fallbacks() -> None:
    tokens = [b"<unk>", *[b"<0x%02X>" % byte for byte in range(256)], b"a", "é".encode(), b"b", "aé".encode()]
    texts: list[bytes | None] = [None] * 257 + [*tokens[257:]]
    merges = [(b"a", "é".encode())]
    words = ["aéb".encode(), "a中é".encode(), b"xxb", b""]
    fallen = BPEModel(texts, merges, characters=True, byte_ids=range(1, 257))
    assert encoded(fallen, words) == [
        [260, 259],
        [257, *(1 + byte for byte in "中".encode()), 258],
        [121, 121, 259],
        [],
    ]
    unknown = BPEModel(texts, merges, characters=True, unknown=0)
    assert encoded(unknown, words) == [[260, 259], [257, 0, 258], [0, 0, 259], []]
    fused = BPEModel(texts, merges, characters=True, unknown=0, fuse_unknown=True)
    assert encoded(fused, [*words, b"xaxx"]) == [[260, 259], [257, 0, 258], [0, 259], [], [0, 257, 0]]
    ended = BPEModel([b"a", b"b", b"a</w>", b"b</w>", b"ab</w>"], [(b"a", b"b</w>")], suffix=b"</w>")
    assert encoded(ended, [b"ab", b"a", b"aba", b"ba"]) == [[4], [2], [0, 1, 2], [1, 2]]


def test_a_megabyte_without_spaces(tokenizer: BPETokenizer) -> None:
    """A scan of all pairs for every merge would take most of an hour."""
    letters = "".join("abct"[i] for i in Generator(1).integers(4, 1_000_000).tolist())
    for text in ("a" * 1_000_000, letters):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "clip"])
def test_every_text_comes_back(pattern: str) -> None:
    trained = BPETokenizer.train(CORPUS, 300, pattern=pattern, special=[END_OF_TEXT])
    stream = Generator(5)
    texts = ["", " ", "\n", HARD, f"a{END_OF_TEXT}", *CORPUS]
    for length in range(1, 60, 3):
        codes = (stream.uniform(length) ** 4 * 0x110000).astype(np.int64)
        texts.append("".join(chr(c) for c in codes.tolist() if not 0xD800 <= c < 0xE000))
    batch = trained.encode_batch(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert trained.decode(ids) == text
        assert trained.encode(text).tolist() == ids.tolist()
        decoder = trained.stream_decoder()
        assert "".join(decoder.push(i) for i in ids) + decoder.finish() == text
        found, offsets = trained.encode_offsets(text)
        assert found.tolist() == ids.tolist()
        for number, (begin, end) in zip(found.tolist(), offsets.tolist(), strict=True):
            assert trained.piece(number) in text[begin:end].encode()
        cut = trained.settled(text)
        parts = [trained.encode(text[:cut]), trained.encode(text[cut:])]
        assert np.concatenate(parts).tolist() == ids.tolist()
    assert trained.settled("one two three ") == 13
    assert trained.settled("onetwo") == 0


def test_the_same_bits_for_any_threads_and_order() -> None:
    texts = CORPUS * 40
    threads = pool.threads()
    made = []
    try:
        for count, corpus in ((1, texts), (2, texts), (2, sorted(texts, reverse=True)), (1, ["".join(texts)])):
            pool.set_threads(count)
            made.append(BPETokenizer.train(corpus, 320))
            assert made[-1].encode_batch(texts).ids.tolist() == made[0].encode_batch(texts).ids.tolist()
    finally:
        pool.set_threads(threads)
    assert len({tokenizer.fingerprint() for tokenizer in made}) == 1


def test_special_tokens_are_placed_only_where_allowed(tokenizer: BPETokenizer) -> None:
    text = f"the cat{END_OF_TEXT}<|user|>"
    assert 339 not in tokenizer.encode(text)
    ids = tokenizer.encode(text, allowed_special="all").tolist()
    assert ids[-2:] == [339, 338]
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(ids, show_special=True) == text
    batch = tokenizer.encode_batch([text, "", END_OF_TEXT], allowed_special=[END_OF_TEXT])
    assert [x.tolist() for x in batch][1:] == [[], [339]]


def test_spaces_written_as_marks() -> None:
    tokens: list[bytes | None] = ["▁".encode(), b"a", b"b", "▁a".encode()]
    model = BPEModel(tokens, [("▁".encode(), b"a")], characters=True)
    cuts = (SIMPLE["metaspace"],)
    parts = Parts(
        model=model,
        pretokenizer=Pretokenizer(cuts=cuts, mark=True, mark_before="always"),
        byte_level=False,
        unmark=True,
        strip_space=True,
    )
    marked = BPETokenizer(parts, vocab_size=4)
    assert marked.encode("a b").tolist() == [3, 0, 2]
    assert marked.decode([3, 0, 2]) == "a b"
    ids, offsets = marked.encode_offsets("a  ab")
    assert ids.tolist() == [3, 0, 3, 2]
    assert offsets.tolist() == [[0, 1], [1, 2], [2, 4], [4, 5]]
    decoder = marked.stream_decoder()
    assert [decoder.push(i) for i in (3, 3, 0)] == ["a", " a", " "]


def test_a_space_before_every_text(tmp_path: Path) -> None:
    texts = ["cat", " cat", "a cat", "", " ", "\ncat", "  cat"]
    made = BPETokenizer.train(texts * 3, 260, space_before=True)
    made.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert loaded.fingerprint() == made.fingerprint()
    assert made.encode("cat").tolist() == made.encode("a cat").tolist()[-1:] == [258]
    for text in texts:
        ids = made.encode(text)
        assert made.decode(ids) == loaded.decode(ids) == text
        assert loaded.encode(text).tolist() == ids.tolist()
        decoder = made.stream_decoder()
        assert "".join(map(decoder.push, ids)) + decoder.finish() == text
    assert made.encode_offsets("cat a")[1].tolist() == [[0, 3], [3, 4], [4, 5]]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt2", "I'll go  12345!!\n x'S", ["I", "'ll", " go", " ", " 12345", "!!", "\n", " x", "'", "S"]),
        ("cl100k", "I'LL go  12345!!\n x \n ", ["I", "'LL", " go", " ", " ", "123", "45", "!!\n", " x", " \n "]),
        ("llama3", "x \n \n  y", ["x", " \n \n", " ", " y"]),
        ("qwen2", "٣12 (ab)", ["٣", "1", "2", " (", "ab", ")"]),
        ("o200k", "HelloWorld McDON'T//\n", ["Hello", "World", " Mc", "DON'T", "//\n"]),
        ("tekken", "don't x9", ["don", "'t", " x", "9"]),
        ("clip", " a's  12 ", ["a", "'s", "1", "2"]),
        ("digits", "ab12c", ["ab", "1", "2", "c"]),
        ("numbers", "ab12c", ["ab", "12", "c"]),
        ("white_space", " a  b\n", ["a", "b"]),
        ("metaspace", "▁a▁▁b", ["▁a", "▁", "▁b"]),
    ],
)
def test_words(name: str, text: str, expected: list[str]) -> None:
    assert [word.decode() for word in words_of([text], name)] == expected


def test_the_alphabet_is_one_to_one() -> None:
    every = bytes(range(256))
    assert unspelled(spelled(every)) == every
    assert len(set(spelled(every))) == 256
    assert spelled(b" the\n") == "ĠtheĊ"
    assert unspelled("a b") is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BPETokenizer.train([], 300), "BPETokenizer.train: no text. hint: give at least one character"),
        (
            lambda: BPETokenizer.train("abc", 257, special=["<a>", "<b>"]),
            "BPETokenizer.train: a vocabulary smaller than the alphabet; got 255, expected at least 256",
        ),
        (
            lambda: BPETokenizer.train("abc abc", 300),
            "BPETokenizer.train: a vocabulary larger than the corpus can give; got 300, expected at most 258. hint: "
            "ask for fewer, lower min_frequency, or give more text",
        ),
        (
            lambda: BPETokenizer.train("abc abc", 1 << 62),
            "BPETokenizer.train: a vocabulary larger than the corpus can give; got 4611686018427387904, expected at "
            "most 258. hint: ask for fewer, lower min_frequency, or give more text",
        ),
        (
            lambda: BPETokenizer.train("abc", 300, pattern="gpt5"),
            "BPETokenizer.train: unknown pattern; got 'gpt5', expected gpt2, cl100k, llama3, qwen2, o200k, tekken, "
            "clip",
        ),
        (
            lambda: BPETokenizer.train("abc", 300, pattern="clip"),
            "BPETokenizer.train: a pattern that drops white space, which bytes can't bring back; got 'clip'",
        ),
        (
            lambda: BPETokenizer.train("abc", 300, min_frequency=0),
            "BPETokenizer.train: not a count; got 0, expected min_frequency of 1 or more",
        ),
        (
            lambda: BPETokenizer.train(["ab", "a\ud800"], 300),
            "BPETokenizer.train, text 1: character 1 is half a surrogate pair and has no bytes; got U+D800. hint: "
            "decode the source with errors='replace', or repair it",
        ),
        (lambda: BPEModel([b"a", b"b", b"a"], []), "BPEModel: the same token twice; got b'a', ids 0 and 2"),
        (
            lambda: BPEModel([b"a", b"b"], [(b"a", b"b")]),
            "BPEModel: merge 0 of a token that is not in the vocabulary; got b'ab' in b'a' + b'b'",
        ),
        (
            lambda: BPEModel([b"a", b"b", b"ab"], [(b"a", b"b")] * 2),
            "BPEModel: the same merge twice; got ids 0 and 1",
        ),
        (
            lambda: BPEModel([b"a", b"b", b""], [(b"a", b"")]),
            "BPEModel: merge 0 with an empty token; got b'a' + b''",
        ),
        (
            lambda: BPEModel([b"a", b"a" * 70_000], None),
            "BPEModel: tokens too long to be parted in every place; got 4900000001 steps",
        ),
        (lambda: BPEModel([], []), "BPEModel: not a size for a vocabulary; got 0, expected 1 to 16777216"),
        (
            lambda: encoded(BPEModel([b"a", b"b"], []), [b"ab", b"abc"]),
            "BPEModel.encode_words: text that the vocabulary can't express; got the word 'abc'",
        ),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError) as refused:
        make()
    assert str(refused.value) == message


def test_offsets_of_changed_text(tokenizer: BPETokenizer) -> None:
    parts = Parts(model=tokenizer.model, pretokenizer=tokenizer.parts.pretokenizer, normalizer=Normalizer([Persian()]))
    persian = BPETokenizer(parts, vocab_size=tokenizer.vocab_size)
    assert persian.decode(persian.encode("كتاب ي")) == "کتاب ی"
    assert persian.encode_offsets("abc")[1].tolist() == tokenizer.encode_offsets("abc")[1].tolist()
    text = "ك\u064bتاب ab"
    ids, offsets = persian.encode_offsets(text)
    assert ids.tolist() == persian.encode(text).tolist()
    # The sign that is dropped belongs to no id.
    kept = [place for begin, end in offsets.tolist() for place in range(begin, end)]
    assert sorted(set(kept)) == [0, *range(2, len(text))]


def test_real_text_comes_back(corpus_folder: Path) -> None:
    texts = [path.read_bytes().decode("utf-8") for path in sorted(corpus_folder.glob("*/*.txt"))]
    if not texts:
        pytest.skip("no texts in the folder of real data")
    lines = [line for text in texts for line in text.splitlines(keepends=True)[:2000]]
    trained = BPETokenizer.train(lines, 2000)
    for text, ids in zip(texts, trained.encode_batch(texts), strict=True):
        assert trained.decode(ids) == text
