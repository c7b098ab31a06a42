"""What all tokenizers share: special tokens where they are allowed, batches, and offsets."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.text import END_OF_TEXT, AddedToken, ByteTokenizer, CharTokenizer, IdBatch, Tokenizer
from pellucid.text.special import SpecialTokens

TEXTS = ["", "a", "<|u|>", f"é{END_OF_TEXT}{END_OF_TEXT}ی", "<|u|>x<|u|", "\u200cab", ""]
BYTES = ByteTokenizer(special=[END_OF_TEXT, "<|u|>"])
CHARS = CharTokenizer("".join(TEXTS), special=["<|u|>", END_OF_TEXT])


@pytest.mark.parametrize("tokenizer", [BYTES, CHARS], ids=["byte", "char"])
@pytest.mark.parametrize("allowed", [(), "all", ["<|u|>"]], ids=str)
def test_batches_and_offsets_are_the_texts_one_by_one(tokenizer: Tokenizer, allowed: str | list[str]) -> None:
    batch = tokenizer.encode_batch(TEXTS, allowed_special=allowed)
    assert len(batch) == len(TEXTS)
    assert batch.ids.dtype == np.uint32
    assert [ids.tolist() for ids in batch] == [batch[i].tolist() for i in range(len(TEXTS))]
    for text, ids in zip(TEXTS, batch, strict=True):
        assert ids.tolist() == tokenizer.encode(text, allowed_special=allowed).tolist()
        assert tokenizer.decode(ids, show_special=True) == text
        found, offsets = tokenizer.encode_offsets(text, allowed_special=allowed)
        assert found.tolist() == ids.tolist()
        assert offsets.shape == (len(ids), 2)
        for number, (begin, end) in zip(found.tolist(), offsets.tolist(), strict=True):
            piece = tokenizer.decode_bytes([number], show_special=True)
            assert piece in text[begin:end].encode()
    assert tokenizer.encode_batch([]).starts.tolist() == [0]


def test_only_allowed_names_count() -> None:
    text = f"a{END_OF_TEXT}<|u|>"
    assert BYTES.encode("a<|u|>", allowed_special=["<|u|>"]).tolist() == [97, 257]
    assert BYTES.encode(text, allowed_special="all").tolist() == [97, 256, 257]
    assert BYTES.encode(text, allowed_special=["<|u|>"]).tolist() == [97, *END_OF_TEXT.encode(), 257]
    assert BYTES.encode(text).tolist() == list(text.encode())


def test_offsets_are_characters() -> None:
    ids, offsets = BYTES.encode_offsets("aé<|u|>🙂", allowed_special="all")
    assert ids.tolist() == [0x61, 0xC3, 0xA9, 257, *"🙂".encode()]
    assert offsets.tolist() == [[0, 1], [1, 2], [1, 2], [2, 7], *[[7, 8]] * 4]


def cut(text: str, *tokens: AddedToken, allowed: str | list[str] = "all") -> list[tuple[str, int | None]]:
    table = SpecialTokens("here", tokens, 100)
    return [(text[begin:end], number) for begin, end, number in table.cut(text, table.allowed(allowed))]


def test_cutting() -> None:
    assert cut("<a><ab>b", AddedToken("<a>", 1), AddedToken("<ab>", 2)) == [("<a>", 1), ("<ab>", 2), ("b", None)]
    assert cut("aaaa", AddedToken("a", 1), AddedToken("aaa", 3)) == [("aaa", 3), ("a", 1)]
    left, right = AddedToken("L", 1, lstrip=True), AddedToken("R", 2, rstrip=True)
    assert cut("x \u3000L \nR\t R", left, right) == [("x", None), (" \u3000L", 1), (" \n", None), ("R\t ", 2), ("R", 2)]
    assert cut("x\x1cL", left) == [("x\x1c", None), ("L", 1)]  # no white space in Unicode
    plain = AddedToken("  ", 3, special=False)
    assert cut("a  L", plain, left, allowed=[]) == [("a", None), ("  ", 3), ("L", None)]
    # Names in normalised text come second, whatever begins first.
    assert cut("abc", AddedToken("ab", 1, normalized=True), AddedToken("bc", 2)) == [("a", None), ("bc", 2)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BYTES.encode("a", allowed_special=["<b>"]),
            "ByteTokenizer: not a special token here; got <b>, expected <|endoftext|>, <|u|>",
        ),
        (
            lambda: BYTES.encode_batch(["a"], allowed_special="<|u|>"),
            "ByteTokenizer: allowed_special is one string; got '<|u|>', expected names, or \"all\"",
        ),
        (
            lambda: BYTES.encode_batch(["a", "b\udc00"]),
            "ByteTokenizer.encode_batch, text 1: character 1 is half a surrogate pair and has no bytes; got U+DC00. "
            "hint: decode the source with errors='replace', or repair it",
        ),
        (
            lambda: cut("", AddedToken("a", 100)),
            "here: a special token outside the vocabulary; got 100 for 'a', expected below 100",
        ),
        (
            lambda: cut("", AddedToken("a", 1), AddedToken("b", 1)),
            "here: two special tokens of one id; got 'a' and 'b'",
        ),
        (lambda: cut("", AddedToken("a", 1), AddedToken("a", 2)), "here: the same special token twice; got 'a'"),
        (lambda: cut("", AddedToken("", 1)), "here: not a name for a special token; got ''"),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(DataError) as refused:
        make()
    assert str(refused.value) == message


def test_single_words() -> None:
    word = AddedToken("ab", 1, special=False, single_word=True)
    for text in ("xab", "abx", "ab_", "1ab", "ab\u0301", "\u200dab", "Ⓐab", "abab"):
        assert cut(text, word) == [(text, None)]
    for text, rest in (("ab", []), ("ab.", [(".", None)]), ("ab½", [("½", None)]), ("ab\n", [("\n", None)])):
        assert cut(text, word) == [("ab", 1), *rest]
    # A token that touches it is an end, like that of a text; one that doesn't count is passed over whole.
    end = AddedToken("<|end|>", 2)
    assert cut("<|end|>ab<|end|>", word, end) == [("<|end|>", 2), ("ab", 1), ("<|end|>", 2)]


def test_a_batch_is_a_sequence() -> None:
    batch = IdBatch.of([np.array([1, 2], np.uint32), np.empty(0, np.uint32), np.array([3], np.uint32)])
    assert batch.starts.tolist() == [0, 2, 2, 3]
    assert batch[-1].tolist() == [3]
    assert [ids.tolist() for ids in batch[1:]] == [[], [3]]
    assert repr(batch) == "IdBatch(texts=3, ids=3)"
    with pytest.raises(IndexError, match="text 3 of a batch of 3"):
        batch[3]


def test_what_is_no_text_is_named_beside_special_tokens() -> None:
    with pytest.raises(DataError) as error:
        BYTES.encode_batch(["a", 5], allowed_special="all")  # type: ignore[list-item]
    assert str(error.value) == "ByteTokenizer.encode, text 1: not text; got int, expected a string"
