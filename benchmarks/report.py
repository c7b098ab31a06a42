"""What a benchmark leaves behind: rows of numbers with where they come from, as a table and as JSON.

A row is a median with the quantiles around it, because the machine is never quiet; two rows are comparable where they
were measured interleaved, in one run. A number without commit, machine, threads and load is worth nothing, so the
report carries them once for all its rows.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One measurement: what of which case, by whom, at which shape and dtype; quantiles of `count` values in `unit`.

    more: further numbers that follow from it (GFLOP/s, ratio, share of a measured ceiling).
    """

    case: str
    what: str
    by: str
    shape: str
    dtype: str
    unit: str
    p20: float
    p50: float
    p80: float
    count: int
    more: dict[str, Any] = field(default_factory=dict)


def row(
    case: str, what: str, by: str, values: Sequence[float], *, unit: str, shape: str = "", dtype: str = "", **more: Any
) -> Row:
    """A row from measured values, in the unit given."""
    p20, p50, p80 = (float(q) for q in np.quantile(values, (0.2, 0.5, 0.8)))
    return Row(case, what, by, shape, dtype, unit, p20, p50, p80, len(values), more)


def interleaved(
    sides: Mapping[str, Callable[[], Any]], *, rounds: int, inner: int = 1, pause: float = 0.0, warm: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of one call of each side, measured in turns; each turn is calls to warm up, then `inner` timed ones.

    pause: seconds before each turn, so that threads of the other side that still look for work have gone to sleep.
    warm: seconds of calls to warm up, one at least: threads that slept take milliseconds to be at full speed.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            run = sides[name]
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            run()
            while time.perf_counter() - start < warm:
                run()
            start = time.perf_counter()
            for _ in range(inner):
                run()
            times[name].append((time.perf_counter() - start) / inner)
    return times


def environment(threads: int) -> dict[str, Any]:
    """Where the numbers come from; `load` is the average number of runnable threads before the run."""
    return {
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    try:
        return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if git("status", "--short") else "")
    except OSError:
        return "unknown"


def _processor() -> str:
    """The processor's name, and its family and model, since a name may stand for several generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    return f"{name} {found['cpu family']}/{found['model']}" if {"cpu family", "model"} <= found.keys() else name


def table(rows: Sequence[Row]) -> str:
    """The rows for a reader, one line each under one head."""
    head = ("case", "what", "by", "shape", "dtype", "p20", "p50", "p80", "unit", "")
    body: list[tuple[str, ...]] = [head]
    for r in rows:
        more = "  ".join(f"{k} {_short(v)}" for k, v in r.more.items())
        numbers = (_short(r.p20), _short(r.p50), _short(r.p80))
        body.append((r.case, r.what, r.by, r.shape, r.dtype, *numbers, r.unit, more))
    widths = [max(len(line[i]) for line in body) for i in range(len(head))]
    right = {5, 6, 7}
    return "\n".join(
        "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        .rstrip()
        for line in body
    )  # fmt: skip


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for a program; six significant digits."""
    return [{k: _rounded(v) for k, v in asdict(r).items()} for r in rows]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"
