"""Conversations to examples: what a chat template makes of them, and which tokens a model is to learn.

Only what the assistant says counts in the loss, its end of turn included. Tokens behind the last of these are dropped:
nothing is learned from them, and they would only take room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from ..base.errors import DataError
from ..data import Dialogue, Preference
from ..text import CharTokenizer, ChatTemplate, Tokenizer

TooLong = Literal["error", "skip", "cut"]
Example = tuple[np.ndarray, np.ndarray]


class Encoding:
    """Encodes conversations for training, and counts what became of them.

    longest: tokens of an example. too_long: what happens to a longer one: an error, left out, or cut at the end, where
    something of the answer is left; otherwise left out.
    layouts: conversations in each layout. skipped, cut: how many were left out, and cut.
    """

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, *, longest: int, too_long: TooLong = "error"
    ) -> None:
        self.template, self.tokenizer, self.longest, self.too_long = template, tokenizer, longest, too_long
        self.layouts: Counter[str] = Counter()
        self.skipped = self.cut = 0

    def examples(self, found: Iterable[Dialogue]) -> Iterator[Example]:
        """Ids and flags of each conversation that is kept. Raises DataError, naming the line."""
        for one in found:
            self.layouts[one.layout] += 1
            example = self.encode(one.messages, one.where)
            if example is not None:
                yield example

    def pairs(self, found: Iterable[Preference]) -> Iterator[Example]:
        """The chosen answer and the rejected one of each pair, behind one another; both or neither are kept."""
        for pair in found:
            self.layouts[pair.layout] += 1
            cut = self.cut
            both = []
            for answer in (pair.chosen, pair.rejected):
                turn = {"role": "assistant", "content": answer}
                both.append(self.encode([*pair.messages, turn], pair.where, begun=len(pair.messages)))
                if both[-1] is None:
                    break
            if both[-1] is None:
                self.cut = cut
                continue
            yield from (example for example in both if example is not None)

    def encode(self, messages: list[dict[str, str]], where: str, *, begun: int = 0) -> Example | None:
        """Ids and flags of one conversation; None where it is left out. Messages before number `begun` don't count.

        Raises:
            DataError: a template that can't express it or says of no token that it is the assistant's, and, unless
                such are left out, one that is too long.
        """
        try:
            found = self.template.encode_masked(self.tokenizer, messages)
            ids, counts = found.ids, found.assistant.copy()
            if begun:
                before = self.template.encode(self.tokenizer, messages[:begun], add_generation_prompt=True)
                same = min(len(before), len(ids))
                counts[: int(np.argmin(np.append(before[:same] == ids[:same], False)))] = False
        except DataError as error:
            hint = error.hint
            if error.where.startswith(CharTokenizer.__name__):
                hint = "begin with a model that can read any text, trained with --train-tokenizer for one"
            raise DataError(
                f"{where}: {error.where}", error.what, got=error.got, expected=error.expected, hint=hint
            ) from None
        if not counts[1:].any():
            hint = "use a template with {% generation %} blocks"
            raise DataError(where, "the template marks no token as the assistant's", hint=hint)
        ids, counts = (x[: int(np.flatnonzero(counts)[-1]) + 1] for x in (ids, counts))
        if len(ids) <= self.longest:
            return ids, counts
        if self.too_long == "error":
            hint = "a longer window (--seq-len), or leave such examples out or cut them (--too-long skip, cut)"
            raise DataError(
                where, "longer than the window", got=f"{len(ids)} tokens", expected=f"at most {self.longest}", hint=hint
            )
        ids, counts = ids[: self.longest], counts[: self.longest]
        if self.too_long == "skip" or not counts[1:].any():
            self.skipped += 1
            return None
        self.cut += 1
        return ids, counts
