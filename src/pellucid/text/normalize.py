"""Normalisers: what a tokenizer does to text before it looks for tokens. None by default; a file may ask for some.

The first stage of a tokenizer (normalise -> pre-tokenise -> model -> decode). A `Normalizer` is a list of steps, each a
frozen dataclass that maps a string to a string and can be written as JSON. What is changed here can't come back in
`decode`, so our own trainers use none unless asked to.

Categories, decompositions and cases are those of Python's `unicodedata`. They are fixed for assigned characters; one
that entered Unicode after this Python was built is passed through unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from ..base.config import from_dict, to_dict
from ..base.errors import ConfigError, DataError
from .align import form_origins, origins_of
from .charsmap import CharsMap
from .graphemes import ClusterMap
from .special import WHITE_SPACE

_SPACE = re.compile(f"[{WHITE_SPACE}]")
_LEADING, _TRAILING = re.compile(f"\\A[{WHITE_SPACE}]+"), re.compile(f"[{WHITE_SPACE}]+\\Z")
_SPACES = re.compile("  +")
_JAMO = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")
# A pattern of these parts means the same in every regular-expression engine, `\s` aside, which is spelled out.
_PLAIN_PATTERN = re.compile(r"(?:(?:\\s|\\[^\w\s]|[^\\.^$|?*+()\[\]{}])(?:[+*?]|\{\d{1,3}(?:,\d{0,3})?\})?)+")

# Capitals of Unicode 15 to 17, which `str.lower` of an older Python leaves as they are, with their small letters.
_NEW_SMALL = {
    **{chr(c): chr(c + 1) for c in (0x1C89, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA)},
    "\ua7cb": "\u0264",
    "\ua7dc": "\u019b",
    **{chr(0x10D50 + i): chr(0x10D70 + i) for i in range(22)},
    **{chr(0x16EA0 + i): chr(0x16EBB + i) for i in range(25)},
}
_NEW_CAPITALS = re.compile(f"[{''.join(_NEW_SMALL)}]")

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
Digits = Literal["persian", "latin"]


class Step(Protocol):
    """One step: text in, text out. `local`: the result for a text is that of its parts put together, wherever it is
    cut before a character that `Normalizer.settled` accepts. `origins`: where its characters came from (`align.py`)."""

    kind: ClassVar[str]

    @property
    def local(self) -> bool: ...

    def __call__(self, text: str) -> str: ...

    def origins(self, text: str) -> np.ndarray: ...


class _Local:
    local = True


class _Whole:
    local = False


@dataclass(frozen=True)
class UnicodeForm(_Local):
    """One of the four normal forms (Unicode Standard Annex 15)."""

    form: Form
    kind: ClassVar[str] = "unicode"

    def __post_init__(self) -> None:
        _choice(self, "form", get_args(Form))

    def __call__(self, text: str) -> str:
        return text if text.isascii() else unicodedata.normalize(self.form, text)

    def origins(self, text: str) -> np.ndarray:
        return origins_of(len(text), ()) if self(text) == text else form_origins(text, self.form, _begins)


@dataclass(frozen=True)
class Lowercase(_Local):
    """Each character's own lower case: a capital sigma is small sigma also at the end of a word."""

    kind: ClassVar[str] = "lowercase"

    def __call__(self, text: str) -> str:
        if not text.isascii():
            text = _NEW_CAPITALS.sub(lambda m: _NEW_SMALL[m[0]], text.replace("Σ", "σ"))
        return text.lower()

    def origins(self, text: str) -> np.ndarray:
        longer = ((i, len(c.lower())) for i, c in enumerate(text) if not c.isascii() and len(c.lower()) > 1)
        return origins_of(len(text), ((i, i + 1, [i] * n) for i, n in longer))


@dataclass(frozen=True)
class StripAccents(_Local):
    """Drops combining marks (category M). After NFD, accents are such marks."""

    kind: ClassVar[str] = "strip_accents"

    def __call__(self, text: str) -> str:
        return text if text.isascii() else "".join(c for c in text if not _is_mark(c))

    def origins(self, text: str) -> np.ndarray:
        return np.array([i for i, c in enumerate(text) if not _is_mark(c)], np.int64)


