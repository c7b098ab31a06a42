"""Tokenizers that write a space where a text begins, so that its first word looks like every other one.

`encode` adds the space and `decode` takes it away, so what the first ids of a text stand for depends on their being the
first. `decode` takes its ids for the beginning of a text. A stream that goes on from other ids says so
(`stream_decoder(after=...)`), or the space between the two would be lost.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from .tokenizer import Ids, StreamDecoder, Tokenizer


class StartedTokenizer(Tokenizer):
    """A tokenizer whose text depends on whether ids are the first. A subclass defines `_started` instead of
    `decode_bytes`.

    restarts: whether text behind a special token that isn't shown begins anew, as it does behind one that is.
    """

    restarts: ClassVar[bool] = True

    @abstractmethod
    def _started(self, ids: np.ndarray, start: bool) -> tuple[bytes, bool]:
        """Bytes of ids that are in the vocabulary and not special, and whether what follows them is a start again.
        `start`: whether these are."""

    def _bytes(self, ids: np.ndarray) -> bytes:
        return self._started(ids, True)[0]

    def decode_bytes(self, ids: Ids, *, show_special: bool = False) -> bytes:
        return self.decode_started(ids, True, show_special=show_special)[0]

    def decode_started(self, ids: Ids, start: bool, *, show_special: bool = False) -> tuple[bytes, bool]:
        """`decode_bytes` of ids that are the first of a text or not; and whether those behind them would be."""
        checked = self._checked(ids)
        names = {number: name.encode("utf-8") for name, number in self._special.items()}
        parts, begin = [], 0
        at = np.flatnonzero(np.isin(checked, self._special_ids)) if len(names) else []
        for i in [*map(int, at), len(checked)]:
            if begin < i:
                raw, start = self._started(checked[begin:i], start)
                parts.append(raw)
            if i < len(checked):
                # What is between special tokens was encoded by itself.
                start = start or show_special or self.restarts
                if show_special:
                    parts.append(names[int(checked[i])])
            begin = i + 1
        return b"".join(parts), start

    def stream_decoder(self, *, show_special: bool = False, after: Ids = ()) -> StreamDecoder:
        start = self.decode_started(after, True)[1]
        return _StartedDecoder(self, start, show_special)


class _StartedDecoder(StreamDecoder):
    def __init__(self, tokenizer: StartedTokenizer, start: bool, show_special: bool) -> None:
        self._kind, self._start, self._show_special = tokenizer, start, show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: int | Ids) -> str:
        several = [ids] if isinstance(ids, int | np.integer) else ids
        raw, self._start = self._kind.decode_started(several, self._start, show_special=self._show_special)
        return self._utf8.decode(raw)

    def finish(self) -> str:
        self._start = True
        return super().finish()
