"""Int8: the weights of a checkpoint in one byte each, for shipping.

    NAME         int8 (N, K)     round(x / scale)
    NAME.scale   float32 (N,)    max |row| / 127

Every matrix is stored so, everything else as it is; a metadata entry says it. Reading gives float32 again, at most half
a scale from what was saved, under the names and shapes the model knows. Rounding costs about 0.4% of a row's largest
weight, which a resumed loss curve would show as a step, so training goes on from float32 only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import CheckpointError
from ..ops.held import quantize
from ..tape import Tensor
from .tensor_file import Host, TensorFile
from .tensor_format import shown

#: What this is called, and the metadata entry of such a file with its value.
INT8 = "int8"
PRECISION, STORED = "pellucid.precision", "q8"
_SCALE = ".scale"


def int8_tensors(tensors: Mapping[str, Tensor], *, where: str) -> dict[str, Tensor]:
    """What an int8 file holds for these tensors.

    Raises:
        CheckpointError: a matrix that is not finite, or a name that stands for a scale.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_SCALE):
            hint = "save it in float32"
            raise CheckpointError(where, f"tensor {shown(name)} has the name of a scale", hint=hint)
        if tensor.ndim != 2 or not tensor.dtype.is_float:
            found[name] = tensor
            continue
        values, scale = quantize(tensor.detach())
        if not np.isfinite(scale.numpy()).all():
            hint = "the training diverged; save an earlier state"
            raise CheckpointError(where, f"tensor {shown(name)} has numbers that are not finite", hint=hint)
        found[name], found[name + _SCALE] = values, scale
    return found


class Int8File(TensorFile):
    """An int8 file as the float32 tensors it stands for: `file[name]` multiplies them out when it is used."""

    def __init__(self, file: TensorFile) -> None:
        """Raises CheckpointError for a matrix without its scale, or a scale without its matrix."""
        super().__init__(file.path, file._entries, file._data, metadata={**file.metadata}, nbytes=file.nbytes)
        self.sha256 = file.sha256
        self._matrices = {name for name in file if file.dtype(name) is dtypes.int8}
        scales = {name for name in file if name.endswith(_SCALE)}
        for name in sorted({*self._matrices, *(name.removesuffix(_SCALE) for name in scales)}):
            self._check(name)
        self._names = [name for name in file if name not in scales]

    def _check(self, name: str) -> None:
        scale = name + _SCALE
        if name not in self._matrices or scale not in self._entries:
            what = f"damaged int8 file: tensor {shown(name)} does not have both its values and its scale"
            raise CheckpointError(self.path, what)
        shape, found = super().shape(name), (super().dtype(scale), super().shape(scale))
        if len(shape) != 2 or found != (dtypes.float32, shape[:1]):
            got = f"{shape} and {found[0].name} {found[1]}"
            what = f"damaged int8 file: tensor {shown(name)} does not fit its scale"
            raise CheckpointError(self.path, what, got=got, expected="(N, K) and float32 (N,)")
        numbers = super().numpy(scale)
        if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
            raise CheckpointError(
                self.path, f"damaged int8 file: tensor {shown(scale)} is no scale", expected="0 or more"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Host:
        if name not in self:
            raise KeyError(name)
        return self.numpy(name)

    def dtype(self, name: str) -> DType:
        return dtypes.float32 if name in self._matrices else super().dtype(name)

    def numpy(self, name: str) -> Host:
        """The tensor in float32, a new array; see `TensorFile.numpy` for those that were not rounded."""
        if name not in self._matrices:
            return super().numpy(name)
        return super().numpy(name).astype(np.float32) * super().numpy(name + _SCALE)[:, None]
