"""Attention at the shapes models use, forward and backward, beside PyTorch's fused kernel, interleaved in one process.

    python -m benchmarks.attention [--threads N] [--quick] [--only TEXT] [--peer torch]

Each case is compared with the definition in float64 before it is timed. GFLOP/s count the pairs of query and key that
are seen; GB/s, for decoding, the bytes of keys and values. Times are medians of interleaved runs, and the fifth of
the fastest behind them, which says more on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

SETTLE = 0.01  # s, after which the threads of the other side have stopped looking for work
LEAST = 1e-3  # s, of one turn


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    tq: int
    tk: int
    heads: int
    kv_heads: int
    d: int
    dtype: str = "float32"
    dropout: float = 0.0

    @property
    def keyword(self) -> dict[str, Any]:
        return {"causal": True, "scale": self.d**-0.5, "dropout": self.dropout, "seed": 7, "counter": 0}

    @property
    def flops(self) -> int:
        """Of the forward pass; the backward pass has two and a half times as many."""
        return 4 * self.batch * self.heads * self.d * sum(range(self.tk - self.tq + 1, self.tk + 1))

    @property
    def cache_bytes(self) -> int:
        return 2 * self.batch * self.tk * self.kv_heads * self.d * (4 if self.dtype == "float32" else 2)


def cases() -> list[Case]:
    found = []
    for dtype in ("float32", "bfloat16"):
        found += [
            Case("nanogpt", 12, 64, 64, 4, 4, 32, dtype),
            Case("lm 1x512", 1, 512, 512, 12, 4, 64, dtype),
            Case("lm 4x512", 4, 512, 512, 12, 4, 64, dtype),
            *(Case(f"decode {n}", 1, 1, n, 9, 3, 64, dtype) for n in (128, 512, 2048)),
        ]
    return [
        *found,
        Case("lm 1x512 dropout", 1, 512, 512, 12, 12, 64, dropout=0.1),
        Case("heads of 20", 8, 128, 128, 4, 4, 20),
        Case("heads of 128", 1, 512, 512, 8, 2, 128),
        Case("one long head", 1, 2048, 2048, 1, 1, 64),
        Case("chunk of prefill", 1, 64, 1024, 9, 3, 64),
    ]


Calls = dict[str, Callable[[], Any]]


def ours(case: Case) -> Calls:
    """Calls of both passes, the results compared with the definition."""
    import numpy as np

    from pellucid.base import dtypes
    from pellucid.device import cpu, reference
    from pellucid.kernels.spec import tolerance

    random = np.random.default_rng(0)
    q, k = (case.batch, case.tq, case.heads, case.d), (case.batch, case.tk, case.kv_heads, case.d)
    dtype = dtypes.dtype(case.dtype)
    q, k, v, do = (cpu.upload(random.standard_normal(s), dtype) for s in (q, k, k, q))
    o, lse = cpu.kernels.attention(q, k, v, **case.keyword)
    gradients = cpu.kernels.attention_backward(do, q, k, v, o, lse, **case.keyword)

    def wide(x: Any) -> Any:
        return reference.upload(cpu.download(x).astype(np.float64), dtypes.float64)

    forward = reference.kernels.attention(*map(wide, (q, k, v)), **case.keyword)
    backward = reference.kernels.attention_backward(*map(wide, (do, q, k, v, o, lse)), **case.keyword)
    for got, want in zip((o, lse, *gradients), (*forward, *backward), strict=True):
        allowed = tolerance("accumulate", got.dtype)
        a, b = (cpu.download(x).astype(np.float64) for x in (got, want))
        bound = allowed.relative * np.abs(b) + allowed.absolute * max(1.0, np.abs(b).max())
        assert (np.abs(a - b) <= bound).all(), f"{case.name}: wrong kernels are not timed"
    return {
        "forward": lambda: cpu.kernels.attention(q, k, v, **case.keyword),
        "backward": lambda: cpu.kernels.attention_backward(do, q, k, v, o, lse, **case.keyword),
    }


def torch_calls(case: Case) -> Calls:
    torch: Any = import_module("torch")
    attention = torch.nn.functional.scaled_dot_product_attention
    dtype = getattr(torch, case.dtype)

    def make(time: int, heads: int) -> Any:
        return torch.randn(case.batch, time, heads, case.d, dtype=dtype).transpose(1, 2).requires_grad_()

    q, k, v = make(case.tq, case.heads), make(case.tk, case.kv_heads), make(case.tk, case.kv_heads)
    more = {"dropout_p": case.dropout, "enable_gqa": case.heads != case.kv_heads}
    if case.tq == case.tk:
        more["is_causal"] = True
    elif case.tq > 1:
        more["attn_mask"] = torch.ones(case.tq, case.tk, dtype=torch.bool).tril(case.tk - case.tq)

    def forward() -> Any:
        with torch.no_grad():
            return attention(q, k, v, **more)

    y = attention(q, k, v, **more)
    dy = torch.randn_like(y)
    return {"forward": forward, "backward": lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", choices=("torch", "none"), default="none")
    options = parser.parse_args()
    os.environ["PELLUCID_THREADS"] = str(options.threads)
    if options.peer == "torch":
        import_module("torch").set_num_threads(options.threads)
    print(f"{'case':18} {'dtype':9} {'pass':9} {'us':>9} {'p20':>9} {'GFLOP/s':>8} {'GB/s':>6}   peer: us, p20, ratio")
    for case in cases():
        if options.only not in case.name:
            continue
        sides = {"": ours(case)}
        if options.peer == "torch":
            sides["torch"] = torch_calls(case)
        for which in ("forward", "backward") if case.tq > 1 else ("forward",):
            times: dict[str, list[float]] = {side: [] for side in sides}
            inner = {}
            for side, calls in sides.items():
                calls[which]()
                begin = time.perf_counter()
                calls[which]()
                inner[side] = max(1, int(LEAST / (time.perf_counter() - begin)))
            for _ in range(7 if options.quick else 31):
                for side, calls in sides.items():
                    time.sleep(SETTLE)
                    calls[which]()
                    begin = time.perf_counter()
                    for _ in range(inner[side]):
                        calls[which]()
                    times[side].append((time.perf_counter() - begin) / inner[side])
            middle = {side: sorted(found)[len(found) // 2] for side, found in times.items()}
            fast = {side: sorted(found)[len(found) // 5] for side, found in times.items()}
            flops = case.flops * (1 if which == "forward" else 2.5)
            line = f"{case.name:18} {case.dtype:9} {which:9} {middle[''] * 1e6:9.1f} {fast[''] * 1e6:9.1f} "
            line += f"{flops / fast[''] / 1e9:8.1f} {case.cache_bytes / fast[''] / 1e9:6.1f}"
            if "torch" in sides:
                peer = middle["torch"], fast["torch"]
                line += f"   {peer[0] * 1e6:9.1f} {peer[1] * 1e6:9.1f} {peer[1] / fast['']:5.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
