"""The loss curve: what is drawn from which metrics, and that a picture is replaced whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.train import report


def metrics(path: Path, steps: int) -> Path:
    lines = [{"step": s, "loss": 4 / s} for s in range(1, steps + 1)]
    lines += [{"step": s, "held_out_loss": 4 / s, "n_targets": 9} for s in range(10, steps + 1, 10)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("steps", [1, 2, 10, 5000])
def test_a_curve_is_drawn(steps: int, tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    picture.write_text("old")
    assert report.write_loss_curve(metrics(tmp_path / "metrics.jsonl", steps), picture, title="a $run_1$")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert not report.write_loss_curve(metrics(tmp_path / "metrics.jsonl", 0), tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl: can't read the metrics; got No such file"):
        report.write_loss_curve(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    metrics(tmp_path / "metrics.jsonl", 3)
    with pytest.raises(DataError) as error:
        report.write_loss_curve(tmp_path / "metrics.jsonl", tmp_path / "missing" / "loss.png")
    assert str(error.value) == f"{tmp_path / 'missing' / 'loss.png'}: cannot be written: no such file or directory"


def test_long_runs_are_averaged_over_equal_spans() -> None:
    points = [(s, float(s)) for s in range(1, 4001)]
    thin = report._thin(points)
    assert len(thin) == 2000
    assert thin[0] == (1.5, 1.5)
    assert thin[-1] == (3999.5, 3999.5)
    assert report._thin(points[:5]) == points[:5]


def test_the_smooth_curve_is_a_running_mean() -> None:
    flat = report._smooth([(s, 2.0) for s in range(100)])
    assert [loss for _, loss in flat] == pytest.approx([2.0] * 100)
    first = report._smooth([(1, 4.0), (2, 0.0)])
    assert first[0] == (1, 4.0)
    assert report._smooth([(s, float(s >= 300)) for s in range(600)])[-1][1] > 0.99


def test_the_smooth_curve_follows_the_first_steps() -> None:
    falling = [(float(s), 5 / (1 + s / 30)) for s in range(1000)]
    smooth = report._smooth(falling)
    assert max(abs(a - b) for (_, a), (_, b) in zip(smooth, falling, strict=True)) < 0.25
