"""Weights held for inference: each matrix of a model in int8 with a scale a row, in bfloat16, or in float32, all in one
stretch of memory in the order a step reads them. Models are mostly published in bfloat16: held in float32, they are the
same numbers in half of the memory.

It is one way. The float32 weights are gone, so what needs them (training, saving, export, merging) asks for the
parameters and gets an error instead of rounded numbers. Adapters are trained through held weights (`add_lora`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError
from ..device import Array, Device
from ..kernels.held import held_rows
from ..ops import cast
from ..ops.held import held_linear
from ..tape import Tensor

_ALIGN = 64  # bytes; rows of whole cache lines then start at one

#: What weights can be held in.
HELD_DTYPES = (dtypes.int8, dtypes.bfloat16, dtypes.float32)


class HeldMatrix:
    """A matrix to multiply with and to look up rows in. values: (N, K); scale: (N,) float32 with int8, else None."""

    requires_grad = False

    def __init__(self, values: Array, scale: Array | None) -> None:
        self.values, self.scale = values, scale

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def device(self) -> Device:
        return self.values.device

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def linear(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        *,
        operand_dtype: DType | None = None,
    ) -> Tensor:
        """y = x matrix^T + bias + residual; see `ops.held.held_linear`."""
        x = x if x.dtype in (dtypes.float32, operand_dtype) else cast(x, dtypes.float32)
        return held_linear(x, self.values, self.scale, bias, residual, operand_dtype=operand_dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows by id, in float32."""
        return Tensor(held_rows(self.values, self.scale, ids.array))

    def restored(self) -> Tensor:
        """The matrix in float32, as it is multiplied: a new tensor."""
        kernels = self.device.kernels
        if self.scale is not None:
            return Tensor(kernels.dequantize(self.values, self.scale, dtype=dtypes.float32))
        return Tensor(kernels.cast(self.values, dtype=dtypes.float32))


def refuse(where: str, dtype: DType) -> NoReturn:
    """The one answer to whoever needs weights that are no longer there. Raises ConfigError."""
    raise ConfigError(
        where,
        f"the weights are held in {dtype.name} for inference: the float32 ones they came from are gone",
        hint="load the checkpoint again, and train, save or export that model; adapters can be added to this one",
    )


def held_dtype(name: str | DType) -> DType:
    """The dtype of that name. Raises ConfigError for one weights can't be held in."""
    for d in HELD_DTYPES:
        if name in (d, d.name):
            return d
    expected = ", ".join(d.name for d in HELD_DTYPES)
    raise ConfigError("hold_weights", "weights can't be held in this", got=name, expected=f"one of {expected}")


def hold(matrices: Sequence[Tensor | HeldMatrix], dtype: DType) -> list[HeldMatrix]:
    """The matrices (all on one device, none held yet), held one behind the other in the order given, then their scales:
    neighbours that read the same input are one matrix then (`kernels.views.together`). In bfloat16 for float32 where
    that holds every number of theirs.

    Raises ConfigError for numbers that are not finite, with nothing changed.
    """
    arrays = [m.array for m in matrices if isinstance(m, Tensor)]
    assert len(arrays) == len(matrices)
    device = arrays[0].device
    kernels = device.kernels
    if not all(_is_true(kernels.all_finite(a)) for a in arrays):
        hint = "the training diverged; use an earlier checkpoint"
        raise ConfigError("hold_weights", "weights that are not finite numbers", hint=hint)
    if dtype is dtypes.float32 and all(_fits(a, dtypes.bfloat16) for a in arrays):
        dtype = dtypes.bfloat16
    sizes = [_room(a.size * dtype.itemsize) for a in arrays]
    scaled, rows = dtype is dtypes.int8, sum(a.shape[0] for a in arrays)
    memory, found = device.allocate(max(sum(sizes) + 4 * rows * scaled, 1)), []
    start, row = 0, sum(sizes) // 4  # of the next matrix in bytes, of its scales in numbers
    for a, size in zip(arrays, sizes, strict=True):
        values, scale = Array(memory, a.shape, dtype, None, start // dtype.itemsize), None
        if scaled:
            scale = Array(memory, a.shape[:1], dtypes.float32, None, row)
            for to, source in zip((values, scale), kernels.quantize(a), strict=True):
                kernels.assign_(to, source)
        else:
            kernels.assign_(values, a)
        found.append(HeldMatrix(values, scale))
        start, row = start + size, row + a.shape[0]
    return found


def _fits(a: Array, dtype: DType) -> bool:
    """Whether a dtype holds every number of an array as it is."""
    kernels = a.device.kernels
    rounded = kernels.cast(kernels.cast(a, dtype=dtype), dtype=a.dtype)
    return _is_true(kernels.min(kernels.eq(a, rounded), axes=tuple(range(a.rank)), keepdims=False))


def _is_true(answer: Array) -> bool:
    """A kernel's answer, shape (), on the host."""
    return bool(Tensor(answer).item())


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
