"""Offsets beside those of `tokenizers`, with everything that a tokenizer.json may do to a text before it is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.text import load_tokenizer
from pellucid.text.normalize import StripAccents

from .texts import HARD, random_texts, scalar_texts

tokenizers = pytest.importorskip("tokenizers")

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
MARKED = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
NORMALIZERS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "NFC": [{"type": "NFC"}],
    "NFD": [{"type": "NFD"}],
    "NFKC": [{"type": "NFKC"}],
    "NFKD": [{"type": "NFKD"}],
    "lowercase": [{"type": "Lowercase"}],
    "accents": [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "NFC"}],
    "shorter": [{"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}],
    "longer": [{"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " the "}],
    "removed": [{"type": "Replace", "pattern": {"String": "t"}, "content": ""}, {"type": "NFC"}],
    "prepend": [{"type": "Prepend", "prepend": "▁"}, MARKS],
    "strip": [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKC"}],
}
TEXTS = [
    *HARD[:14],
    "Cafe\u0301 cafe\u0323\u0301 \u00e1\u0323 ﬁn\u0301 ｶﾞ 각 \u1100\u1161\u11a8 İI ½ \u0344\u0323 ab ababt\u0301",
    *random_texts(5, 400),
    *scalar_texts(701),
]


def compare(content: dict[str, Any], folder: Path, texts: list[str]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    for text in texts:
        expected = theirs.encode(text, add_special_tokens=False)
        ids, offsets = ours.encode_offsets(text, allowed_special="all")
        assert ids.tolist() == expected.ids, repr(text)
        assert offsets.tolist() == [list(pair) for pair in expected.offsets], (repr(text), expected.tokens)
        assert ids.tolist() == ours.encode(text, allowed_special="all").tolist()


@pytest.fixture(scope="module")
def vocabulary() -> list[str]:
    """Characters and a few words."""
    letters = dict.fromkeys("▁abcdefghijklmnopqrstuvwxyzCITé ".replace("q", "") + "مکیí")
    return [*letters, "<unk>"]


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("pieces", ["bytes", "unknown", "fused"])
def test_byte_pairs(name: str, pieces: str, vocabulary: list[str], tmp_path: Path) -> None:
    if pieces == "bytes":
        vocabulary = [*tokenizers.pre_tokenizers.ByteLevel.alphabet(), "th", "Ġthe", "<unk>"]
        merges = ["t h", "Ġ th"]
        vocabulary[-2] = "Ġth"
    else:
        vocabulary = [*vocabulary, "th", "▁th", "▁▁"]
        merges = ["t h", "▁ th", "▁ ▁"]
    content = {
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": NORMALIZERS[name]} if NORMALIZERS[name] else None,
        "pre_tokenizer": BYTES if pieces == "bytes" else None if name == "prepend" else MARKED,
        "model": {
            "type": "BPE",
            "unk_token": None if pieces == "bytes" else "<unk>",
            "fuse_unk": pieces == "fused",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": merges,
        },
    }
    texts = TEXTS
    if name == "accents":
        # Of marks that are newer than its tables, the peer knows nothing (`test_normalizers.py`).
        other, ours = tokenizers.normalizers.StripAccents(), StripAccents()
        texts = ["".join(c for c in text if ours(c) == other.normalize_str(c)) for text in texts]
    compare(content, tmp_path, texts)


@pytest.mark.parametrize("words", ["always", "first", "never", "collapsed", "space before"])
def test_white_space(words: str, vocabulary: list[str], tmp_path: Path) -> None:
    if words == "space before":
        space: dict[str, Any] = BYTES | {"add_prefix_space": True}
        vocabulary = [*tokenizers.pre_tokenizers.ByteLevel.alphabet(), "<unk>"]
    elif words == "collapsed":
        space = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, MARKED]}
    else:
        space = MARKED | {"prepend_scheme": words}
    n = len(vocabulary)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFC"}]},
        "added_tokens": [
            {"id": n, "content": "<s>", **plain},
            {"id": n + 1, "content": "CAFÉ", **plain, "normalized": True},
            {"id": n + 2, "content": "<x>", **plain, "lstrip": True, "rstrip": True, "special": False},
        ],
        "pre_tokenizer": space,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [],
        },
    }
    marked = ["<s>", "<s>a <s> b", "a<s>Cafe\u0301 CAFÉcafé", "e\u0301 <x> İ<x>  b", "  a  ▁b\t\n", "▁a", " ▁a ▁ b"]
    compare(content, tmp_path, [*marked, *TEXTS])


PAIR = {"cls": ["<s>", 273], "sep": ["<s>", 273]}
PROCESSORS: dict[str, list[dict[str, Any]]] = {
    "bytes": [BYTES | {"trim_offsets": True}],
    "space before": [BYTES | {"trim_offsets": True, "add_prefix_space": True}],
    "twice": [BYTES | {"trim_offsets": True}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}],
    "roberta": [{"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True, **PAIR}],
    "roberta, bare": [{"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **PAIR}],
    "untrimmed": [{"type": "RobertaProcessing", "trim_offsets": False, "add_prefix_space": True, **PAIR}],
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("space", [False, True], ids=["as it is", "space first"])
def test_trimmed(name: str, space: bool, tmp_path: Path) -> None:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merged = ["ĠĠ", "ĠĠĠĠ", "Ġt", "th", "aĠ", "Ġth", "ĊĠ", "aĠĠ", "Ġa", "ĠaĠ"]
    vocabulary = [*letters, *merged, "q1", "q2", "q3", "q4", "q5", "q6", "q7"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "added_tokens": [
            {"id": 273, "content": "<s>", **plain},
            {"id": 274, "content": " <x> ", **plain, "special": False},
            {"id": 275, "content": "\u3000\n", **plain, "special": False},
        ],
        "pre_tokenizer": BYTES | {"add_prefix_space": space, "use_regex": False},
        "post_processor": {"type": "Sequence", "processors": PROCESSORS[name]},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": ["Ġ Ġ", "ĠĠ ĠĠ", "Ġ t", "t h", "a Ġ", "Ġt h", "Ċ Ġ", "a ĠĠ", "Ġ a", "Ġ aĠ"],
        },
    }
    texts = ["  a ", " a a  a   a", "a  th <x>  t", "<s> a<s>  a \u3000\n a", "     th\n a", " ", "   ", *TEXTS[:200]]
    compare(content, tmp_path, texts)
    load_tokenizer(tmp_path / "tokenizer.json").save(tmp_path / "again.json")
    compare(json.loads((tmp_path / "again.json").read_text(encoding="utf-8")), tmp_path, texts[:20])


@pytest.mark.parametrize("normalizer", [None, {"type": "NFKC"}, {"type": "NFD"}], ids=["none", "NFKC", "NFD"])
def test_unigram(normalizer: dict[str, Any] | None, vocabulary: list[str], tmp_path: Path) -> None:
    pieces = [[piece, -float(i)] for i, piece in enumerate([*vocabulary, "th", "▁the", "ing"])]
    content = {
        "normalizer": normalizer,
        "pre_tokenizer": MARKED,
        "model": {"type": "Unigram", "unk_id": vocabulary.index("<unk>"), "vocab": pieces, "byte_fallback": False},
    }
    compare(content, tmp_path, TEXTS)


@pytest.mark.parametrize("name", ["qwen3.json"])
def test_published(name: str, vocabularies: Path) -> None:
    path = vocabularies / name
    if not path.exists():
        pytest.skip(f"no {name}: make vocabularies could not fetch it")
    ours, theirs = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False)
        ids, offsets = ours.encode_offsets(text, allowed_special="all")
        assert (ids.tolist(), offsets.tolist()) == (expected.ids, [list(pair) for pair in expected.offsets]), repr(text)


def test_long_text_takes_no_time(tmp_path: Path) -> None:
    text = "Cafe\u0301 the fin " * 5_000
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "<unk>": 1}, merges=[], unk_token="<unk>"))
    made.normalizer = tokenizers.normalizers.NFC()
    made.save(str(tmp_path / "tokenizer.json"))
    ids, offsets = load_tokenizer(tmp_path / "tokenizer.json").encode_offsets(text)
    expected = made.encode(text)
    assert ids.tolist() == expected.ids
    assert np.array_equal(offsets, np.array(expected.offsets))
