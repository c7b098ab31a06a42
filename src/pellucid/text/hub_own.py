"""Any tokenizer as a Hugging Face tokenizer.json with the same ids, and our own kinds back from it.

Bytes become byte-level BPE without merges, characters a Unigram model of single characters, and our Unigram the model
of that name: its normaliser writes the space where a line begins (`started.py`), its pre-tokeniser cuts words by the
rule of `compiled/words.py`, and its decoder takes the spaces away again. A byte is spelled as files spell it (<0x0A>),
unless a piece is that very byte. So a text that spells a byte in this way gets the byte itself from other libraries, as
from every vocabulary of this kind; nothing else has other ids there. A normaliser goes in front of what it is before.

Reading makes the tokenizer that a content seems to be of, and takes it if that gives the same content again. Whatever
else is in a file is for `hub_read`.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import DataError
from .alphabet import CHARACTERS
from .byte import ByteTokenizer
from .char import CharTokenizer
from .hub_parts import read_normalizer
from .hub_read import BPE
from .hub_write import normalizer_steps
from .normalized import NormalizedTokenizer
from .pipeline import PipelineTokenizer
from .tokenizer import Tokenizer
from .unigram_tokenizer import UnigramTokenizer

_WHERE = "tokenizer.json"
_SPACE = r"[\t\x0B\f\r ]"
_LETTER = r"[^\t\n\x0B\f\r ]"
_WORD = rf"\n+| ?{_LETTER}+|{_SPACE}+(?= {_LETTER})|{_SPACE}+"
_MARKED = [
    {"type": "Prepend", "prepend": " "},
    {"type": "Replace", "pattern": {"Regex": r"\A (?=\n)"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": r"\n(?=[^\n])"}, "content": "\n "},
]
_WORDS = {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Isolated", "invert": False}
_UNMARKED = {
    "type": "Sequence",
    "decoders": [
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"Regex": r"(?<=\n) "}, "content": ""},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_REPLACEMENT = "�"
_BYTES = 256
# The byte that no UTF-8 text has. `tokenizers` wants an unknown piece even where bytes take its place.
_NEVER = 0xFF


def hub_content(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of the tokenizer.json.

    Raises DataError for what the format can't hold: a SentencePiece vocabulary, two ids of one spelling, an id for
    unknown characters, a step of a normaliser.
    """
    if isinstance(tokenizer, PipelineTokenizer):
        return tokenizer.to_json()
    if isinstance(tokenizer, NormalizedTokenizer):
        content = hub_content(tokenizer.inner)
        own, before = content["normalizer"], normalizer_steps(tokenizer.normalizer)
        after = own["normalizers"] if own is not None and own["type"] == "Sequence" else [own] if own else []
        return content | {"normalizer": {"type": "Sequence", "normalizers": [*before, *after]}}
    if isinstance(tokenizer, ByteTokenizer):
        parts = {"pre_tokenizer": _BYTE_LEVEL, "decoder": _BYTE_LEVEL, "model": _bytes()}
    elif isinstance(tokenizer, CharTokenizer):
        parts = {"decoder": {"type": "Fuse"}, "model": _characters(tokenizer)}
    elif isinstance(tokenizer, UnigramTokenizer):
        parts = {"normalizer": {"type": "Sequence", "normalizers": _MARKED}, "pre_tokenizer": _WORDS}
        parts |= {"decoder": _UNMARKED, "model": _unigram(tokenizer)}
    else:
        hint = "keep it as a checkpoint of Pellucid, or train a vocabulary of its own"
        raise DataError(_WHERE, f"the format has no place for a {tokenizer.kind} vocabulary", hint=hint)
    first = tokenizer.vocab_size - len(tokenizer.special)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": name, **flags, "special": True} for name, i in tokenizer.special.items()]
    vocab = parts["model"]["vocab"]
    names = set(vocab) if isinstance(vocab, dict) else {entry[0] for entry in vocab}
    if twice := sorted(names.intersection(tokenizer.special)):
        raise DataError(_WHERE, "a special token is spelled as a piece", got=repr(twice[0]))
    assert [token["id"] for token in added] == list(range(first, tokenizer.vocab_size))
    blank = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **blank, "added_tokens": added, **parts}


