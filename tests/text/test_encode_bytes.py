"""Bytes that are no UTF-8 have ids where a tokenizer is made of bytes, and come back from them exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.text import (
    END_OF_TEXT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Lowercase,
    NormalizedTokenizer,
    Normalizer,
    Tokenizer,
    UnigramTokenizer,
)

TEXT = "the cat sat on the mat, the cat ran\nمی‌خواهم کتاب را بخوانم، کتاب خوب است\n  the \n\n \t cat 🙂\n" * 8
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte": lambda: ByteTokenizer(special=[END_OF_TEXT]),
    "bpe": lambda: BPETokenizer.train(TEXT, 300),
    "bpe, o200k": lambda: BPETokenizer.train(TEXT, 300, pattern="o200k", special=[END_OF_TEXT]),
    "bpe, space before": lambda: BPETokenizer.train(TEXT, 300, space_before=True),
    "unigram": lambda: UnigramTokenizer.train(TEXT, 300, special=[END_OF_TEXT]),
}


def broken(seed: int, count: int) -> list[bytes]:
    """Random bytes, and pieces of text with some of their bytes taken out, changed or put in."""
    stream = np.random.default_rng(seed)
    raw = TEXT.encode()
    found = [
        bytes(range(256)),
        b"\xff",
        b"\n\xff",
        b" \xff ",
        b"\xe2\x82",
        b"a\n \x80\n\n b\xf0\x9f\x99",
        b"the \n\xc0\x80",
    ]
    for i in range(count):
        if i % 3 == 0:
            found.append(stream.bytes(int(stream.integers(1, 40))))
            continue
        begin = int(stream.integers(len(raw) - 60))
        piece = bytearray(raw[begin : begin + int(stream.integers(1, 60))])
        for _ in range(int(stream.integers(1, 4))):
            piece[int(stream.integers(len(piece)))] = int(stream.integers(256))
        found.append(bytes(piece))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_come_back(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for raw in broken(1, 600):
        ids = tokenizer.encode_bytes(raw)
        assert ids.dtype == np.uint32
        assert tokenizer.decode_bytes(ids) == raw, raw
        assert not set(ids.tolist()) & set(tokenizer.special.values())


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_text_are_that_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for text in ("", "a", TEXT, f"x{END_OF_TEXT}", "\n a"):
        for raw in (text.encode(), bytearray(text.encode()), memoryview(text.encode())):
            assert np.array_equal(tokenizer.encode_bytes(raw), tokenizer.encode(text))
    # A name in bytes is no token, whatever stands behind it.
    raw = f"x{END_OF_TEXT}".encode() + b"\xff"
    assert tokenizer.eot not in tokenizer.encode_bytes(raw).tolist()


def test_text_around_other_bytes_is_encoded_as_text() -> None:
    bpe, unigram = KINDS["bpe"](), KINDS["unigram"]()
    start = bpe.encode("the cat sat on").tolist()
    assert bpe.encode_bytes(b"the cat sat on \xff")[: len(start)].tolist() == start
    # A space before the bytes is a word, which goes on with them; so is all that follows.
    assert bpe.encode_bytes(b"the cat \xff\xfe").tolist()[-3:] == [bpe.encode(c).item() for c in " "] + [
        int(i) for i in bpe.encode_bytes(b"\xff\xfe")
    ]
    one = unigram.encode("the").tolist()
    assert unigram.encode_bytes(b"the\xff the").tolist() == [*one, 0xFF, *one]


@pytest.mark.parametrize(
    ("make", "raw", "message"),
    [
        (
            lambda: CharTokenizer("abc"),
            b"ab\xffc",
            "CharTokenizer.encode_bytes: byte 2 is no UTF-8, and this tokenizer has no ids for such bytes; got 0xFF. "
            "hint: decode them with errors='replace', or take a tokenizer of bytes",
        ),
        (
            lambda: UnigramTokenizer(["a", " a"], [-1.0, -2.0], byte_fallback=False),
            b"a\xe2\x82",
            "UnigramTokenizer.encode_bytes: byte 1 is no UTF-8, and this tokenizer has no ids for such bytes; got "
            "0xE2. hint: decode them with errors='replace', or take a tokenizer of bytes",
        ),
        (
            lambda: NormalizedTokenizer(ByteTokenizer(), Normalizer([Lowercase()])),
            b"\x80",
            "NormalizedTokenizer.encode_bytes: byte 0 is no UTF-8, and this tokenizer has no ids for such bytes; got "
            "0x80. hint: decode them with errors='replace', or take a tokenizer of bytes",
        ),
        (
            ByteTokenizer,
            "text",
            "ByteTokenizer.encode_bytes: not bytes; got str, expected bytes. hint: encode takes text",
        ),
        (
            ByteTokenizer,
            5,
            "ByteTokenizer.encode_bytes: not bytes; got int, expected bytes. hint: encode takes text",
        ),
    ],
)
def test_refusals(make: Callable[[], Tokenizer], raw: bytes, message: str) -> None:
    with pytest.raises(DataError) as error:
        make().encode_bytes(raw)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_named(kind: str) -> None:
    """Text isn't bytes: what has no UTF-8 is refused, and not written as bytes that only look like it."""
    tokenizer = KINDS[kind]()
    for call in (tokenizer.encode, tokenizer.encode_offsets):
        with pytest.raises(DataError, match=r"character 3 is half a surrogate pair and has no bytes; got U\+DCFF"):
            call("the\udcff")
    with pytest.raises(DataError, match=r"text 1: character 0 is half a surrogate pair and has no bytes; got U\+D800"):
        tokenizer.encode_batch(["the", "\ud800"])


