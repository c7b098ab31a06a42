"""Messages as a person types them, pastes them or pipes them: one line, or several that are marked as one.

In a terminal, readline edits the line and takes pasted text as a whole (bracketed paste). Where it is missing, lines
that arrive together are one message.
"""

from __future__ import annotations

import importlib
import select
import sys
from collections.abc import Callable
from contextlib import suppress

from ..base.errors import DataError

PROMPT, MORE = "> ", ". "
QUOTES = '"""'
_TOGETHER = 0.02  # s between lines that were pasted


def terminal() -> bool:
    """Whether a person is at the other end of stdin."""
    return sys.stdin is not None and sys.stdin.isatty()


class Messages:
    """Reads messages from stdin: `next()` returns one, without the line break at its end. Raises EOFError at the end,
    and DataError for bytes that are no UTF-8 and for quotes that nothing closes.

    read: returns a line without its line break, after a prompt; None reads stdin.
    """

    def __init__(self, read: Callable[[str], str] | None = None) -> None:
        self._read = read or (_from_terminal() if terminal() else _from_pipe)

    def next(self) -> str:
        line = self._read(PROMPT)
        if line.lstrip().startswith(QUOTES):
            return self._quoted(line.lstrip()[len(QUOTES) :])
        parts = [line]
        while parts[-1].endswith("\\"):
            parts[-1] = parts[-1][:-1]
            try:
                parts.append(self._read(MORE))
            except EOFError:
                break
        return "\n".join(parts)

    def _quoted(self, line: str) -> str:
        """Everything up to the quotes at the end of a line."""
        parts = [line]
        while not parts[-1].rstrip().endswith(QUOTES):
            try:
                parts.append(self._read(MORE))
            except EOFError:
                raise DataError("message", f"nothing closes the {QUOTES} it begins with") from None
        parts[-1] = parts[-1].rstrip()[: -len(QUOTES)]
        return "\n".join(parts).strip("\n")


def _from_pipe(prompt: str) -> str:
    """A line of stdin; the prompt is nobody's to see."""
    if sys.stdin is None:
        raise EOFError
    raw = sys.stdin.buffer.readline()
    if not raw:
        raise EOFError
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError("stdin", f"not UTF-8 text: bad byte at offset {error.start} of a line") from None


def _from_terminal() -> Callable[[str], str]:
    """Reads a line at a prompt."""
    edits = False
    if sys.stdout.isatty():  # else input() does not edit
        with suppress(ImportError):
            readline = importlib.import_module("readline")
            readline.parse_and_bind("set enable-bracketed-paste on")
            edits = True

    def read(prompt: str) -> str:
        if not sys.stdout.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        line = input(prompt)
        while not edits and select.select([sys.stdin], [], [], _TOGETHER)[0]:
            try:
                line += "\n" + input()
            except EOFError:
                break
        return line

    return read
