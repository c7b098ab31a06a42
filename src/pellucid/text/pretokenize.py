"""Pre-tokenisation: what stands between a normalised text and the words that a model encodes.

Two things can happen to a text here. It may be rewritten, so that a space can be seen in its tokens (SentencePiece
writes U+2581 for it, and puts one before the text); and it is cut into words, by one pattern after the other, each
inside the pieces of the one before. Nothing crosses the end of a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from .patterns import PATTERNS, SIMPLE, Pattern
from .special import WHITE_SPACE
from .split import split

MARK = "\u2581"
"""What SentencePiece writes for a space: a lower one eighth block."""

_RUN = re.compile(f"[{WHITE_SPACE}]+")
_WORD = re.compile(f"[^{WHITE_SPACE}]+")

Scheme = Literal["always", "first", "never"]


class Words(NamedTuple):
    """Words of texts: word k is bytes starts[k] to starts[k+1]-1 of `data`, and text i has words firsts[i] to
    firsts[i+1]-1. `at`: the place of each byte before white space was dropped; None: none was."""

    data: np.ndarray
    starts: np.ndarray
    firsts: np.ndarray
    at: np.ndarray | None


@dataclass(frozen=True)
class Pretokenizer:
    """How a text becomes words.

    cuts: patterns, applied in this order; none: the text is one word.
    space_before: a text that doesn't begin with a space gets one.
    mark: a space is written as U+2581.
    mark_before: a text that doesn't begin with the mark gets one; "first": only if nothing stands before it.
    collapse: white space at the ends is dropped, and inside it is one space.
    """

    cuts: tuple[Pattern, ...] = ()
    space_before: bool = False
    mark: bool = False
    mark_before: Scheme = "never"
    collapse: bool = False

    @property
    def rewrites(self) -> bool:
        """Whether words can differ from the text."""
        return self.space_before or self.mark or self.mark_before != "never" or self.collapse

    def rewrite(self, text: str, *, first: bool) -> str:
        """The text whose pieces are the words. `first`: nothing stands before it."""
        if not text:
            return text
        if self.collapse:
            text = _RUN.sub(" ", text).strip(" ").replace(f" {MARK}", MARK)
        if self.space_before and not text.startswith(" "):
            text = " " + text
        if self.mark:
            text = text.replace(" ", MARK)
        if (
            text
            and not text.startswith(MARK)
            and (self.mark_before == "always" or (self.mark_before == "first" and first))
        ):
            text = MARK + text
        return text

    def rewritten(self, text: str, *, first: bool) -> tuple[str, np.ndarray]:
        """`rewrite`, and for each character of it the place of the one in `text` it stands for (`align.py`)."""
        changed = self.rewrite(text, first=first)
        if self.collapse:
            # Each word has a mark of its own, so that nothing is left of the white space before it.
            words = [(m.start(), m.end(), m[0].startswith(MARK)) for m in _WORD.finditer(text)]
            parts = [np.arange(begin - (not marked), end).clip(begin) for begin, end, marked in words]
            return changed, np.concatenate([np.empty(0, np.int64), *parts])
        added = len(changed) - len(text)
        return changed, (np.arange(len(changed)) - added).clip(0)

    def cut(self, data: np.ndarray, starts: np.ndarray) -> Words:
        """The words of rewritten texts; text k is bytes starts[k] to starts[k+1]-1."""
        cuts, at = starts, None
        for pattern in self.cuts:
            data, cuts, kept = split(data, cuts, pattern)
            if kept is not None:
                starts = np.searchsorted(kept, starts)
                at = kept if at is None else at[kept]
        firsts = np.searchsorted(cuts, starts) if self.cuts else np.arange(len(starts))
        return Words(data, cuts, firsts, at)

    def settled(self, text: str) -> int:
        """How many leading characters give the same words whatever follows: up to the last space after a character
        that is no white space. Every pattern with a regular expression begins a piece there."""
        if not any(p.name in PATTERNS or p is SIMPLE["metaspace"] for p in self.cuts) or self.collapse:
            return 0
        if any(" " in p.text for p in self.cuts):
            return 0
        at = text.rfind(" ")
        while at > 0 and text[at - 1] in WHITE_SPACE:
            at = text.rfind(" ", 0, at)
        return max(at, 0)
