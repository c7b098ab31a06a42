"""SentencePiece's precompiled character map: which strings a text's characters become before it is cut into pieces.

A step of a normaliser (`normalize.py`), stored in SentencePiece models and in `tokenizer.json` as one block of bytes: a
32-bit length, a double-array trie of that length over the UTF-8 of the keys (darts-clone's layout), then the
replacements, each ended by a zero byte. At each position the longest key is replaced; a character that begins none
stays. That is SentencePiece's rule; the one of `tokenizers` is in `graphemes.py`.

Keys of one character become a dictionary, and the trie itself is walked only where two characters of longer keys meet.
There are hundreds of thousands of those keys, but the trie shares their ends, so that it is read once, a byte of depth
at a time, without spelling them out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ..base.errors import DataError
from .align import origins_of

_WHERE = "CharsMap"
_LARGEST = 1 << 20  # bytes; SentencePiece's own maps take a quarter of it
_DEEPEST = 64  # bytes of a key
_TOGETHER = 1 << 12  # nodes read at a time
_LEAF = 0x100
_LABEL = 0x800000FF


@dataclass(frozen=True)
class CharsMap:
    """A precompiled character map. data: the block of bytes, in base64. Raises DataError for a damaged one."""

    data: str
    kind: ClassVar[str] = "charsmap"
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        try:
            self._map.read()
        except UnicodeDecodeError as error:
            raise _damaged(f"a key or replacement is not UTF-8 ({error.reason})") from error

    @classmethod
    def of(cls, block: bytes) -> CharsMap:
        """The map in the bytes themselves."""
        return cls(base64.b64encode(block).decode("ascii"))

    @cached_property
    def _map(self) -> _Trie:
        try:
            block = base64.b64decode(self.data, validate=True)
        except ValueError as error:
            raise _damaged(f"not base64: {error}") from error
        return _Trie(block)

    def continues(self, c: str) -> bool:
        """Whether `c` may belong to a key that began before it."""
        return c in self._map.later

    @property
    def single(self) -> dict[str, str]:
        """What the keys of one character become."""
        return self._map.single

    @property
    def spelled_single(self) -> str:
        """A regular expression of the keys of one character, and of some that are none; empty without any."""
        return _class(set(self._map.single)) if self._map.single else ""

    def shortest(self, text: str) -> str | None:
        """What the shortest key that `text` begins with becomes; None without one."""
        return self._map.shortest(text)

    def __call__(self, text: str) -> str:
        found = self._map
        # A match is a run for `longest` or one character; characters that stay are passed over by the scanner alone,
        # which is ten times as fast as `str.translate` on text that is not ASCII.
        return found.look.sub(lambda m: found.longest(m[0]) if len(m[0]) > 1 else found.single.get(m[0], m[0]), text)

    def changes(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Characters begin to end-1 that a key is found in, and what they become."""
        for match in self._map.look.finditer(text):
            at = match.start()
            for part, content in self._map.parts(match[0]):
                if part != content:
                    yield at, at + len(part), content
                at += len(part)

    def origins(self, text: str) -> np.ndarray:
        found = self.changes(text)
        return origins_of(len(text), ((b, e, [min(b + i, e - 1) for i in range(len(c))]) for b, e, c in found))


