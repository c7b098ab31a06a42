"""kill -9 during a save, at every change to the file system and at random moments: old or new, and always whole."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pellucid.checkpoint import load_checkpoint, save_checkpoint

SCRIPT = [sys.executable, "-m", "tests.checkpoint.crash"]


def value_of(folder: Path) -> int:
    """The value a complete checkpoint was saved with; it is in every file of it."""
    found = load_checkpoint(folder)
    value = found.state["step"]
    assert found.config == {"value": value}
    assert found.optimizer is not None
    for file in (found.tensors, found.optimizer):
        assert len(file) == 3
        assert all(np.all(x == value) for x in file.values())
    return value


def test_killed_at_every_change(tmp_path: Path, repository: Path) -> None:
    """One death after another in the same folder: each save also meets what the one before has left."""
    folder = tmp_path / "c"
    outcomes = []
    with subprocess.Popen(
        [*SCRIPT, str(folder), "step"], cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            status, before = map(int, line.split())
            after = value_of(folder)
            assert after in (before, before + 1)
            outcomes.append((status, after - before))
            process.stdin.write("new\n" if after > before else "old\n")
            process.stdin.flush()
    assert process.returncode == 0
    deaths, last = outcomes[:-1], outcomes[-1]
    assert last == (0, 1)
    assert {status for status, _ in deaths} == {9}
    assert [new for _, new in deaths] == sorted(new for _, new in deaths)  # old up to one moment, new from there on
    assert len(deaths) > 10
    assert deaths[-1] == (9, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_killed_at_random_moments(tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "c"
    rng = np.random.default_rng(5)
    for _ in range(4):
        with subprocess.Popen(
            [*SCRIPT, str(folder), "loop"], cwd=repository, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.2))
            process.kill()
        assert value_of(folder) >= 1
    save_checkpoint(folder, tensors={}, config={}, state={})
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
