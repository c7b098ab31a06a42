"""A tokenizer behind a normaliser: ids of the normalised text, everything else as without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.data import Continued, TokenFile
from pellucid.text import (
    END_OF_TEXT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Lowercase,
    NormalizedTokenizer,
    Normalizer,
    Persian,
    Prepend,
    Tokenizer,
    UnicodeForm,
    UnigramTokenizer,
    load_tokenizer,
)
from pellucid.text.normalize import CollapseSpaces, Replace

TEXT = "كتابي على ميز ١٢٣ می\u200cخواهم e\u0301te\u0301 ÉTÉ\nسـلام بر تو\nfine words and a little more of them\n" * 4
NORMALIZER = Normalizer([UnicodeForm("NFC"), Lowercase(), Persian()])
CLEAN = NORMALIZER(TEXT)
INNER: dict[str, Callable[[], Tokenizer]] = {
    "byte": lambda: ByteTokenizer(special=[END_OF_TEXT]),
    "char": lambda: CharTokenizer.train(CLEAN, special=[END_OF_TEXT]),
    "unigram": lambda: UnigramTokenizer.train(CLEAN, 320, special=[END_OF_TEXT]),
    "bpe": lambda: BPETokenizer.train(CLEAN, 300, special=[END_OF_TEXT]),
}


@pytest.fixture(scope="module", params=INNER)
def tokenizer(request: pytest.FixtureRequest) -> NormalizedTokenizer:
    return NormalizedTokenizer(INNER[request.param](), NORMALIZER)


def test_ids_are_those_of_the_normalised_text(tokenizer: NormalizedTokenizer) -> None:
    want = tokenizer.inner.encode(CLEAN).tolist()
    assert tokenizer.encode(TEXT).tolist() == want
    assert tokenizer.encode_batch([TEXT, "", CLEAN])[0].tolist() == want
    assert tokenizer.decode(tokenizer.encode(TEXT)) == CLEAN
    decoder = tokenizer.stream_decoder()
    assert "".join([*map(decoder.push, tokenizer.encode(TEXT).tolist()), decoder.finish()]) == CLEAN


def test_special_tokens_are_not_normalised(tokenizer: NormalizedTokenizer) -> None:
    text = f"É{END_OF_TEXT}É"
    ids = tokenizer.encode(text, allowed_special="all")
    assert (ids == tokenizer.eot).tolist().count(True) == 1
    assert tokenizer.decode(ids, show_special=True) == f"é{END_OF_TEXT}é"
    assert tokenizer.special == tokenizer.inner.special


def test_files(tokenizer: NormalizedTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert loaded.fingerprint() == tokenizer.fingerprint() != tokenizer.inner.fingerprint()
    assert isinstance(loaded, NormalizedTokenizer)
    assert loaded.normalizer == NORMALIZER
    assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_a_document_in_pieces_has_the_same_ids(tokenizer: NormalizedTokenizer, tmp_path: Path) -> None:
    want = tokenizer.encode(TEXT).tolist()
    settled = 0
    for size in (1, 7, 100, 150):
        cut = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
        TokenFile.write_documents(tmp_path / "t.bin", [*map(Continued, cut[:-1]), cut[-1]], tokenizer)
        assert TokenFile.open(tmp_path / "t.bin").ids.tolist() == want
    for end in range(len(TEXT)):
        at = tokenizer.settled(TEXT[:end])
        settled += at > 0
        head = tokenizer.encode(TEXT[:at])
        assert np.concatenate([head, tokenizer.encode(TEXT[at:])]).tolist() == want
    assert settled > len(TEXT) / 2


def test_a_normaliser_that_knows_its_ends_waits_for_all_of_the_text() -> None:
    assert NormalizedTokenizer(ByteTokenizer(), Normalizer([Prepend("x")])).settled(TEXT) == 0


def test_offsets() -> None:
    tokenizer = NormalizedTokenizer(ByteTokenizer(), NORMALIZER)
    assert tokenizer.encode_offsets("ab")[1].tolist() == [[0, 1], [1, 2]]
    # What the normaliser makes of a text, with the places of what it was made of.
    steps = [Prepend("> "), UnicodeForm("NFKC"), Lowercase(), Replace("ss", "ß"), CollapseSpaces(), Persian()]
    tokenizer = NormalizedTokenizer(CharTokenizer("".join(map(chr, range(32, 0x700)))), Normalizer(steps))
    text = "Gassi  ﬁne e\u0301 ك\u064b."
    ids, offsets = tokenizer.encode_offsets(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    assert [(tokenizer.decode([i]), text[a:b]) for i, (a, b) in zip(ids, offsets, strict=True)] == [
        (">", "G"), (" ", "G"), ("g", "G"), ("a", "a"), ("ß", "s"), ("i", "i"), (" ", " "), ("f", "ﬁ"), ("i", "ﬁ"),
        ("n", "n"), ("e", "e"), (" ", " "), ("é", "e"), (" ", " "), ("ک", "ك"), (".", "."),
    ]  # fmt: skip
    assert offsets[4].tolist() == [3, 4]
    assert tokenizer.encode_offsets("")[1].shape == (0, 2)


def test_refusals(tmp_path: Path) -> None:
    def message(call: Callable[[], object]) -> str:
        with pytest.raises(DataError) as error:
            call()
        return str(error.value)

    inner = NormalizedTokenizer(ByteTokenizer(), NORMALIZER)
    assert message(lambda: NormalizedTokenizer(ByteTokenizer(), Normalizer())) == (
        "NormalizedTokenizer: a normaliser that does nothing. hint: use the tokenizer itself"
    )
    assert message(lambda: NormalizedTokenizer(inner, NORMALIZER)) == (
        "NormalizedTokenizer: a normaliser around another. hint: give one with all the steps"
    )
    path, good = tmp_path / "t.json", inner.to_json()
    cases = {
        "normalized: a normaliser around another": {**good, "tokenizer": good},
        "Normalizer: step 0: not a step; got 1, expected an object with a 'type'": {**good, "normalizer": [1]},
        "NormalizedTokenizer: wrong type of 'tokenizer'; got str, expected dict": {**good, "tokenizer": "x"},
        "tokenizer: a damaged tokenizer file (ByteTokenizer: missing keys; got no special, expected special, type, "
        "version)": {**good, "tokenizer": {"type": "byte", "version": 1}},
    }
    for what, content in cases.items():
        path.write_text(json.dumps(content))
        assert message(lambda: load_tokenizer(path)) == f"{path}: a damaged tokenizer file ({what})"