@dataclass(frozen=True)
class Replace:
    """Every occurrence of `pattern` becomes `content`. With `regex` the pattern may hold characters, escaped
    characters and `\\s`, each with a quantifier; a pattern of more than that is refused."""

    pattern: str
    content: str
    regex: bool = False
    kind: ClassVar[str] = "replace"

    def __post_init__(self) -> None:
        if not self.pattern:
            raise DataError("Replace", "an empty pattern", hint="leave the step out")
        if self.regex and not _PLAIN_PATTERN.fullmatch(self.pattern):
            raise DataError(
                "Replace",
                "a regular expression that is not supported",
                got=repr(self.pattern),
                expected="characters, escaped characters and \\s, each with a quantifier",
            )
        if self._compiled is not None and self._compiled.match(""):
            raise DataError("Replace", "a pattern that matches nothing at all", got=repr(self.pattern))

    @cached_property
    def _compiled(self) -> re.Pattern[str] | None:
        if not self.regex:
            return None
        spelled = re.sub(r"\\(.)", lambda m: f"[{WHITE_SPACE}]" if m[1] == "s" else m[0], self.pattern)
        try:
            return re.compile(spelled)
        except re.error as error:
            raise DataError("Replace", f"not a regular expression: {error}", got=repr(self.pattern)) from error

    @property
    def local(self) -> bool:
        """Cuts stand before characters that are no white space, so a run of white space is never divided."""
        if self.regex:
            return re.fullmatch(r"( |\\s)(\+|\{\d+(,\d*)?\})?", self.pattern) is not None
        return len(self.pattern) == 1

    def __call__(self, text: str) -> str:
        if self._compiled is None:
            return text.replace(self.pattern, self.content)
        return self._compiled.sub(lambda _: self.content, text)

    def origins(self, text: str) -> np.ndarray:
        found = (self._compiled or re.compile(re.escape(self.pattern))).finditer(text)
        return origins_of(len(text), ((m.start(), m.end(), [m.end() - 1] * len(self.content)) for m in found))


@dataclass(frozen=True)
class Prepend(_Whole):
    """`content` before a text that isn't empty."""

    content: str
    kind: ClassVar[str] = "prepend"

    def __call__(self, text: str) -> str:
        return self.content + text if text else text

    def origins(self, text: str) -> np.ndarray:
        return origins_of(len(text), [(0, 0, [0] * len(self.content))] if text else ())


@dataclass(frozen=True)
class Strip(_Whole):
    """Drops white space at the ends."""

    left: bool = True
    right: bool = True
    kind: ClassVar[str] = "strip"

    def __call__(self, text: str) -> str:
        if self.left:
            text = _LEADING.sub("", text)
        return _TRAILING.sub("", text) if self.right else text

    def origins(self, text: str) -> np.ndarray:
        begin = len(text) - len(_LEADING.sub("", text)) if self.left else 0
        return np.arange(begin, begin + len(self(text)))


@dataclass(frozen=True)
class CollapseSpaces(_Whole):
    """One space (U+0020) for several, none at the ends: SentencePiece's `remove_extra_whitespaces`."""

    kind: ClassVar[str] = "collapse_spaces"

    def __call__(self, text: str) -> str:
        return _SPACES.sub(" ", text).strip(" ")

    def origins(self, text: str) -> np.ndarray:
        kept = origins_of(len(text), ((m.start(), m.end(), [m.start()]) for m in _SPACES.finditer(text)))
        begin = int(text.startswith(" "))
        return kept[begin : begin + len(self(text))]


@dataclass(frozen=True)
class Persian(_Local):
    """Persian text as Persian keyboards write it: Arabic yeh and kaf become the Persian letters.

    digits: what Persian and Arabic digits become, "persian" or "latin"; None leaves both. diacritics: keeps the vowel
    signs (U+064B to U+0652, U+0670) and the tatweel that stretches a word (U+0640); else they are dropped. The
    zero-width non-joiner always stays, since it tells words apart.
    """

    digits: Digits | None = "persian"
    diacritics: bool = False
    kind: ClassVar[str] = "persian"

    def __post_init__(self) -> None:
        _choice(self, "digits", (*get_args(Digits), None))

    @property
    def table(self) -> dict[str, str]:
        """What each character that changes becomes."""
        return dict(_persian(self.digits, self.diacritics)[1])

    def __call__(self, text: str) -> str:
        found, table = _persian(self.digits, self.diacritics)
        return text if text.isascii() else found.sub(lambda m: table[m[0]], text)

    def origins(self, text: str) -> np.ndarray:
        found, table = _persian(self.digits, self.diacritics)
        changes = ((m.start(), m.end(), [m.start()] * len(table[m[0]])) for m in found.finditer(text))
        return origins_of(len(text), changes)


