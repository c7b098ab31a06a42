"""What `import pellucid` costs: no compiler, no plots, no output, little time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from .source import ROOT

HEAVY = ("numba", "llvmlite", "triton", "matplotlib", "torch")
LIMIT = 0.3  # s of processor time, which other work on the machine adds little to
ROUNDS = 7


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | environment
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)


def seconds(code: str, bytecode: Path) -> float:
    """Of the processor, with compiled modules kept in a folder, as they are beside installed sources."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(code, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(bytecode))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_is_silent_and_loads_nothing_heavy() -> None:
    result = python(f"import sys, {ROOT}; sys.stdout.write(' '.join(m for m in {HEAVY} if m in sys.modules))")
    assert result.stdout == ""
    assert result.stderr == ""


def test_import_is_quick(tmp_path: Path) -> None:
    """The least of several runs each."""
    bare, whole = [], []
    for _ in range(ROUNDS):
        bare.append(seconds("pass", tmp_path))
        whole.append(seconds(f"import {ROOT}", tmp_path))
        if min(whole) - min(bare) < LIMIT:
            break
    assert min(whole) - min(bare) < LIMIT
