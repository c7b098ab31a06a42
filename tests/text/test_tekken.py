"""Tekken files: ids above the special tokens, what a file leaves out, and what is no such file."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.errors import DataError
from pellucid.text import load_tokenizer
from pellucid.text.patterns import PATTERNS

WORDS = [b"th", b"the", b" c", b"at", b" cat"]


def content() -> dict[str, Any]:
    tokens = [*(bytes([byte]) for byte in range(256)), *WORDS, b"beyond"]
    return {
        "config": {
            "pattern": PATTERNS["tekken"].regexes[0],
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": 30 + 256 + len(WORDS),
            "default_num_special_tokens": 30,
            "version": "v3",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
    }


def written(made: dict[str, Any], folder: Path) -> Path:
    path = folder / "tekken.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def test_ids(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(written(content(), tmp_path))
    assert tokenizer.vocab_size == 291
    assert tokenizer.encode("the cat").tolist() == [30 + 257, 30 + 260]
    assert tokenizer.encode_bytes(b"the\xff").tolist() == [30 + 257, 30 + 255]
    assert tokenizer.decode(tokenizer.encode("می‌ beyond")) == "می‌ beyond"
    assert tokenizer.encode("[INST]a", allowed_special="all").tolist() == [3, 30 + 97]
    assert len(tokenizer.encode("[INST]")) == 6
    assert (tokenizer.special["<SPECIAL_20>"], tokenizer.special["<SPECIAL_29>"]) == (20, 29)
    tokenizer.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json").fingerprint() == tokenizer.fingerprint()


def test_named_special_tokens(tmp_path: Path) -> None:
    made = content() | {"special_tokens": [{"rank": 0, "token_str": "<x>", "is_control": True}], "image": {"size": 1}}
    made["config"]["version"] = "v13"
    assert dict(load_tokenizer(written(made, tmp_path)).special) == {
        "<x>": 0,
        **{f"<SPECIAL_{i}>": i for i in range(1, 30)},
    }


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(made: dict[str, Any]) -> None:
        for key in path[:-1]:
            made = made[key]
        made[path[-1]] = to

    return apply


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "size": (
        change("config", "default_vocab_size", to=1 << 40),
        "config: not a size of a vocabulary; got 1099511627776, 30 of them special, expected at most 16777216",
    ),
    "negative": (
        change("config", "default_num_special_tokens", to=-1),
        "config: not a size of a vocabulary; got 291, -1 of them special, expected at most 16777216",
    ),
    "short": (
        change("config", "default_vocab_size", to=1000),
        "vocab: fewer tokens than the vocabulary has; got 262, expected 970",
    ),
    "rank": (
        change("vocab", 7, "rank", to=8),
        "vocab: entry 7 is not the token of this rank; got {'rank': 8, 'token_bytes': 'Bw==', 'token_str': None}",
    ),
    "base64": (change("vocab", 7, "token_bytes", to="*"), "vocab: the bytes of token 7 are no base64; got '*'"),
    "byte": (
        change("vocab", 7, "token_bytes", to="QQ=="),
        "vocab: token 7 is not what it has to be; got b'A', expected a byte first",
    ),
    "twice": (
        change("vocab", 257, "token_bytes", to=base64.b64encode(b"th").decode()),
        "BPEModel: the same token twice; got b'th', ids 286 and 287",
    ),
    "version": (
        change("config", "version", to="v13"),
        "special_tokens: missing; got version 'v13', expected a list of them",
    ),
    "many": (
        change("config", "default_num_special_tokens", to=9),
        "special_tokens: more than the vocabulary has; got 20, expected at most 9",
    ),
    "special": (
        change("special_tokens", to=[{"rank": 1, "token_str": "<x>"}]),
        "special_tokens: entry 0 is not the token of this rank; got {'rank': 1, 'token_str': '<x>'}",
    ),
    "keys": (
        change("merges", to=[]),
        "the file: unknown keys; got merges, expected only audio, config, image, multimodal, special_tokens, type, "
        "vocab",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, tmp_path: Path) -> None:
    apply, message = REFUSALS[name]
    made = copy.deepcopy(content())
    apply(made)
    path = written(made, tmp_path)
    with pytest.raises(DataError) as error:
        load_tokenizer(path)
    assert str(error.value) == f"{path}: a Tekken file that can't be used ({message})"


def test_an_unknown_pattern_is_refused(tmp_path: Path) -> None:
    made = content()
    made["config"]["pattern"] = r"\w+"
    with pytest.raises(DataError, match=r"config\.pattern"):
        load_tokenizer(written(made, tmp_path))
