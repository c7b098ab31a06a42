"""Cases import and first-step: what a fresh process costs before it does anything, and until it has trained once.

Seconds count from the start of the process, seen from outside: a program is timed until its line arrives.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from .options import Options, Refused
from .report import REPOSITORY, Row, row

AGREEMENT = 1e-4  # relative, of the loss of the first step


def python(*arguments: str, cache: Path | None = None, threads: int | None = None) -> tuple[float, str]:
    """Seconds until a fresh interpreter has printed its line, and the line."""
    changes = {"PELLUCID_CACHE": None if cache is None else str(cache), "PELLUCID_THREADS": threads}
    environ = os.environ | {name: str(value) for name, value in changes.items() if value is not None}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
    if process.returncode != 0 or not line:
        raise Refused(f"{' '.join(arguments)}: ended with status {process.returncode}")
    return seconds, line


def run_import(options: Options) -> list[Row]:
    """`import pellucid` over an interpreter that imports nothing; the peers' import beside it."""
    rounds = 5 if options.quick else 15
    modules = ["pellucid", *([options.peer] if options.peer else [])]
    times: dict[str, list[float]] = {name: [] for name in modules}
    bare: list[float] = []
    for i in range(rounds):
        bare.append(python("-c", "print()")[0])
        for name in modules:
            if name == "pellucid" or i < 5:
                times[name].append(python("-c", f"import {name}; print()")[0])
    base = median(bare)
    found = [row("import", "bare interpreter", "python", [1e3 * s for s in bare], unit="ms")]
    for name, values in times.items():
        found.append(row("import", "above it", name, [1e3 * (s - base) for s in values], unit="ms"))
    return found


def run_first_step(options: Options) -> list[Row]:
    """The first training step of the nanoGPT model, with an empty kernel cache and with the one that it left."""
    rounds = 1 if options.quick else 3
    times: dict[tuple[str, str], list[float]] = {}
    losses: dict[str, float] = {}

    def once(what: str, by: str, **how: Any) -> None:
        seconds, line = python("-m", "benchmarks.first_step", by, threads=options.threads, **how)
        times.setdefault((what, by), []).append(seconds)
        losses[by] = float(line)

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            once("empty kernel cache", "pellucid", cache=Path(folder))
            for _ in range(3):
                once("warm kernel cache", "pellucid", cache=Path(folder))
                if options.peer:
                    once("fresh process", options.peer)
    if options.peer and not math.isclose(losses["pellucid"], losses[options.peer], rel_tol=AGREEMENT):
        raise Refused(f"first-step: the losses differ: {losses}; wrong kernels are not timed")
    return [row("first-step", what, by, values, unit="s", dtype="float32") for (what, by), values in times.items()]
