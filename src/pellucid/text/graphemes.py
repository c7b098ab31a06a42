"""Extended grapheme clusters (Unicode Standard Annex 29), and the character map that `tokenizers` applies to them.

What a reader takes for one character, a letter with its marks or a flag, may be several. `tokenizer.json` keeps the
character map of a SentencePiece model (`charsmap.py`), and `tokenizers` reads it in another way than SentencePiece: a
cluster of fewer than 6 bytes becomes, as a whole, what the shortest key becomes that it begins with; where there is
none, and in longer clusters, each character is replaced by itself.

Most characters are clusters by themselves, so what is looked for in a text are the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

import numpy as np

from .align import places_of
from .charsmap import CharsMap
from .grapheme_runs import RUNS

_WHOLE = 6  # bytes of a cluster, from which on its characters are replaced one by one


@dataclass(frozen=True)
class ClusterMap:
    """A character map as `tokenizers` applies it. data: the block of bytes, in base64. Raises DataError for a damaged
    one."""

    data: str
    kind: ClassVar[str] = "cluster_map"
    local: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _ = self._map  # which refuses a damaged one

    @cached_property
    def _map(self) -> CharsMap:
        return CharsMap(self.data)

    @cached_property
    def _single(self) -> dict[str, str]:
        return self._map.single

    @cached_property
    def _changed(self) -> re.Pattern[str]:
        """Characters that are replaced."""
        return re.compile(self._map.spelled_single or "(?!)")

    @cached_property
    def _look(self) -> re.Pattern[str]:
        """Clusters of several characters, and characters that are replaced."""
        return re.compile(f"{cluster_pattern()}|{self._changed.pattern}")

    def __call__(self, text: str) -> str:
        if joiners().search(text) is None:
            # Whatever clusters there are (Hangul, flags) have 6 bytes and more.
            single = self._single
            return self._changed.sub(lambda m: single.get(m[0], m[0]), text)
        return self._look.sub(lambda m: "".join(new for _, new in self._parts(m[0])), text)

    def _parts(self, cluster: str) -> Iterator[tuple[str, str]]:
        """The parts of a cluster that are replaced together, and what each becomes."""
        if len(cluster) > 1 and len(cluster.encode("utf-8")) < _WHOLE:
            whole = self._map.shortest(cluster)
            if whole is not None:
                yield cluster, whole
                return
        for c in cluster:
            yield c, self._single.get(c, c)

    def origins(self, text: str) -> np.ndarray:
        numbers: list[int] = []
        done = 0
        for match in self._look.finditer(text):
            numbers += [0] * (match.start() - done)
            done = match.end()
            for old, new in self._parts(match[0]):
                # As `tokenizers` counts: what is longer was added at the end, what is shorter is taken from the last.
                more = len(new) - len(old)
                numbers += [0] * (len(new) - max(0, more)) + [1] * max(0, more)
                if more < 0 and numbers:
                    numbers[-1] += more
        return places_of([*numbers, *[0] * (len(text) - done)], len(text))


@cache
def _runs() -> dict[str, list[tuple[int, int]]]:
    """For each letter of `RUNS`, its characters from the first to the last of each run."""
    found: dict[str, list[tuple[int, int]]] = {}
    at = 0
    for letter, length in re.findall("([a-z-])([0-9]*)", RUNS):
        n = int(length or 1)
        found.setdefault(letter, []).append((at, at + n - 1))
        at += n
    return found


def _class(letters: str) -> str:
    """A regular expression of one character of these kinds. Those beyond U+FFFF stand apart: with such a one named,
    `re` compares a text's characters with those of a class one by one."""
    runs = sorted(run for letter in letters for run in _runs()[letter])
    near, far = (
        "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs if (last > 0xFFFF) is beyond)
        for beyond in (False, True)
    )
    kinds = [f"[{near}]"] if near else []
    kinds += [f"(?![\\0-\\uffff])[{far}]"] if far else []
    return f"(?:{'|'.join(kinds)})"


@cache
def joiners() -> re.Pattern[str]:
    """Finds characters that make short clusters with what stands beside them."""
    return re.compile(f"\r\n|{_class('kexzmp')}")


@cache
def cluster_pattern() -> str:
    """A regular expression of a cluster of several characters, for texts that are looked through from the beginning
    (Unicode Standard Annex 29, tables 1b and 1c)."""
    # Of each 28 syllables in a row, the first has no last consonant: a vowel may follow.
    open_ones = "".join(map(chr, range(0xAC00, 0xD7A4, 28)))
    vowels = f"(?:[{open_ones}]{_class('v')}*|{_class('v')}+|{_class('s')})"
    syllable = f"{_class('l')}*(?:{vowels}{_class('t')}*|{_class('l')})"
    extend, after = _class("kex"), _class("kexzm")
    picture = f"{_class('d')}(?:{extend}*{_class('z')}{_class('d')})*"
    between = _class("ezk")
    consonants = f"{_class('i')}(?:{between}*?{_class('k')}{between}*{_class('i')})*"
    any_one, any_other = "(?s:.)", f"(?!{_class('c')})(?s:.)"
    core = f"(?:{syllable}|{_class('t')}+|{_class('r')}{{2}}|{picture}|{consonants}|{any_other})"
    # Where the next two characters are parted, nothing else has to be tried (an LVT and a V are, further on).
    joined = (
        f"(?={any_one}{after})(?!{_class('c')})|(?={_class('lsvt')}{{2}}|{_class('p')}{any_other}|{_class('r')}{{2}})"
    )
    return f"(?:\r\n|(?:{joined}){_class('p')}*{core}{after}*)"