class _Trie:
    """single: replacements of single characters. later: characters that longer keys go on with. look: finds single
    characters that are replaced, and runs in which longer keys may stand; a run is maximal, so that no key reaches over
    its end."""

    def __init__(self, block: bytes) -> None:
        size = int.from_bytes(block[:4], "little")
        if len(block) > _LARGEST:
            raise _damaged("too large", got=f"{len(block)} bytes")
        if len(block) < 8 or size % 4 or not 4 <= size <= len(block) - 4:
            raise _damaged("no trie in it", got=f"{len(block)} bytes")
        self.units = np.frombuffer(block, "<u4", size // 4, 4).astype(np.int64)
        self.strings = block[4 + size :]
        self.single: dict[str, str] = {}
        self.later: set[str] = set()
        self.look = re.compile("(?!)")

    def read(self) -> None:
        """Fills the tables, a level of the trie at a time. What several ways lead to goes on once."""
        first: set[str] = set()
        # A node, the bytes of the character that is not complete yet, and where on its way a key is: in its first
        # character (""), at the end of it (the character), or later (None).
        states: list[tuple[int, bytes, str | None]] = [(0, b"", "")]
        visited = 0
        for _ in range(_DEEPEST):
            found: dict[tuple[int, bytes, str | None], None] = {}
            for row, label, node in self._below([node for node, _, _ in states]):
                _, spelled, way = states[row]
                spelled += bytes([label])
                if way:
                    first.add(way)
                    way = None
                leaf = bool(self.units[node] & _LEAF)
                if len(spelled) < _width(spelled[0]):
                    if leaf:
                        raise _damaged("a key ends inside a character")
                    found[node, spelled, way] = None
                    continue
                c = spelled.decode("utf-8")
                if way is None:
                    self.later.add(c)
                elif leaf:
                    self.single[c] = self._value(node)
                found[node, b"", None if way is None else c] = None
            states = list(found)
            visited += len(states)
            if not states:
                break
            if visited > 16 * len(self.units):
                raise _damaged("its trie has no end")
        else:
            raise _damaged("its trie has no end")
        kinds = [f"{_class(first)}{_class(self.later)}+"] if first else []
        kinds += [_class(set(self.single))] if self.single else []
        if kinds:
            self.look = re.compile("|".join(kinds))

    def longest(self, text: str) -> str:
        """`text` with the longest key at each position replaced."""
        return "".join(content for _, content in self.parts(text))

    def parts(self, text: str) -> Iterator[tuple[str, str]]:
        """The longest key at each position, or the character there, and what it becomes."""
        raw, at = text.encode("utf-8"), 0
        while at < len(raw):
            end, leaf, node = at + _width(raw[at]), -1, 0
            for i in range(at, len(raw)):
                node = self._offset(node) ^ raw[i]
                if node >= len(self.units) or int(self.units[node]) & _LABEL != raw[i]:
                    break
                if int(self.units[node]) & _LEAF:
                    end, leaf = i + 1, node
            part = raw[at:end].decode("utf-8")
            yield part, part if leaf < 0 else self._value(leaf)
            at = end

    def shortest(self, text: str) -> str | None:
        """What the shortest key that `text` begins with becomes; None without one. No key has a zero byte."""
        node = 0
        for byte in text.encode("utf-8"):
            node = self._offset(node) ^ byte
            if not byte or node >= len(self.units) or int(self.units[node]) & _LABEL != byte:
                return None
            if int(self.units[node]) & _LEAF:
                return self._value(node)
        return None

    def _below(self, nodes: list[int]) -> Iterator[tuple[int, int, int]]:
        """Every node under `nodes`: the number of its parent in the list, its label, itself."""
        labels = np.arange(1, 256, dtype=np.int64)
        for begin in range(0, len(nodes), _TOGETHER):
            at = np.array(nodes[begin : begin + _TOGETHER], np.int64)
            down = (at ^ ((self.units[at] >> 10) << ((self.units[at] & 0x200) >> 6)))[:, None] ^ labels
            down = np.where(down < len(self.units), down, 0)
            rows, columns = np.nonzero((self.units[down] & _LABEL) == labels)
            found = down[rows, columns]
            yield from zip((begin + rows).tolist(), (columns + 1).tolist(), found.tolist(), strict=True)

    def _offset(self, node: int) -> int:
        unit = int(self.units[node])
        return node ^ ((unit >> 10) << ((unit & 0x200) >> 6))

    def _value(self, node: int) -> str:
        at = self._offset(node)
        begin = int(self.units[at]) & 0x7FFFFFFF if at < len(self.units) else -1
        end = self.strings.find(b"\0", begin) if begin >= 0 else -1
        if end < 0:
            raise _damaged("a replacement lies outside")
        return self.strings[begin:end].decode("utf-8")


def _width(first: int) -> int:
    """Bytes of the character that begins with this byte."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _class(characters: set[str]) -> str:
    """A class of the characters, and of all beyond U+FFFF if one of them is: with such a one named, `re` compares a
    text's characters with those of the class one by one."""
    near = sorted(re.escape(c) for c in characters if c <= "\uffff")
    kinds = [f"[{''.join(near)}]"] if near else []
    kinds += ["[\U00010000-\U0010ffff]"] if len(near) < len(characters) else []
    return f"(?:{'|'.join(kinds)})"


def _damaged(what: str, *, got: str | None = None) -> DataError:
    return DataError(_WHERE, f"a damaged character map: {what}", got=got)
