"""What `import pellucid` costs: no compiler, no plots, no output, little time."""

from __future__ import annotations

import subprocess
import sys
import time

from .source import ROOT

HEAVY = ("numba", "llvmlite", "triton", "matplotlib", "torch")
LIMIT = 0.3  # s
ROUNDS = 7


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def seconds(code: str) -> float:
    start = time.perf_counter()
    python(code)
    return time.perf_counter() - start


def test_import_is_silent_and_loads_nothing_heavy() -> None:
    result = python(f"import sys, {ROOT}; sys.stdout.write(' '.join(m for m in {HEAVY} if m in sys.modules))")
    assert result.stdout == ""
    assert result.stderr == ""


def test_import_is_quick() -> None:
    """The least of several runs each: other work on the machine only ever adds time."""
    bare, whole = [], []
    for _ in range(ROUNDS):
        bare.append(seconds("pass"))
        whole.append(seconds(f"import {ROOT}"))
        if min(whole) - min(bare) < LIMIT:
            break
    assert min(whole) - min(bare) < LIMIT
