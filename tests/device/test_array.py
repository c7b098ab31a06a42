"""Views of a buffer, against NumPy's views of the same memory."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import DeviceError, ShapeError
from pellucid.device import Array, cpu, device, reference


def _counted(*shape: int) -> tuple[Array, np.ndarray]:
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return cpu.upload(host, dtypes.float32), host


def _same(array: Array, host: np.ndarray) -> None:
    np.testing.assert_array_equal(cpu.download(array), host)
    assert array.shape == host.shape
    assert array.is_contiguous == host.flags.c_contiguous


def test_permute_and_transpose() -> None:
    a, h = _counted(2, 3, 4)
    _same(a.permute((2, 0, 1)), h.transpose(2, 0, 1))
    _same(a.permute((-1, -3, -2)), h.transpose(2, 0, 1))
    _same(a.transpose(), h.swapaxes(-2, -1))
    _same(a.transpose(0, 2), h.swapaxes(0, 2))
    with pytest.raises(ShapeError):
        a.permute((0, 0, 1))


def test_reshape() -> None:
    a, h = _counted(4, 6)
    _same(a.reshape((2, 2, 3, 2)), h.reshape(2, 2, 3, 2))  # type: ignore[arg-type]
    assert a.transpose().reshape((24,)) is None
    split = a.transpose().reshape((2, 3, 4))
    assert split is not None
    _same(split, h.T.reshape(2, 3, 4))
    assert split.buffer is a.buffer


def test_expand() -> None:
    a, h = _counted(3, 1)
    _same(a.expand((2, 3, 4)), np.broadcast_to(h, (2, 3, 4)))
    with pytest.raises(ShapeError):
        a.expand((2, 4))


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 5, 1), (1, 5, 2), (4, -1, -1), (3, 0, -2), (2, 2, 1), (0, 9, 3)]
)
def test_slice(start: int, stop: int, step: int) -> None:
    a, h = _counted(2, 9)
    _same(a.slice(1, start, stop, step), h[:, [*range(start, stop, step)]] if step != 1 else h[:, start:stop])


def test_select_and_unsqueeze() -> None:
    a, h = _counted(2, 3, 4)
    _same(a.select(1, 2), h[:, 2])
    _same(a.select(0, 1), h[1])
    _same(a.unsqueeze(1), h[:, None])


def test_facts() -> None:
    a, _ = _counted(2, 3)
    assert (a.rank, a.size, a.nbytes, a.device.name) == (2, 6, 24, "cpu")
    assert a.select(0, 1).address == a.address + 12
    assert repr(a) == "Array(shape=(2, 3), dtype=float32, device='cpu')"


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)])
def test_upload_and_download(dtype: dtypes.DType, shape: tuple[int, ...]) -> None:
    host = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype.numpy)
    for where in (cpu, reference):
        array = where.upload(host, dtype)
        back = where.download(array)
        assert back.dtype == dtype.numpy
        assert back.shape == shape
        assert back.tobytes() == host.tobytes()


def test_adopt_shares_memory() -> None:
    host = np.arange(12.0).reshape(3, 4)
    array = cpu.adopt(host[::-1, 1:], dtypes.float64)
    host[0, 1] = 7
    np.testing.assert_array_equal(cpu.download(array), host[::-1, 1:])
    held = array.buffer
    del host, array
    assert held.memory is not None


def test_device_by_name() -> None:
    assert device("cpu") is cpu
    assert device(reference) is reference
    with pytest.raises(DeviceError, match="device: no such device; got 'tpu', expected one of cpu"):
        device("tpu")
