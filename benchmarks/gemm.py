"""Case gemm: matrix products at the shapes of the 101.7M model and a few others, beside oneDNN (through PyTorch).

A linear layer's forward is x @ W^T, its gradients are dy @ W and dy^T @ x. Both sides get operands in the same format
and return results in it: float32, or bfloat16. Ours packs them on the way, the peer does what oneDNN does. Each product
is compared with NumPy's in float64 before it is timed. `share` is that of the fastest product of this run.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import cpu
from pellucid.kernels.cpu.matmul import matmul

from .options import Refused
from .report import Row, interleaved, row
from .train import TrainOptions

AGREEMENT = {"float32": 1e-5, "bfloat16": 1e-2}  # of the largest result
SECONDS = 2e-3  # of work in a turn, about
WARM = 2e-2  # seconds of it before: PyTorch's threads, having slept, take ten milliseconds to reach their rate

#: (name, M, K, N, a transposed, b transposed)
Case = tuple[str, int, int, int, bool, bool]


def layer(name: str, tokens: int, fan_in: int, fan_out: int) -> list[Case]:
    return [
        (f"{name} forward", tokens, fan_in, fan_out, False, True),
        (f"{name} dx", tokens, fan_out, fan_in, False, False),
        (f"{name} dW", fan_out, tokens, fan_in, True, False),
    ]


def cases() -> list[Case]:
    found: list[Case] = []
    for tokens in (512, 2048):
        for name, k, n in (("qkv", 768, 1280), ("o", 768, 768), ("gate and up", 768, 2816), ("down", 1408, 768)):
            found += layer(f"{name}, {tokens}", tokens, k, n)
    found += layer("head, 512", 512, 768, 32000)
    found += layer("nanoGPT fc_in", 768, 128, 512)
    return [*found, ("square", 1024, 1024, 1024, False, False), ("square", 2048, 2048, 2048, False, False)]


def _ours(a: np.ndarray, b: np.ndarray, dtype: DType, turned: tuple[bool, bool]) -> Callable[[], Any]:
    x, y = (cpu.upload(h.astype(dtype.numpy), dtype) for h in (a, b))
    x, y = (h.transpose() if turn else h for h, turn in zip((x, y), turned, strict=True))
    return lambda: matmul(x, y)


def _torch(a: np.ndarray, b: np.ndarray, dtype: DType, turned: tuple[bool, bool]) -> Callable[[], Any]:
    torch = import_module("torch")
    x, y = (torch.from_numpy(h).to(getattr(torch, dtype.name)) for h in (a, b))
    x, y = (h.T if turn else h for h, turn in zip((x, y), turned, strict=True))
    return lambda: x @ y


def _host(result: Any) -> np.ndarray:
    return result.float().numpy() if hasattr(result, "float") else cpu.download(result).astype(np.float64)


def run(options: TrainOptions) -> list[Row]:
    sides = {"pellucid": _ours} | ({"torch": _torch} if options.peer == "torch" else {})
    timed: list[tuple[Case, str, str, list[float]]] = []
    random = np.random.default_rng(0)
    for case in cases()[:: 5 if options.quick else 1]:
        name, m, k, n, *turned = case
        a = random.standard_normal((k, m) if turned[0] else (m, k), dtype=np.float32)
        b = random.standard_normal((n, k) if turned[1] else (k, n), dtype=np.float32)
        for precision in options.precisions:
            dtype = dtypes.dtype(precision)
            runs = {by: make(a, b, dtype, (turned[0], turned[1])) for by, make in sides.items()}
            exact = [h.astype(dtype.numpy).astype(np.float64) for h in (a, b)]
            want = np.matmul(*(h.T if turn else h for h, turn in zip(exact, turned, strict=True)))
            for by, call in runs.items():
                if np.abs(_host(call()) - want).max() > AGREEMENT[precision] * np.abs(want).max():
                    raise Refused(f"gemm: {name} of {by} in {precision} is wrong; it is not timed")
            inner = max(1, int(SECONDS / (2.0 * m * k * n / 4e11)))
            rounds = 5 if options.quick else 15
            seconds = interleaved(runs, rounds=rounds, inner=inner, pause=options.pause / 2, warm=WARM)
            timed += [(case, precision, by, values) for by, values in seconds.items()]
    best: dict[str, float] = {}
    found: list[Row] = []
    rates = [([2.0 * c[1] * c[2] * c[3] / s / 1e9 for s in values], c, p, by) for c, p, by, values in timed]
    for values, _, precision, by in rates:
        if by == "pellucid":
            best[precision] = max(best.get(precision, 0.0), float(np.median(values)))
    for values, (name, m, k, n, *_), precision, by in rates:
        more = {"share": round(float(np.median(values)) / best[precision], 3)}
        found.append(row("gemm", name, by, values, unit="GFLOP/s", shape=f"{m}x{k}x{n}", dtype=precision, **more))
    return found
