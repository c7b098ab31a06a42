"""The Unigram tokenizer and its training: exact round trips, offsets, streams, bitwise repeatability, bad input."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import ConfigError, DataError
from pellucid.base.rng import Generator
from pellucid.device import pool
from pellucid.text import END_OF_TEXT, UnigramTokenizer, UnigramTraining, load_tokenizer
from pellucid.text.words import count_words, split_words

ENGLISH = """First Citizen: Before we proceed any further, hear me speak.
All: Speak, speak. You are all resolved rather to die than to famish?
Resolved. resolved. First, you know Caius Marcius is chief enemy to the people.
We know't, we know't. Let us kill him, and we'll have corn at our own price.
Is't a verdict? No more talking on't; let it be done: away, away!
"""
PERSIAN = """بشنو این نی چون شکایت می‌کند
از جدایی‌ها حکایت می‌کند
کز نیستان تا مرا ببریده‌اند
در نفیرم مرد و زن نالیده‌اند
"""
CORPUS = [ENGLISH, *(ENGLISH * 3).splitlines(), *(PERSIAN * 3).splitlines(), "tab\tand  two spaces\r", "3.14 and 2,718"]
TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\n  x",
    "a\n\n b\n",
    "we know't  the people ",
    "می‌کند كي ١٢٣ ۱۲۳ مُحَمَّد",
    "naïve é e\u0301 \u200f\u202b\u0000\x7f",
    "👩‍👩‍👧‍👦🇮🇷🏳️‍🌈 \U0010ffff\ufeff\ufffd",
    "\r\n\r\n\t\t  \x0b\x0c\u3000\xa0x",
    "x" * 5000,
    " " * 300 + "\n" * 300 + " \n" * 50,
]


@pytest.fixture(scope="module")
def tokenizer() -> UnigramTokenizer:
    return UnigramTokenizer.train(CORPUS, 420, special=[END_OF_TEXT, "<|user|>"])


def random_texts(n: int) -> list[str]:
    source = random.Random(7)
    common, rare = "abe tné \n\nیمی‌ ", "\r\t\x00߿￿🙂\U0010fffd"
    return ["".join(source.choice(common if source.random() < 0.9 else rare) for _ in range(i % 40)) for i in range(n)]


def test_words() -> None:
    # The rule as a pattern: runs of line feeds, words with one space before, what else there is of white space.
    space = "[\t\x0b\x0c\r ]"
    pattern = re.compile(rf"\n+| ?[^\n\t\x0b\x0c\r ]+|{space}+?(?= [^\n\t\x0b\x0c\r ])|{space}+")
    for text in [*TEXTS, *random_texts(500)]:
        data = np.frombuffer(text.encode(), np.uint8)
        starts, firsts = split_words(data, np.array([0, len(data)]))
        words = [data[a:b].tobytes().decode() for a, b in pairwise(starts)]
        assert words == pattern.findall(text)
        assert firsts.tolist() == [0, len(words)]
    counts = count_words(["a b", " b a\n\nb\n", "", "b"], "here", longest=100)
    assert counts == {b" a": 2, b" b": 4, b" ": 1, b"\n\n": 1, b"\n": 1}
    # A long word is cut between characters.
    assert count_words(["ی" * 5], "here", longest=4) == {" یی".encode(): 1, "یی".encode(): 1, "ی".encode(): 1}


def test_round_trip(tokenizer: UnigramTokenizer) -> None:
    texts = [*TEXTS, *random_texts(500), ENGLISH, PERSIAN]
    batch = tokenizer.encode_batch(texts)
    assert batch.ids.dtype == np.uint32
    for text, ids in zip(texts, batch, strict=True):
        assert tokenizer.decode(ids) == text
        assert np.array_equal(tokenizer.encode(text), ids)
        assert tokenizer.decode(tokenizer.sample(text, generator=Generator(3), alpha=0.2)) == text
    assert tokenizer.decode_bytes(range(256))[1:] == bytes(range(1, 256))
    with pytest.raises(DataError, match=r"^UnigramTokenizer\.encode: character 2 is half a surrogate pair"):
        tokenizer.encode("a\n\ud800")


def test_a_batch_of_many_chunks(tokenizer: UnigramTokenizer) -> None:
    texts = [*(ENGLISH.split("\n") * 1500), "", PERSIAN * 2000, *random_texts(50), ""]
    batch = tokenizer.encode_batch(texts)
    for i in [*range(0, len(texts) - 60, 997), *range(len(texts) - 60, len(texts))]:
        assert np.array_equal(batch[i], tokenizer.encode(texts[i]))
    assert tokenizer.encode_batch([]).ids.tolist() == []


def test_a_word_looks_the_same_wherever_it_stands(tokenizer: UnigramTokenizer) -> None:
    one = tokenizer.encode("people").tolist()
    assert tokenizer.encode("the people").tolist()[-len(one) :] == one
    assert tokenizer.encode("the\npeople").tolist()[-len(one) :] == one
    assert tokenizer.decode([*one, *one]) == "people people"
    # Ids of ASCII are bytes, of other characters outside the vocabulary too.
    assert tokenizer.encode("@é").tolist()[-3:] == list("@é".encode())


def test_special_tokens(tokenizer: UnigramTokenizer) -> None:
    eot, user = tokenizer.eot, tokenizer.special["<|user|>"]
    assert (eot, user, tokenizer.vocab_size) == (418, 419, 420)
    text = f"a{END_OF_TEXT} b<|user|>\nc"
    assert not {eot, user} & set(tokenizer.encode(text).tolist())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode(text, allowed_special="all").tolist()
    assert [i for i in ids if i in (eot, user)] == [eot, user]
    assert tokenizer.decode(ids, show_special=True) == text
    assert tokenizer.decode(ids) == "a b\nc"
    _, offsets = tokenizer.encode_offsets(text, allowed_special="all")
    assert "".join(text[a:b] for a, b in offsets.tolist()) == text


def test_offsets(tokenizer: UnigramTokenizer) -> None:
    for text in [*TEXTS, *random_texts(300)]:
        ids, offsets = tokenizer.encode_offsets(text)
        assert np.array_equal(ids, tokenizer.encode(text))
        raw = text.encode()
        characters = [len(raw[:at].decode(errors="ignore")) for at in range(len(raw) + 1)]
        at = 0
        start = True
        for number, (begin, end) in zip(ids.tolist(), offsets.tolist(), strict=True):
            part, start = tokenizer.decode_started([number], start)
            # The characters that the bytes of this id belong to.
            assert begin == characters[at]
            at += len(part)
            whole = len(raw[:at].decode(errors="ignore").encode()) == at
            assert end == characters[at] + (not whole)


def test_streams(tokenizer: UnigramTokenizer) -> None:
    for text in [*TEXTS, *random_texts(200)]:
        ids = tokenizer.encode(text).tolist()
        stream = tokenizer.stream_decoder()
        assert "".join([*map(stream.push, ids), stream.finish()]) == text
        assert "".join([*map(stream.push, ids), stream.finish()]) == text
    ids = tokenizer.encode("the people, the\npeople").tolist()
    for cut in range(len(ids)):
        stream = tokenizer.stream_decoder(after=ids[:cut])
        assert tokenizer.decode(ids[:cut]) + stream.push(ids[cut:]) == "the people, the\npeople"


def test_settled(tokenizer: UnigramTokenizer) -> None:
    for text in [*TEXTS, *random_texts(150), ENGLISH]:
        whole = tokenizer.encode(text).tolist()
        for end in range(min(len(text), 60) + 1):
            cut = tokenizer.settled(text[:end])
            assert tokenizer.encode(text[:cut]).tolist() + tokenizer.encode(text[cut:]).tolist() == whole
    assert tokenizer.settled("a\nb\nc") == 4
    assert tokenizer.settled("a\n") == 0


def test_files(tokenizer: UnigramTokenizer, tmp_path: Path) -> None:
    plain = UnigramTokenizer.train(CORPUS, 150, byte_fallback=False)
    for saved in (tokenizer, plain):
        saved.save(tmp_path / "t.json")
        loaded = load_tokenizer(tmp_path / "t.json")
        assert isinstance(loaded, UnigramTokenizer)
        assert loaded.to_json() == saved.to_json()
        assert loaded.fingerprint() == saved.fingerprint()
        assert np.array_equal(loaded.encode(ENGLISH), saved.encode(ENGLISH))
    assert len({tokenizer.fingerprint(), plain.fingerprint()}) == 2


def test_without_byte_fallback() -> None:
    tokenizer = UnigramTokenizer.train(CORPUS, 150, byte_fallback=False, options=UnigramTraining(1.0))
    assert tokenizer.unknown == 0
    assert tokenizer.vocab_size == 150
    ids = tokenizer.encode("we 字字 we")
    assert (ids == 0).sum() == 1
    assert tokenizer.decode(ids) == "we � we"
    assert tokenizer.decode(tokenizer.encode(ENGLISH)) == ENGLISH
    assert tokenizer.encode_offsets("a字字b")[1].tolist()[-2:] == [[1, 3], [3, 4]]


def test_n_best(tokenizer: UnigramTokenizer) -> None:
    found = tokenizer.n_best(" resolved", 4)
    assert found[0][0] == tokenizer.encode("resolved").tolist()
    assert len({tuple(ids) for ids, _ in found}) == 4
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    for ids, score in found:
        assert tokenizer.decode(ids) == "resolved"
        assert score == pytest.approx(float(tokenizer.scores[ids].sum()))
    with pytest.raises(DataError) as refused:
        tokenizer.n_best("the people", 2)
    assert str(refused.value) == "UnigramTokenizer.n_best: more than one word; got 2"


def test_training_is_the_same_for_every_order_and_number_of_threads() -> None:
    shuffled = CORPUS.copy()
    random.Random(1).shuffle(shuffled)
    before = pool.threads()
    prints = set()
    try:
        for threads in (1, 2):
            pool.set_threads(threads)
            for texts in (CORPUS, shuffled, sorted(shuffled), iter(CORPUS)):
                prints.add(UnigramTokenizer.train(texts, 400).fingerprint())
    finally:
        pool.set_threads(before)
    assert len(prints) == 1


def test_training_finds_the_words() -> None:
    # Four words that share no letters, in any order: nothing to gain from a piece of two words or of half a word.
    source = random.Random(3)
    words = ["abab", "cdcd", "efg", "hij"]
    texts = [" ".join(source.choice(words) for _ in range(9)) for _ in range(200)]
    tokenizer = UnigramTokenizer.train(texts, 256 + len(words))
    assert sorted(piece.decode() for piece in tokenizer.pieces[256:]) == sorted(f" {word}" for word in words)
    assert tokenizer.encode("abab efg hij").tolist() == [
        tokenizer.pieces.index(b) for b in (b" abab", b" efg", b" hij")
    ]
    # The model's probability of each is its share of the corpus.
    share = [sum(text.split().count(word) for text in texts) / (9 * len(texts)) for word in words]
    found = [float(np.exp(tokenizer.scores[tokenizer.pieces.index(f" {word}".encode())])) for word in words]
    assert found == pytest.approx(share, rel=0.02)


def test_bad_training() -> None:
    def refused(message: str, texts: object, size: int, **options: object) -> None:
        with pytest.raises(DataError) as error:
            UnigramTokenizer.train(texts, size, **options)  # type: ignore[arg-type]
        assert str(error.value) == message

    where = "UnigramTokenizer.train"
    nothing = f"{where}: no text. hint: give at least one character"
    refused(nothing, [], 300)
    refused(nothing, ["", ""], 300)
    small = f"{where}: vocabulary smaller than the alphabet; got 256, expected at least 258. "
    refused(small + "hint: raise vocab_size, or lower character_coverage", "aی آ", 256)
    large = f"{where}: vocabulary larger than the corpus can give; got 2000, expected at most 258. "
    refused(large + "hint: lower vocab_size, or give more text", "ab ab ab", 2000)
    assert UnigramTokenizer.train("ab ab ab", 258).vocab_size == 258
    refused("UnigramTokenizer.train, text 1: character 0 is half a surrogate pair and has no bytes; got U+D800. "
            "hint: decode the source with errors='replace', or repair it", ["a", "\ud800"], 300)  # fmt: skip
    refused(f"{where}: the same special token twice; got x, x", "ab", 300, special=["x", "x"])
    for options in ({"character_coverage": 0.0}, {"longest_piece": 0}, {"candidates": 0}):
        with pytest.raises(ConfigError, match=next(iter(options)).partition("_")[0]):
            UnigramTraining(**options)


def test_bad_vocabularies() -> None:
    def refused(message: str, pieces: list, scores: list) -> None:
        with pytest.raises(DataError) as error:
            UnigramTokenizer(pieces, scores)
        assert str(error.value) == message

    where = "UnigramTokenizer"
    refused(f"{where}: not a piece; got '', expected one or more characters", ["a", ""], [0.0, 0.0])
    refused(f"{where}: not a piece; got 3, expected one or more characters", ["a", 3], [0.0, 0.0])
    refused(f"{where}: the same piece twice", ["a", "a"], [0.0, 0.0])
    refused(f"{where}: not a score for each piece; got 1, expected 2", ["a", "b"], [0.0])
    for score in ("x", float("nan"), float("inf"), 10**400, True, None):
        refused(f"{where}: the score of 'b' is no finite number; got {score!r}", ["a", "b"], [0, score])
