"""The run's record: one JSON object a line in metrics.jsonl, written as it happens, cut back on resume.

A line is either a step (`loss`, `norm`, ...; with mixtures of experts `balance_loss`, `z_loss` and the `load` of each
router's experts) or an evaluation (`held_out_loss`, and with it what the objective says, `held_out_margin`). A run
resumed from a checkpoint of n steps drops every line past n first, so the file reads as that of an uninterrupted run.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.errors import DataError
from ..base.files import reason
from ..models import RoutingReport


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line that was cut short by a kill is left out."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise DataError(str(path), "can't read the metrics", got=error.strerror) from None
    found: list[dict[str, Any]] = []
    lines = text.split(b"\n")
    for i, line in enumerate(lines[:-1], 1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("step"), int):
            raise DataError(str(path), f"line {i} is not a record of a run", got=repr(line[:60]))
        found.append(value)
    return found


def routing_record(report: RoutingReport | None) -> dict[str, Any]:
    """What a step's line says of its routers; nothing without any. load: from the number of a layer to the shares its
    experts got, four digits of each."""
    if report is None:
        return {}
    load = {str(i): [round(f, 4) for f in shares] for i, shares in zip(report.layers, report.load, strict=True)}
    return {"balance_loss": report.balance_loss, "z_loss": report.z_loss, "load": load}


class Metrics:
    """Appends to a metrics file."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        """Opens the file, keeping only lines up to `after_step` steps."""
        kept = [m for m in read_metrics(path) if m["step"] <= after_step] if path.exists() else []
        temporary = path.with_name(path.name + ".tmp")
        try:
            with temporary.open("w", encoding="utf-8") as f:
                f.writelines(json.dumps(m) + "\n" for m in kept)
            os.replace(temporary, path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise DataError(str(path), "can't write the metrics", got=reason(error)) from error

    def write(self, record: dict[str, Any]) -> None:
        """Adds a line at once. Raises DataError where the file can't take it."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise DataError(self._file.name, "can't write the metrics", got=error.strerror) from None

    def close(self) -> None:
        with suppress(OSError):  # a full disk refuses the rest of a line once more, and `write` has said so
            self._file.close()
