"""What commands write: results on stdout, as text or as one line of JSON, and notes on stderr."""

from __future__ import annotations

import json
import sys
from math import isfinite
from typing import Any


class Output:
    """The results of one command. With `as_json` the text stays unsaid, and `result` prints one line of JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def text(self, text: str = "", *, end: str = "\n") -> None:
        """A result for people."""
        if not self.as_json:
            print(text, end=end, flush=not end)

    def facts(self, facts: dict[str, object]) -> None:
        """Names and values in two columns; a value of None is left out."""
        kept = {name: value for name, value in facts.items() if value is not None}
        width = max(map(len, kept), default=0)
        for name, value in kept.items():
            self.text(f"{name:<{width}}  {value}")

    def table(self, rows: list[dict[str, str]]) -> None:
        """Rows under the names of their values, in columns; the first one to the left, the others to the right."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [names, *([row.get(name, "") for name in names] for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        for first, *others in lines:
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))]
            self.text("  ".join(cells).rstrip())

    def result(self, values: dict[str, Any]) -> None:
        """The same result for programs."""
        if self.as_json:
            print(json.dumps(_finite(values), ensure_ascii=False, allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    """The value with None in place of every number that JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def size(nbytes: int) -> str:
    """Bytes for people, in powers of 1000."""
    amount, unit = float(nbytes), "bytes"
    for bigger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, bigger
    return f"{nbytes:,} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people: 0.8 s, 47 s, 3:05, 2:03:09."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
