"""Where native code finds the slots of our objects, and what it makes of them."""

from __future__ import annotations

import gc
import sys

import pytest

from pellucid.base import dtypes
from pellucid.base.errors import DeviceError
from pellucid.device import Array, cpu
from pellucid.device.blocks import new_array
from pellucid.device.objects import slots


class Pair:
    """Two slots, one of them a number."""

    __slots__ = ("left", "right")

    def __init__(self, left: object, right: object) -> None:
        self.left, self.right = left, right


def test_slots_are_found() -> None:
    places = slots(Pair("a", 10**20), "left", "right")
    assert len(set(places)) == 2
    assert all(16 <= place < Pair.__basicsize__ and place % 8 == 0 for place in places)


def test_a_layout_that_is_not_as_said_is_refused() -> None:
    class Odd:
        __slots__ = ("value",)

        def __getattribute__(self, name: str) -> object:
            return object()

    odd = Odd()
    object.__setattr__(odd, "value", 3)
    with pytest.raises(
        DeviceError, match=r"cpu: objects are laid out in an unknown way; got value\. hint: use CPython"
    ):
        slots(odd, "value")


def test_a_native_array_is_an_array() -> None:
    buffer, shape = cpu.allocate(24), (2, 3)
    made, plain = new_array(buffer, shape, dtypes.float32, (3, 1), 0), Array(buffer, shape, dtypes.float32)
    assert type(made) is Array
    assert all(getattr(made, name) == getattr(plain, name) for name in Array.__slots__)
    assert gc.is_tracked(made)
    with pytest.raises(TypeError):
        new_array(buffer, shape)  # type: ignore[call-arg]


def test_references_are_counted() -> None:
    buffer, shape = cpu.allocate(64), (16, 10**9)
    before = sys.getrefcount(buffer), sys.getrefcount(shape), sys.getrefcount(Array)
    made = [new_array(buffer, shape, dtypes.float32, shape, 0) for _ in range(100)]
    assert sys.getrefcount(buffer) == before[0] + 100
    del made
    assert (sys.getrefcount(buffer), sys.getrefcount(shape), sys.getrefcount(Array)) == before
    counted = 10**18
    start = sys.getrefcount(counted)
    for _ in range(100):
        with pytest.raises(DeviceError):
            cpu.allocate(counted)
    assert sys.getrefcount(counted) == start
