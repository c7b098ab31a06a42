"""The tests' opaque device is itself honest: unreadable, late, in order, bitwise the reference."""

from __future__ import annotations

import numpy as np
import pytest
from opaque import OpaqueDevice, late, opaque_device

from pellucid.base import dtypes
from pellucid.base.errors import DeviceError
from pellucid.device import Array, cpu, device, reference
from pellucid.device.cpu import view
from pellucid.kernels import reference as definitions


@pytest.fixture
def opaque():
    with opaque_device() as found:
        yield found


def _up(opaque: OpaqueDevice, value: object) -> Array:
    return opaque.upload(np.asarray(value, np.float32), dtypes.float32)


def test_registered_while_in_use() -> None:
    with opaque_device() as found:
        assert device("opaque") is found
    with pytest.raises(DeviceError):
        device("opaque")


def test_memory_cannot_be_read(opaque: OpaqueDevice) -> None:
    x = _up(opaque, [1, 2])
    for attempt in (
        lambda: x.address,
        lambda: x.buffer.address,
        lambda: x.buffer.memory,
        lambda: view(x),
        lambda: cpu.download(x),
        lambda: definitions.exp(x),
    ):
        with pytest.raises(DeviceError, match="the host asked for"):
            attempt()
    with pytest.raises(DeviceError, match="an array of another device"):
        opaque.kernels.add(x, reference.upload(np.ones(2, np.float32), dtypes.float32))


def test_results_come_late(opaque: OpaqueDevice) -> None:
    x = _up(opaque, [1, 2])
    y = opaque.kernels.add(x, x)
    assert y.shape == (2,)
    assert np.isnan(view(late(x))).all()
    assert np.isnan(view(late(y))).all()
    assert len(opaque.queue) == 2
    np.testing.assert_array_equal(opaque.download(y), [2, 4])
    assert opaque.queue == []


def test_inputs_are_read_at_their_turn(opaque: OpaqueDevice) -> None:
    x = _up(opaque, [1, 2])
    before = opaque.kernels.copy(x)
    opaque.kernels.fill_(x, value=7.0)
    after = opaque.kernels.copy(x)
    opaque.synchronize()
    np.testing.assert_array_equal(view(late(before)), [1, 2])
    np.testing.assert_array_equal(view(late(after)), [7, 7])


def test_upload_takes_a_copy_at_once(opaque: OpaqueDevice) -> None:
    host = np.ones(3, np.float32)
    x = opaque.upload(host, dtypes.float32)
    parts = [x, x]
    y = opaque.kernels.concatenate(parts, axis=0)
    host[:] = 5
    parts.clear()
    np.testing.assert_array_equal(opaque.download(y), np.ones(6))


def test_download_is_a_copy(opaque: OpaqueDevice) -> None:
    x = _up(opaque, [1, 2])
    opaque.download(x)[:] = 9
    opaque.host(x)[:] = 9
    np.testing.assert_array_equal(opaque.download(x), [1, 2])


def test_fresh_memory_is_poison(opaque: OpaqueDevice) -> None:
    assert np.isnan(opaque.download(opaque.empty((3,), dtypes.float64))).all()


def test_views_in_and_several_results_out(opaque: OpaqueDevice) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    results = []
    for where in (reference, opaque):
        x = where.upload(host, dtypes.float32).slice(1, 1, 6, 2).transpose()
        weight = where.upload(np.linspace(1, 2, 4, dtype=np.float32), dtypes.float32)
        y, mean, rstd = where.kernels.layernorm(x, weight, None, eps=1e-5)
        where.kernels.assign_(x.slice(0, 0, 1), weight)
        results.append([where.download(a) for a in (y, mean, rstd, x)])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_nothing_in_place_of_a_result(opaque: OpaqueDevice) -> None:
    x, weight = _up(opaque, np.ones((2, 3))), _up(opaque, np.ones((4, 3)))
    targets = opaque.upload(np.zeros(2, np.int64), dtypes.int64)
    w = _up(opaque, [0.5, 0.5])
    loss, dx, dweight = opaque.kernels.lm_head_loss(
        x, weight, targets, w, operand_dtype=None, gradients=False, for_weight=False
    )
    assert dx is None
    assert dweight is None
    assert opaque.download(loss) == pytest.approx(np.log(4), rel=1e-6)


def test_every_kernel_is_there(opaque: OpaqueDevice) -> None:
    assert all(callable(getattr(opaque.kernels, name)) for name in definitions.__all__)
