"""Loading values into tensors that exist: all of them, or none.

Every name, shape and element type is compared before the first value is copied, so a file that doesn't fit leaves
the model as it was. Values go through the kernels of each tensor's device; the tensors keep their identity, and with
it the optimizer's hold on them. `load_streamed` does the same for a model that nobody uses yet, a tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..base.dtypes import DType, dtype
from ..base.errors import CheckpointError, DTypeError
from ..tape import Tensor
from .tensor_file import TensorFile
from .tensor_format import shown

_NAMED = 5  # names a message lists


@runtime_checkable
class Streamed(Protocol):
    """Tensors by name, read when they are asked for; shapes and types are known before. A `TensorFile` is one.

    path: what messages name.
    """

    @property
    def path(self) -> str: ...
    def __getitem__(self, name: str, /) -> np.ndarray[Any, Any]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> DType: ...


class Overlaid:
    """The tensors of `base`, those of `over` in place of its own of the same names."""

    def __init__(self, over: Streamed, base: Streamed) -> None:
        self._over, self._base, self._names = over, base, frozenset(over)

    @property
    def path(self) -> str:
        return self._over.path

    def _of(self, name: str) -> Streamed:
        return self._over if name in self._names else self._base

    def __getitem__(self, name: str, /) -> np.ndarray[Any, Any]:
        return self._of(name)[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._base, *self._over])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape(name)

    def dtype(self, name: str) -> DType:
        return self._of(name).dtype(name)


def load_into(
    targets: Mapping[str, Tensor],
    source: TensorFile | Mapping[str, np.ndarray[Any, Any]],
    *,
    cast: bool = False,
    where: str | None = None,
) -> None:
    """Copies the value of every name in `source` into the tensor of that name, in place.

    Args:
        cast: whether another float type is converted (rounded to nearest) instead of refused.
        where: what the messages name; the path of the file by default.

    Raises:
        CheckpointError: names missing or unexpected, or a shape or element type that differs. Nothing was copied.
    """
    at = where or (source.path if isinstance(source, TensorFile) else "load_into")
    _check(targets, source, cast=cast, where=at)
    # A view can still refuse here (a damaged bool), so all are taken before the first copy.
    values = {name: source[name] for name in targets}
    for name, target in targets.items():
        value = values[name]
        target.device.kernels.assign_(target.array, target.device.upload(value, dtype(value.dtype)))


def load_streamed(targets: Mapping[str, Tensor], source: Streamed) -> None:
    """Copies the value of every name in `source` into the tensor of that name, converted to its float type: a tensor is
    read, converted, copied and forgotten before the next one. For targets that nobody uses yet: an error on the way
    leaves some filled.

    Raises:
        CheckpointError: names missing or unexpected, or a shape or kind of number that differs. Nothing was copied.
    """
    _check(targets, source, cast=True, where=source.path)
    for name, target in targets.items():
        value = source[name]
        target.device.kernels.assign_(target.array, target.device.upload(value, dtype(value.dtype)))
    # blocks of the sizes of weights, which nothing that follows will ask for
    for device in {target.device for target in targets.values()}:
        device.trim()


def _check(targets: Mapping[str, Tensor], source: Any, *, cast: bool, where: str) -> None:
    """Compares names, shapes and element types. Raises CheckpointError."""
    missing, unexpected = sorted(set(targets) - set(source)), sorted(set(source) - set(targets))
    if missing or unexpected:
        parts = [
            f"{what} {_listed(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        got, expected = f"{len(source)} tensors", str(len(targets))
        hint = "build the model from the configuration saved with these weights"
        what = f"the tensors do not match by name: {'; '.join(parts)}"
        raise CheckpointError(where, what, got=got, expected=expected, hint=hint)
    for name, target in targets.items():
        found, shape = _facts(source, name, where)
        if shape != target.shape:
            hint = "build the model from the configuration saved with these weights"
            raise CheckpointError(
                where, f"tensor {shown(name)} has another shape", got=shape, expected=target.shape, hint=hint
            )
        if found is not target.dtype and not (cast and found.is_float and target.dtype.is_float):
            hint = "pass cast=True to convert it" if found.is_float and target.dtype.is_float else None
            what = f"tensor {shown(name)} has another element type"
            raise CheckpointError(where, what, got=found.name, expected=target.dtype.name, hint=hint)


def _facts(source: Any, name: str, where: str) -> tuple[DType, tuple[int, ...]]:
    if isinstance(source, Streamed):
        return source.dtype(name), source.shape(name)
    value = source[name]
    try:
        return dtype(value.dtype), value.shape
    except DTypeError as error:
        raise CheckpointError(where, f"tensor {shown(name)} has an unknown element type", got=value.dtype) from error


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(shown(n) for n in names[:_NAMED]) + more
