"""A tokenizer as the keys of a GGUF file: the reverse of `gguf.py`, and as strict.

Byte-level BPE becomes llama.cpp's "gpt2", bytes that are ids themselves too; a SentencePiece vocabulary its "llama" or
"t5". What llama.cpp has no way to say (another normalisation, another cutting of words) is refused, with one exception:
the composed form of Unicode that Qwen's tokenizer.json asks for is left out, as llama.cpp's own conversion does, and
the caller is told.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.errors import DataError
from .alphabet import CHARACTERS
from .bpe_tokenizer import BPETokenizer
from .byte import ByteTokenizer
from .gguf import FAMILIES, KEY
from .normalize import UnicodeForm
from .parts import Parts
from .sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .tokenizer import Tokenizer

_WHERE = "GGUF"


def gguf_vocabulary(tokenizer: Tokenizer, size: int) -> tuple[dict[str, Any], list[str]]:
    """(keys and values, what of the tokenizer is not in them). Ids up to `size` that the tokenizer doesn't have become
    unused ones.

    Raises DataError for a tokenizer that llama.cpp has no equal of; the message names the part.
    """
    if isinstance(tokenizer, BPETokenizer) and tokenizer.parts.byte_level:
        found, notes = _byte_level(tokenizer)
    elif isinstance(tokenizer, ByteTokenizer):
        found, notes = _bytes(tokenizer), []
    elif isinstance(tokenizer, SentencePieceTokenizer):
        found, notes = _sentencepiece(tokenizer), []
    else:
        expected = "byte-level BPE, bytes, or a SentencePiece vocabulary"
        hint = "a Hugging Face folder holds it (--format hf)"
        raise DataError(
            _WHERE, "a tokenizer that llama.cpp doesn't have", got=tokenizer.kind, expected=expected, hint=hint
        )
    _fill(found, size)
    return {f"{KEY}{name}": value for name, value in found.items()}, notes


def _fill(found: dict[str, Any], size: int) -> None:
    """Unused tokens for the rest of the rows of the model's table."""
    tokens: list[str] = found["tokens"]
    missing = size - len(tokens)
    if missing < 0:
        raise DataError(
            _WHERE, "the tokenizer has more tokens than the model", got=len(tokens), expected=f"at most {size}"
        )
    found["tokens"] = [*tokens, *(f"[PAD{i}]" for i in range(len(tokens), size))]
    found["token_type"] = np.concatenate([found["token_type"], np.full(missing, UNUSED, np.int32)])
    if "scores" in found:
        found["scores"] = np.concatenate([found["scores"], np.zeros(missing, np.float32)])


# --- byte-level -------------------------------------------------------------------------------------------------------


def _byte_level(tokenizer: BPETokenizer) -> tuple[dict[str, Any], list[str]]:
    content = tokenizer.to_json()
    model, added = content["model"], content["added_tokens"]
    family, notes = _family(tokenizer.parts, whole=model["ignore_merges"])
    if model["end_of_word_suffix"] is not None:
        raise DataError(_WHERE, "tokens marked at the end of a word", got=repr(model["end_of_word_suffix"]))
    names: dict[int, str] = {number: token for token, number in model["vocab"].items()}
    kinds = dict.fromkeys(names, NORMAL)
    for token in added:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
        if token["lstrip"] or token["rstrip"] or (token["normalized"] and tokenizer.parts.normalizer):
            raise DataError(_WHERE, "an added token that takes white space with it", got=repr(token["content"]))
    tokens = [names.get(i, f"[PAD{i}]") for i in range(tokenizer.vocab_size)]
    types = np.array([kinds.get(i, UNUSED) for i in range(len(tokens))], np.int32)
    merges = [f"{left} {right}" for left, right in model["merges"]]
    found = {"model": "gpt2", "pre": family, "tokens": tokens, "token_type": types, "merges": merges}
    return found | _frame(tokenizer.parts.frame), notes


def _family(parts: Parts, *, whole: bool) -> tuple[str, list[str]]:
    """llama.cpp's name for the way words are cut, and what of the normaliser it leaves out."""
    steps, cutting = list(parts.normalizer.steps), parts.pretokenizer
    notes = []
    if len(steps) == 1 and isinstance(steps[0], UnicodeForm) and steps[0].form == "NFC":
        notes, steps = ["the tokenizer's NFC normalisation is not in the file: llama.cpp normalises no such text"], []
    if steps:
        got = ", ".join(type(step).__name__ for step in steps)
        raise DataError(_WHERE, "a normalisation that llama.cpp doesn't have", got=got)
    if cutting.rewrites or parts.strip_space or parts.unmark:
        raise DataError(_WHERE, "a byte-level vocabulary that puts a space before a text")
    for name, (cuts, ignores_merges) in FAMILIES.items():
        if cuts == cutting.cuts and ignores_merges == whole:
            return name, notes
    got = " and ".join(cut.name for cut in cutting.cuts) or "no pattern"
    expected = ", ".join(FAMILIES)
    raise DataError(
        _WHERE, "words cut in a way that llama.cpp has no name for", got=got, expected=f"those of {expected}"
    )


def _frame(frame: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[str, Any]:
    """What stands around a text: at most one token on each side."""
    found: dict[str, Any] = {}
    for name, ids in zip(("bos", "eos"), frame, strict=True):
        if len(ids) > 1:
            raise DataError(_WHERE, "more than one token around a text", got=ids)
        found[f"add_{name}_token"] = bool(ids)
        if ids:
            found[f"{name}_token_id"] = ids[0]
    return found


def _bytes(tokenizer: ByteTokenizer) -> dict[str, Any]:
    """Byte-level BPE without merges."""
    special = list(tokenizer.special)
    types = [NORMAL] * len(CHARACTERS) + [CONTROL] * len(special)
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*(CHARACTERS[byte] for byte in range(256)), *special],
        "token_type": np.array(types, np.int32),
        "merges": [],
        **_frame(((), ())),
    }


# --- SentencePiece ----------------------------------------------------------------------------------------------------


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    v = tokenizer.vocabulary
    if not v.escape_whitespaces:
        raise DataError(_WHERE, "a SentencePiece vocabulary that leaves spaces as they are")
    found: dict[str, Any] = {
        "model": "llama" if v.model == "bpe" else "t5",
        "pre": "default",
        "tokens": list(v.pieces),
        "scores": np.array(v.scores, np.float32),
        "token_type": np.array(v.types, np.int32),
        "add_space_prefix": v.add_dummy_prefix,
        "remove_extra_whitespaces": v.remove_extra_whitespaces,
        "unknown_token_id": v.unknown,
    }
    if v.charsmap is not None:
        found["precompiled_charsmap"] = np.frombuffer(base64.b64decode(v.charsmap.data), np.uint8)
    ids: Mapping[str, int] = tokenizer.special
    for name, piece in (("bos", "<s>"), ("eos", "</s>")):
        found[f"add_{name}_token"] = name == "bos" and v.model == "bpe" and piece in ids
        if piece in ids:
            found[f"{name}_token_id"] = ids[piece]
    return found
