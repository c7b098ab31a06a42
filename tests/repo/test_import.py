"""What `import pellucid` loads: arrays, and nothing that is slow to load. Its time is `python -m benchmarks import`."""

from __future__ import annotations

import subprocess
import sys

from .source import ROOT

THIRD_PARTY = {"ml_dtypes", "numpy"}
SLOW = {"asyncio", "concurrent", "email", "http", "json", "logging", "multiprocessing", "socket", "ssl", "subprocess"}
CODE = f"""
import sys
import numpy
before = set(sys.modules)
import {ROOT}
print(*sorted({{name.partition(".")[0] for name in sys.modules.keys() - before}}))
"""


def test_import_is_silent_and_loads_nothing_heavy() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert result.stderr == ""
    printed, end = result.stdout.split("\n")
    loaded = set(printed.split())
    assert end == ""
    assert loaded - set(sys.stdlib_module_names) - THIRD_PARTY == {ROOT}
    assert not loaded & SLOW
