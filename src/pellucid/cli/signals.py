"""Ctrl-C and SIGTERM: the first one asks the training loop to save and end, the second one ends the program.

The second one ends it without unwinding: an exception out of nowhere could fall into the middle of anything, and there
is nothing to tidy, since every file is written whole or not at all and locks end with the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType

_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Interrupted(KeyboardInterrupt):
    """The end by a signal; `status` is the exit status that says so."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Stopper:
    """While entered, turns the first signal into a call of `stop`, where one is set, else into Interrupted."""

    def __init__(self) -> None:
        self.stop: Callable[[], None] | None = None
        self.status = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stopper:
        self._before = {number: signal.signal(number, self._received) for number in _STATUS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        second = self.status != 0
        self.status = _STATUS[signal.Signals(number)]
        if self.stop is None:
            raise Interrupted("interrupted" if number == signal.SIGINT else "terminated", self.status)
        if second:
            _tell(b"ended at once; the newest checkpoint is whole")
            os._exit(self.status)
        self.stop()
        _tell(b"stopping: finishing this step and saving (once more to end at once)")


def _tell(line: bytes) -> None:
    """A line on stderr. Not through sys.stderr: the signal may have come in the middle of a write to it."""
    shown = b"\x1b[?25h" if os.isatty(2) else b""  # a live line hides the cursor
    with suppress(OSError):
        os.write(2, shown + b"\n" + line + b"\n")
