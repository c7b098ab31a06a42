"""DLPack against PyTorch: every dtype both ways, bfloat16 included, on shared memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import cpu
from pellucid.tape import Tensor, dlpack_device, from_dlpack, to_dlpack

torch = pytest.importorskip("torch")


class Shared:
    """A tensor as the consumer sees it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self.tensor)

    def __dlpack__(self, **options: Any) -> Any:
        return to_dlpack(self.tensor, **options)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_both_ways(dtype: dtypes.DType) -> None:
    host = np.array([[0, 1, 2], [3, 4, 100]]).astype(dtype.numpy)
    x = Tensor(cpu.upload(host, dtype).transpose())
    foreign = torch.from_dlpack(Shared(x))
    assert foreign.dtype is getattr(torch, dtype.name)
    assert foreign.stride() == (1, 3)
    assert foreign.data_ptr() == x.array.address
    assert foreign.double().tolist() == host.T.astype(float).tolist()
    back = from_dlpack(foreign)
    assert back.dtype is dtype
    assert back.array.address == x.array.address
    assert back.strides == x.strides
    foreign[0, 0] = 1
    assert cpu.download(x.array)[0, 0] == 1
    assert cpu.download(back.array)[0, 0] == 1


def test_to_dlpack_capsules_are_taken() -> None:
    x = Tensor(cpu.upload(np.arange(3.0), dtypes.float64))
    buffer = weakref.ref(x.array.buffer)
    foreign = torch.utils.dlpack.from_dlpack(to_dlpack(x))
    del x
    gc.collect()
    assert foreign.tolist() == [0.0, 1.0, 2.0]
    del foreign
    gc.collect()
    assert buffer() is None


def test_memory_of_torch_outlives_its_tensor() -> None:
    foreign = torch.arange(5, dtype=torch.bfloat16)
    x = from_dlpack(foreign)
    del foreign
    gc.collect()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
