"""What is switched on for this thread: recording for gradients, and the active trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trace import Trace


class _State(threading.local):
    recording: bool = True
    trace: Trace | None = None


state = _State()
# State of a thread is slow to reach. Of all threads, so that it is asked only while some thread's is not as usual:
traces: list[Trace] = []  # that are active
pauses: list[None] = []  # one for each time that recording was switched off and is not on again


@contextmanager
def no_grad() -> Iterator[None]:
    """Operations inside are not recorded: results do not require gradients and keep nothing for backward."""
    before = state.recording
    try:  # from here on: a signal's handler may raise behind any call
        state.recording = False
        pauses.append(None)
        yield
    finally:
        state.recording = before
        pauses.pop()


@contextmanager
def enable_grad() -> Iterator[None]:
    """Operations inside are recorded, even within `no_grad`."""
    before, state.recording = state.recording, True
    try:
        yield
    finally:
        state.recording = before
