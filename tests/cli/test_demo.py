"""`pellucid demo` with its sizes cut down, and how it chooses text and steps."""

from __future__ import annotations

import sysconfig
from itertools import islice
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.cli import demo, main
from pellucid.cli.runs import open_run
from pellucid.train import TrainConfig


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_MOST", 60_000)
    monkeypatch.setattr(demo, "_TRIAL", (2, 0.0))
    monkeypatch.setattr(demo, "_STEPS", (2, 2))
    monkeypatch.setattr(demo, "SAMPLE_TOKENS", 20)
    assert main(["demo"]) == 0
    out, err = capfd.readouterr()
    assert "s a step: 2 steps fit into the 3:30 this demo takes" in err
    assert "held-out loss  " in out
    assert 'pellucid generate runs/demo "class Tensor:" --tokens 500' in out
    assert (tmp_path / "runs" / "demo" / "loss.png").exists()
    run = open_run(tmp_path / "runs" / "demo")
    assert run.config.train.steps == 2
    assert 2_000_000 < run.config.model.parameter_counts().total < 10_000_000


def test_the_selection_of_sources(tmp_path: Path) -> None:
    home = Path(sysconfig.get_paths()["stdlib"])
    first = list(islice(demo.sources(home), 5))
    assert first == list(islice(demo.sources(home), 5))
    assert any("import " in text for text in first)
    for name in ("a.py", "test/b.py", "c.txt", "pkg/d.py", "pkg/tests/e.py", "empty.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("" if name == "empty.py" else name)
    assert sorted(demo.sources(tmp_path)) == ["a.py", "pkg/d.py"]
    with pytest.raises(DataError, match="no source of the standard library here"):
        list(demo.sources(tmp_path / "pkg" / "tests" / "nothing"))


@pytest.mark.parametrize("steps", [1, 2, 40, 1000])
def test_the_schedule_fits_the_steps(steps: int) -> None:
    found = demo.adapted(TrainConfig(), steps)
    assert found.steps == steps
    assert 1 <= found.warmup <= max(1, steps // 10)