def own_tokenizer(content: dict[str, Any]) -> Tokenizer | None:
    """The byte, character or Unigram tokenizer whose content this is, behind a normaliser or not; None for any other
    content."""
    try:
        found = _candidate(content)
        return found if found is not None and hub_content(found) == content else None
    except (DataError, KeyError, TypeError, IndexError, ValueError):
        return None  # whatever is wrong with it is for the reader of all files to say


def _candidate(content: dict[str, Any]) -> Tokenizer | None:
    steps = (content["normalizer"] or {}).get("normalizers", [content["normalizer"]] if content["normalizer"] else [])
    marked = steps[-len(_MARKED) :] == _MARKED
    inner = _inner(content, marked=marked)
    steps = steps[: -len(_MARKED)] if marked else steps
    if inner is None or not steps:
        return inner
    normalizer, byte_level = read_normalizer({"type": "Sequence", "normalizers": steps})
    return None if byte_level else NormalizedTokenizer(inner, normalizer)


def _inner(content: dict[str, Any], *, marked: bool) -> Tokenizer | None:
    """The tokenizer behind all normalisers. marked: whether the last of these is the Unigram's own."""
    special = [token["content"] for token in content["added_tokens"]]
    if content["pre_tokenizer"] == content["decoder"] == _BYTE_LEVEL:
        return ByteTokenizer(special=special)
    model = content["model"]
    if model["type"] != "Unigram":
        return None
    if content["pre_tokenizer"] is None and content["decoder"] == {"type": "Fuse"}:
        return CharTokenizer("".join(piece for piece, _ in model["vocab"]), special=special)
    if not marked or content["pre_tokenizer"] != _WORDS:
        return None
    vocab = model["vocab"]
    if model["byte_fallback"]:
        own = [entry for byte, entry in enumerate(vocab[:_BYTES]) if entry[0] != _byte_name(byte)]
        vocab = own + vocab[_BYTES:]
    else:
        vocab = vocab[1:]
    pieces, scores = [piece for piece, _ in vocab], [score for _, score in vocab]
    return UnigramTokenizer(pieces, scores, byte_fallback=model["byte_fallback"], special=special)


def _bytes() -> dict[str, Any]:
    return BPE | {"vocab": {CHARACTERS[byte]: byte for byte in range(_BYTES)}}


def _characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    """Without an unknown piece, `tokenizers` refuses a character that isn't there, as we do."""
    if tokenizer.unknown is not None:
        hint = "a vocabulary of bytes, or a Unigram with byte fallback, needs none"
        raise DataError(
            _WHERE, "an id for every unknown character by itself, which the format can't express", hint=hint
        )
    vocab = [[character, 0.0] for character in tokenizer.characters]
    return {"type": "Unigram", "unk_id": None, "vocab": vocab, "byte_fallback": False}


def _unigram(tokenizer: UnigramTokenizer) -> dict[str, Any]:
    """The pieces in the order of their ids. Bytes and the unknown get the smallest score there is, so that it stays the
    smallest: that of the unknown follows from it."""
    fallback = tokenizer.unknown is None
    own = tokenizer.to_json()
    ordinary = dict(zip(own["pieces"], own["scores"], strict=True))
    floor = min(ordinary.values(), default=0.0)
    vocab: list[list[Any]] = []
    if fallback:
        for byte in range(_BYTES):
            character = chr(byte)
            is_piece = character.isascii() and character in ordinary
            vocab.append([character, ordinary.pop(character)] if is_piece else [_byte_name(byte), floor])
    else:
        vocab.append([_REPLACEMENT, floor])
    vocab += [[piece, score] for piece, score in ordinary.items()]
    if len({piece for piece, _ in vocab}) != len(vocab):
        raise DataError(_WHERE, "a piece is spelled as a byte or the unknown is", hint="train another vocabulary")
    unknown = _NEVER if fallback else 0
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": fallback}


def _byte_name(byte: int) -> str:
    return f"<0x{byte:02X}>"
