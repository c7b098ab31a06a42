"""The same bits whether a kernel was compiled here or read from the disk, and whatever was compiled before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import hashlib, json, sys
import numpy as np
from pellucid.base import dtypes
from pellucid.device import Array, cpu
random = np.random.default_rng(0)
def up(*shape, dtype=dtypes.float32):
    return cpu.upload(random.normal(size=shape), dtype)
k, x, y, w = cpu.kernels, up(60, 65), up(60, 65), up(65)
stat, ids = k.abs(up(60)), cpu.upload(np.arange(60), dtypes.int64)
calls = {
    "gelu": lambda: k.gelu_with_slope(x, approximate=False),
    "swiglu": lambda: k.swiglu_backward(x, y, y),
    "softmax": lambda: k.softmax(x),
    "norm": lambda: k.layernorm_backward(x, y, w, stat, stat),
    "sum": lambda: k.sum(x, axes=(0,), keepdims=False),
    "loss": lambda: k.lm_head_loss(x, y, ids, stat, operand_dtype=None, gradients=True, for_weight=True),
    "norms": lambda: k.global_norm([x, y]),
}
found = {}
for name in sys.argv[1].split():
    result = calls[name]()
    arrays = [result] if isinstance(result, Array) else result
    found[name] = [hashlib.sha256(cpu.download(a).tobytes()).hexdigest() for a in arrays]
print(json.dumps(found))
"""

_ORDER = ("gelu", "swiglu", "softmax", "norm", "sum", "loss", "norms")


def run(cache: Path, *names: str) -> dict[str, list[str]]:
    environment = os.environ | {"PELLUCID_CACHE": str(cache)}
    command = [sys.executable, "-W", "error", "-c", _PROGRAM, " ".join(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_bits_do_not_depend_on_what_was_compiled_when(tmp_path: Path) -> None:
    cold = run(tmp_path / "one", *_ORDER)
    assert run(tmp_path / "one", *_ORDER) == cold
    assert run(tmp_path / "two", *reversed(_ORDER)) == cold
    assert run(tmp_path / "two", "loss") == {"loss": cold["loss"]}
