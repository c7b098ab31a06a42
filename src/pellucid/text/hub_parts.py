"""The parts of a tokenizer.json around its model: normaliser, pre-tokeniser, decoder, and the frame of a text.

`tokenizers` composes freely. A `Pretokenizer` here rewrites a text first and cuts it then, which is the order that
published files use; another order is refused like a part that isn't known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.errors import DataError
from .graphemes import ClusterMap
from .normalize import Lowercase, Normalizer, Prepend, Replace, Step, Strip, StripAccents, UnicodeForm
from .patterns import DROP_SPACE, PATTERNS, SIMPLE, Pattern, at_string, pattern_of
from .pretokenize import MARK, Pretokenizer

_DEEPEST = 8  # sequences inside sequences


def refuse(where: str, what: str, *, got: object = None, expected: object = None, hint: str | None = None) -> DataError:
    """The error for a part that can't be."""
    return DataError(where, what, got=got, expected=expected, hint=hint)


def record(content: Any, defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An object with defaults for what it leaves out. Raises DataError for another type, and for unknown keys."""
    if not isinstance(content, dict):
        raise refuse(where, "not an object", got=type(content).__name__)
    if unknown := sorted(set(content) - set(defaults)):
        raise refuse(where, "unknown keys", got=", ".join(unknown), expected=f"only {', '.join(sorted(defaults))}")
    return {**defaults, **content}


def _flat(item: Any, inner: str, where: str, depth: int = 0) -> list[dict[str, Any]]:
    """The parts of nested sequences in a row, each an object with a type."""
    if item is None:
        return []
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise refuse(where, "not an object with a type", got=repr(item)[:60])
    if item["type"] != "Sequence":
        return [item]
    parts = record(item, {"type": "", inner: []}, where)[inner]
    if not isinstance(parts, list) or depth > _DEEPEST:
        raise refuse(where, "not a list of parts", got=type(parts).__name__)
    return [part for p in parts for part in _flat(p, inner, where, depth + 1)]


def _unknown(item: dict[str, Any], where: str) -> DataError:
    return refuse(where, "a part this library doesn't have", got=item["type"])


def _typed(found: dict[str, Any], where: str, **kinds: type) -> dict[str, Any]:
    for key, kind in kinds.items():
        if not isinstance(found[key], kind):
            raise refuse(where, f"wrong type of {key!r}", got=type(found[key]).__name__, expected=kind.__name__)
    return found


# --- normaliser -------------------------------------------------------------------------------------------------------


def _replace(item: dict[str, Any]) -> Step:
    found = _typed(record(item, {"type": "", "pattern": {}, "content": ""}, "Replace"), "Replace", content=str)
    kind, pattern = _pattern(found["pattern"], "Replace")
    return Replace(pattern, found["content"], regex=kind == "Regex")


def _pattern(item: Any, where: str) -> tuple[str, str]:
    if isinstance(item, dict) and len(item) == 1:
        kind, text = next(iter(item.items()))
        if kind in ("String", "Regex") and isinstance(text, str):
            return kind, text
    raise refuse(where, "not a pattern", got=repr(item)[:60], expected="String or Regex")


def _prepend(item: dict[str, Any]) -> Step:
    return Prepend(_typed(record(item, {"type": "", "prepend": ""}, "Prepend"), "Prepend", prepend=str)["prepend"])


def _strip(item: dict[str, Any]) -> Step:
    found = record(item, {"type": "", "strip_left": True, "strip_right": True}, "Strip")
    _typed(found, "Strip", strip_left=bool, strip_right=bool)
    return Strip(left=found["strip_left"], right=found["strip_right"])


def _charsmap(item: dict[str, Any]) -> ClusterMap:
    found = record(item, {"type": "", "precompiled_charsmap": ""}, "Precompiled")
    return ClusterMap(_typed(found, "Precompiled", precompiled_charsmap=str)["precompiled_charsmap"])


def _form(item: dict[str, Any]) -> Step:
    return UnicodeForm(record(item, {"type": ""}, "normalizer")["type"])


_STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NFC": _form,
    "NFD": _form,
    "NFKC": _form,
    "NFKD": _form,
    "Lowercase": lambda item: (record(item, {"type": ""}, "Lowercase"), Lowercase())[1],
    "StripAccents": lambda item: (record(item, {"type": ""}, "StripAccents"), StripAccents())[1],
    "Replace": _replace,
    "Prepend": _prepend,
    "Strip": _strip,
    "Precompiled": _charsmap,
}


def read_normalizer(item: Any) -> tuple[Normalizer, bool]:
    """The normaliser, and whether it ends with `ByteLevel` (which spells bytes, and belongs to the model here)."""
    parts = _flat(item, "normalizers", "normalizer")
    byte_level = bool(parts) and parts[-1]["type"] == "ByteLevel"
    steps = []
    for part in parts[: len(parts) - byte_level]:
        if part["type"] not in _STEPS:
            raise _unknown(part, "normalizer")
        steps.append(_STEPS[part["type"]](part))
    return Normalizer(steps), byte_level


# --- pre-tokeniser ----------------------------------------------------------------------------------------------------


def read_pretokenizer(item: Any) -> tuple[Pretokenizer, bool]:
    """The pre-tokeniser, and whether it ends with `ByteLevel`."""
    found, byte_level, where = Pretokenizer(), False, "pre_tokenizer"
    for part in _flat(item, "pretokenizers", where):
        if byte_level:
            raise refuse(where, "a part behind ByteLevel", got=part["type"])
        kind = part["type"]
        if kind == "ByteLevel":
            found, byte_level = _byte_level(part, found), True
        elif kind == "Split":
            found = _with(found, _split(part))
        elif kind == "Digits":
            digits = _typed(record(part, {"type": "", "individual_digits": False}, kind), kind, individual_digits=bool)
            found = _with(found, SIMPLE["digits" if digits["individual_digits"] else "numbers"])
        elif kind == "WhitespaceSplit":
            record(part, {"type": ""}, kind)
            found = _with(found, SIMPLE["white_space"])
        elif kind == "Metaspace":
            found = _metaspace(part, found)
        elif kind == "BertPreTokenizer":
            record(part, {"type": ""}, kind)
            found = _with(_with(found, SIMPLE["white_space"]), SIMPLE["signs"])
        elif kind == "Punctuation":
            found = _with(found, _punctuation(part))
        elif kind == "CharDelimiterSplit":
            text = _typed(record(part, {"type": "", "delimiter": ""}, kind), kind, delimiter=str)["delimiter"]
            found = _with(found, at_string(text, "Removed", invert=False, where=kind))
        else:
            raise _unknown(part, where)
    return found, byte_level


def _punctuation(part: dict[str, Any]) -> Pattern:
    behavior = record(part, {"type": "", "behavior": "Isolated"}, "Punctuation")["behavior"]
    kinds = {"Isolated": SIMPLE["signs"], "Contiguous": SIMPLE["runs_of_signs"]}
    if not isinstance(behavior, str) or behavior not in kinds:
        expected = " or ".join(kinds)
        raise refuse("Punctuation", "a behaviour that is not supported", got=repr(behavior), expected=expected)
    return kinds[behavior]


def _with(found: Pretokenizer, pattern: Pattern) -> Pretokenizer:
    return replace(found, cuts=(*found.cuts, pattern))


def _byte_level(part: dict[str, Any], found: Pretokenizer) -> Pretokenizer:
    defaults = {"type": "", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    options = _typed(record(part, defaults, "ByteLevel"), "ByteLevel", add_prefix_space=bool, use_regex=bool)
    if options["add_prefix_space"]:
        if found.cuts:
            raise refuse("ByteLevel", "add_prefix_space behind another pre-tokeniser is not supported")
        found = replace(found, space_before=True)
    return _with(found, PATTERNS["gpt2"]) if options["use_regex"] else found


def _split(part: dict[str, Any]) -> Pattern:
    defaults = {"type": "", "pattern": {}, "behavior": "", "invert": False}
    options = record(part, defaults, "Split")
    kind, text = _pattern(options["pattern"], "Split")
    _typed(options, "Split", behavior=str, invert=bool)
    if kind == "String":
        return at_string(text, options["behavior"], invert=options["invert"], where="Split")
    pattern = pattern_of(text, "Split")
    # The other patterns match all of a text, so that nothing is left between their matches.
    allowed = [("Removed", True)] + ([] if pattern.flags & DROP_SPACE else [("Isolated", False), ("Isolated", True)])
    if (options["behavior"], options["invert"]) not in allowed:
        got = f"{options['behavior']}, invert {options['invert']}"
        raise refuse("Split", f"a behaviour that is not supported with the pattern of {pattern.name}", got=got)
    return pattern


def _metaspace(part: dict[str, Any], found: Pretokenizer) -> Pretokenizer:
    defaults = {
        "type": "",
        "replacement": MARK,
        "prepend_scheme": None,
        "split": True,
        "add_prefix_space": None,
        "str_rep": MARK,
    }
    options = record(part, defaults, "Metaspace")
    if options["replacement"] != MARK or options["str_rep"] != MARK:
        raise refuse("Metaspace", "another mark than U+2581", got=repr(options["replacement"]))
    scheme = options["prepend_scheme"]
    if scheme is None:
        scheme = "never" if options["add_prefix_space"] is False else "always"
    if scheme not in ("always", "first", "never") or not isinstance(options["split"], bool):
        raise refuse("Metaspace", "not a prepend_scheme", got=repr(scheme), expected="always, first or never")
    collapse = found.cuts == (SIMPLE["white_space"],)
    if found.cuts and not (collapse and scheme == "always" and options["split"]):
        raise refuse("Metaspace", "behind another pre-tokeniser it is not supported")
    cuts = (SIMPLE["metaspace"],) if options["split"] else ()
    return Pretokenizer(cuts=cuts, mark=True, mark_before=scheme, collapse=collapse)


# --- decoder and post-processor ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """How bytes of tokens become text, beyond putting them in a row."""

    unmark: bool = False
    strip_space: bool = False


def read_decoder(item: Any, byte_level: bool) -> Decoder:
    """The decoder."""
    found, where = Decoder(), "decoder"
    for part in _flat(item, "decoders", where):
        kind = part["type"]
        if kind == "Replace":
            step = _replace(part)
            if step != Replace(MARK, " "):
                raise refuse(where, "a replacement other than of U+2581 by a space", got=repr(step))
            found = replace(found, unmark=True)
        elif kind == "Metaspace":
            pretokenizer = _metaspace(part, Pretokenizer())
            found = Decoder(unmark=True, strip_space=pretokenizer.mark_before != "never")
        elif kind == "Strip":
            options = record(part, {"type": "", "content": "", "start": 0, "stop": 0}, "Strip")
            if (options["content"], options["start"], options["stop"]) != (" ", 1, 0):
                raise refuse(where, "a Strip other than of one space at the beginning", got=repr(options))
            found = replace(found, strip_space=True)
        elif kind not in ("ByteFallback", "Fuse", "BPEDecoder") and not (kind == "ByteLevel" and byte_level):
            raise _unknown(part, where)
    return found


def read_frame(item: Any, ids: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that a post-processor puts before and after a text."""
    before: list[int] = []
    after: list[int] = []
    for part in _flat(item, "processors", "post_processor"):
        kind = part["type"]
        if kind == "TemplateProcessing":
            entries, side = part.get("single"), before
            for entry in entries if isinstance(entries, list) else []:
                name, value = next(iter(entry.items())) if isinstance(entry, dict) and entry else ("", None)
                if name == "Sequence":
                    side = after
                else:
                    side.append(_framing(value.get("id") if isinstance(value, dict) else None, ids))
        elif kind in ("RobertaProcessing", "BertProcessing"):
            for key, place in (("cls", before), ("sep", after)):
                pair = part.get(key)
                place.append(_framing(pair[0] if isinstance(pair, list) and pair else None, ids))
        elif kind != "ByteLevel":
            raise _unknown(part, "post_processor")
    return tuple(before), tuple(after)


def read_trims(item: Any) -> tuple[bool, ...]:
    """For each part of a post-processor that takes white space off the offsets, its `add_prefix_space`."""
    found = []
    for part in _flat(item, "processors", "post_processor"):
        if part["type"] in ("ByteLevel", "RobertaProcessing"):
            options = {key: part.get(key, True) for key in ("trim_offsets", "add_prefix_space")}
            _typed(options, part["type"], trim_offsets=bool, add_prefix_space=bool)
            found += [options["add_prefix_space"]] if options["trim_offsets"] else []
    return tuple(found)


def _framing(name: Any, ids: Mapping[str, int]) -> int:
    if not isinstance(name, str) or name not in ids:
        raise refuse("post_processor", "a token that is not among the added ones", got=repr(name))
    return ids[name]
