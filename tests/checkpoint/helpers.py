"""What the checkpoint tests share: tensors of every type, a device that is not the host's, and errors as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.errors import PellucidError
from pellucid.device import Array, HostDevice, reference
from pellucid.tape import Tensor


def tensor(values: Any, dtype: DType | None = None, device: HostDevice = reference) -> Tensor:
    host = np.asarray(values)
    return Tensor(device.upload(host, dtype or dtypes.dtype(host.dtype)))


def samples(seed: int = 0) -> dict[str, Tensor]:
    """One tensor or more of every element type and of shapes from () to three axes, empty ones too."""
    rng = np.random.default_rng(seed)
    shapes = [(), (1,), (3, 5), (0,), (2, 3, 7), (4, 0)]
    found = {}
    for i, dtype in enumerate(dtypes.ALL):
        for shape in (shapes[i % 6], shapes[(i + 2) % 6]):
            values = rng.integers(0, 2 if dtype.kind == "bool" else 100, shape)
            found[f"{dtype.name}.{'x'.join(map(str, shape)) or 'one'}"] = tensor(values.astype(dtype.numpy), dtype)
    return found


class Far(HostDevice):
    """A device whose memory reaches the host only by download; it counts how many downloads are alive at once."""

    def __init__(self) -> None:
        super().__init__("far", "pellucid.kernels.reference")
        self.downloads = self.alive = self.most = 0

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        return self.download(array)

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        self.downloads += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        counted = super().download(array).view(_Counted)
        counted.far = self
        return counted


class _Counted(np.ndarray[Any, Any]):
    far: Far | None = None

    def __del__(self) -> None:
        if self.far is not None:
            self.far.alive -= 1


def bits(host: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(host.dtype), host.shape, host.tobytes()


def message(call: Callable[[], object], kind: type[PellucidError], folder: Path | None = None) -> str:
    """The text of the error `call` raises, with the test's own folder as `~`."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value).replace(f"{folder}/", "~/").replace(str(folder), "~")
