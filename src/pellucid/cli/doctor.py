"""`pellucid doctor`: what this machine offers, what Pellucid uses of it, and whether it computes correctly."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ..base import dtypes
from ..base.errors import PellucidError
from ..base.settings import available_cores, settings
from ..device import Array, Device
from ..device import device as find_device
from ..kernels.cpu import isa
from ..kernels.cpu.cache import cache_state
from ..train import measure_peak
from .output import Output, duration, note, size
from .parse import Flag, parse

HELP = """Says what this machine offers (instruction sets, cores, memory, GPU), which versions are at work, where
compiled kernels are kept, and what Pellucid will use; then checks in about a second that the kernels compute what
their definitions say, and how fast. The first time on a machine it also compiles them, which takes longer.

Examples:
  pellucid doctor
  pellucid doctor --json > report.json
  PELLUCID_ISA=avx2 pellucid doctor          another instruction path
  PELLUCID_THREADS=1 pellucid doctor

Exit status 1 if the self-check fails."""

FAILED = 1
_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512bf16",
    "avx512vnni",
    "amx-bf16",
    "neon",
    "bf16",
)
_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}  # of the largest element of the expected result


@dataclass(frozen=True)
class DoctorCommand:
    """Options of `pellucid doctor`."""

    json: Flag = False
    """Print one line of JSON instead of the text."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse(DoctorCommand, arguments, command="doctor", help=HELP)
    out = Output(options.json)
    facts = machine() | use()
    out.facts({name.replace("_", " "): _shown(value) for name, value in facts.items()})
    if not options.json:
        note("checking the kernels")
    start = time.perf_counter()
    checks = self_check()
    speeds = {} if any(checks.values()) else measure()
    wrong = {name: problem for name, problem in checks.items() if problem}
    out.text()
    for name, problem in checks.items():
        out.text(f"{name:<24} {problem or 'as defined'}")
    for name, value in speeds.items():
        out.text(
            f"{name.replace('_', ' '):<24} {value / 1e9:,.1f} {'GB/s' if name.startswith('memory') else 'GFLOP/s'}"
        )
    seconds = time.perf_counter() - start
    verdict = f"FAILED: {', '.join(wrong)}" if wrong else "everything computes as defined"
    out.text(f"\n{verdict} ({duration(seconds)})")
    out.result({**facts, "checks": {n: p or "ok" for n, p in checks.items()}, **speeds, "ok": not wrong})
    return FAILED if wrong else 0


# --- what is there ----------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The machine, as the system describes it."""
    features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    return {
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": _processor(),
        "cores": f"{available_cores()} usable of {os.cpu_count()}",
        "instructions": [name for name in _FEATURES if name in features],
        "memory": _memory(),
        "gpu": _gpus() or "none found",
        "python": platform.python_version(),
        "pellucid": version("pellucid"),
        "numpy": np.__version__,
        "numba": version("numba"),
        "llvmlite": version("llvmlite"),
    }


def use() -> dict[str, Any]:
    """What Pellucid makes of it."""
    path, kept, switches = isa.current(), cache_state(), settings()
    files = list(kept.folder.glob("*")) if kept.folder.is_dir() else []
    state = f"{len(files):,} compiled kernels, {size(sum(f.stat().st_size for f in files if f.is_file()))}"
    forced = " (forced by PELLUCID_ISA)" if switches.isa else ""
    return {
        "device": "cpu" + (" (a GPU was found; Pellucid does not use it yet)" if _gpus() else ""),
        "instruction_path": f"{path.name}{forced}, of {', '.join(i.name for i in isa.available())}",
        "mixed_precision": f"bfloat16, {_products(path)}",
        "threads": switches.threads,
        "kernel_cache": f"{kept.folder}: {state}" + _writable(kept.folder),
    }


def _products(path: isa.Isa) -> str:
    """How bfloat16 is multiplied."""
    if not path.bf16:
        return "emulated: float32 is faster here"
    return "in one instruction" if path.pairs else "multiplied as float32: pairs are slower here"


def _writable(folder: Path) -> str:
    while not folder.exists():
        folder = folder.parent
    return "" if os.access(folder, os.W_OK) else " (NOT WRITABLE: every process compiles anew; set PELLUCID_CACHE)"


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    found = {}
    for line in _lines("/proc/meminfo"):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    if len(found) == 2:
        return f"{size(found['MemTotal'])}, {size(found['MemAvailable'])} available"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return "unknown"


def _gpus() -> list[str]:
    """NVIDIA GPUs by what the driver shows in the file system; no driver library is loaded."""
    names = []
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        model = next((line.partition(":")[2].strip() for line in _lines(folder / "information") if "Model" in line), "")
        names.append(model or "NVIDIA GPU")
    return names or [f"NVIDIA GPU {path.name}" for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# --- whether it works -------------------------------------------------------------------------------------------------


def self_check() -> dict[str, str | None]:
    """Kernels of the CPU against their definitions: name -> what is wrong, or None."""
    cpu, reference = find_device("cpu"), find_device("reference")
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    a, b, x, w = normal(67, 129), normal(129, 93), normal(5, 321), normal(321)
    q, k, v = normal(2, 33, 4, 24), normal(2, 33, 2, 24), normal(2, 33, 2, 24)
    cases: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
        "matrix product float32": ("matmul", [a, b], {}),
        "matrix product bfloat16": ("matmul", [a, b], {"operand_dtype": dtypes.bfloat16}),
        "exponential": ("exp", [x], {}),
        "normalisation": ("rmsnorm", [x, w], {"eps": 1e-5}),
        "attention": (
            "attention",
            [q, k, v],
            {"causal": True, "scale": 24**-0.5, "dropout": 0.0, "seed": 0, "counter": 0},
        ),
    }
    return {name: _compare(cpu, reference, *case) for name, case in cases.items()}


def _compare(
    cpu: Device, reference: Device, kernel: str, inputs: list[np.ndarray], options: dict[str, Any]
) -> str | None:
    try:
        found, expected = (_result(where, kernel, inputs, options) for where in (cpu, reference))
    except PellucidError as error:
        return f"failed: {error}"
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    limit = _TOLERANCE["bfloat16" if "operand_dtype" in options else "float32"]
    if difference <= limit:  # false for a NaN too
        return None
    return f"off by {difference:.1e} of the largest element, at most {limit:.0e} allowed"


def _result(where: Device, kernel: str, inputs: list[np.ndarray], options: dict[str, Any]) -> np.ndarray:
    found = getattr(where.kernels, kernel)(*(where.upload(x, dtypes.float32) for x in inputs), **options)
    first: Array = found[0] if isinstance(found, tuple) else found
    return where.download(first).astype(np.float64)


def measure() -> dict[str, float]:
    """What the machine reaches now: FLOP/s of matrix products, bytes/s of a sum of two large arrays."""
    cpu = find_device("cpu")
    speeds = {
        "matrix_product_float32": measure_peak(cpu),
        "matrix_product_bfloat16": measure_peak(cpu, operand_dtype=dtypes.bfloat16),
    }
    n = 1 << 24
    a, b = (cpu.upload(np.ones(n, np.float32), dtypes.float32) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        cpu.kernels.add(a, b)
        cpu.synchronize()
        best = min(best, time.perf_counter() - start)
    return speeds | {"memory_bandwidth": 3 * 4 * n / best}


def _shown(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
