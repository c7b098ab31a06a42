"""Kernels that take all parameters of a model at once: more of them than a launch takes, mixed ones, pieces of large
ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import Array, Device, cpu, reference
from pellucid.kernels.cpu.launch_ir import MOST_LISTED
from pellucid.kernels.cpu.pieces import BLOCK, GRAIN, pieces

ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
SGD = {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}


def lists(device: Device, sizes: list[int], count: int) -> list[list[Array]]:
    """`count` lists of arrays of these sizes, the same on every device; all numbers positive."""
    draw = np.random.default_rng(0)
    return [
        [device.upload(draw.random(n).astype(np.float32) + 0.1, dtypes.float32) for n in sizes] for _ in range(count)
    ]


def test_pieces() -> None:
    items, grain, table = pieces(((3,), (GRAIN + 1,), (0, 7), ()))
    assert (items, grain) == (4, 1)
    assert cpu.download(table).tolist() == [0, 0, 3, 1, 0, GRAIN, 1, GRAIN, GRAIN + 1, 3, 0, 1]
    assert pieces(((GRAIN * 100,),))[:2] == (100, 1)
    assert pieces(((GRAIN - 3,), (3,)))[:2] == (2, 3)  # one chunk


@pytest.mark.parametrize(("name", "states", "options"), [("adamw_", 2, ADAM), ("sgd_", 1, SGD), ("lion_", 1, LION)])
def test_more_parameters_than_a_launch_takes(name: str, states: int, options: dict[str, Any]) -> None:
    sizes = [3] * (MOST_LISTED + 70) + [2 * GRAIN + 5, BLOCK, BLOCK + 1, 4 * BLOCK + 1]
    found = {}
    for device in (cpu, reference):
        arrays = lists(device, sizes, 2 + states)
        scale = device.upload(np.float32(0.5), dtypes.float32)
        getattr(device.kernels, name)(*arrays, scale, **options)
        found[device.name] = [device.download(x) for x in [*arrays[0], *arrays[2]]]
    for got, want in zip(found["cpu"], found["reference"], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_the_norm_of_many_and_mixed_parts() -> None:
    draw = np.random.default_rng(1)
    kinds = (dtypes.float32, dtypes.bfloat16, dtypes.float32, dtypes.float64)
    parts = [cpu.upload(draw.standard_normal((4, 3)), kinds[i % 4]) for i in range(10)]
    parts.append(cpu.upload(draw.standard_normal((5, 4)), dtypes.float32).transpose())
    parts += [cpu.upload(draw.standard_normal(2), dtypes.float32)] * (MOST_LISTED + 1)
    sizes = (BLOCK, BLOCK + 1, 4 * BLOCK - 1, 4 * BLOCK + 1, GRAIN - 1, GRAIN + BLOCK)
    parts += [cpu.upload(draw.standard_normal(n), dtypes.float32) for n in sizes]
    expected = np.sqrt(sum((cpu.download(p).astype(np.float64) ** 2).sum() for p in parts))
    assert cpu.download(cpu.kernels.global_norm(parts)) == pytest.approx(expected, rel=1e-6)