ANY: dict[str, tuple[Callable[[], object], str]] = {
    "bytes": (
        lambda: ByteTokenizer().encode(b"abc"),  # pyright: ignore[reportArgumentType]
        "ByteTokenizer.encode: not text; got bytes, expected a string. hint: encode_bytes takes bytes",
    ),
    "number": (
        lambda: CharTokenizer("a").encode_offsets(5),  # pyright: ignore[reportArgumentType]
        "CharTokenizer.encode_offsets: not text; got int, expected a string",
    ),
    "in a batch": (
        lambda: ByteTokenizer().encode_batch(["a", None]),  # pyright: ignore[reportArgumentType]
        "ByteTokenizer.encode_batch, text 1: not text; got NoneType, expected a string",
    ),
    "one text": (
        lambda: ByteTokenizer().encode_batch("abc"),
        "ByteTokenizer.encode_batch: one text; expected a list of texts. hint: encode takes one text",
    ),
    "bpe corpus": (
        lambda: BPETokenizer.train([b"abc"], 300),  # pyright: ignore[reportArgumentType]
        "BPETokenizer.train: not text; got bytes, expected strings, a document each",
    ),
    "unigram corpus": (
        lambda: UnigramTokenizer.train(["a", None], 300),  # pyright: ignore[reportArgumentType]
        "UnigramTokenizer.train: not text; got NoneType, expected strings, a document each",
    ),
    "bpe size": (
        lambda: BPETokenizer.train(TEXT, 300.5),  # pyright: ignore[reportArgumentType]
        "BPETokenizer.train: not a size for a vocabulary; got 300.5, expected a whole number",
    ),
    "unigram size": (
        lambda: UnigramTokenizer.train(TEXT, "300"),  # pyright: ignore[reportArgumentType]
        "UnigramTokenizer.train: not a size for a vocabulary; got '300', expected a whole number",
    ),
    "count": (
        lambda: BPETokenizer.train(TEXT, 300, min_frequency=1 << 70),
        "BPETokenizer.train: not a count; got 1180591620717411303424, expected min_frequency of 1 or more",
    ),
}


@pytest.mark.parametrize("name", ANY)
def test_what_is_neither_text_nor_a_size_is_refused(name: str) -> None:
    make, message = ANY[name]
    with pytest.raises(DataError) as error:
        make()
    assert str(error.value) == message