@cache
def _persian(digits: Digits | None, diacritics: bool) -> tuple[re.Pattern[str], dict[str, str]]:
    table = {"\u064a": "\u06cc", "\u0649": "\u06cc", "\u0643": "\u06a9"}
    for i in range(10):
        if digits == "persian":
            table[chr(0x660 + i)] = chr(0x6F0 + i)
        elif digits == "latin":
            table |= {chr(0x660 + i): str(i), chr(0x6F0 + i): str(i)}
    if not diacritics:
        table |= dict.fromkeys(map(chr, (*range(0x64B, 0x653), 0x670, 0x640)), "")
    return re.compile(f"[{''.join(table)}]"), table


STEPS: dict[str, type[Any]] = {
    step.kind: step
    for step in (
        UnicodeForm,
        Lowercase,
        StripAccents,
        Replace,
        Prepend,
        Strip,
        CollapseSpaces,
        Persian,
        CharsMap,
        ClusterMap,
    )
}


class Normalizer:
    """Steps applied one after the other. Equal, hashable and falsy as the tuple of its steps."""

    __slots__ = ("_local", "steps")

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self._local = all(step.local for step in self.steps)

    def __call__(self, text: str) -> str:
        """The normalised text."""
        for step in self.steps:
            text = step(text)
        return text

    def origins(self, text: str) -> tuple[str, np.ndarray]:
        """The normalised text, and for each of its characters the place of the one in `text` it stands for."""
        found = np.arange(len(text))
        for step in self.steps:
            normal = step(text)
            if normal != text:
                found = found[step.origins(text)]
                text = normal
        return text, found

    def settled(self, text: str) -> int:
        """How many leading characters can be normalised now, whatever follows: `n(text)` is `n(text[:k]) + n(text[k:])`
        for every continuation too. 0 where that needs the whole text (a step that knows its ends)."""
        if not self.steps:
            return len(text)
        return next((at for at in range(len(text) - 1, 0, -1) if self.may_cut(text, at)), 0)

    def may_cut(self, text: str, at: int) -> bool:
        """Whether `n(text)` is `n(text[:at]) + n(text[at:])`, whatever follows `text`."""
        if not self._local:
            return False
        c = text[at]
        # A character that is dropped or replaced could let its neighbours meet.
        if self(c) != c:
            return False
        if c in " \n":
            # No form joins one to what stands before it; a step that looks for runs of white space might.
            return not any(isinstance(step, (Replace, CharsMap)) for step in self.steps)
        return _begins(c) and not any(isinstance(step, CharsMap) and step.continues(c) for step in self.steps)

    def to_json(self) -> list[dict[str, Any]]:
        """The steps as JSON objects: `type`, then their settings."""
        return [{"type": step.kind, **to_dict(step)} for step in self.steps]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> Normalizer:
        """The normaliser `to_json` describes. Raises DataError."""
        return cls(list(_steps(content)))

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normalizer) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    def __repr__(self) -> str:
        return f"Normalizer({list(self.steps)})"


def _steps(content: Sequence[Any]) -> Iterator[Step]:
    for i, item in enumerate(content):
        where = f"Normalizer: step {i}"
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            raise DataError(where, "not a step", got=repr(item)[:60], expected="an object with a 'type'")
        if item["type"] not in STEPS:
            raise DataError(where, "an unknown step", got=repr(item["type"]), expected=", ".join(STEPS))
        try:
            yield from_dict(STEPS[item["type"]], {k: v for k, v in item.items() if k != "type"}, where=where)
        except ConfigError as error:
            raise DataError(error.where, error.what, got=error.got, expected=error.expected, hint=error.hint) from None


def _is_mark(c: str) -> bool:
    return unicodedata.category(c).startswith("M")


@cache
def _begins(c: str) -> bool:
    """Whether no step that looks at one character after the other joins `c` to what stands before it."""
    if c.isascii():
        return not c.isspace()
    return (
        not unicodedata.category(c).startswith(("M", "Cn"))
        and not _SPACE.match(c)
        and not _JAMO.match(c)
        and unicodedata.normalize("NFKD", c) == c
    )


def _choice(step: Any, name: str, allowed: Sequence[str | None]) -> None:
    if (value := getattr(step, name)) not in allowed:
        choices = ", ".join(repr(a) for a in allowed)
        raise DataError(type(step).__name__, f"no such {name}", got=repr(value), expected=choices)
