"""Transcript: a conversation as plain lines, for models that were trained on text and never on a chat.

    You are kind.

    User: where does the wind go?
    Assistant: over the stone

No token says that a turn is over; the name of the next speaker does. So no message may hold a line that begins with
one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base.errors import DataError
from .chat import Builder, ChatTemplate, Message, Put, Spans, written


class Transcript(ChatTemplate):
    """`User: content` and `Assistant: content`, a line for each message, after the text of at most one system message;
    white space around a content is dropped. The assistant's turn is over where it writes a speaker's name (`stops`)."""

    names = {"user": "User", "assistant": "Assistant"}  # noqa: RUF012 - never changed
    stops = ("\nUser:", "\nAssistant:")

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, put: Put, *, spans: bool
    ) -> tuple[str, Spans]:
        built = Builder()
        for i, message in enumerate(written(messages)):
            role, content = message["role"], message["content"].strip()
            if found := re.search(r"^(User|Assistant):", content, re.MULTILINE):
                what = "a line begins like a turn of the template"
                raise DataError(f"Transcript: message {i}", what, got=repr(found[0]))
            if role == "system" and i == 0:
                built.add(f"{content}\n\n")
                continue
            if role not in self.names:
                expected = "user or assistant, after at most one system"
                raise DataError(f"Transcript: message {i}", "no such role", got=repr(role), expected=expected)
            built.add(f"{self.names[role]}:")
            built.add(f" {content}\n", assistant=role == "assistant")
        return built.done("Assistant:" if add_generation_prompt else "")
