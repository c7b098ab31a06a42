"""GGUF files: metadata read strictly, and the tokenizers in them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.base.gguf import read_metadata
from pellucid.base.rng import Generator
from pellucid.text import BPETokenizer, load_tokenizer, read_gguf_tokenizer

CORPUS = ["the cat sat on the mat, 1234, then that cat ran.\n", "کتاب می‌خوانم é🙂\n"] * 4
_NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}


def text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def value(of: Any) -> bytes:
    if isinstance(of, bool):
        return struct.pack("<IB", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, list):
        return struct.pack("<IIQ", 9, 8, len(of)) + b"".join(map(text, of))
    return struct.pack("<IIQ", 9, _NUMBERS[of.dtype.str[1:]], len(of)) + of.tobytes()


def gguf(metadata: dict[str, Any], *, version: int = 3) -> bytes:
    """A file without tensors."""
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata))
    return head + b"".join(text(key) + value(of) for key, of in metadata.items())


def vocabulary(**changes: Any) -> dict[str, Any]:
    made = BPETokenizer.train(CORPUS, 280, pattern="llama3").to_json()["model"]
    named = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": [*made["vocab"], "<|end|>", "  ", "<unused>"],
        "token_type": np.array([1] * 280 + [3, 4, 5], np.int32),
        "merges": [" ".join(pair) for pair in made["merges"]],
        "bos_token_id": 280,
        "add_bos_token": True,
    }
    return {f"tokenizer.ggml.{key}": of for key, of in (named | changes).items()}


def test_metadata(tmp_path: Path) -> None:
    numbers = {kind: np.array([1, 2, 3], f"|{kind}" if kind[1] == "1" else f"<{kind}") for kind in _NUMBERS}
    path = tmp_path / "m.gguf"
    for version in (2, 3):
        path.write_bytes(gguf({"a": "é", "b": True, "c": 7, "d": ["x", ""], **numbers}, version=version) + b"tensors")
        found = read_metadata(path)
        assert [found[key] for key in "abcd"] == ["é", True, 7, ["x", ""]]
        for kind, expected in numbers.items():
            assert found[kind].dtype == expected.dtype
            assert found[kind].tolist() == [1, 2, 3]


def test_byte_level(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(vocabulary()))
    found = load_tokenizer(path)
    assert isinstance(found, BPETokenizer)
    trained = BPETokenizer.train(CORPUS, 280, pattern="llama3")
    assert found.encode_batch(CORPUS).ids.tolist() == trained.encode_batch(CORPUS).ids.tolist()
    assert dict(found.special) == {"<|end|>": 280}
    assert found.frame == ((280,), ())
    # What the file calls user defined is cut out always, and is no special token.
    assert found.encode("a  b<|end|>").tolist()[1:2] == [281]
    assert found.decode(found.encode("a  b<|end|>")) == "a  b<|end|>"
    assert found.encode("<|end|>", allowed_special="all").tolist() == [280]


def test_sentencepiece(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "b", "▁a", "ab"]
    types = np.array([2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1], np.int32)
    scores = np.array([0] * 259 + [-5, -6, -7, -1, -2], np.float32)
    content = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({f"tokenizer.ggml.{key}": of for key, of in content.items()}))
    found = load_tokenizer(path)
    assert found.encode("ab a").tolist() == [262, 261, 262]
    assert found.decode(found.encode("ab é")) == "ab é"
    assert dict(found.special) == {"<s>": 1, "</s>": 2}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"a": 1}, "a GGUF file without a tokenizer"),
    "kind": (
        vocabulary(model="bert"),
        "a tokenizer this library doesn't have; got 'bert', expected gpt2, llama or t5",
    ),
    "family": (
        vocabulary(pre="viking"),
        "words cut in a way this library doesn't have; got tokenizer.ggml.pre 'viking', expected gpt-2, llama-bpe, "
        "dbrx, qwen2, gpt-4o, tekken, smollm, starcoder, refact, command-r",
    ),
    "types": (vocabulary(token_type=np.array([1], np.int32)), "a damaged vocabulary: not a type for each token"),
    "type": (vocabulary(token_type=np.array([9] * 283, np.int32)), "a type of token that is not known; got 9"),
    "merges": (
        vocabulary(merges=["t h", "q q"]),
        "a damaged vocabulary (BPEModel: merge 1 of a token that is not in the vocabulary; got b'qq' in b'q' + b'q')",
    ),
    "scores": (
        vocabulary(model="llama"),
        "a damaged vocabulary (SentencePieceVocabulary: not a score and a type for each piece; got 283 pieces)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(content))
    with pytest.raises(DataError) as refused:
        read_gguf_tokenizer(path)
    assert str(refused.value) == f"{path}: {message}"


ONE_KEY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GGML" + bytes(20), "not a GGUF file"),
        (b"GGUF", "not a GGUF file"),
        (gguf({}, version=1), "a version of GGUF this library does not read; got 1, expected 2 or 3"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40),
            "a damaged GGUF file: too many keys; got 1099511627776, expected at most 65536",
        ),
        (
            ONE_KEY + struct.pack("<Q", 1 << 60),
            "a damaged GGUF file: it ends too early; got 1152921504606846976 bytes, expected at most 0",
        ),
        (
            ONE_KEY + text("a") + struct.pack("<IIQ", 9, 8, 1 << 60),
            "a damaged GGUF file: it ends too early; got 1152921504606846976 strings, expected at most 0",
        ),
        (ONE_KEY + text("a") + struct.pack("<IIQ", 9, 9, 1), "a damaged GGUF file: an unknown type of value; got 9"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("a") + value(1)) * 2,
            "a damaged GGUF file: the same key twice; got 'a'",
        ),
        (ONE_KEY + struct.pack("<Q", 1) + b"\xff", "a damaged GGUF file: text that is not UTF-8"),
    ],
)
def test_damaged_metadata(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(DataError) as refused:
        read_metadata(path)
    assert str(refused.value) == f"{path}: {message}"


def test_any_damage_is_an_error_or_a_tokenizer(tmp_path: Path) -> None:
    good, path, stream = gguf(vocabulary()), tmp_path / "m.gguf", Generator(4)
    for _ in range(100):
        raw = bytearray(good)
        at, bit = int(stream.integers(len(raw), 1)[0]), int(stream.integers(8, 1)[0])
        raw[at] ^= 1 << bit
        path.write_bytes(raw if bit else good[:at])
        try:
            read_gguf_tokenizer(path).encode("the cat")
        except DataError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most, not all, changes are refused
