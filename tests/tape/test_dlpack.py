"""DLPack against NumPy: shared memory both ways, strides, lifetimes, refusals. PyTorch's turn is in tests/peers."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from opaque import opaque_device

from pellucid.base import dtypes
from pellucid.base.errors import DeviceError, DTypeError, GradientError
from pellucid.device import cpu, reference
from pellucid.tape import Tensor, dlpack, dlpack_device, from_dlpack, to_dlpack

from .toy import leaf


class Shared:
    """What NumPy asks for, by the functions under test alone. `old` speaks DLPack as it was before version 1."""

    def __init__(self, tensor: Tensor, *, old: bool = False) -> None:
        self.tensor, self.old = tensor, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self.tensor)

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword")
        return to_dlpack(self.tensor, **options)


_INTEROPERABLE = [d for d in dtypes.ALL if d is not dtypes.bfloat16]  # NumPy knows no bfloat16 of its own


def _capsule_name(capsule: Any) -> bytes:
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    return name(capsule)


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", _INTEROPERABLE, ids=lambda d: d.name)
def test_to_numpy(dtype: dtypes.DType, old: bool) -> None:
    host = np.array([[0, 1, 2], [3, 4, 100]]).astype(dtype.numpy)
    found = np.from_dlpack(Shared(leaf(host, dtype=dtype, device=cpu, grad=False), old=old))
    assert found.dtype == dtype.numpy
    np.testing.assert_array_equal(found, host)


def test_memory_is_shared() -> None:
    x = leaf([1.0, 2.0, 3.0], device=cpu, grad=False)
    found = np.from_dlpack(Shared(x))
    assert found.ctypes.data == x.array.address
    assert found.flags.writeable
    found[1] = 20.0
    assert x.tolist() == [1.0, 20.0, 3.0]
    x.numpy()[0] = 10.0
    assert found.tolist() == [10.0, 20.0, 3.0]


def test_views_out() -> None:
    host = np.arange(24.0).reshape(4, 6)
    array = leaf(host, device=cpu, grad=False).array
    for view, expected in (
        (array.transpose(), host.T),
        (array.slice(1, 1, 6, 2), host[:, 1:6:2]),
        (array.slice(0, 3, -1, -1), host[::-1]),
        (array.select(0, 2), host[2]),
        (array.select(0, 2).select(0, 3), host[2, 3]),
        (array.slice(0, 1, 1), host[1:1]),
        (array.select(1, 0).unsqueeze(0).expand((3, 4)), np.broadcast_to(host[:, 0], (3, 4))),
    ):
        found = np.from_dlpack(Shared(Tensor(view)))
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_capsule_keeps_the_memory_until_the_consumer_lets_go() -> None:
    x = leaf(np.ones(100), device=reference, grad=False)
    buffer, held = weakref.ref(x.array.buffer), len(dlpack._held)
    found = np.from_dlpack(Shared(x))
    view = found[10:20]
    del x
    gc.collect()
    assert buffer() is not None
    del found
    assert buffer() is not None
    np.testing.assert_array_equal(view, np.ones(10))
    del view
    assert buffer() is None
    assert len(dlpack._held) == held


@pytest.mark.parametrize("version", [None, (1, 0), (1, 7), (0, 8)])
def test_capsule_that_nobody_takes(version: tuple[int, int] | None) -> None:
    x = leaf(np.ones(100), grad=False)
    buffer, held = weakref.ref(x.array.buffer), len(dlpack._held)
    capsule = to_dlpack(x, max_version=version)
    assert _capsule_name(capsule) == (b"dltensor_versioned" if version in ((1, 0), (1, 7)) else b"dltensor")
    del x
    assert buffer() is not None
    del capsule
    assert buffer() is None
    assert len(dlpack._held) == held


def test_copy() -> None:
    x = leaf([1.0, 2.0], device=reference, grad=False)
    found = np.from_dlpack(Shared(x), copy=True)
    found[0] = 9.0
    assert x.tolist() == [1.0, 2.0]
    shared = np.from_dlpack(Shared(x), copy=False)
    shared[0] = 9.0
    assert x.tolist() == [9.0, 2.0]


def test_refusals_out() -> None:
    with pytest.raises(GradientError) as caught:
        to_dlpack(leaf([1.0], device=cpu))
    assert str(caught.value) == "dlpack: the tensor is part of a recorded computation. hint: call .detach() first"
    x = leaf([1.0], device=cpu, grad=False)
    with pytest.raises(DeviceError) as caught:
        to_dlpack(x, stream=1)
    assert str(caught.value) == (
        "dlpack: the tensor is in host memory; got stream 1, expected device (1, 0), no stream"
    )
    with pytest.raises(DeviceError) as caught:
        to_dlpack(x, dl_device=(2, 0))
    assert str(caught.value) == (
        "dlpack: the tensor is in host memory; got device (2, 0), expected device (1, 0), no stream"
    )
    with opaque_device() as device:
        y = leaf([1.0], device=device, grad=False)
        for attempt in (to_dlpack, dlpack_device):
            with pytest.raises(DeviceError) as caught:
                attempt(y)
            assert str(caught.value) == (
                "dlpack: only memory of this process can be shared; got a tensor on 'opaque'. hint: move it with "
                '.to("cpu")'
            )


# --- in ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", _INTEROPERABLE, ids=lambda d: d.name)
def test_from_numpy(dtype: dtypes.DType) -> None:
    host = np.array([[0, 1, 2], [3, 4, 100]]).astype(dtype.numpy)
    x = from_dlpack(host)
    assert x.dtype is dtype
    assert x.device is cpu
    assert x.array.address == host.ctypes.data
    np.testing.assert_array_equal(cpu.download(x.array), host)
    host[0, 0] = 1
    assert cpu.download(x.array)[0, 0] == 1


def test_views_in() -> None:
    host = np.arange(24.0).reshape(4, 6)
    for view in (host.T, host[:, 1:6:2], host[::-1], host[2], host[2:2], host[2, 3, None][0:1], np.zeros((0, 3))):
        x = from_dlpack(view)
        assert x.shape == view.shape
        np.testing.assert_array_equal(cpu.download(x.array), view)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("old", [False, True])
def test_there_and_back(dtype: dtypes.DType, old: bool) -> None:
    """Every dtype, bfloat16 too, through a capsule of our own."""
    x = leaf(np.array([[1, 0, 1], [2, 3, 4]]), dtype=dtype, device=cpu, grad=False)
    y = from_dlpack(Shared(Tensor(x.array.transpose()), old=old))
    assert y.dtype is dtype
    assert y.array.address == x.array.address
    assert y.strides == (1, 3)
    np.testing.assert_array_equal(cpu.download(y.array), cpu.download(x.array).T)


def test_owner_lives_as_long_as_any_view() -> None:
    class Owner(np.ndarray):
        pass

    host = np.arange(10.0).view(Owner)
    gone = weakref.ref(host)
    x = from_dlpack(host)
    part = x.array.slice(0, 5, 10)
    del host, x
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(cpu.download(part), np.arange(5.0, 10.0))
    del part
    gc.collect()
    assert gone() is None


def test_foreign_memory_is_never_recycled() -> None:
    in_use, cached = cpu.bytes_in_use, cpu.bytes_cached  # type: ignore[attr-defined]
    x = from_dlpack(np.ones(1000))
    assert cpu.bytes_in_use == in_use  # type: ignore[attr-defined]
    del x
    assert (cpu.bytes_in_use, cpu.bytes_cached) == (in_use, cached)  # type: ignore[attr-defined]


def test_a_capsule_is_taken_once() -> None:
    x = leaf([1.0], device=cpu, grad=False)
    capsule = to_dlpack(x)

    class Handed:
        def __dlpack__(self) -> Any:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    from_dlpack(Handed())
    assert _capsule_name(capsule) == b"used_dltensor"
    with pytest.raises(
        DTypeError, match=r"from_dlpack: not a capsule that can be taken; got <capsule object \"used_dl"
    ):
        from_dlpack(Handed())


def test_refusals_in() -> None:
    with pytest.raises(DTypeError) as dtype_error:
        from_dlpack([1, 2])
    assert str(dtype_error.value) == "from_dlpack: the object shares no memory; got list, expected __dlpack__"
    with pytest.raises(DTypeError) as dtype_error:
        from_dlpack(np.ones(2, np.complex64))
    assert str(dtype_error.value) == (
        "from_dlpack: an element type without a counterpart; got DLPack code 5, 64 bits, 1 lanes, expected bool, "
        "uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64"
    )
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with pytest.raises(DeviceError) as caught:
        from_dlpack(frozen)
    assert str(caught.value) == "from_dlpack: the memory is read-only. hint: share a copy of it"


@pytest.mark.parametrize(("kind", "name"), [(2, "CUDA"), (8, "Metal"), (10, "ROCm"), (99, "DLPack device 99")])
def test_other_devices_are_refused_by_name(kind: int, name: str) -> None:
    class Elsewhere:
        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("asked for memory it must not touch")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (kind, 0)

    with pytest.raises(DeviceError) as caught:
        from_dlpack(Elsewhere())
    assert str(caught.value) == (
        f"from_dlpack: not in host memory; got {name}, expected CPU. hint: copy it to the host first"
    )


def test_refused_structures_go_back_to_their_owner() -> None:
    held = len(dlpack._held)

    class Lying(Shared):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            next(reversed(dlpack._held.values()))[0].tensor.device_type = 2
            return capsule

    with pytest.raises(DeviceError, match="got CUDA"):
        from_dlpack(Lying(leaf([1.0], device=cpu, grad=False)))
    gc.collect()
    assert len(dlpack._held) == held


def test_foreign_arrays_may_outlive_everything() -> None:
    """At exit, NumPy gives memory back after this library is half taken down."""
    program = """
import numpy as np
from pellucid.base import dtypes
from pellucid.device import cpu
from pellucid.tape import Tensor, dlpack_device, from_dlpack, to_dlpack
class Shared:
    def __init__(self, x): self.x = x
    def __dlpack__(self, **options): return to_dlpack(self.x, **options)
    def __dlpack_device__(self): return dlpack_device(self.x)
make = lambda: Tensor(cpu.upload(np.ones(10), dtypes.float64))
np.kept = np.from_dlpack(Shared(make()))
np.unused = to_dlpack(make())
np.taken = from_dlpack(np.ones(3))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
