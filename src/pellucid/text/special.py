"""Special tokens: where their names stand in a text, and which of them may count.

A vocabulary can hold tokens that are no result of its model: the end of a text, the turns of a chat. Their names are
cut out of a text before anything else looks at it, and only where the caller allows it: text from a user must not be
able to forge a turn. A file may also add plain words (`special=False`: runs of spaces, say): those belong to the
vocabulary like any other and are always cut out.

Of two names that begin at the same place the longer one counts; after a name the search goes on behind it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..base.errors import DataError
from .batch import not_text
from .unicode import LETTER, LOWER, NUMBER, PAGE, UPPER, classes

#: The characters with Unicode's property White_Space, which `str.isspace` has four more of.
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

_ENCLOSED = (
    ("\u24b6", "\u24e9"),
    ("\U0001f130", "\U0001f149"),
    ("\U0001f150", "\U0001f169"),
    ("\U0001f170", "\U0001f189"),
)

Piece = tuple[int, int, int | None]
"""Characters begin to end-1 of a text: an id, or None for text that the model encodes."""


@dataclass(frozen=True)
class AddedToken:
    """A token beside those of the model.

    special: needs the caller's leave, and decodes to no text unless asked to.
    lstrip, rstrip: takes white space on that side with it.
    normalized: looked for in normalised text, after the others.
    single_word: only where no letter, mark, digit or the like touches it.
    """

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False


def numbered(where: str, names: Sequence[str], first: int) -> dict[str, int]:
    """Names of special tokens with ids from `first` on. Raises DataError for what is no name, and for a name twice."""
    for name in names:
        if not isinstance(name, str) or not name or has_surrogate(name):
            raise DataError(where, "not a name for a special token", got=repr(name))
    if len(set(names)) != len(names):
        raise DataError(where, "the same special token twice", got=", ".join(names))
    return {name: first + i for i, name in enumerate(names)}


def check_size(where: str, vocab_size: int) -> None:
    """Raises DataError for what is no number of ids."""
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool):
        raise DataError(where, "not a size for a vocabulary", got=repr(vocab_size), expected="a whole number")


def has_surrogate(text: str) -> bool:
    """Whether `text` holds half a surrogate pair, which is no character and has no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def is_word(character: str) -> bool:
    """Whether a character has the property that `\\w` stands for (Unicode Technical Standard 18, annex C): letters,
    marks, numbers that are digits or letters, connectors, what joins letters, and letters in circles and squares."""
    index, pages = classes()
    code = ord(character)
    kind = int(pages[int(index[code >> PAGE]) << PAGE | code & ((1 << PAGE) - 1)])
    if kind & NUMBER:
        # Python's own tables, which may be older than these, know all numbers that are neither but one block.
        return unicodedata.category(character) != "No" and not "\U0001d2c0" <= character <= "\U0001d2d3"
    if kind & (LETTER | UPPER | LOWER) or unicodedata.category(character) == "Pc":
        return True
    return character in "\u200c\u200d" or any(first <= character <= last for first, last in _ENCLOSED)


class SpecialTokens:
    """The added tokens of a vocabulary, by name and by id."""

    def __init__(self, where: str, tokens: Iterable[AddedToken], vocab_size: int) -> None:
        """Raises DataError for an empty name, a name twice, two special names of one id, an id outside."""
        self._where = where
        self.by_name: dict[str, AddedToken] = {}
        ids: dict[int, str] = {}
        for token in tokens:
            name = token.content
            if not isinstance(name, str) or not name or has_surrogate(name):
                raise DataError(where, "not a name for a special token", got=repr(name))
            if name in self.by_name:
                raise DataError(where, "the same special token twice", got=repr(name))
            if not 0 <= token.id < vocab_size:
                got = f"{token.id} for {name!r}"
                raise DataError(
                    where, "a special token outside the vocabulary", got=got, expected=f"below {vocab_size}"
                )
            if token.id in ids:
                raise DataError(where, "two special tokens of one id", got=f"{ids[token.id]!r} and {name!r}")
            ids[token.id] = name
            self.by_name[name] = token
        self.ids = {name: token.id for name, token in self.by_name.items() if token.special}
        self._always = frozenset(name for name, token in self.by_name.items() if not token.special)
        self._finder = lru_cache(64)(self._make_finder)

    def allowed(self, names: str | Collection[str]) -> frozenset[str]:
        """The tokens to cut out: those the caller names ("all" for every one) and the plain ones.

        Raises DataError for a name the vocabulary doesn't have.
        """
        if names == "all":
            return frozenset(self.by_name)
        if isinstance(names, str):
            raise DataError(self._where, "allowed_special is one string", got=repr(names), expected='names, or "all"')
        if unknown := sorted(set(names) - set(self.by_name)):
            known = ", ".join(sorted(self.ids)) or "none"
            raise DataError(self._where, "not a special token here", got=", ".join(unknown), expected=known)
        return self._always.union(names)

    def any_in(self, texts: Sequence[str], allowed: frozenset[str], where: str) -> bool:
        """Whether a text may hold one of the tokens: a look that costs each text far less than `cut`.

        Raises DataError, in the name of `where`, for what is no string.
        """
        for normalized in (False, True):
            find = self._finder(allowed, normalized)
            if find is None:
                continue
            try:
                if any(map(find.search, texts)):
                    return True
            except TypeError:
                number = next(i for i, text in enumerate(texts) if not isinstance(text, str))
                raise not_text(f"{where}, text {number}", texts[number]) from None
        return False

    def cut(self, text: str, allowed: frozenset[str]) -> list[Piece]:
        """The pieces of a text, in order, none of them empty."""
        pieces: list[Piece] = [(0, len(text), None)] if text else []
        for normalized in (False, True):
            find = self._finder(allowed, normalized)
            if find is not None:
                pieces = [q for p in pieces for q in ([p] if p[2] is not None else self._cut(text, p[0], p[1], find))]
        return pieces

    def _make_finder(self, allowed: frozenset[str], normalized: bool) -> re.Pattern[str] | None:
        names = [name for name in allowed if self.by_name[name].normalized is normalized]
        names.sort(key=lambda name: (-len(name), name))
        # One branch for each first character: at most places in a text, one look is enough.
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(name[0], []).append(re.escape(name[1:]))
        branches = [f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in sorted(groups.items())]
        return re.compile("|".join(branches)) if names else None

    def _cut(self, text: str, begin: int, end: int, find: re.Pattern[str]) -> list[Piece]:
        pieces: list[Piece] = []
        done = begin
        for match in find.finditer(text, begin, end):
            token = self.by_name[match.group()]
            start, stop = match.span()
            if token.single_word and (
                (start > begin and is_word(text[start - 1])) or (stop < end and is_word(text[stop]))
            ):
                continue
            if token.lstrip:
                start = max(done, begin + len(text[begin:start].rstrip(WHITE_SPACE)))
            if token.rstrip:
                stop = end - len(text[stop:end].lstrip(WHITE_SPACE))
            if done < start:
                pieces.append((done, start, None))
            pieces.append((start, stop, token.id))
            done = stop
        if done < end:
            pieces.append((done, end, None))
        return pieces
