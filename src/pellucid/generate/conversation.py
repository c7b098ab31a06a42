"""Conversation: messages and their answers, with a decoder that reads each of them once.

For every answer the chat template writes the whole conversation as ids, and the decoder follows them: what its caches
hold already is not read again. An answer stands in the caches as the model drew it, often in other tokens than its
text would be encoded in; between two special tokens such ids are as good as the encoded ones, and are kept. Anything
else that differs is read anew, so that the model always sees exactly the conversation.

A conversation that grows out of the context loses its oldest turns, half a context at a time: what is kept has to be
read again after each loss.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, check_header, check_keys, check_target, read_json, write_json
from ..models import TransformerLM
from ..text import ChatTemplate, Tokenizer
from .decoder import Decoder
from .sampler import Sampler
from .text import Text

KIND, VERSION = "conversation", 1
_PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@dataclass(frozen=True)
class Turn:
    """One answer. text: what it says. tokens: drawn. prompt: ids before it, `kept` of which the caches had. ended:
    "turn" (by the model), "tokens" (as many as allowed), "context" (it is full) or "stopped" (nobody wanted more)."""

    text: str
    tokens: int
    prompt: int
    kept: int
    ended: str


class Conversation:
    """A conversation with a model.

    Args:
        model, tokenizer: who answers.
        template: how messages become ids.
        ends: ids beside those of `turn_ends` that end an answer.
        system: what the model is told before everything else, if anything.

    Attributes:
        messages: `{"role": ..., "content": ...}`, the system's not among them.
        dropped: how many of the oldest messages no longer fit the context; they stay in `messages`.
        turn: the last answer, None before the first one is over.
    """

    def __init__(
        self,
        model: TransformerLM,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        ends: Collection[int] = (),
        system: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.template = model, tokenizer, template
        self.ends = {*ends, *turn_ends(template, tokenizer)}
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.dropped = 0
        self.turn: Turn | None = None
        self._decoder = Decoder(model)

    def say(self, text: str, sampler: Sampler, *, max_tokens: int) -> Iterator[str]:
        """The answer to a message, piece by piece; both are in `messages` once it is over or closed.

        Raises:
            DataError: a message the template or the vocabulary can't express, or one that is longer than the context;
                at once, with nothing changed.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            return self._answer(sampler, max_tokens)
        except BaseException:
            self.messages.pop()
            raise

    def again(self, sampler: Sampler, *, max_tokens: int) -> Iterator[str]:
        """Another answer in place of the last one. Raises DataError where there is nothing to answer."""
        if not any(message["role"] == "user" for message in self.messages):
            raise DataError("conversation", "nothing to answer yet", hint="say something first")
        before = list(self.messages)
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        try:
            return self._answer(sampler, max_tokens)
        except BaseException:
            self.messages = before
            raise

    def reset(self) -> None:
        """Forgets every message but the system's."""
        self.messages.clear()
        self.dropped, self.turn = 0, None

    def save(self, path: StrPath) -> None:
        """Writes system and messages as JSON, whole or not at all. Raises DataError where it can't, and for a path that
        holds something other than a conversation."""
        check_target(path)
        if os.path.exists(path):
            load_conversation(path)
        content = {"type": KIND, "version": VERSION, "system": self.system, "messages": self.messages}
        write_json(path, content)

    def load(self, path: StrPath) -> None:
        """Goes on with a saved conversation. Raises DataError, with nothing changed, for a file that holds none, or one
        this model's template or vocabulary can't express."""
        system, messages = load_conversation(path)
        self._encoded(system, messages, ask=False)
        self.reset()
        self.system, self.messages = system, messages

    # --- one answer ---------------------------------------------------------------------------------------------------

    def _answer(self, sampler: Sampler, max_tokens: int) -> Iterator[str]:
        if max_tokens < 1:
            raise DataError("conversation", "an answer needs a token", got=max_tokens)
        ids, dropped = self._prompt(max_tokens)
        known = aligned(self._decoder.history, ids, self.tokenizer)
        # What the model drew may be longer than what its text is encoded in.
        ids = known if self._fits(known, max_tokens) else ids
        kept = self._decoder.follow(ids)
        self.dropped = dropped
        return self._written(sampler, max_tokens, ids, kept)

    def _written(self, sampler: Sampler, max_tokens: int, ids: np.ndarray, kept: int) -> Iterator[str]:
        decoder, pieces = self._decoder, []
        drawn = iter(lambda: decoder.next(sampler) if decoder.room else None, None)
        text = Text(
            drawn,
            self.tokenizer,
            limit=max_tokens,
            ends=self.ends,
            stops=self.template.stops,
            after=ids,
            whole=True,
        )
        ended = "stopped"
        try:
            for piece in text:
                pieces.append(piece)
                yield piece
            ended = {"document": "turn", "stop": "turn"}.get(text.ended, text.ended)
        finally:
            said = "".join(pieces)
            self.messages.append({"role": "assistant", "content": said})
            self.turn = Turn(said, text.count, len(ids), kept, ended)

    def _prompt(self, max_tokens: int) -> tuple[np.ndarray, int]:
        """The ids that ask for an answer, and how many messages were left out so that they fit."""
        limit, dropped = self.model.config.max_seq_len, self.dropped
        ids = self._encoded(self.system, self.messages[dropped:])
        if self._fits(ids, max_tokens):
            return ids, dropped
        while len(ids) > limit // 2:
            turns = (i for i, m in enumerate(self.messages) if i > dropped and m["role"] == "user")
            if (following := next(turns, None)) is None:
                break
            dropped = following
            ids = self._encoded(self.system, self.messages[dropped:])
        if len(ids) > limit:
            raise DataError(
                "message",
                "longer than the model's context, with the template and the system prompt around it",
                got=f"{len(ids):,} tokens",
                expected=f"at most {limit:,}",
                hint="shorten it",
            )
        return ids, dropped

    def _fits(self, ids: np.ndarray, max_tokens: int) -> bool:
        """Whether the context has room for an answer behind these ids, or for a quarter of itself."""
        limit = self.model.config.max_seq_len
        return len(ids) + min(max_tokens, limit // 4) <= limit

    def _encoded(self, system: str | None, messages: Sequence[dict[str, str]], *, ask: bool = True) -> np.ndarray:
        if not messages:  # not every template takes a system prompt alone
            return np.empty(0, np.uint32)
        first = [] if system is None else [{"role": "system", "content": system}]
        return self.template.encode(self.tokenizer, [*first, *messages], add_generation_prompt=ask)


def turn_ends(template: ChatTemplate, tokenizer: Tokenizer) -> set[int]:
    """Ids that end an answer: the token that ends a document, and the special one that the template lets the assistant
    end with."""
    ends = set() if tokenizer.eot is None else {tokenizer.eot}
    try:
        found = template.encode_masked(tokenizer, _PROBE)
    except DataError:  # a template that wants other messages, or doesn't tell which tokens are the assistant's
        return ends
    said = found.ids[found.assistant].tolist()
    return ends | {i for i in said[-1:] if i in tokenizer.special.values()}


def aligned(history: Sequence[int], ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """`ids` with the ids of `history` wherever both say the same, up to the first difference.

    Both are cut at special tokens. Two pieces that stand between the same special tokens and decode to the same bytes
    are the same text; the one of `history` needs no reading.
    """
    special = set(tokenizer.special.values())
    old, new = _pieces(history, special), _pieces(ids.tolist(), special)
    taken: list[int] = []
    for i, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b and (a[0] in special or b[0] in special or not _same(taken, a, b, tokenizer)):
            return np.array([*taken, *(t for piece in new[i:] for t in piece)], np.int64)
        taken += a
    return np.array([*taken, *(t for piece in new[len(old) :] for t in piece)], np.int64)


def _pieces(ids: Sequence[int], special: set[int]) -> list[list[int]]:
    """The ids, cut before and behind every special one."""
    pieces: list[list[int]] = []
    for i in ids:
        if pieces and i not in special and pieces[-1][-1] not in special:
            pieces[-1].append(i)
        else:
            pieces.append([i])
    return pieces


def _same(before: list[int], a: list[int], b: list[int], tokenizer: Tokenizer) -> bool:
    # With what stands before them: some kinds drop the space that a text begins with.
    return tokenizer.decode_bytes([*before, *a]) == tokenizer.decode_bytes([*before, *b])


def load_conversation(path: StrPath) -> tuple[str | None, list[dict[str, str]]]:
    """System prompt and messages of a saved conversation. Raises DataError for any other file."""
    where = os.fspath(path)
    content: dict[str, Any] = read_json(path, "a conversation")
    check_header(content, (KIND,), VERSION, where=where, what="a conversation")
    types = {"type": (str,), "version": (int,), "system": (str, type(None)), "messages": (list,)}
    check_keys(content, types, where=where)
    for i, message in enumerate(content["messages"]):
        if not isinstance(message, dict):
            raise DataError(where, f"message {i} is no object", got=type(message).__name__, expected="role and content")
        check_keys(message, {"role": (str,), "content": (str,)}, where=f"{where}: message {i}")
        if message["role"] not in ("user", "assistant"):
            expected = "user or assistant"
            raise DataError(f"{where}: message {i}", "no such role", got=repr(message["role"]), expected=expected)
    return content["system"], content["messages"]
