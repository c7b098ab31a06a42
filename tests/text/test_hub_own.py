"""Our own vocabularies as a tokenizer.json and back. The ids that `tokenizers` gives are compared in tests/peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.errors import DataError
from pellucid.text import (
    END_OF_TEXT,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    CollapseSpaces,
    Lowercase,
    NormalizedTokenizer,
    Normalizer,
    PipelineTokenizer,
    SentencePieceTokenizer,
    SentencePieceVocabulary,
    Tokenizer,
    UnigramTokenizer,
    hub_content,
    load_tokenizer,
)

PIECES, SCORES = ["e", " the", "é", " s", "ea", "\n"], [-3.0, -1.0, -7.5, -2.25, -4.0, -5.0]
UNIGRAM = UnigramTokenizer(PIECES, SCORES, special=[END_OF_TEXT, "<|user|>"])
KINDS: dict[str, Tokenizer] = {
    "byte": ByteTokenizer(special=[END_OF_TEXT]),
    "char": CharTokenizer(" aehst\nی", special=["<|user|>"]),
    "unigram": UNIGRAM,
    "unigram without bytes": UnigramTokenizer(PIECES, SCORES, byte_fallback=False),
    "normalised": NormalizedTokenizer(UNIGRAM, Normalizer([Lowercase()])),
    "normalised bytes": NormalizedTokenizer(ByteTokenizer(), Normalizer([Lowercase()])),
}
TEXTS = ("the sea the sea\n\nthe sea\n", "", "\n", " the\n the", "sea<|user|>the", "the sea<0x41>")


def saved(content: dict[str, Any], folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", KINDS)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    tokenizer = KINDS[name]
    found = load_tokenizer(saved(hub_content(tokenizer), tmp_path))
    assert type(found) is type(tokenizer)
    assert (found.vocab_size, dict(found.special)) == (tokenizer.vocab_size, dict(tokenizer.special))
    for text in TEXTS if "char" not in name else TEXTS[:4]:
        ids = tokenizer.encode(text, allowed_special="all")
        assert found.encode(text, allowed_special="all").tolist() == ids.tolist()
        assert found.decode(ids) == tokenizer.decode(ids)


def test_another_content_is_no_tokenizer_of_ours(tmp_path: Path) -> None:
    content = hub_content(KINDS["unigram without bytes"])
    content["normalizer"] = content["pre_tokenizer"] = content["decoder"] = None
    found = load_tokenizer(saved(content, tmp_path))
    assert type(found) is PipelineTokenizer
    merges = BPETokenizer.train(["the sea " * 9], vocab_size=260)
    assert hub_content(merges) == merges.to_json()


SENTENCEPIECE = SentencePieceVocabulary(model="unigram", pieces=("<unk>", "a"), scores=(0.0, -1.0), types=(2, 1))
REFUSED: dict[str, tuple[Tokenizer, str]] = {
    "characters": (
        CharTokenizer("ab", unknown=True),
        "an id for every unknown character by itself, which the format can't express. "
        "hint: a vocabulary of bytes, or a Unigram with byte fallback, needs none",
    ),
    "a piece": (
        UnigramTokenizer(["a", "<0x41>"], [-1.0, -2.0]),
        "a piece is spelled as a byte or the unknown is. hint: train another vocabulary",
    ),
    "a special token": (
        UnigramTokenizer(["a", "ab"], [-1.0, -2.0], special=["ab"]),
        "a special token is spelled as a piece; got 'ab'",
    ),
    "sentencepiece": (
        SentencePieceTokenizer(SENTENCEPIECE),
        "the format has no place for a sentencepiece vocabulary. "
        "hint: keep it as a checkpoint of Pellucid, or train a vocabulary of its own",
    ),
    "a normaliser": (
        NormalizedTokenizer(UNIGRAM, Normalizer([CollapseSpaces()])),
        "a step of the normaliser that the format has no name for; got collapse_spaces",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    tokenizer, message = REFUSED[name]
    with pytest.raises(DataError) as caught:
        hub_content(tokenizer)
    assert str(caught.value) == f"tokenizer.json: {message}"
