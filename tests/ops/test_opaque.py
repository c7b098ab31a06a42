"""Every operation, forward and backward, on a device that nobody can look into: the very bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from opaque import OpaqueDevice

from pellucid import ops
from pellucid.base.rng import Generator
from pellucid.device import reference
from pellucid.tape import trace

from .cases import ARRANGEMENTS, CASES, Case
from .results import DTYPES, results


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_same_bits(case: Case, arrangement: str, opaque: OpaqueDevice) -> None:
    for dtype in DTYPES:
        expected = results(case, reference, dtype, arrangement)
        found = results(case, opaque, dtype, arrangement)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            assert found[name].tobytes() == value.tobytes(), f"{dtype.name} {name}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_nothing_waits(case: Case, opaque: OpaqueDevice) -> None:
    """Forward and backward only launch: not one download, and all work still in the queue."""
    y = case.run(*case.arguments(opaque, DTYPES[0], "plain"), arrangement="stretched")
    if y.requires_grad:
        y.backward()
    assert opaque.downloads == 0
    assert len(opaque.queue) >= opaque.launches


def test_makers(opaque: OpaqueDevice) -> None:
    for make in (
        lambda d: ops.tensor([[1, 2], [3, 4]], device=d),
        lambda d: ops.tensor(ops.tensor([1.5, 2.5], device=d), dtype="bfloat16", device=d),
        lambda d: ops.zeros((2, 0), device=d),
        lambda d: ops.ones(3, dtype="int32", device=d),
        lambda d: ops.full((), 2.5, device=d),
        lambda d: ops.arange(2, 9, 3, device=d),
        lambda d: ops.rand((2, 3), generator=Generator(1), device=d),
        lambda d: ops.randn((2, 3), generator=Generator(1), device=d),
    ):
        expected, found = make(reference), make(opaque)
        assert found.dtype is expected.dtype
        np.testing.assert_array_equal(opaque.download(found.array), reference.download(expected.array))


def test_to_the_host_and_back(opaque: OpaqueDevice) -> None:
    x = ops.tensor([[1.0, 2.0]], device=opaque)
    y = x * 2
    assert y.tolist() == [[2.0, 4.0]]
    assert y.sum().item() == 6.0
    assert y.to("reference").device is reference
    assert y.to("reference").to("opaque").tolist() == [[2.0, 4.0]]
    np.testing.assert_array_equal(y.numpy(), [[2.0, 4.0]])
    assert repr(y) == "Tensor([[2., 4.]], shape=(1, 2), dtype=float32, device='opaque')"
    assert bool((y > 1).cast("int32").min() == 1)


def test_tracing(opaque: OpaqueDevice) -> None:
    with trace(stop_at_nonfinite=True) as found:
        x = ops.tensor([1.0, 2.0], device=opaque, requires_grad=True)
        (ops.exp(x) * x).sum().backward()
    assert [r.name for r in found.records] == ["Exp", "Mul", "Sum"]
    assert all(r.backward is not None for r in found.records)
