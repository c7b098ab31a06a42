"""One case on one device: its result and gradients, as arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.rng import Generator
from pellucid.device import Device
from pellucid.tape import Tensor

from .cases import Case


def results(case: Case, device: Device, dtype: DType, arrangement: str) -> dict[str, np.ndarray[Any, Any]]:
    """The result ("y") and the gradient of every differentiable input by number, for a random cotangent."""
    inputs = case.arguments(device, dtype, arrangement)
    y = case.run(*inputs, arrangement=arrangement)
    if y.requires_grad:
        cotangent = Generator(len(case.name)).normal(y.shape)
        y.backward(Tensor(device.upload(cotangent, y.dtype)))
    found = {"y": device.download(y.array)}
    for number, x in enumerate(inputs):
        if x is not None and x.grad is not None:
            assert x.grad.dtype is dtype
            found[str(number)] = device.download(x.grad.array)
    return found


DTYPES = (dtypes.float32, dtypes.bfloat16)
