"""The chat itself: message, command, answer, until the messages end.

In a terminal a mistake is one line and the chat goes on, and Ctrl-C ends the answer alone: it is looked at between two
tokens, so that nothing is left half done, and only a second one, should a token never come, ends the program. Through a
pipe a mistake ends the program, as with any other command.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ..base.errors import DataError, PellucidError
from ..generate import Conversation, Sampler
from .chat_input import Messages, terminal
from .output import Output, note

COMMANDS = {
    "/help": "this list",
    "/system TEXT": "another system prompt; without TEXT none",
    "/retry": "another answer to the last message",
    "/reset": "a new conversation, with the same system prompt",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with a saved conversation",
    "/exit": "end the chat, as Ctrl-D does",
}
_HELP = "\n".join(
    [
        *(f"{name:<14} {what}" for name, what in COMMANDS.items()),
        'A \\ at the end of a line goes on in the next one; """ before and after several lines make them one message.',
        "A message that begins with / is written with //. Ctrl-C ends an answer.",
    ]
)
_REASONS = {
    "tokens": "cut after {tokens:,} tokens (--tokens)",
    "context": "cut: the context of {context:,} tokens is full",
    "stopped": "stopped",
}
# What would steer the terminal instead of being read.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Session:
    """A conversation at work. tokens: of an answer at most."""

    def __init__(self, talk: Conversation, sampler: Sampler, out: Output, *, tokens: int) -> None:
        self._talk, self._sampler, self._out, self._tokens = talk, sampler, out, tokens
        self._person = terminal()
        self._answers = 0

    def run(self, messages: Messages) -> int:
        """Answers messages until there are no more; returns the exit status."""
        while True:
            try:
                message = messages.next()
                if message.strip() and self._taken(message):
                    break
            except EOFError:
                if self._person:
                    note("")
                break
            except KeyboardInterrupt:
                if not self._person:
                    raise
                note("\n(Ctrl-D or /exit ends the chat)")
            except PellucidError as error:
                if not self._person:
                    raise
                note(" ".join(str(error).split()))
        self._out.result(
            {
                "answers": self._answers,
                "system": self._talk.system,
                "messages": self._talk.messages,
                "dropped": self._talk.dropped,
                "seed": self._sampler.generator.seed,
            }
        )
        return 0

    def _taken(self, message: str) -> bool:
        """Answers a message or obeys a command; True ends the chat."""
        if message.startswith("//"):
            message = message[1:]
        elif message.startswith("/") and "\n" not in message:
            return self._obey(message.strip())
        self._answer(lambda: self._talk.say(message, self._sampler, max_tokens=self._tokens))
        return False

    def _obey(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        talk = self._talk
        if name in ("/save", "/load") and not rest:
            raise DataError(name, "no file named", expected=f"{name} FILE")
        if name in ("/help", "/retry", "/reset", "/exit") and rest:
            raise DataError(name, "takes nothing", got=repr(rest))
        match name:
            case "/exit":
                return True
            case "/help":
                note(_HELP)
            case "/system":
                talk.system = rest or None
                note("(no system prompt)" if talk.system is None else "(system prompt set)")
            case "/retry":
                self._answer(lambda: talk.again(self._sampler, max_tokens=self._tokens))
            case "/reset":
                talk.reset()
                note("(a new conversation)")
            case "/save":
                talk.save(rest)
                note(f"({len(talk.messages)} messages written to {rest})")
            case "/load":
                talk.load(rest)
                note(f"({len(talk.messages)} messages read from {rest})")
            case _:
                known = ", ".join(c.split()[0] for c in COMMANDS)
                hint = "a message that begins with / is written with //"
                raise DataError(name, "no such command", expected=known, hint=hint)
        return False

    def _answer(self, ask: Callable[[], Iterator[str]]) -> None:
        """Shows an answer as it comes, and says what is unusual about it."""
        talk, before, start = self._talk, self._talk.dropped, time.perf_counter()
        with _stoppable(self._person) as stopped:
            pieces = ask()
            if talk.dropped > before:
                context = talk.model.config.max_seq_len
                note(f"({talk.dropped} oldest messages left out: the context holds {context:,} tokens)")
            for piece in pieces:
                self._show(piece)
                if stopped():
                    break
            pieces.close()  # type: ignore[attr-defined]
        turn, seconds = talk.turn, time.perf_counter() - start
        assert turn is not None
        self._out.text()
        if (reason := _REASONS.get(turn.ended)) is not None:
            note(f"({reason.format(tokens=turn.tokens, context=talk.model.config.max_seq_len)})")
        self._answers += 1
        if self._out.as_json:
            said = {"answer": turn.text, "tokens": turn.tokens, "ended": turn.ended, "prompt": turn.prompt}
            print(json.dumps({**said, "kept": turn.kept, "seconds": seconds}, ensure_ascii=False), flush=True)

    def _show(self, piece: str) -> None:
        if sys.stdout is not None and sys.stdout.isatty():
            piece = _CONTROL.sub("�", piece)
        self._out.text(piece, end="")


@contextmanager
def _stoppable(person: bool) -> Iterator[Callable[[], bool]]:
    """While entered, the first Ctrl-C is remembered instead of raised, where a person is there to press it."""
    if not person:
        yield lambda: False
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
