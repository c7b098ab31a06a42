"""Byte and character tokenizers: exact round trips on real text, refusals, streaming."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.text import END_OF_TEXT, ByteTokenizer, CharTokenizer, Tokenizer

# Persian with a zero-width non-joiner, Arabic and Persian yeh and kaf, three digit systems, diacritics; then a
# combining sequence, characters outside the basic plane, a family joined by U+200D, controls and CRLF.
HARD = "می‌خواهم ي ی ك ک 123 ۱۲۳ ١٢٣ مُحَمَّد\r\né 𝔘𝕟𝕚 👩‍👩‍👧 \u0000\u0001\t\ufeff\U0010ffff"


def random_text(seed: int, length: int) -> str:
    """Characters of every UTF-8 length, surrogates left out."""
    stream = Generator(seed)
    limits = np.array([0x80, 0x800, 0xD800, 0x110000])[stream.integers(4, length)]
    codes = (stream.uniform(length) * limits).astype(np.int64)
    codes[(codes >= 0xD800) & (codes < 0xE000)] = 0x41
    return "".join(map(chr, codes.tolist()))


TEXTS = [HARD, *(random_text(seed, 1 + 40 * seed) for seed in range(8))]


@pytest.fixture(params=["byte", "byte+special", "char", "char+unknown+special"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    text = "".join(TEXTS)
    return {
        "byte": lambda: ByteTokenizer(),
        "byte+special": lambda: ByteTokenizer(special=[END_OF_TEXT, "<|user|>"]),
        "char": lambda: CharTokenizer.train(["a", *TEXTS]),
        "char+unknown+special": lambda: CharTokenizer("a" + text, unknown=True, special=[END_OF_TEXT]),
    }[request.param]()


def test_round_trip(tokenizer: Tokenizer) -> None:
    for text in ["", "a", *TEXTS]:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint32
        assert ids.ndim == 1
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.decode_bytes(ids) == text.encode()
        assert not len(ids) or ids.max() < tokenizer.vocab_size


def test_pieces_encode_as_the_whole(tokenizer: Tokenizer) -> None:
    cut = 13
    assert tokenizer.settled(HARD) == len(HARD)
    parts = [tokenizer.encode(HARD[:cut]), tokenizer.encode(HARD[cut:])]
    assert np.array_equal(np.concatenate(parts), tokenizer.encode(HARD))


def test_streaming_gives_whole_characters_and_nothing_else(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        decoder = tokenizer.stream_decoder()
        pieces = [decoder.push(i) for i in tokenizer.encode(text)]
        assert "".join(pieces) + decoder.finish() == text
        assert "\ufffd" not in "".join(pieces).replace("\ufffd", "", text.count("\ufffd"))


def test_streaming_equals_decode_for_any_ids(tokenizer: Tokenizer) -> None:
    for seed in range(20):
        ids = Generator(seed).integers(tokenizer.vocab_size, 60)
        for show in (False, True):
            decoder = tokenizer.stream_decoder(show_special=show)
            streamed = "".join(decoder.push(ids[i : i + 3]) for i in range(0, 60, 3)) + decoder.finish()
            assert streamed == tokenizer.decode(ids, show_special=show)


def test_a_character_comes_with_its_last_byte() -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert [decoder.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert decoder.push([0xF0, 0x9F]) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.push(0x41) == "A"  # ready for new text
    assert decoder.finish() == ""


def test_bytes_are_their_own_ids() -> None:
    tokenizer = ByteTokenizer(special=[END_OF_TEXT])
    assert tokenizer.vocab_size == 257
    assert tokenizer.eot == 256
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    assert tokenizer.decode(range(65, 70)) == "ABCDE"
    assert tokenizer.decode([0xFF, 65]) == "\ufffdA"
    assert ByteTokenizer().eot is None
    assert repr(tokenizer) == "ByteTokenizer(vocab_size=257, special=['<|endoftext|>'])"


def test_special_tokens_never_come_from_text() -> None:
    tokenizer = ByteTokenizer(special=[END_OF_TEXT])
    ids = tokenizer.encode(f"a{END_OF_TEXT}b")
    assert 256 not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}b"


def test_special_tokens_are_shown_on_demand() -> None:
    tokenizer = CharTokenizer("ab", special=["<x>", END_OF_TEXT])
    assert dict(tokenizer.special) == {"<x>": 2, END_OF_TEXT: 3}
    assert tokenizer.eot == 3
    ids = [2, 0, 3, 1, 1, 3, 3]
    assert tokenizer.decode(ids) == "abb"
    assert tokenizer.decode(ids, show_special=True) == f"<x>a{END_OF_TEXT}bb{END_OF_TEXT}{END_OF_TEXT}"


def test_characters_are_numbered_by_code_point() -> None:
    tokenizer = CharTokenizer("hello, ی")
    assert tokenizer.characters == " ,ehloی"
    assert tokenizer.encode("hole ").tolist() == [3, 5, 4, 2, 0]
    assert tokenizer.unknown is None
    assert repr(tokenizer) == "CharTokenizer(vocab_size=7, special=[])"


def test_unknown_character_is_named() -> None:
    tokenizer = CharTokenizer("abc\n")
    with pytest.raises(DataError) as refused:
        tokenizer.encode("ab\ncab\nxc")
    assert str(refused.value) == (
        "CharTokenizer.encode: character 7 (line 3) is not in the vocabulary; got 'x' (U+0078), expected one of its 4 "
        "characters. hint: train the tokenizer on text that has it, or with unknown=True"
    )
    for text, at in (("\U0010ffff", 0), ("a\u200cb", 1), ("abc\r\n", 3), ("a\ud800", 1), ("aB", 1)):
        with pytest.raises(DataError, match=f"character {at} "):
            tokenizer.encode(text)


def test_unknown_on_demand() -> None:
    tokenizer = CharTokenizer("abc", unknown=True, special=[END_OF_TEXT])
    assert (tokenizer.unknown, tokenizer.eot, tokenizer.vocab_size) == (3, 4, 5)
    assert tokenizer.encode("axb\U0010ffffc\x00").tolist() == [0, 3, 1, 3, 2, 3]
    assert tokenizer.decode([0, 3, 2]) == "a\ufffdc"
    assert tokenizer.characters == "abc"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CharTokenizer(""), "CharTokenizer: no characters. hint: give the text the vocabulary is made of"),
        (
            lambda: CharTokenizer("a\udc00"),
            "CharTokenizer: half a surrogate pair is no character. hint: repair the source text",
        ),
        (lambda: CharTokenizer.train([]), "CharTokenizer.train: no text. hint: give at least one character"),
        (lambda: CharTokenizer.train(["", ""]), "CharTokenizer.train: no text. hint: give at least one character"),
        (
            lambda: ByteTokenizer(special=["<a>", "<b>", "<a>"]),
            "ByteTokenizer: the same special token twice; got <a>, <b>, <a>",
        ),
        (lambda: ByteTokenizer(special=[""]), "ByteTokenizer: not a name for a special token; got ''"),
        (
            lambda: ByteTokenizer().encode("ab\ud800"),
            "ByteTokenizer.encode: character 2 is half a surrogate pair and has no bytes; got U+D800. hint: decode the "
            "source with errors='replace', or repair it",
        ),
        (
            lambda: ByteTokenizer().decode([1, 256]),
            "ByteTokenizer.decode: id outside the vocabulary at position 1; got 256, expected 0 to 255. hint: use the "
            "tokenizer the ids were made with",
        ),
        (
            lambda: CharTokenizer("ab").decode([0, 1, -1]),
            "CharTokenizer.decode: id outside the vocabulary at position 2; got -1, expected 0 to 1. hint: use the "
            "tokenizer the ids were made with",
        ),
        (
            lambda: ByteTokenizer().decode(np.array([1.0])),
            "ByteTokenizer.decode: ids are not integers; got float64, expected an integer type",
        ),
        (
            lambda: ByteTokenizer().decode(np.zeros((2, 2), dtype=np.int64)),
            "ByteTokenizer.decode: not a list of ids; got shape (2, 2), expected one dimension",
        ),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(DataError) as refused:
        make()
    assert str(refused.value) == message


def test_shakespeare_has_its_65_characters(corpus_folder: Path) -> None:
    text = (corpus_folder / "english" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    tokenizer = CharTokenizer.train(text)
    assert tokenizer.vocab_size == 65
    assert tokenizer.encode("\n !").tolist() == [0, 1, 2]
    ids = tokenizer.encode(text)
    assert len(ids) == 1_115_394
    assert tokenizer.decode(ids) == text


def test_persian_comes_back_unchanged(corpus_folder: Path) -> None:
    for path in sorted((corpus_folder / "persian").glob("*.txt")):
        text = path.read_bytes().decode("utf-8")
        tokenizer = CharTokenizer.train(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.characters == "".join(sorted(set(text)))
        assert ByteTokenizer().decode_bytes(ByteTokenizer().encode(text)) == path.read_bytes()


def test_training_takes_constant_memory() -> None:
    piece = HARD * 4000

    def peak(pieces: int) -> int:
        tracemalloc.start()
        try:
            CharTokenizer.train(piece for _ in range(pieces))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    assert peak(20) < peak(2) * 1.2 + 100_000
