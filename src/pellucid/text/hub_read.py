"""Reading a Hugging Face tokenizer.json: every part by its name, and whatever we can't do exactly refused by its name.

A key that isn't known is an error, because it may change ids. Older files leave out keys that came later, and the
type of the model; they mean the defaults of their time, which are the ones here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .alphabet import unspelled
from .bpe import BPEModel
from .bpe_tables import MOST_TOKENS
from .bpe_tokenizer import BPETokenizer
from .hub_parts import read_decoder, read_frame, read_normalizer, read_pretokenizer, read_trims, record, refuse
from .parts import Model, Parts
from .pipeline import PipelineTokenizer
from .special import AddedToken, has_surrogate
from .unigram import UnigramModel

_TOP = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": None,
}
_ADDED = {
    "id": 0,
    "content": "",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": None,
    "special": False,
}
BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {},
    "merges": [],
}
_UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [], "byte_fallback": False}


def read_content(content: dict[str, Any]) -> PipelineTokenizer:
    """The tokenizer of a tokenizer.json. Raises DataError."""
    top = record(content, _TOP, "the file")
    for key in ("truncation", "padding"):
        if top[key] is not None:
            raise refuse(key, "cutting and filling up texts is for whoever makes batches", hint=f'set "{key}" to null')
    if not isinstance(top["model"], dict):
        raise refuse("model", "missing")
    added = _added(top["added_tokens"])
    pretokenizer, byte_level = read_pretokenizer(top["pre_tokenizer"])
    normalizer, byte_normalizer = read_normalizer(top["normalizer"])
    byte_level = byte_level or byte_normalizer
    kind = top["model"].get("type", "Unigram" if "unk_id" in top["model"] else "BPE")
    if kind == "BPE":
        model, texts = model_of(top["model"], added, byte_level=byte_level)
    elif kind == "Unigram":
        if byte_level:
            raise refuse("model", "a Unigram model of bytes")
        model, texts = _unigram(top["model"], added)
    else:
        raise refuse("model.type", "a model this library doesn't have", got=repr(kind), expected="BPE or Unigram")
    decoder = read_decoder(top["decoder"], byte_level)
    parts = Parts(
        model=model,
        pretokenizer=pretokenizer,
        normalizer=normalizer,
        texts=texts,
        byte_level=byte_level,
        unmark=decoder.unmark,
        strip_space=decoder.strip_space,
        frame=read_frame(top["post_processor"], {token.content: token.id for token in added}),
        trims=read_trims(top["post_processor"]),
    )
    size = max([_size(model), *(token.id + 1 for token in added)])
    return (BPETokenizer if kind == "BPE" else PipelineTokenizer)(parts, vocab_size=size, added=added)


def _size(model: Model) -> int:
    return len(model.tokens if isinstance(model, BPEModel) else model.pieces)


def _added(items: Any) -> list[AddedToken]:
    if not isinstance(items, list):
        raise refuse("added_tokens", "not a list")
    tokens = []
    for item in items:
        found = record(item, _ADDED, "added_tokens")
        if not isinstance(found["content"], str):
            raise refuse("added_tokens", "content that is no string", got=repr(found["content"])[:60])
        if type(found["id"]) is not int or not 0 <= found["id"] < MOST_TOKENS:
            raise refuse("added_tokens", "not an id", got=repr(found["id"]))
        normalized = not found["special"] if found["normalized"] is None else found["normalized"]
        flags = {key: found[key] for key in ("special", "lstrip", "rstrip", "single_word")} | {"normalized": normalized}
        if not all(isinstance(flag, bool) for flag in flags.values()):
            raise refuse("added_tokens", "a switch that is neither true nor false", got=repr(found["content"]))
        tokens.append(AddedToken(found["content"], found["id"], **flags))
    return tokens


def model_of(item: dict[str, Any], added: list[AddedToken], *, byte_level: bool) -> tuple[BPEModel, dict[int, str]]:
    """The byte-pair model of a `model` object, and the spelling of the ids that are no tokens of text. Raises
    DataError."""
    found = record(item, BPE, "model")
    if found["dropout"]:
        raise refuse("model.dropout", "random merges are not supported", got=found["dropout"])
    if found["continuing_subword_prefix"]:
        raise refuse("model.continuing_subword_prefix", "not supported", got=repr(found["continuing_subword_prefix"]))
    for key in ("fuse_unk", "byte_fallback", "ignore_merges"):
        if not isinstance(found[key], bool | None):
            raise refuse(f"model.{key}", "neither true nor false", got=repr(found[key])[:60])
    vocab, suffix = found["vocab"], found["end_of_word_suffix"] or ""
    if not isinstance(suffix, str):
        raise refuse("model.end_of_word_suffix", "not a string")
    spellings = _spellings(vocab)
    for token in added:
        if vocab.get(token.content, token.id) != token.id:
            got = f"{token.id} and {vocab[token.content]} for {token.content!r}"
            raise refuse("added_tokens", "an id other than the vocabulary's", got=got)
    special = {token.id for token in added if token.special}
    tokens: list[bytes | None] = [None] * len(spellings)
    texts: dict[int, str] = {}
    byte_ids = _byte_ids(vocab) if found["byte_fallback"] else None
    fallen = set(byte_ids or ())
    raws: dict[str, bytes | None] = {}
    for number, text in enumerate(spellings):
        if text is None:
            continue
        raw = raws[text] = _raw(text, suffix, byte_level)
        if number in special or number in fallen or not raw:
            texts[number] = text
        else:
            tokens[number] = raw
    unknown = found["unk_token"]
    if unknown is not None:
        if not isinstance(unknown, str) or unknown not in vocab:
            raise refuse("model.unk_token", "not a token of the vocabulary", got=repr(unknown))
        texts.setdefault(vocab[unknown], unknown)
        tokens[vocab[unknown]] = None
    model = BPEModel(
        tokens,
        _merges(found["merges"], raws),
        characters=not byte_level,
        suffix=suffix.encode(),
        byte_ids=byte_ids,
        unknown=None if unknown is None else vocab[unknown],
        fuse_unknown=bool(found["fuse_unk"]),
        whole=bool(found["ignore_merges"]),
    )
    return model, texts


def _spellings(vocab: Any) -> list[str | None]:
    """The vocabulary by id. Raises DataError for what is no id, and for one id twice."""
    if not isinstance(vocab, dict) or not vocab:
        raise refuse("model.vocab", "not a table of tokens and ids")
    for text, number in vocab.items():
        if type(number) is not int or not 0 <= number < MOST_TOKENS:
            raise refuse("model.vocab", "not an id", got=f"{number!r} of {text!r}", expected=f"below {MOST_TOKENS}")
        if has_surrogate(text):
            raise refuse("model.vocab", "half a surrogate pair in a token", got=f"id {number}")
    # Ids may be missing (special tokens stand elsewhere), but not so many that a small file asks for a huge table.
    size = 1 + max(vocab.values())
    if size > 2 * len(vocab) + (1 << 16):
        raise refuse("model.vocab", "ids far beyond the number of tokens", got=size - 1, expected=f"about {len(vocab)}")
    spellings: list[str | None] = [None] * size
    for text, number in vocab.items():
        if spellings[number] is not None:
            raise refuse("model.vocab", "one id for two tokens", got=f"{number} of {spellings[number]!r} and {text!r}")
        spellings[number] = text
    return spellings


def _raw(text: str, suffix: str, byte_level: bool) -> bytes | None:
    """The bytes a token matches; None for a token of a byte-level vocabulary that is no spelling of bytes."""
    if not byte_level:
        return text.encode("utf-8")
    body = text.removesuffix(suffix) if suffix else text
    raw = unspelled(body)
    return raw if raw is None or len(body) == len(text) else raw + suffix.encode()


def _byte_ids(vocab: dict[str, int]) -> list[int]:
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocab]
    if missing:
        raise refuse("model.byte_fallback", "without tokens for all 256 bytes", got=f"no <0x{missing[0]:02X}>")
    return [vocab[f"<0x{byte:02X}>"] for byte in range(256)]


def _merges(items: Any, raws: dict[str, bytes | None]) -> list[tuple[bytes, bytes]]:
    """The pairs as bytes; `raws` are those of the vocabulary's tokens."""
    if not isinstance(items, list):
        raise refuse("model.merges", "not a list")
    merges = []
    for rank, item in enumerate(items):
        pair = item.split(" ") if isinstance(item, str) else item
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str):
            raise refuse("model.merges", f"merge {rank} is not a pair of tokens", got=repr(item)[:60])
        left, right = raws.get(pair[0]), raws.get(pair[1])
        if left is None or right is None:
            what = f"merge {rank} of a token that is not in the vocabulary, or stands for no bytes"
            raise refuse("model.merges", what, got=repr(item)[:60])
        merges.append((left, right))
    return merges


