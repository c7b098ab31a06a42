"""Runs made once and shared: a finished one and a stopped one, both of a tiny model on generated text."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.cli import main

WORDS = ("the", "wind", "and", "a", "sea", "of", "stone", "went", "over", "night")
TINY = ["--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--precision", "float32"]
SHORT = [*TINY, "--sequences", "4", "--warmup", "2", "--sample-tokens", "20"]


def text(words: int = 3000) -> str:
    """Text with some order in it, the same every time."""
    state, found = 1, []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(WORDS[state // 65536 % len(WORDS)])
    return " ".join(found) + "\n"


def lines_of(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Returns as soon as `condition` holds; fails after `seconds` s."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 16 different characters."""
    path = tmp_path_factory.mktemp("corpus") / "night.txt"
    path.write_text(text(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder trained to its end; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    options = ["--corpus", str(corpus), "--out", str(folder), *SHORT]
    assert main(["train", *options, "--steps", "20", "--eval-every", "10", "--save-every", "10"]) == 0
    return folder


@pytest.fixture(scope="session")
def stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder stopped by Ctrl-C on its way to step 300; to be copied before use."""
    folder = tmp_path_factory.mktemp("stopped") / "run"

    def interrupt() -> None:
        wait_for(lambda: lines_of(folder / "metrics.jsonl") >= 5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    options = ["--corpus", str(corpus), "--out", str(folder), *SHORT]
    status = main(["train", *options, "--steps", "300", "--eval-every", "100", "--save-every", "100"])
    thread.join()
    assert status == 130
    return folder


Refused = Callable[..., str]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line that has to be refused: status 2, nothing on stdout; returns the last line on stderr."""

    def run(*arguments: object, notes: int = 0) -> str:
        capfd.readouterr()
        status = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        assert status == 2, err
        assert out == ""
        lines = err.splitlines()
        assert len(lines) == 1 + notes, err
        return lines[-1]

    return run
