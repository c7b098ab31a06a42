"""Where the characters of a changed text came from: what `encode_offsets` needs when text is not encoded as it came.

A change is told by its origins: for each character of the result, the place of the one in the text before it that it
stands for. Changes one after the other are then one array indexed by another. The places are those that `tokenizers`
gives, so that offsets are the same as there:

    a character that became several: each of them has it.
    several that became one: the first of them, if they were composed; the last, if they were replaced.
    what was put before a text: its first character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

Change = tuple[int, int, Sequence[int]]
"""Characters begin to end-1 gave way to others, with the origin of each."""


def origins_of(length: int, changes: Iterable[Change]) -> np.ndarray:
    """Origins of a text of `length` characters after changes, which are in order: int64, one for each character."""
    parts, done = [np.empty(0, np.int64)], 0
    for begin, end, places in changes:
        parts += [np.arange(done, begin), np.asarray(places, np.int64)]
        done = end
    return np.concatenate([*parts, np.arange(done, length)])


def places_of(numbers: Sequence[int], length: int) -> np.ndarray:
    """Origins of a text of `length` characters after changes that are told as in `tokenizers`, a number for each
    character of the result: 1 for one that was added, 0 for one in the place of another, -n for one in the place of
    1 + n."""
    given = np.asarray(numbers, np.int64)
    taken = np.maximum(0, 1 - given)
    at = np.cumsum(taken) - taken
    return np.where(given <= 0, np.minimum(at, length - 1), np.maximum(at - 1, 0))


def through(origins: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Offsets (n, 2) into a changed text as offsets into the text before. Of a piece without characters, begin and end
    are equal."""
    if not len(origins):
        return np.zeros_like(offsets)
    begin, end = offsets[:, 0], offsets[:, 1]
    edges = np.append(origins, origins[-1] + 1)
    return np.stack([edges[begin], np.where(end > begin, origins[end - 1] + 1, edges[begin])], axis=1)


def trimmed(offsets: np.ndarray, blanks: np.ndarray, *, space_before: bool) -> np.ndarray:
    """Offsets (n, 2) without the white space of each token, as `tokenizers` takes it away. blanks: (n, 2), characters
    of it at both ends. space_before: one space at the beginning of a text was put there, and has no characters."""
    begin, end = offsets[:, 0], offsets[:, 1]
    leading, trailing = blanks[:, 0].copy(), blanks[:, 1]
    if space_before:
        first = begin == 0
        first[:1] = True
        leading[first & (leading == 1)] = 0
    begin = np.where(leading > 0, np.minimum(begin + leading, end), begin)
    return np.stack([begin, np.where(end >= trailing, np.maximum(end - trailing, begin), end)], axis=1)


def sizes_of_unknown(
    word: bytes,
    ids: Sequence[int],
    sizes: np.ndarray,
    unknown: int,
    known: Callable[[int, int], bool],
    *,
    fuse: bool,
    characters: bool = True,
) -> None:
    """Sets the bytes that each unknown id of a word stands for in `sizes`, which has those of the others.

    known: whether bytes begin to end-1 of the word, a symbol, have a token. fuse: unknown symbols in a row are one id.
    characters: a symbol is a character, and else a byte.
    """
    at = 0
    for i, number in enumerate(ids):
        end = at + int(sizes[i])
        if number == unknown:
            end = _after(word, at, characters)
            while fuse and end < len(word) and not known(end, _after(word, end, characters)):
                end = _after(word, end, characters)
            sizes[i] = end - at
        at = end


def _after(word: bytes, at: int, characters: bool) -> int:
    """The end of the symbol that begins at byte `at`."""
    at += 1
    while characters and at < len(word) and word[at] & 0xC0 == 0x80:
        at += 1
    return at


# --- normal forms -----------------------------------------------------------------------------------------------------


def form_origins(text: str, form: str, begins: Callable[[str], bool]) -> np.ndarray:
    """Origins of a normal form of `text`. begins: whether no form joins a character to what stands before it."""
    edges = [i for i, c in enumerate(text) if i == 0 or begins(c)]
    edges.append(len(text))
    changes = []
    for begin, end in pairwise(edges):
        part = text[begin:end]
        if unicodedata.normalize(form, part) != part:  # pyright: ignore[reportArgumentType]
            changes.append((begin, end, [begin + place for place in _form_places(part, form)]))
    return origins_of(len(text), changes)


def _form_places(text: str, form: str) -> list[int]:
    """Origins of the normal form of a few characters, by the algorithm itself (Unicode Standard, section 3.11). Each
    character goes with its number (`places_of`)."""
    found: list[tuple[int, str, int]] = []
    for c in text:
        parts = unicodedata.normalize("NFKD" if "K" in form else "NFD", c)
        found += [(unicodedata.combining(part), part, int(i > 0)) for i, part in enumerate(parts)]
    begin = 0
    for i in range(len(found) + 1):
        if i == len(found) or found[i][0] == 0:
            found[begin:i] = sorted(found[begin:i], key=lambda item: item[0])
            begin = i + 1
    numbers = _composed(found) if form.endswith("C") else [number for _, _, number in found]
    return places_of(numbers, len(text)).tolist()


def _composed(found: list[tuple[int, str, int]]) -> list[int]:
    """The numbers after canonical composition."""
    done: list[int] = []
    first: tuple[str, int] | None = None
    waiting: list[int] = []
    last = -1  # class of the last character that waits, -1 for none
    for kind, c, number in found:
        if first is None:
            if kind:
                done.append(number)
            else:
                first = c, number
            continue
        joined = unicodedata.normalize("NFC", first[0] + c) if last < kind else ""
        if len(joined) == 1:
            first = joined, first[1] + number - 1
        elif kind:
            waiting.append(number)
            last = kind
        else:
            done += [first[1], *waiting]
            first, waiting, last = (c, number), [], -1
    return [*done, *([] if first is None else [first[1]]), *waiting]
