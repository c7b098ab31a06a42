"""Compiled kernels on disk: hits in later processes, invalidation by source and constants, damage, no permission."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import json, sys, time
import numpy as np
from pellucid.base import dtypes
from pellucid.device import cpu
from pellucid.kernels.cpu import cache
import sample
y = cpu.empty((100,), dtypes.float32)
sample.fill(100, 10, cpu.upload(np.arange(100, dtype=np.float32), dtypes.float32), y)
sample.scratch(100, 10, y)
state = cache.cache_state()
print(json.dumps([state.hits, state.misses, state.problem, cpu.download(y)[:3].tolist()]))
"""

_SAMPLE = """
import numba
import numpy as np
from pellucid.kernels.cpu.launch import kernel
from pellucid.kernels.cpu.formats import load, store
from helper import plus
SCALE = 2
@kernel
def fill(lo, hi, x, y):
    for i in range(lo, hi):
        store(y, i, plus(load(x, i) * SCALE))
@kernel
def scratch(lo, hi, y):
    for row in range(lo, hi):
        b = np.zeros(3)
        y[row] += b[0]
"""

_HELPER = """
import numba
@numba.njit
def plus(v):
    return v + 1
"""


class Folder:
    """A folder with the program, and a cache beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.cache = path, path / "cache"
        self.write("sample.py", _SAMPLE)
        self.write("helper.py", _HELPER)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-B", "-W", "error", "-c", _PROGRAM],
            cwd=self.path,
            env=os.environ | {"PELLUCID_CACHE": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self) -> list[object]:
        return _result(self.start())


def _result(process: subprocess.Popen[str]) -> list[object]:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_second_process_compiles_nothing(folder: Folder) -> None:
    assert folder.run() == [0, 2, None, [1, 3, 5]]
    assert len(list(folder.cache.glob("kernels/*"))) == 2
    assert folder.run() == [2, 0, None, [1, 3, 5]]


def test_source_changes(folder: Folder) -> None:
    folder.run()
    folder.write("helper.py", _HELPER.replace("v + 1", "v + 3"))
    assert folder.run() == [1, 1, None, [3, 5, 7]]
    folder.write("sample.py", _SAMPLE.replace("SCALE = 2", "SCALE = 4"))
    assert folder.run() == [1, 1, None, [3, 7, 11]]
    folder.write("sample.py", _SAMPLE.replace("SCALE)", "SCALE + 1)"))
    assert folder.run() == [1, 1, None, [4, 6, 8]]
    folder.write("sample.py", "# moved down by a comment\n" + _SAMPLE)
    folder.write("helper.py", _HELPER)
    assert folder.run() == [2, 0, None, [1, 3, 5]]


def test_processes_at_once(folder: Folder) -> None:
    for process in [folder.start() for _ in range(3)]:
        assert _result(process)[2:] == [None, [1, 3, 5]]
    assert folder.run() == [2, 0, None, [1, 3, 5]]


def test_damaged_files_are_compiled_again(folder: Folder) -> None:
    folder.run()
    empty, torn = sorted(folder.cache.glob("kernels/*"))
    empty.write_bytes(b"")
    torn.write_bytes(torn.read_bytes()[:-10])
    assert folder.run() == [0, 2, None, [1, 3, 5]]
    assert folder.run() == [2, 0, None, [1, 3, 5]]


def test_folder_that_cannot_be_written(folder: Folder) -> None:
    folder.cache.write_text("a file where the folder should be")
    hits, misses, problem, values = folder.run()
    assert (hits, misses, values) == (0, 2, [1, 3, 5])
    assert "Not a directory" in str(problem) or "File exists" in str(problem)
