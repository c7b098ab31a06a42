"""Persian text comes back from its ids character for character, and what only looks alike in it keeps its own ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.text import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, UnigramTokenizer, load_tokenizer

TEXT = """می\u200cخواهم که شعر بخوانم، به فارسی.
نامه\u200cها و کتاب\u200cهای خوب را می\u200cخوانیم؛ نمی\u200cدانم چرا؟
الا یا ایها الساقی ادر کأسا و ناولها
که عشق آسان نمود اول ولی افتاد مشکل\u200cها
"""
# Pairs that look alike, or nearly: each has to keep its own ids.
TWINS = {
    "yeh": ("علی", "علي"),
    "alef maksura": ("موسی", "موسى"),
    "kaf": ("کتاب", "كتاب"),
    "digits": ("۱۲۳۴", "١٢٣٤"),
    "latin digits": ("۱۲۳۴", "1234"),
    "non-joiner": ("می\u200cخواهم", "میخواهم"),
    "non-joiner or space": ("می\u200cخواهم", "می خواهم"),
    "joiner": ("ه\u200d", "ه"),
    "diacritics": ("مُحَمَّد", "محمد"),
    "order of diacritics": ("ش\u0651\u064e", "ش\u064e\u0651"),
    "hamza": ("هٔ", "ۀ"),
    "composed": ("آ", "ا\u0653"),
    "tatweel": ("سـلام", "سلام"),
    "ligature": ("ﻻ", "لا"),
    "presentation forms": ("ﺳﻼم", "سلام"),
    "marks of direction": ("\u200fسلام\u200e", "سلام"),
    "spaces": ("سلام\u00a0دنیا", "سلام دنیا"),
    "line ends": ("سلام\r\nدنیا", "سلام\nدنیا"),
}


@pytest.fixture(scope="module", params=["unigram", "bpe", "char", "byte"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "unigram":
        return UnigramTokenizer.train([TEXT] * 4, 330)
    if request.param == "bpe":
        return BPETokenizer.train([TEXT] * 4, 330)
    texts = [TEXT, *(text for pair in TWINS.values() for text in pair)]
    return CharTokenizer.train(texts) if request.param == "char" else ByteTokenizer()


@pytest.mark.parametrize("name", TWINS)
def test_what_looks_alike_stays_apart(name: str, tokenizer: Tokenizer) -> None:
    one, other = TWINS[name]
    for text in (one, other, f"{one} {other}", f" {one}\n\n{other} "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(one).tolist() != tokenizer.encode(other).tolist()


def test_the_corpus_comes_back(tokenizer: Tokenizer, corpus_folder: Path, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    for path in sorted(corpus_folder.glob("persian/*.txt")):
        text = path.read_bytes().decode("utf-8")
        whole = CharTokenizer.train(text) if tokenizer.kind == "char" else loaded
        assert whole.decode(whole.encode(text)) == text


def test_a_stream_of_persian_shows_no_half_characters(tokenizer: Tokenizer) -> None:
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(int(i)) for i in tokenizer.encode(TEXT)]
    assert "".join([*pieces, decoder.finish()]) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
