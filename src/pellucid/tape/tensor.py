"""Tensor: an Array that can be differentiated.

A Tensor adds to its Array `requires_grad`, the gradient `grad`, and `op`, the recorded operation that made it (None
for a leaf). Its operators and most methods are operations of the `ops` package, bound to this class by the literal
table in `ops/bind.py`; the declarations below tell readers and type checkers what that table brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ..base.dtypes import DType
from ..base.errors import GradientError, ShapeError
from ..device import Array, Device
from ..device import device as find_device

if TYPE_CHECKING:
    from .op import Op

    Scalar = bool | int | float
    Operand = "Tensor" | Scalar
    Axes = int | Sequence[int] | None


class Tensor:
    """A multi-dimensional array of one dtype on one device.

    Make one with `pellucid.tensor`, `zeros`, `ones`, `full`, `arange`, `from_numpy`, ...; the constructor wraps an
    Array as it is.
    """

    __slots__ = ("__weakref__", "array", "grad", "op", "requires_grad")
    __array_priority__ = 1000  # NumPy operators give way to ours
    __array_ufunc__ = None
    is_op = False  # see Op

    def __init__(self, array: Array, requires_grad: bool = False, op: Op | None = None) -> None:
        self.array = array
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self.op = op

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps of the axes in elements."""
        return self.array.strides

    @property
    def ndim(self) -> int:
        return len(self.array.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.array.size

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    @property
    def device(self) -> Device:
        return self.array.buffer.device

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def is_leaf(self) -> bool:
        """Whether it was made by the user and not by a recorded operation."""
        return self.op is None

    @property
    def is_contiguous(self) -> bool:
        return self.array.is_contiguous

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("len", "a tensor of shape () has no length")
        return self.shape[0]

    # --- gradients ----------------------------------------------------------------------------------------------------

    def backward(self, gradient: Tensor | None = None, *, keep_tape: bool = False) -> None:
        """Replays the tape backwards: adds the gradient of this result to `grad` of every leaf that requires it."""
        _backward(self, gradient, keep_tape=keep_tape)

    def detach(self) -> Tensor:
        """The same memory as a leaf that requires no gradient."""
        return Tensor(self.array)

    # --- to the host --------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array: shared memory on the CPU, a copy from any other device."""
        if self.requires_grad:
            raise GradientError("numpy", "the tensor is part of a recorded computation", hint="call .detach().numpy()")
        return self.device.host(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        found = self.detach().numpy()
        return np.array(found, dtype=dtype, copy=copy)

    def item(self) -> Any:
        """The single element as a Python number."""
        if self.size != 1:
            raise ShapeError("item", "not a single number", got=self.shape, expected="one element")
        found = self.device.host(self.array).item()
        return float(found) if self.dtype.is_float else found

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        found = self.device.download(self.array)
        return (found.astype(np.float64) if self.dtype.is_float else found).tolist()

    def to(self, device: str | Device) -> Tensor:
        """This tensor on another device, as a leaf; itself if it is there already.

        Raises GradientError for the result of a recorded operation, whose tape would end here unnoticed.
        """
        there = find_device(device)
        if there is self.device:
            return self
        if self.op is not None:
            raise GradientError(
                "to",
                "a gradient can't flow back from another device",
                got=f"a result of {type(self.op).__name__}",
                hint="call .detach().to(device), or move the leaves",
            )
        return Tensor(there.upload(self.device.download(self.array), self.dtype), self.requires_grad)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        body = _format(self)
        facts = [f"shape={self.shape}", f"dtype={self.dtype.name}"]
        if self.device.name != "cpu":
            facts.append(f"device={self.device.name!r}")
        if self.op is not None:
            facts.append(f"op={type(self.op).__name__}")
        elif self.requires_grad:
            facts.append("requires_grad=True")
        return f"Tensor({body}, {', '.join(facts)})"

    __hash__ = object.__hash__

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """What `copy.deepcopy` and `pickle` make of a leaf: one with memory of its own, on the device of this name.

        Raises GradientError for the result of a recorded operation, whose tape can't be copied.
        """
        if self.op is not None:
            got = f"a result of {type(self.op).__name__}"
            raise GradientError("copy", "the tensor is part of a recorded computation", got=got, hint="call .detach()")
        return super().__reduce_ex__(protocol)

    if TYPE_CHECKING:  # bound in ops/bind.py

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Tensor) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Tensor) -> Tensor: ...
        def __or__(self, other: Tensor) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def exp(self) -> Tensor: ...
        def log(self) -> Tensor: ...
        def sqrt(self) -> Tensor: ...
        def sin(self) -> Tensor: ...
        def cos(self) -> Tensor: ...
        def tanh(self) -> Tensor: ...
        def sigmoid(self) -> Tensor: ...
        def relu(self) -> Tensor: ...
        def abs(self) -> Tensor: ...
        def clip(self, low: float | None = None, high: float | None = None) -> Tensor: ...
        def sum(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor: ...
        def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor: ...
        def var(self, axis: Axes = None, *, keepdims: bool = False, correction: int = 0) -> Tensor: ...
        def max(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor: ...
        def min(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor: ...
        def argmax(self, axis: int = -1) -> Tensor: ...
        def softmax(self, axis: int = -1) -> Tensor: ...
        def log_softmax(self, axis: int = -1) -> Tensor: ...
        def logsumexp(self, axis: int = -1, *, keepdims: bool = False) -> Tensor: ...
        def cumsum(self, axis: int = -1) -> Tensor: ...
        def reshape(self, *shape: Any) -> Tensor: ...
        def flatten(self, start: int = 0, end: int = -1) -> Tensor: ...
        def permute(self, *order: Any) -> Tensor: ...
        def transpose(self, a: int = -2, b: int = -1) -> Tensor: ...
        @property
        def T(self) -> Tensor: ...
        def expand(self, *shape: Any) -> Tensor: ...
        def unsqueeze(self, axis: int) -> Tensor: ...
        def squeeze(self, axis: int | None = None) -> Tensor: ...
        def contiguous(self) -> Tensor: ...
        def clone(self) -> Tensor: ...
        def cast(self, dtype: DType | str) -> Tensor: ...
        def masked_fill(self, mask: Tensor, value: float) -> Tensor: ...
        def __dlpack__(self, **options: Any) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...


_backward: Any = None  # `op.backward`, set by the package: a Tensor can't import the module that imports it


def _format(x: Tensor) -> str:
    host = x.device.download(x.array)
    if x.dtype.is_float and x.dtype.name != "float64":
        host = host.astype(np.float32)
    return np.array2string(
        host, separator=", ", threshold=60, edgeitems=3, precision=4, max_line_width=110, prefix="Tensor("
    )
