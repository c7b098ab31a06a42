"""The patterns that published tokenizers cut text with, by name and by the text of their regular expression.

There is no regular-expression engine here: each pattern is a row of options for one compiled scanner
(`compiled/scan.py`), which follows the alternatives of the expression in their order. A file says which pattern it
wants by the text of the expression; one that is not in this table is refused, for a scanner that is nearly right
would give other ids for some texts.

All of them cut a text into pieces without gaps, except CLIP's, which drops white space. Cuts at one class of characters
and at a string, which files also ask for, stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import DataError
from .special import has_surrogate

CONTRACTION_FIRST = 1  # 's 't 're 've 'm 'll 'd is a piece
CONTRACTION_LAST = 2  # it ends a word
ANY_CASE = 4  # it may be in capitals
SPACE_BEFORE = 8  # " ?" before letters, and before numbers
PREFIX = 16  # one character before letters that is no letter, number or newline
CASED = 32  # a word ends before a capital that follows a small letter
SPACE_SYMBOLS = 64  # " ?" before symbols
NEWLINES_LAST = 128  # newlines after symbols belong to them
SLASH_LAST = 256  # slashes too
NEWLINES = 512  # white space up to its last newline is a piece
END_FIRST = 1024  # white space at the end of the text is one piece, newlines or not
DROP_SPACE = 2048  # white space is no piece
DIGITS = 4096  # nothing but numbers is cut out
SPACES = 8192  # nothing but white space is cut out
METASPACE = 16384  # a piece begins at each U+2581
SIGNS = 1 << 15  # punctuation is cut out (`BERT_SIGN`)

# For cuts at a string (`compiled/literal.py`); without one of them, every occurrence is a piece.
INVERT = 1 << 16  # what stands between two occurrences is the match
DROP = 1 << 17  # matches are no pieces
CONTIGUOUS = 1 << 18  # matches in a row are one piece
JOIN_PREVIOUS = 1 << 19  # a match belongs to the piece before it, unless that is a match
JOIN_NEXT = 1 << 20  # a match belongs to the piece behind it, unless that is a match


@dataclass(frozen=True)
class Pattern:
    """One scanner. `numbers` is how many digits or signs a piece may have, 0 for any number; `regexes` are its
    expressions; `text` is the string that a cut at a string looks for."""

    name: str
    flags: int
    numbers: int
    regexes: tuple[str, ...] = ()
    text: str = ""

    @property
    def drops(self) -> bool:
        """Whether some of the text is in no piece."""
        return self.flags & (DROP_SPACE | DROP) != 0


_GPT2 = CONTRACTION_FIRST | SPACE_BEFORE | SPACE_SYMBOLS
_CL100K = CONTRACTION_FIRST | ANY_CASE | PREFIX | SPACE_SYMBOLS | NEWLINES_LAST | NEWLINES
_TEKKEN = CASED | PREFIX | SPACE_SYMBOLS | NEWLINES_LAST | SLASH_LAST | NEWLINES
_SMALL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, numbers: str) -> str:
    prefix = r"[^\r\n\p{L}\p{N}]?"
    return f"{prefix}{_UPPER}*{_LOWER}+{ending}|{prefix}{_UPPER}+{_LOWER}*{ending}|{numbers}|{_SLASHES}"


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            "gpt2",
            _GPT2,
            0,
            (
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
                r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            ),
        ),
        Pattern(
            "cl100k",
            _CL100K | END_FIRST,
            3,
            (
                # tiktoken's own text has "{1,3}+" and "$", which mean something else to Oniguruma.
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]"
                r"|\s+(?!\S)|\s",
            ),
        ),
        Pattern(
            "llama3",
            _CL100K,
            3,
            (
                rf"{_SMALL}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                r"|\s+(?!\S)|\s+",
            ),
        ),
        Pattern("qwen2", _CL100K, 1, (rf"{_SMALL}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",)),
        Pattern("o200k", _TEKKEN | CONTRACTION_LAST | ANY_CASE, 3, (_cased(f"{_SMALL}?", r"\p{N}{1,3}"),)),
        Pattern("tekken", _TEKKEN, 1, (_cased("", r"\p{N}"),)),
        Pattern("clip", CONTRACTION_FIRST | DROP_SPACE, 1, (_CLIP,)),
    )
}
"""The patterns with a regular expression; `BPETokenizer.train(pattern=...)` takes these names."""

SIMPLE = {
    pattern.name: pattern
    for pattern in (
        Pattern("digits", DIGITS, 1),
        Pattern("numbers", DIGITS, 0),
        Pattern("white_space", SPACES | DROP_SPACE, 0),
        Pattern("metaspace", METASPACE, 0),
        Pattern("signs", SIGNS, 1),
        Pattern("runs_of_signs", SIGNS, 0),
    )
}
"""Simpler cuts that files name by type."""

BEHAVIORS = {
    "Removed": DROP,
    "Isolated": 0,
    "MergedWithPrevious": JOIN_PREVIOUS,
    "MergedWithNext": JOIN_NEXT,
    "Contiguous": CONTIGUOUS,
}
"""What files call the ways to cut at a string."""


def at_string(text: str, behavior: str, *, invert: bool, where: str) -> Pattern:
    """The cut at a string. Raises DataError for an empty one, and for another behaviour."""
    if not text or has_surrogate(text):
        raise DataError(where, "not a string to cut at", got=repr(text))
    if behavior not in BEHAVIORS:
        raise DataError(where, "not a behaviour", got=repr(behavior), expected=", ".join(BEHAVIORS))
    return Pattern("string", BEHAVIORS[behavior] | (INVERT if invert else 0), 0, text=text)


_BY_REGEX = {regex: pattern.name for pattern in PATTERNS.values() for regex in pattern.regexes}


def pattern_named(name: str, where: str) -> Pattern:
    """The pattern of that name. Raises DataError."""
    if name not in PATTERNS:
        raise DataError(where, "unknown pattern", got=repr(name), expected=", ".join(PATTERNS))
    return PATTERNS[name]


def pattern_of(regex: str, where: str) -> Pattern:
    """The pattern of a regular expression. Raises DataError for one that is not in the table."""
    if regex not in _BY_REGEX:
        shown = regex if len(regex) <= 200 else f"{regex[:200]}..."
        raise DataError(
            where,
            "a regular expression this library has no scanner for",
            got=repr(shown),
            expected=f"one of {', '.join(PATTERNS)}",
            hint="add a row to text/patterns.py, with a test against the original",
        )
    return PATTERNS[_BY_REGEX[regex]]