def _unigram(item: dict[str, Any], added: list[AddedToken]) -> tuple[UnigramModel, dict[int, str]]:
    found = record(item, _UNIGRAM, "model")
    vocab, unknown = found["vocab"], found["unk_id"]
    if not isinstance(vocab, list) or not vocab:
        raise refuse("model.vocab", "not a list of pieces and scores")
    pieces, scores = [], []
    for entry in vocab:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str) or has_surrogate(entry[0]):
            raise refuse("model.vocab", f"entry {len(pieces)} is not a piece and a score")
        if type(entry[1]) not in (int, float):
            raise refuse("model.vocab", f"the score of piece {len(pieces)} is no number")
        pieces.append(entry[0])
        scores.append(float(entry[1]))
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(pieces)):
        raise refuse("model.unk_id", "not an id of the vocabulary", got=repr(unknown))
    special = {token.id for token in added if token.special}
    names = {piece: number for number, piece in enumerate(pieces)}
    byte_ids = _byte_ids(names) if found["byte_fallback"] else None
    # Special pieces are cut out before the model sees a text. What text has them all the same is no special token.
    apart = special | set(byte_ids or ()) | ({unknown} if unknown is not None else set())
    matched = np.array([number not in apart for number in range(len(pieces))])
    model = UnigramModel(
        [piece.encode("utf-8") for piece in pieces],
        np.array(scores),
        byte_fallback=byte_ids is not None,
        unk_id=unknown,
        byte_ids=byte_ids,
        matched=matched,
        floor=min(scores),
    )
    return model, {number: pieces[number] for number in sorted(apart) if number < len(pieces)}
