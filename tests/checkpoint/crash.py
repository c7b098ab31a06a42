"""Run by test_kill.py. Saves checkpoints and dies: `step N` ends without any clean-up before the N-th change to the
file system (exit status 9; 0 when the save has fewer), `loop` saves until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from pellucid.base import dtypes
from pellucid.checkpoint import save_checkpoint
from pellucid.device import reference
from pellucid.tape import Tensor

CHANGES = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate")


def save(folder: Path, value: int) -> None:
    tensors = {f"w{i}": Tensor(reference.upload(np.full(30_000, value, np.float32), dtypes.float32)) for i in range(3)}
    save_checkpoint(folder, tensors=tensors, optimizer_tensors=tensors, config={"value": value}, state={"step": value})


def crash_at(folder: Path, n: int, value: int) -> int:
    """Exit status of a process that dies before its n-th change."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def hook(event: str, arguments: object) -> None:
        nonlocal count
        count += event in CHANGES
        if count == n:
            os._exit(9)

    sys.addaudithook(hook)
    save(folder, value)
    os._exit(0)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    save(folder, 1)
    if sys.argv[2] == "loop":
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        value = 1
        while True:
            value += 1
            save(folder, value)
    n, value = 0, 1
    while True:
        n += 1
        status = crash_at(folder, n, value + 1)
        sys.stdout.write(f"{status} {value}\n")
        sys.stdout.flush()
        if sys.stdin.readline() == "new\n":
            value += 1
        if status == 0:
            break
