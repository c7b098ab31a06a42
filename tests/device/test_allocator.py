"""The caching allocator of host memory."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import DeviceError
from pellucid.base.settings import settings
from pellucid.device import HostDevice, blocks
from pellucid.device.blocks import size_class


@pytest.fixture
def host() -> HostDevice:
    """A device of its own, so that the counts start at zero."""
    return HostDevice("test", "pellucid.kernels.cpu")


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 1024, 1025, 4096, 10**6, 2**20, 2**20 + 1, 10**9])
def test_size_class(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % 64 == 0
    assert size_class(size) == size
    assert nbytes <= 1024 or size <= 1.25 * nbytes


def test_alignment(host: HostDevice) -> None:
    held = [host.allocate(n) for n in (1, 100, 5000, 123457)]
    assert all(buffer.address % 64 == 0 for buffer in held)


def test_blocks_are_reused(host: HostDevice) -> None:
    first = host.allocate(5000)
    address = first.address
    assert (host.bytes_in_use, host.bytes_cached) == (size_class(5000), 0)
    del first
    assert (host.bytes_in_use, host.bytes_cached) == (0, size_class(5000))
    second = host.allocate(4999)
    assert second.address == address
    third = host.allocate(4999)
    assert third.address != address
    assert host.peak_bytes == 2 * size_class(5000)


def test_a_steady_loop_asks_the_system_for_nothing(host: HostDevice) -> None:
    def step() -> None:
        first = host.allocate(5000)
        second = host.empty((300,), dtypes.float32)
        del first
        host.allocate(100)
        del second

    for _ in range(3):
        step()
    before = host.blocks_from_system
    for _ in range(100):
        step()
    assert host.blocks_from_system == before
    held = [host.allocate(5000), host.allocate(5000)]
    assert host.blocks_from_system == before + 1
    assert held[0].address != held[1].address


def test_a_buffer_outlives_its_device() -> None:
    host = HostDevice("gone", "pellucid.kernels.cpu")
    array = host.upload(np.arange(5), dtypes.int64)
    del host
    assert array.device.download(array).tolist() == list(range(5))  # type: ignore[attr-defined]
    del array


def test_threads_that_allocate_first_share_one_allocator() -> None:
    device = HostDevice("test", "")
    HostDevice.allocate(device, 64)
    mine, site = device.allocate, blocks._sites[device][0]
    HostDevice.allocate(device, 64)  # what a thread does that was in the method too when its place was taken
    assert blocks._sites[device][0] is site
    held = [mine(64), device.allocate(64)]
    assert device.bytes_in_use == 128
    del held
    assert device.bytes_in_use == 0


def test_what_is_no_size_is_refused(host: HostDevice) -> None:
    for wrong in (-1, 1 << 70):
        with pytest.raises(DeviceError, match="out of memory"):
            host.allocate(wrong)


def test_trim(host: HostDevice) -> None:
    del_me = host.allocate(5000)
    del del_me
    host.trim()
    assert host.bytes_cached == 0
    assert host.allocate(5000).nbytes == 5000


def test_what_python_refuses_loses_no_block(host: HostDevice) -> None:
    failing = pytest.importorskip("_testcapi", reason="this Python has no module to make its own allocations fail")
    host.allocate(5000)
    found = []
    for allowed in range(4):
        failing.set_nomemory(allowed, allowed + 1)
        try:
            made = host.allocate(5000)
        except MemoryError:
            made = None
        finally:
            failing.remove_mem_hooks()
        found.append(made is not None)
        del made
        assert (host.bytes_in_use, host.bytes_cached) == (0, size_class(5000))
    assert found[:2] == [False, False]
    assert found[-1]


def test_views_keep_the_block(host: HostDevice) -> None:
    array = host.empty((4, 5), dtypes.float32)
    row = array.select(0, 1)
    del array
    assert host.bytes_in_use == size_class(80)
    del row
    assert host.bytes_in_use == 0


def test_foreign_memory_is_not_cached(host: HostDevice) -> None:
    array = host.adopt(np.zeros(1000), dtypes.float64)
    assert host.bytes_in_use == 0
    del array
    assert (host.bytes_in_use, host.bytes_cached) == (0, 0)


def test_fresh_memory_is_poisoned(host: HostDevice) -> None:
    if not settings().poison:
        pytest.skip("PELLUCID_POISON is off")
    for dtype in dtypes.FLOATS:
        assert np.isnan(host.download(host.empty((7,), dtype)).astype(np.float64)).all()


def test_out_of_memory(host: HostDevice) -> None:
    with pytest.raises(
        DeviceError, match=r"test: out of memory; got a request of [\d,]+ bytes with 0 in use\. hint: use"
    ):
        host.allocate(1 << 60)
