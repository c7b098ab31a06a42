"""`pellucid demo` with its sizes cut down, and how it chooses text and steps."""

from __future__ import annotations

import sysconfig
from itertools import islice
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.cli import demo, main
from pellucid.cli.runs import open_run
from pellucid.train import Stepped, TrainConfig


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_A_MINUTE", 20_000)
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
    first = list(islice(demo.sources(home, 10**6), 5))
    assert first == list(islice(demo.sources(home, 10**6), 5))
    assert any("import " in text for text in first)
    assert len(list(demo.sources(home, 1))) == 1
    for name in ("a.py", "test/b.py", "c.txt", "pkg/d.py", "pkg/tests/e.py", "empty.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("" if name == "empty.py" else name)
    (tmp_path / "table.py").write_text(f"x = {'1' * 500}")
    assert sorted(demo.sources(tmp_path, 10**6)) == ["a.py\n", "pkg / d.py\n"]
    with pytest.raises(DataError, match="no code of the standard library here"):
        list(demo.sources(tmp_path / "pkg" / "tests" / "nothing", 10**6))


def test_code_without_prose() -> None:
    source = b'''"""What it is."""
# A remark.
class A:
    """Prose."""
    async def f(self, x = "a"):  # more
        """Prose."""
        if x:
            return "    b"
'''
    assert demo.code_of(source) == ("class A:\n\n\tasync def f(self, x='a'):\n\t\tif x:\n\t\t\treturn '    b'\n")
    assert demo.code_of(b'def f(): "prose"') == "def f():\n\tpass\n"
    assert demo.code_of(b'"""prose"""') == demo.code_of(b"print 'old'") == demo.code_of(b"\0") == ""


def test_the_plan_follows_the_speed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(demo.time, "perf_counter", lambda: now)
    pace, steps, planned = demo.Pace(100.0), 0, 100
    for seconds in [1.0] * 30 + [4.0] * 1000:
        now += seconds
        steps += 1
        event = Stepped(steps, planned, 1.0, 1.0, 1e-3, 1, seconds, 1.0, None, 1.0)
        planned = pace(event) or planned
        if steps >= planned:
            break
    # 30 s for 30 steps, then a step every 4 s.
    assert now == pytest.approx(100, abs=8)
    assert steps == planned == pytest.approx(30 + 70 / 4, abs=2)
    assert "slower than planned: " in capfd.readouterr().err


@pytest.mark.parametrize("steps", [1, 2, 40, 1000])
def test_the_schedule_fits_the_steps(steps: int) -> None:
    found = demo.adapted(TrainConfig(), steps)
    assert found.steps == steps
    assert 1 <= found.warmup <= max(1, steps // 10)
