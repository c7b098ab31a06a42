"""A tokenizer as the content of a Hugging Face tokenizer.json, which is also how this library keeps one.

Each part becomes what the `tokenizers` library calls it; a part without a name there is refused. A vocabulary that
came without merges (tiktoken's) gets them here: of the ways to part a token, the one that its own bytes take
through the tokens before it, which is the only one that encoding ever uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..base.errors import DataError
from .alphabet import spelled
from .bpe import BPEModel
from .graphemes import ClusterMap
from .normalize import Lowercase, Normalizer, Persian, Prepend, Replace, Strip, StripAccents, UnicodeForm
from .parts import Parts
from .patterns import BEHAVIORS, DROP_SPACE, INVERT, PATTERNS, SIMPLE, Pattern
from .pretokenize import MARK
from .special import AddedToken
from .unigram import UnigramModel

_WHERE = "tokenizer.json"


def content_of(parts: Parts, added: Sequence[AddedToken]) -> dict[str, Any]:
    """The JSON object. Raises DataError for a part that the format has no name for."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(token) for token in sorted(added, key=lambda token: token.id)],
        "normalizer": _sequence(normalizer_steps(parts.normalizer), "normalizers"),
        "pre_tokenizer": _pretokenizer(parts),
        "post_processor": _frame(parts, added),
        "decoder": _decoder(parts),
        "model": _bpe(parts.model, parts, added) if isinstance(parts.model, BPEModel) else _unigram(parts, added),
    }


def _added(token: AddedToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "content": token.content,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": token.normalized,
        "special": token.special,
    }


