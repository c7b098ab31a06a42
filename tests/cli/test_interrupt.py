"""Runs that end early, in processes of their own: Ctrl-C, SIGTERM, kill -9, and two on one folder.

However a run ended, resuming it gives the files of the run that was never stopped, bit for bit. PELLUCID_KILLS sets
how many runs are killed (2 by default).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.train import read_metrics

from .conftest import SHORT, lines_of, wait_for

STEPS = 60
KILLS = int(os.environ.get("PELLUCID_KILLS", "2"))


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pellucid", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def options(corpus: Path, run: Path) -> list[object]:
    # Dropout, so that its generator has to be restored too; saves at other steps than evaluations.
    often = ["--steps", STEPS, "--save-every", 7, "--eval-every", 25, "--dropout", "0.1"]
    return ["--corpus", corpus, "--out", run, *SHORT, *often]


def end_after(process: subprocess.Popen[str], run: Path, steps: int, number: int) -> tuple[int, str, str]:
    """Sends a signal once `steps` steps stand in the metrics."""
    wait_for(lambda: lines_of(run / "metrics.jsonl") >= steps or process.poll() is not None)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def losses(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(run / "metrics.jsonl")]


def same(run: Path, uninterrupted: Path) -> None:
    step = f"checkpoints/step-{STEPS:08d}"
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert (run / step / name).read_bytes() == (uninterrupted / step / name).read_bytes(), name
    assert losses(run) == losses(uninterrupted)


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    process = start(*options(corpus, run))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return run


def resume(run: Path) -> dict[str, Any]:
    process = start("--resume", run, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize("attempt", range(KILLS))
def test_kill(attempt: int, corpus: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run, at = tmp_path / "run", random.Random(attempt).randrange(1, STEPS - 5)
    status, _, err = end_after(start(*options(corpus, run)), run, at, signal.SIGKILL)
    assert status == -signal.SIGKILL, err
    assert resume(run)["steps"] == STEPS
    same(run, uninterrupted)


def test_ctrl_c(corpus: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = start(*options(corpus, run))
    wait_for(lambda: (run / "config.json").exists())
    status, out, err = end_after(first, run, 3, signal.SIGINT)
    assert status == 130, err
    assert f"resume      pellucid train --resume {run}\n" in out
    assert err.splitlines()[-1].startswith("stopped after step ")
    assert "Traceback" not in err
    resume(run)
    same(run, uninterrupted)


def test_sigterm(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, _, err = end_after(start(*options(corpus, run), "--json"), run, 3, signal.SIGTERM)
    assert status == 143, err


def test_a_second_process_and_a_second_ctrl_c(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # One step takes seconds here, so that it can't be over before the second signal.
    slow = ["--sequences", "20000", "--steps", "3", "--width", "64"]
    process = start("--corpus", corpus, "--out", run, *SHORT, *slow)
    wait_for(lambda: (run / "checkpoints" / "step-00000000").exists())
    other = start("--resume", run)
    message = f"pellucid train: {run}: output folder in use by another run; got process {process.pid} on "
    out, err = other.communicate(timeout=60)
    assert (other.returncode, out, err.startswith(message), err.count("\n")) == (2, "", True, 1)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("stopping: "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "ended at once; the newest checkpoint is whole"


def test_a_signal_before_the_training_leaves_nothing(tmp_path: Path) -> None:
    fifo, run = tmp_path / "pipe.txt", tmp_path / "run"
    fifo.write_text("x" * 50_000_000)
    process = start("--corpus", fifo, "--out", run, *SHORT)
    assert process.stderr is not None
    assert process.stderr.readline() == f"reading {fifo}\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (out, err) == ("", "pellucid train: interrupted\n")
    assert not run.exists()
