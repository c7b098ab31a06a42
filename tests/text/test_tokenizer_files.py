"""Tokenizer files: save and load, fingerprints, and every kind of bad file refused with one message."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from pellucid.base import files
from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.text import (
    END_OF_TEXT,
    ByteTokenizer,
    CharTokenizer,
    SentencePieceTokenizer,
    SentencePieceVocabulary,
    Tokenizer,
    UnigramTokenizer,
    load_tokenizer,
)

TOKENIZERS = [
    ByteTokenizer(),
    ByteTokenizer(special=[END_OF_TEXT]),
    CharTokenizer("abcیـ‌\r\n\x00\u2028\"\\'\U0001f642"),
    CharTokenizer("abc", unknown=True, special=["<|user|>", END_OF_TEXT]),
    UnigramTokenizer(["a", " b", "bc", "یـ", "\u2028"], [-1.5, -2.0, -3, -1e-3, -7.25], special=[END_OF_TEXT]),
    UnigramTokenizer(["a", "b", " "], [-1, -2, -3], byte_fallback=False),
    SentencePieceTokenizer(
        SentencePieceVocabulary("bpe", ("<unk>", "▁", "a", "b", "▁a"), (0.0, -1.0, -2.0, -2.5, -0.5), (2, 1, 1, 1, 1))
    ),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.kind == tokenizer.kind == json.loads(path.read_text(encoding="utf-8"))["type"]
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.eot == tokenizer.eot
    assert loaded.special == tokenizer.special
    assert loaded.encode("abc").tolist() == tokenizer.encode("abc").tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_fingerprints_differ() -> None:
    prints = {tokenizer.fingerprint() for tokenizer in TOKENIZERS}
    assert len(prints) == len(TOKENIZERS)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in prints)
    # Written down, for files out there carry it.
    assert ByteTokenizer().fingerprint() == "0424fa20ec9f35b925d9adf077f39c1d7368a150c447cb9d83da39887d96c759"
    assert CharTokenizer("ba").fingerprint() == CharTokenizer.train(["a", "bb"]).fingerprint()


GOOD = {"type": "char", "version": 1, "characters": "ab", "unknown": False, "special": []}
NOT = "not a tokenizer file"
JSON = f"{NOT}: damaged or foreign JSON"
KINDS = "expected type 'byte' or 'char' or 'unigram' or 'sentencepiece' or 'normalized'"
CHAR = "a damaged tokenizer file (CharTokenizer"
BAD = {
    "cut": ('{"type": "byte", "ver', f"{JSON} (Unterminated string starting at: line 1 column 18 (char 17))"),
    "empty": ("", f"{JSON} (Expecting value: line 1 column 1 (char 0))"),
    "bytes": (b"\xff\xfe", f"{JSON} ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
    "twice": ('{"type": "byte", "type": "char"}', f"{JSON} (the same key twice)"),
    "list": ("[1]", f"{NOT}; got JSON list, expected a JSON object"),
    "foreign": ('{"weights": {"type": "BPE"}}', f"{NOT}; got no 'type', {KINDS}"),
    "type": ({**GOOD, "type": "wordpiece"}, f"{NOT}; got type 'wordpiece', {KINDS}"),
    "type of type": ({**GOOD, "type": ["byte"]}, f"{NOT}; got type ['byte'], {KINDS}"),
    "version": ({**GOOD, "version": 2}, "a version this library does not read; got 2, expected 1"),
    "unknown key": (
        {**GOOD, "lower": True},
        f"{CHAR}: unknown keys; got lower, expected only characters, special, type, unknown, version)",
    ),
    "missing key": (
        {key: GOOD[key] for key in GOOD if key != "special"},
        f"{CHAR}: missing keys; got no special, expected characters, special, type, unknown, version)",
    ),
    "wrong type": ({**GOOD, "unknown": 1}, f"{CHAR}: wrong type of 'unknown'; got int, expected bool)"),
    "special": ({**GOOD, "special": [7]}, f"{CHAR}: not a name for a special token; got 7)"),
    "order": (
        {**GOOD, "characters": "ba"},
        f"{CHAR}: characters are not in ascending order. hint: train the tokenizer again)",
    ),
    "no characters": (
        {**GOOD, "characters": ""},
        f"{CHAR}: no characters. hint: give the text the vocabulary is made of)",
    ),
    "surrogate": (
        {**GOOD, "characters": "a\ud800"},
        f"{CHAR}: half a surrogate pair is no character. hint: repair the source text)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / "t.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as refused:
        load_tokenizer(path)
    assert str(refused.value) == f"{path}: {message}"


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[" * 200_000)
    with pytest.raises(DataError, match="damaged or foreign JSON"):
        load_tokenizer(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with open(path, "wb") as file:
        file.truncate(1 << 33)  # a hole: takes no space
    with pytest.raises(DataError) as refused:
        load_tokenizer(path)
    assert str(refused.value) == (
        f"{path}: too large for a tokenizer file; got 8589934592 bytes, expected at most 268435456"
    )


@pytest.mark.parametrize("tokenizer", TOKENIZERS[3:], ids=repr)
def test_any_damage_is_an_error_or_a_valid_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    tokenizer.save(path)
    good = path.read_bytes()
    stream = Generator(7)
    for _ in range(200):
        raw = bytearray(good)
        at, bit = int(stream.integers(len(raw), 1)[0]), int(stream.integers(8, 1)[0])
        raw[at] ^= 1 << bit
        path.write_bytes(raw if bit else good[:at])
        try:
            load_tokenizer(path).encode("a")
        except DataError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most, not all, flips are refused


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        load_tokenizer(tmp_path / "none.json")
    assert str(refused.value) == f"{tmp_path / 'none.json'}: cannot be read: no such file or directory"
    with pytest.raises(DataError) as refused:
        load_tokenizer(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: a folder without a tokenizer; expected tokenizer.json, or encoder.json and vocab.bpe"
    )
    with pytest.raises(DataError) as refused:
        ByteTokenizer().save(tmp_path / "no" / "t.json")
    assert str(refused.value) == (
        f"{tmp_path / 'no' / 't.json'}: cannot be written: its folder does not exist. hint: create the folder first"
    )
    with pytest.raises(DataError) as refused:
        ByteTokenizer().save(tmp_path)
    assert str(refused.value) == f"{tmp_path}: cannot be written: is a folder. hint: give the name of a file"


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    TOKENIZERS[0].save(path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DataError) as refused:
        TOKENIZERS[1].save(path)
    assert str(refused.value) == f"{path}: cannot be written: no space left on device"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.json"]


def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    TOKENIZERS[0].save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_tokenizer(tmp_path / "real.json").kind == "byte"