def _sequence(items: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    if len(items) < 2:
        return items[0] if items else None
    return {"type": "Sequence", kind: items}


# --- normaliser -------------------------------------------------------------------------------------------------------


def normalizer_steps(normalizer: Normalizer) -> list[dict[str, Any]]:
    """The steps of a normaliser. Raises DataError for one that the format has no name for."""
    items: list[dict[str, Any]] = []
    for step in normalizer.steps:
        if isinstance(step, UnicodeForm):
            items.append({"type": step.form})
        elif isinstance(step, Lowercase):
            items.append({"type": "Lowercase"})
        elif isinstance(step, StripAccents):
            items.append({"type": "StripAccents"})
        elif isinstance(step, Replace):
            pattern = {"Regex" if step.regex else "String": step.pattern}
            items.append({"type": "Replace", "pattern": pattern, "content": step.content})
        elif isinstance(step, Prepend):
            items.append({"type": "Prepend", "prepend": step.content})
        elif isinstance(step, Strip):
            items.append({"type": "Strip", "strip_left": step.left, "strip_right": step.right})
        elif isinstance(step, ClusterMap):
            items.append({"type": "Precompiled", "precompiled_charsmap": step.data})
        elif isinstance(step, Persian):
            items += [
                {"type": "Replace", "pattern": {"String": character}, "content": content}
                for character, content in step.table.items()
            ]
        else:
            raise DataError(_WHERE, "a step of the normaliser that the format has no name for", got=step.kind)
    return items


# --- words ------------------------------------------------------------------------------------------------------------


def _pretokenizer(parts: Parts) -> dict[str, Any] | None:
    pretokenizer, items = parts.pretokenizer, []
    if pretokenizer.collapse:
        items.append({"type": "WhitespaceSplit"})
    if pretokenizer.mark:
        split = SIMPLE["metaspace"] in pretokenizer.cuts
        scheme = pretokenizer.mark_before
        items.append({"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split})
    cuts = [pattern for pattern in pretokenizer.cuts if pattern is not SIMPLE["metaspace"]]
    if parts.byte_level:
        # The pattern of the `ByteLevel` step itself is GPT-2's. A space before the text comes with that step, too.
        own = bool(cuts) and cuts[-1].name == "gpt2"
        if pretokenizer.space_before and len(cuts) > own:
            raise DataError(_WHERE, "a space before the text, and a pattern other than GPT-2's")
        items += map(_cut, cuts[:-1] if own else cuts)
        items.append(_byte_level(add_prefix_space=pretokenizer.space_before, use_regex=own))
    else:
        items += map(_cut, cuts)
    return _sequence(items, "pretokenizers")


def _byte_level(*, add_prefix_space: bool, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _cut(pattern: Pattern) -> dict[str, Any]:
    if pattern.name in ("digits", "numbers"):
        return {"type": "Digits", "individual_digits": pattern.name == "digits"}
    if pattern is SIMPLE["white_space"]:
        return {"type": "WhitespaceSplit"}
    if pattern in (SIMPLE["signs"], SIMPLE["runs_of_signs"]):
        return {"type": "Punctuation", "behavior": "Isolated" if pattern.numbers else "Contiguous"}
    if pattern.text:
        behavior = next(name for name, flag in BEHAVIORS.items() if flag == pattern.flags & ~INVERT)
        invert = pattern.flags & INVERT != 0
        return {"type": "Split", "pattern": {"String": pattern.text}, "behavior": behavior, "invert": invert}
    if not PATTERNS[pattern.name].regexes:
        raise DataError(_WHERE, "a pattern that the format can't express", got=pattern.name)
    drops = bool(pattern.flags & DROP_SPACE)
    return {
        "type": "Split",
        "pattern": {"Regex": pattern.regexes[0]},
        "behavior": "Removed" if drops else "Isolated",
        "invert": drops,
    }


def _decoder(parts: Parts) -> dict[str, Any] | None:
    items: list[dict[str, Any]] = []
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if parts.byte_level:
        items.append(_byte_level(add_prefix_space=True, use_regex=True))
        return _sequence([*items, strip] if parts.strip_space else items, "decoders")
    if isinstance(parts.model, BPEModel) and parts.model.suffix:
        items.append({"type": "BPEDecoder", "suffix": parts.model.suffix.decode()})
    if parts.unmark:
        items.append({"type": "Replace", "pattern": {"String": MARK}, "content": " "})
    if parts.model.byte_ids is not None:
        items.append({"type": "ByteFallback"})
    items.append({"type": "Fuse"})
    if parts.strip_space:
        items.append(strip)
    return _sequence(items, "decoders")


def _frame(parts: Parts, added: Sequence[AddedToken]) -> dict[str, Any] | None:
    names = {token.id: token.content for token in added}
    before, after = parts.frame
    items: list[dict[str, Any]] = [_byte_level(add_prefix_space=space, use_regex=True) for space in parts.trims]
    if not before and not after:
        return _sequence(items, "processors")

    def special(number: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": names[number], "type_id": 0}}

    def sequence(name: str) -> list[dict[str, Any]]:
        return [*map(special, before), {"Sequence": {"id": name, "type_id": 0}}, *map(special, after)]

    items.append(
        {
            "type": "TemplateProcessing",
            "single": sequence("A"),
            "pair": sequence("A") + sequence("B"),
            "special_tokens": {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in {*before, *after}},
        }
    )
    return _sequence(items, "processors")


# --- model ------------------------------------------------------------------------------------------------------------


def _bpe(model: BPEModel, parts: Parts, added: Sequence[AddedToken]) -> dict[str, Any]:
    def spell(token: bytes) -> str:
        if not parts.byte_level:
            return token.decode("utf-8")
        body = token.removesuffix(model.suffix)
        return spelled(body) + (model.suffix.decode() if len(body) < len(token) else "")

    merges = canonical_merges(model) if model.merges is None else model.merges
    texts = dict(parts.texts) | {token.id: token.content for token in added}
    vocab: dict[str, int] = {}
    for number in range(max(len(model.tokens), 1 + max(texts, default=-1))):
        token = model.tokens[number] if number < len(model.tokens) else None
        text = spell(token) if token is not None else texts.get(number)
        if text is not None and vocab.setdefault(text, number) != number:
            raise DataError(_WHERE, "two ids of one spelling", got=f"{text!r}, {vocab[text]} and {number}")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if model.unknown is None else texts[model.unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": model.suffix.decode() or None,
        "fuse_unk": model.fuse_unknown,
        "byte_fallback": model.byte_ids is not None,
        "ignore_merges": model.whole,
        "vocab": vocab,
        "merges": [[spell(left), spell(right)] for left, right in merges],
    }


def canonical_merges(model: BPEModel) -> list[tuple[bytes, bytes]]:
    """The merges that a vocabulary without any implies, by rank; a token that none leads to is whole words only."""
    order = range(len(model.tokens)) if model.ranks is None else model.ranks
    ranks = {token: int(order[number]) for token, number in model.ids.items()}
    if len(set(ranks.values())) != len(ranks):
        raise DataError(_WHERE, "tokens of equal rank, which merges can't express")
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = (
            [c.encode() for c in token.decode()] if model.characters else [token[i : i + 1] for i in range(len(token))]
        )
        while len(parts) > 2:
            found = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(pairwise(parts))]
            best, at = min(found)
            if best >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2 and all(part in ranks for part in parts):
            merges.append((parts[0], parts[1]))
    return merges


def _unigram(parts: Parts, added: Sequence[AddedToken]) -> dict[str, Any]:
    model = parts.model
    assert isinstance(model, UnigramModel)
    texts = dict(parts.texts) | {token.id: token.content for token in added if token.id < len(model.pieces)}
    spelled_pieces = [texts.get(i) or piece.decode("utf-8") for i, piece in enumerate(model.pieces)]
    late = sorted(token.id for token in added if token.id >= len(model.pieces))
    if late != list(range(len(model.pieces), len(model.pieces) + len(late))):
        raise DataError(_WHERE, "added tokens that don't follow a Unigram vocabulary without gaps", got=late)
    return {
        "type": "Unigram",
        "unk_id": model.unk_id,
        "vocab": [[piece, score] for piece, score in zip(spelled_pieces, model.scores.tolist(), strict=True)],
        "byte_fallback": model.byte_fallback,
    }
