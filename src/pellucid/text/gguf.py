"""The tokenizer inside a GGUF file: byte-level BPE ("gpt2") and the two kinds of SentencePiece ("llama", "t5").

The file names the way text is cut into words by llama.cpp's name for a family (`tokenizer.ggml.pre`); a name whose
pattern we don't have is refused. llama.cpp normalises no text for byte-level BPE, so neither does this, even where the
family's tokenizer.json asks for NFC.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath
from ..base.gguf import read_metadata
from .bpe_tokenizer import BPETokenizer
from .charsmap import CharsMap
from .hub_read import model_of
from .parts import Parts
from .patterns import PATTERNS, SIMPLE, Pattern
from .pretokenize import Pretokenizer
from .sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, SentencePieceVocabulary
from .sentencepiece_tokenizer import SentencePieceTokenizer
from .special import AddedToken
from .tokenizer import Tokenizer

KEY = "tokenizer.ggml."
_SINGLE_DIGITS = (SIMPLE["digits"], PATTERNS["gpt2"])

#: llama.cpp's name of a family: the patterns, and whether a word that is a token is that token.
FAMILIES: dict[str, tuple[tuple[Pattern, ...], bool]] = {
    "gpt-2": ((PATTERNS["gpt2"],), False),
    "llama-bpe": ((PATTERNS["llama3"],), True),
    "dbrx": ((PATTERNS["llama3"],), False),
    "qwen2": ((PATTERNS["qwen2"],), False),
    "gpt-4o": ((PATTERNS["o200k"],), False),
    "tekken": ((PATTERNS["tekken"],), True),
    "smollm": (_SINGLE_DIGITS, False),
    "starcoder": (_SINGLE_DIGITS, False),
    "refact": (_SINGLE_DIGITS, False),
    "command-r": (_SINGLE_DIGITS, False),
}


def read_gguf_tokenizer(path: StrPath) -> Tokenizer:
    """The tokenizer in a GGUF file.

    Raises:
        DataError: no GGUF file, a damaged one, one without a vocabulary, or a kind or family this library doesn't have.
    """
    where = os.fspath(path)
    return tokenizer_of(read_metadata(path), where)


def tokenizer_of(metadata: dict[str, Any], where: str) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describe. Raises DataError."""
    kind = metadata.get(f"{KEY}model")
    if kind is None:
        raise DataError(where, "a GGUF file without a tokenizer")
    if kind not in ("gpt2", "llama", "t5"):
        raise DataError(where, "a tokenizer this library doesn't have", got=repr(kind), expected="gpt2, llama or t5")
    tokens, types = metadata.get(f"{KEY}tokens"), metadata.get(f"{KEY}token_type")
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types) or not tokens:
        raise DataError(where, "a damaged vocabulary: not a type for each token")
    kinds = types.tolist()
    try:
        if kind == "gpt2":
            return _byte_level(metadata, tokens, kinds, where)
        return _sentencepiece(metadata, tokens, kinds, bpe=kind == "llama")
    except DataError as error:
        if error.where == where:
            raise
        raise DataError(where, f"a damaged vocabulary ({error})") from error


def _byte_level(metadata: dict[str, Any], tokens: list[str], kinds: list[int], where: str) -> BPETokenizer:
    family = metadata.get(f"{KEY}pre", "default")
    if family not in FAMILIES:
        raise DataError(
            where,
            "words cut in a way this library doesn't have",
            got=f"tokenizer.ggml.pre {family!r}",
            expected=", ".join(FAMILIES),
        )
    if metadata.get(f"{KEY}add_space_prefix", False):
        raise DataError(where, "a space before text of a byte-level vocabulary")
    if unknown := sorted(set(kinds) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED}):
        raise DataError(where, "a type of token that is not known", got=unknown[0])
    cuts, whole = FAMILIES[family]
    added = [
        AddedToken(token, number, special=kind == CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise DataError(where, "a damaged vocabulary: the same token twice")
    item = {"type": "BPE", "vocab": vocab, "merges": metadata.get(f"{KEY}merges", []), "ignore_merges": whole}
    model, texts = model_of(item, added, byte_level=True)
    parts = Parts(model=model, pretokenizer=Pretokenizer(cuts=cuts), texts=texts, frame=_frame(metadata, len(tokens)))
    return BPETokenizer(parts, vocab_size=len(tokens), added=added)


def _frame(metadata: dict[str, Any], size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def wanted(name: str) -> tuple[int, ...]:
        number = metadata.get(f"{KEY}{name}_token_id")
        asked = metadata.get(f"{KEY}add_{name}_token", False)
        return (number,) if asked and isinstance(number, int) and 0 <= number < size else ()

    return wanted("bos"), wanted("eos")


def _sentencepiece(
    metadata: dict[str, Any], tokens: list[str], kinds: list[int], *, bpe: bool
) -> SentencePieceTokenizer:
    scores = metadata.get(f"{KEY}scores")
    charsmap = metadata.get(f"{KEY}precompiled_charsmap")
    vocabulary = SentencePieceVocabulary(
        model="bpe" if bpe else "unigram",
        pieces=tuple(tokens),
        scores=tuple(scores.tolist()) if isinstance(scores, np.ndarray) else (),
        types=tuple(kinds),
        byte_fallback=BYTE in kinds,
        charsmap=CharsMap.of(charsmap.tobytes()) if isinstance(charsmap, np.ndarray) and len(charsmap) else None,
        add_dummy_prefix=bool(metadata.get(f"{KEY}add_space_prefix", True)),
        remove_extra_whitespaces=bool(metadata.get(f"{KEY}remove_extra_whitespaces", False)),
    )
    return SentencePieceTokenizer(vocabulary)
