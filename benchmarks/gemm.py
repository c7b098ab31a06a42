"""Matrix products at the shapes models use, beside NumPy's BLAS, interleaved in one process.

    python -m benchmarks.gemm [--threads N] [--quick] [--best] [--only TEXT]

Each case is checked against NumPy before it is timed. `ratio` is our rate over BLAS's in float32 on as many threads;
the bf16 column rounds float32 operands while packing. Times are medians of interleaved runs; `--best` takes the fastest
run instead, for a machine that others use, and `--threads 1` measures CPU time, which is the same for all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from statistics import median
from types import ModuleType

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)

SETTLE = 0.03  # s, after which OpenBLAS's threads have stopped looking for work and leave the cores to others

#: (name, M, K, N, a transposed, b transposed); a linear layer's forward is x @ W^T, its gradients dy @ W and dy^T @ x.
Case = tuple[str, int, int, int, bool, bool]


def layer(name: str, tokens: int, fan_in: int, fan_out: int) -> list[Case]:
    return [
        (f"{name} forward", tokens, fan_in, fan_out, False, True),
        (f"{name} dx", tokens, fan_out, fan_in, False, False),
        (f"{name} dW", fan_out, tokens, fan_in, True, False),
    ]


def cases() -> list[Case]:
    found: list[Case] = []
    for n in (128, 384, 512):
        found += layer(f"nano 128-{n}", 768, 128, n)
    found += layer("nano 512-128", 768, 512, 128)
    found += layer("nano head 65", 768, 128, 65)
    for tokens in (512, 2048):
        for k, n in ((768, 768), (768, 256), (768, 1408), (1408, 768), (768, 32000)):
            found += layer(f"lm {tokens} {k}-{n}", tokens, k, n)
    found += [("square 1024", 1024, 1024, 1024, False, False), ("square 2048", 2048, 2048, 2048, False, False)]
    for k, n in ((768, 768), (768, 32000)):
        found += [(f"decode {k}-{n}", 1, k, n, False, True), (f"decode {k}-{n} kn", 1, k, n, False, False)]
    found += [("rows 4 768-768", 4, 768, 768, False, True), ("rows 16 768-768", 16, 768, 768, False, True)]
    found += [
        ("tiny 8", 8, 8, 8, False, False),
        ("tiny 2-8", 4, 2, 8, False, True),
        ("small 64", 64, 64, 64, False, False),
    ]
    return found


def pin(pool: ModuleType) -> None:
    """Puts the caller and the workers on cores of their own: the product is measured, not where threads wake up."""
    if not hasattr(os, "sched_setaffinity") or pool.threads() < 2:
        return
    with contextlib.suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0))
        pool._start()
        for i, thread in enumerate(pool._threads, 1):
            os.sched_setaffinity(thread.native_id, {cores[i % len(cores)]})
        os.sched_setaffinity(0, {cores[0]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--best", action="store_true")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["PELLUCID_THREADS"] = str(options.threads)

    import numpy as np

    from pellucid.base import dtypes
    from pellucid.device import cpu, pool
    from pellucid.device.cpu import view
    from pellucid.kernels.cpu.matmul import matmul

    pin(pool)
    clock = time.perf_counter if options.threads > 1 else time.thread_time
    rng = np.random.default_rng(0)
    print(
        f"{'case':26} {'M':>6} {'K':>6} {'N':>6}   {'blas':>7} {'f32':>7} {'ratio':>6} {'bf16':>7} {'ratio':>6}"
        "   GFLOP/s; us: blas f32 bf16"
    )
    for name, m, k, n, ta, tb in cases():
        if options.only not in name:
            continue
        a = rng.standard_normal((k, m) if ta else (m, k), dtype=np.float32)
        b = rng.standard_normal((n, k) if tb else (k, n), dtype=np.float32)
        x, w = cpu.upload(a, dtypes.float32), cpu.upload(b, dtypes.float32)
        a, x = (a.T, x.transpose()) if ta else (a, x)
        b, w = (b.T, w.transpose()) if tb else (b, w)
        runs = {
            "blas": lambda a=a, b=b: np.matmul(a, b),
            "f32": lambda x=x, w=w: matmul(x, w),
            "bf16": lambda x=x, w=w: matmul(x, w, operand_dtype=dtypes.bfloat16),
        }
        want = runs["blas"]()
        assert np.abs(view(runs["f32"]()) - want).max() < 1e-4 * k**0.5
        assert np.abs(view(runs["bf16"]()) - want).max() < 2.5e-2 * k**0.5
        flops = 2.0 * m * k * n
        inner = max(1, int(3e-4 / (flops / 2e11 + 4e-6)))
        rounds = 7 if options.quick else max(7, min(25, int(1.5e11 / (flops * inner))))
        times: dict[str, list[float]] = {label: [] for label in runs}
        for _ in range(rounds):
            for label, run in runs.items():
                if options.threads > 1:
                    time.sleep(SETTLE)
                run()
                begin = clock()
                for _ in range(inner):
                    run()
                times[label].append((clock() - begin) / inner)
        t = {label: (min if options.best else median)(values) for label, values in times.items()}
        rate = {label: flops / value / 1e9 for label, value in t.items()}
        micro = " ".join(f"{value * 1e6:.1f}" for value in t.values())
        blas, f32, bf16 = rate.values()
        rates = f"{blas:7.1f} {f32:7.1f} {f32 / blas:6.2f} {bf16:7.1f} {bf16 / blas:6.2f}"
        print(f"{name:26} {m:6} {k:6} {n:6}   {rates}   {micro}", flush=True)


if __name__ == "__main__":
    main()
