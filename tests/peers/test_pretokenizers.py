"""Cuts at strings and at punctuation beside those of `tokenizers`: equal ids and equal offsets."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.text import load_tokenizer

from .test_offsets import BYTES, compare
from .texts import HARD, SCALARS, random_texts

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [*HARD[:14], "aa ab ba  abab, aaa\u00e9e\u0301.", "a", "aa", "ab", " ", "ababab", *random_texts(6, 150)]
PLAIN = BYTES | {"use_regex": False}


def byte_pairs(*parts: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer whose ids show where words end: "a" and a space merge with their neighbours."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pairs = [(a, b) for a, b in itertools.product("abĠ,Ã©", repeat=2)]
    vocabulary = [*alphabet, *dict.fromkeys(a + b for a, b in pairs)]
    return {
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, PLAIN]},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [f"{a} {b}" for a, b in pairs],
        },
    }


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("behavior", ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
def test_strings(behavior: str, invert: bool, tmp_path: Path) -> None:
    for text in ("a", " ", "aa", "ab", ", ", "é"):
        part = {"type": "Split", "pattern": {"String": text}, "behavior": behavior, "invert": invert}
        compare(byte_pairs(part), tmp_path, TEXTS)
    # One cut inside the pieces of another, and the file once more.
    second = {"type": "Split", "pattern": {"String": "b"}, "behavior": "MergedWithNext", "invert": False}
    compare(byte_pairs(part, second), tmp_path, TEXTS)
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    ours.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json").fingerprint() == ours.fingerprint()
    compare(json.loads((tmp_path / "again.json").read_text(encoding="utf-8")), tmp_path, TEXTS[:40])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "BertPreTokenizer"},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "CharDelimiterSplit", "delimiter": "a"},
    ],
    ids=["bert", "punctuation", "contiguous", "delimiter"],
)
def test_signs(part: dict[str, Any], tmp_path: Path) -> None:
    content = byte_pairs(part)
    # Every character pair of the alphabet that a sign could part from its neighbours.
    content["model"]["merges"] += [f"{c} a" for c in content["model"]["vocab"] if len(c) == 1 and c not in "abĠ,Ã©"]
    content["model"]["vocab"] |= {
        pair.replace(" ", ""): 1000 + i for i, pair in enumerate(content["model"]["merges"][36:])
    }
    scalars = [
        "".join(f"{chr(c)}a{chr(c)}{chr(c)}a " for c in SCALARS[i : i + 500]) for i in range(0, len(SCALARS), 500)
    ]
    step = 1 if part["type"] == "BertPreTokenizer" else 37
    compare(content, tmp_path, [*TEXTS, *scalars[::step]])
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    ours.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json").fingerprint() == ours.fingerprint()
