"""The progress of long work on stderr: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..data import Encoded
from ..train import EndedEarly, Evaluated, Event, Sampled, Saved, Stepped
from .output import duration, size

_LIVE = 0.1  # s between two drawings of the live line
_PLAIN = 5.0  # s between two plain lines


class Line:
    """The line itself; enter it for the time of the work."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._shown = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text))

    def show(self, text: str) -> None:
        """What the line says now."""
        if self._live is None:
            self.note(text)
        else:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def due(self) -> bool:
        """Whether it is time to say something again."""
        now = time.monotonic()
        if now - self._shown < (_PLAIN if self._live is None else _LIVE):
            return False
        self._shown = now
        return True


class Encoding(Line):
    """Shows how far a corpus has been encoded; its first plain line comes after a while, for most are done by then."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = time.monotonic()
        self.last: Encoded | None = None

    def __call__(self, done: Encoded) -> None:
        self.last = done
        if not self.due():
            return
        parts = [f"encoding: {done.documents:,} documents", f"{done.tokens:,} tokens"]
        if done.bytes_read is not None and done.bytes_total:
            parts.append(f"{done.bytes_read / done.bytes_total:.0%} of {size(done.bytes_total)}")
            parts.append(f"{size(round(done.bytes_read / max(done.seconds, 1e-9)))}/s")
        if done.seconds_left is not None:
            parts.append(f"{duration(done.seconds_left)} left")
        self.show("  ".join(parts))


class Progress(Line):
    """Shows the events of a training run. The first step says how long it took, and makes no promise: it waits for
    kernels that this machine hasn't compiled yet."""

    def __init__(self) -> None:
        super().__init__()
        self._first, self._saved = True, -1

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._step(event)
        elif isinstance(event, Evaluated):
            extent = "all held-out text" if event.whole else f"{event.n_targets:,} held-out tokens"
            loss = f"held-out loss {event.loss:.4f}"
            # A loss that is compared in other measures than perplexity is not one of tokens.
            loss += _measures(event.measures) or f" nats/token, perplexity {event.perplexity:.2f}"
            mean = f", {event.average_loss:.4f} with averaged weights" if event.average_loss is not None else ""
            self.note(f"step {event.step:,}: {loss}{mean} ({extent})")
        elif isinstance(event, EndedEarly):
            best = f"{event.best_loss:.4f} nats/token after step {event.best_step:,}"
            self.note(f"step {event.step:,}: the held-out loss no longer falls (best: {best}); ending")
        elif isinstance(event, Sampled):
            self.note(f"step {event.step:,}, a sample:\n{_indented(event.text)}")
        elif isinstance(event, Saved) and event.step and self._live is None and event.step != self._saved:
            self._saved = event.step  # the last one is saved again when its held-out loss is known
            self.note(f"step {event.step:,}: saved {event.path}")

    def _step(self, event: Stepped) -> None:
        if not self.due() and event.step != event.steps:
            return
        parts = [f"step {event.step:,}/{event.steps:,}", f"loss {event.loss:.4f}{_measures(event.measures)}"]
        if self._first:
            parts.append(f"{duration(event.seconds)}, kernels included")
        else:
            parts.append(f"{event.tokens_per_second:,.0f} tokens/s")
            if event.share_of_peak is not None:
                parts.append(f"{event.share_of_peak:.0%} of peak")
            parts.append(f"{duration(event.seconds_left)} left")
        self._first = False
        self.show("  ".join(parts))


def _measures(found: Mapping[str, float]) -> str:
    return "".join(f", {name} {value:.4f}" for name, value in found.items())


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
