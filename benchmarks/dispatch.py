"""Case dispatch: what an operation costs beside its arithmetic. 64 elements, recorded on the tape; microseconds a call.

The peer's operations are recorded by its autograd in the same way. Results are compared before they are timed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import pellucid as pl

from .options import Options, Refused
from .report import Row, interleaved, row

Run = Callable[[], Any]


def alike(x: Any, y: Any, square: Any) -> dict[str, Run]:
    """What is written in the same way on both sides."""
    return {
        "add": lambda: x + y,
        "add a number": lambda: x + 1.5,
        "compare with a number": lambda: x > 0,
        "exp": lambda: x.exp(),
        "sum": lambda: x.sum(),
        "sum of rows": lambda: square.sum(-1),
        "mean": lambda: x.mean(),
        "matmul 8x8": lambda: square @ square,
        "reshape": lambda: x.reshape(8, 8),
        "transpose": lambda: square.transpose(0, 1),
        "row": lambda: square[3],
        "slice": lambda: x[1:5],
    }


def ours(host: np.ndarray) -> dict[str, Run]:
    x = pl.tensor(host, requires_grad=True)
    square = pl.tensor(host.reshape(8, 8), requires_grad=True)
    y = pl.tensor(host + 1)
    root = (x * y).sum()

    def step() -> Any:
        x.grad = None
        (x * y).sum().backward()
        return x.grad

    def replay() -> Any:
        x.grad = None
        root.backward(keep_tape=True)
        return x.grad

    return {
        **alike(x, y, square),
        "backward of mul, sum": replay,
        "mul, sum and backward": step,
    }


def of_torch(host: np.ndarray) -> dict[str, Run]:
    torch = import_module("torch")
    x = torch.tensor(host, requires_grad=True)
    square = torch.tensor(host.reshape(8, 8), requires_grad=True)
    y = torch.tensor(host + 1)
    root = (x * y).sum()

    def step() -> Any:
        x.grad = None
        (x * y).sum().backward()
        return x.grad

    def replay() -> Any:
        x.grad = None
        root.backward(retain_graph=True)
        return x.grad

    return {
        **alike(x, y, square),
        "backward of mul, sum": replay,
        "mul, sum and backward": step,
    }


def run(options: Options) -> list[Row]:
    host = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    sides = {"pellucid": ours(host)} | ({"torch": of_torch(host)} if options.peer == "torch" else {})
    found: list[Row] = []
    for what in sides["pellucid"]:
        results = [np.asarray(runs[what]().detach()) for runs in sides.values()]
        if not all(np.allclose(results[0], r, rtol=1e-5, atol=1e-6) for r in results):
            raise Refused(f"dispatch: {what} differs from the peer's; wrong kernels are not timed")
        times = interleaved(
            {name: runs[what] for name, runs in sides.items()}, rounds=9 if options.quick else 25, inner=500
        )
        for name, values in times.items():
            micro = [1e6 * s for s in values]
            found.append(row("dispatch", what, name, micro, unit="us", shape="64", dtype="float32"))
    return found
