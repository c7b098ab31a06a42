"""The loss curve of a run as a picture: what metrics.jsonl says, drawn with matplotlib.

Not imported by the package itself: matplotlib takes longer to load than a small model takes to train a few steps.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..base.files import StrPath, replacing
from .metrics import read_metrics

_POINTS = 2000  # drawn at most; a longer run is averaged over equal spans of steps


def write_loss_curve(metrics: StrPath, picture: StrPath, *, title: str = "") -> bool:
    """Draws training and held-out loss (nats/token) over the steps as a PNG, replaced atomically.

    Returns False, and draws nothing, where the metrics hold no step yet. Raises DataError for metrics that can't be
    read or a picture that can't be written.
    """
    records = read_metrics(Path(metrics))
    steps = [(r["step"], r["loss"]) for r in records if "loss" in r]
    held_out = [(r["step"], r["held_out_loss"]) for r in records if "held_out_loss" in r]
    if not steps:
        return False
    figure = _draw(_thin(steps), held_out, title)
    raw = io.BytesIO()
    FigureCanvasAgg(figure).print_png(raw)
    with replacing(picture) as write:
        write(raw.getvalue())
    return True


def _draw(steps: list[tuple[float, float]], held_out: list[tuple[int, float]], title: str) -> Figure:
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes: Any = figure.add_subplot()
    axes.plot(*zip(*steps, strict=True), color="#9db4d6", linewidth=0.8, label="training, every step")
    smooth = _smooth(steps)
    label = f"training, smoothed, last {smooth[-1][1]:.3f}"
    axes.plot(*zip(*smooth, strict=True), color="#1f4e9c", linewidth=1.6, label=label)
    if held_out:
        label = f"held out, last {held_out[-1][1]:.3f}"
        axes.plot(*zip(*held_out, strict=True), color="#c8511b", linewidth=1.6, marker="o", markersize=4, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats/token)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    if title:
        axes.set_title(title, loc="left", parse_math=False)
    return figure


def _thin(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most _POINTS points: means over spans of equal length."""
    span = -(-len(points) // _POINTS)
    groups = [points[i : i + span] for i in range(0, len(points), span)]
    return [(sum(s for s, _ in g) / len(g), sum(x for _, x in g) / len(g)) for g in groups]


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The running mean over the last thirtieth of the points, or a fifth of those so far, which the fall of the first
    steps would else be smeared over; weights fall by e over that many."""
    longest = max(1.0, len(points) / 30)
    mean, found = points[0][1], []
    for i, (step, loss) in enumerate(points, 1):
        mean += (loss - mean) / min(longest, max(1.0, i / 5))
        found.append((step, mean))
    return found
