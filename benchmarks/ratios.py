"""How a run compares with a recorded one: ratios to peers, which mean the same on a busy day, and what became worse.

A ratio is how many times faster than the peer we were, from the medians of rows measured in turns. `record` writes
those of a run as JSON, `worse` names the ones that fell short of a recorded run by more than a margin. Ratios of
another processor are no yardstick: the file says which one it was made on, and a run on another is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .options import Refused
from .report import Row

MARGIN = 0.15  # of a ratio that may be lost to chance
_TIMES = ("s", "ms", "us", "ns")


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Our speed over the peer's by "case, what, shape, dtype, peer"; rows no peer stands beside are left out."""
    found: dict[str, float] = {}
    ours = {(r.case, r.what, r.shape, r.dtype): r for r in rows if r.by == "pellucid"}
    alike = {key[:3]: r for key, r in ours.items()}  # a side that computes in another dtype than ours
    for r in rows:
        mine = ours.get((r.case, r.what, r.shape, r.dtype)) or alike.get((r.case, r.what, r.shape))
        if r.by == "pellucid" or mine is None or not mine.p50 or not r.p50 or mine.unit != r.unit:
            continue
        ratio = r.p50 / mine.p50 if r.unit in _TIMES else mine.p50 / r.p50
        found[", ".join(filter(None, (r.case, r.what, r.shape, mine.dtype, f"over {r.by}")))] = ratio
    return found


def record(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Writes a run's ratios, added to those the file has of the same machine."""
    kept = _read(path, about)["ratios"] if path.exists() else {}
    kept |= {name: round(value, 3) for name, value in ratios(rows).items()}
    content = {"machine": about["machine"], "commit": about["commit"], "ratios": dict(sorted(kept.items()))}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def worse(path: Path, rows: Sequence[Row], about: Mapping[str, Any], *, margin: float = MARGIN) -> list[str]:
    """What fell behind the recorded ratios, a line each. Raises Refused where nothing can be compared."""
    recorded, found = _read(path, about)["ratios"], ratios(rows)
    both = sorted(recorded.keys() & found.keys())
    if not both:
        raise Refused(f"{path} holds no ratio of this run; the same cases, beside the same peers, were to be recorded")
    return [
        f"{name}: {found[name]:.2f}, recorded {recorded[name]:.2f}"
        for name in both
        if found[name] < recorded[name] * (1 - margin)
    ]


def _read(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        machine, numbers = content["machine"], content["ratios"]
        usable = isinstance(numbers, dict) and all(isinstance(v, int | float) for v in numbers.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path}: not a file of recorded ratios ({error})") from error
    if not usable:
        raise Refused(f"{path}: not a file of recorded ratios")
    if machine != about["machine"]:
        raise Refused(f"{path} was recorded on another machine: {machine}; this one is {about['machine']}")
    return content
