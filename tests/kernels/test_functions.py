"""The elementary functions in float32: units in the last place from float64, over the whole range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import cpu

Host = np.ndarray[Any, Any]

erfc = np.vectorize(math.erfc, otypes=[np.float64])


def ulps(got: Host, want: Host) -> float:
    """The largest distance in units in the last place of the float32 nearest to `want`."""
    return float((np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)).max())


def sweep(low: float, high: float) -> Host:
    spread = np.random.default_rng(0).uniform(low, high, 100_000)
    small = np.geomspace(1e-30, 1, 10_000)
    return np.concatenate([spread, np.linspace(low, high, 50_001), small, -small]).astype(np.float32)


def sigmoid(x: Host) -> Host:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("name", "definition", "low", "high", "limit"),
    [
        ("exp", np.exp, -87, 88.7, 1.0),
        ("tanh", np.tanh, -20, 20, 2.0),
        ("sigmoid", sigmoid, -80, 80, 3.0),
        ("gelu", lambda x: 0.5 * x * erfc(-x * math.sqrt(0.5)), -9, 9, 6.0),
    ],
)
def test_accuracy(name: str, definition: Callable[[Host], Host], low: float, high: float, limit: float) -> None:
    x = sweep(low, high)
    keyword = {"approximate": False} if name == "gelu" else {}
    y = getattr(cpu.kernels, name)(cpu.upload(x, dtypes.float32), **keyword)
    assert ulps(cpu.download(y).astype(np.float64), definition(x.astype(np.float64))) <= limit


def test_the_tails_of_gelu_keep_their_relative_accuracy() -> None:
    x = np.linspace(-12, -4, 10_001).astype(np.float32)
    y = cpu.download(cpu.kernels.gelu(cpu.upload(x, dtypes.float32), approximate=False)).astype(np.float64)
    wide = x.astype(np.float64)
    assert np.abs(y / (0.5 * wide * erfc(-wide * math.sqrt(0.5))) - 1).max() < 1e-6
