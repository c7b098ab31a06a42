"""What this device reaches in matrix products: the yardstick that a training run's share of peak is measured by."""

from __future__ import annotations

import time

from ..base.dtypes import DType, float32
from ..device import Device
from ..device import device as find_device


def measure_peak(
    device: str | Device, *, operand_dtype: DType | None = None, size: int = 1024, seconds: float = 0.4
) -> float:
    """FLOP/s of the fastest (size x size) @ (size x size) product seen in `seconds` s of trying, float32 in and out."""
    where = find_device(device)
    a, b = where.empty((size, size), float32), where.empty((size, size), float32)
    for x in (a, b):
        where.kernels.fill_(x, value=0.5)
    best = float("inf")
    start = time.perf_counter()
    for i in range(1000):
        before = time.perf_counter()
        where.kernels.matmul(a, b, operand_dtype=operand_dtype)
        where.synchronize()
        now = time.perf_counter()
        if i:  # the first one compiles
            best = min(best, now - before)
        else:
            start = now
        if i >= 3 and now - start > seconds:
            break
    return 2 * size**3 / best
