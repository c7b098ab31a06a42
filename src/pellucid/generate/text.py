"""Text: what drawn ids say, piece by piece, ended by a token, by a text or by a number of tokens.

Pieces are whole characters, and hold back what may be the beginning of a text that ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ..text import Tokenizer


class Text:
    """A text as it is written: an iterator of the pieces to show, ended by `limit` tokens, one of the ids `ends` (None:
    the token that ends a document), or a text of `stops`, which is not shown. `after`: the ids it goes on from. whole:
    half a character where the tokens end is not shown (else as U+FFFD).

    Attributes:
        count: tokens drawn. ended: "tokens", "document" (one of `ends`), "stop", or "context" where `ids` came to an
        end, once it is over.
    """

    def __init__(
        self,
        ids: Iterator[int],
        tokenizer: Tokenizer,
        *,
        limit: int,
        ends: Collection[int] | None = None,
        stops: Sequence[str] = (),
        after: Sequence[int] | np.ndarray = (),
        whole: bool = False,
    ) -> None:
        self.count, self.ended = 0, "tokens"
        self._ids, self._tokenizer, self._limit, self._stops = ids, tokenizer, limit, stops
        self._ends = frozenset({tokenizer.eot} if ends is None else ends)
        self._after, self._whole = after, whole

    def __iter__(self) -> Iterator[str]:
        decoder = self._tokenizer.stream_decoder(after=self._after)
        held = ""  # may be the beginning of a stop text
        while self.count < self._limit:
            token = next(self._ids, None)
            if token is None:
                self.ended = "context"
                break
            self.count += 1
            if token in self._ends:
                self.ended = "document"
                break
            held += decoder.push(token)
            if (at := self._stop(held)) is not None:
                self.ended = "stop"
                held = held[:at]
                break
            safe = len(held) - max((_overlap(held, stop) for stop in self._stops), default=0)
            if safe:
                yield held[:safe]
                held = held[safe:]
        if self.ended == "document" or (self.ended != "stop" and not self._whole):
            held += decoder.finish()
            held = held[: self._stop(held)]
        if held:
            yield held

    def _stop(self, text: str) -> int | None:
        """Where the first stop text begins."""
        return min((text.index(stop) for stop in self._stops if stop in text), default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
