"""DLPack both ways: memory of this process handed to and taken from other libraries without a copy.

A capsule carries a C structure that points at the elements and a deleter that the consumer calls when it is done; until
then the exporting side keeps the memory alive. Both forms are spoken: the original structure, and the versioned one
(DLPack 1.0) that can say "read-only"; the consumer's `max_version` decides. Specification: https://dmlc.github.io/dlpack
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import DeviceError, DTypeError, GradientError
from ..base.shapes import contiguous_strides
from ..device import Array, Buffer, HostDevice, cpu
from ..device.cpu import LOOKED, tell
from .tensor import Tensor

HOST = (1, 0)  # kDLCPU and its only number
_VERSION = (1, 0)
_READ_ONLY, _COPIED = 1, 2
_DEVICES = {2: "CUDA", 3: "CUDA pinned host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed"}
_CODES: dict[DType, tuple[int, int]] = {  # kind and width of an element, as DLPack counts them
    dtypes.bool_: (6, 8),
    dtypes.uint8: (1, 8),
    dtypes.int8: (0, 8),
    dtypes.int16: (0, 16),
    dtypes.int32: (0, 32),
    dtypes.int64: (0, 64),
    dtypes.float16: (2, 16),
    dtypes.bfloat16: (4, 16),
    dtypes.float32: (2, 32),
    dtypes.float64: (2, 64),
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


# --- the C structures, field by field as in dlpack.h ------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's own C interface."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# A capsule's destructor sees the capsule as a plain address: it is already dead and must not be counted again.
_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_set_name = _python("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)

_FORMS: tuple[tuple[bytes, bytes, Any], ...] = (  # name when new, name once taken, structure
    (b"dltensor_versioned", b"used_dltensor_versioned", _Versioned),
    (b"dltensor", b"used_dltensor", _Managed),
)
_held: dict[int, tuple[Any, ...]] = {}  # address of an exported structure -> what it points to


# --- out --------------------------------------------------------------------------------------------------------------


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """The DLPack device of a tensor, always (1, 0): the host. Raises DeviceError for a tensor anywhere else."""
    if not isinstance(tensor.device, HostDevice):
        raise DeviceError(
            "dlpack",
            "only memory of this process can be shared",
            got=f"a tensor on {tensor.device.name!r}",
            hint='move it with .to("cpu")',
        )
    return HOST


def to_dlpack(
    tensor: Tensor,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule that shares the tensor's memory, with its strides; the memory lives until the consumer lets go.

    The keywords are those of the array API's `__dlpack__`: max_version None gives the original structure, (1, 0) or
    later the versioned one; copy=True shares a fresh copy.

    Raises:
        GradientError: the tensor requires a gradient, which a capsule can't carry.
        DeviceError: the tensor is not in the memory of this process, or `stream` or `dl_device` asks for another.
    """
    host = dlpack_device(tensor)
    if tensor.requires_grad:
        raise GradientError("dlpack", "the tensor is part of a recorded computation", hint="call .detach() first")
    if stream is not None or dl_device not in (None, host):
        got = f"stream {stream!r}" if stream is not None else f"device {dl_device}"
        raise DeviceError("dlpack", "the tensor is in host memory", got=got, expected=f"device {host}, no stream")
    tell(LOOKED)
    array = tensor.device.kernels.copy(tensor.array) if copy else tensor.array
    new, _, structure = _FORMS[0] if max_version is not None and max_version >= _VERSION else _FORMS[1]
    managed = structure()
    shape, strides = (ctypes.c_int64 * array.rank)(*array.shape), (ctypes.c_int64 * array.rank)(*array.strides)
    code, bits = _CODES[array.dtype]
    pointers = (
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
    )
    managed.tensor = _DLTensor(array.address, *host, array.rank, code, bits, 1, *pointers, 0)
    managed.deleter = ctypes.cast(_release, ctypes.c_void_p).value
    if structure is _Versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = _COPIED if copy else 0
    address = ctypes.addressof(managed)
    _held[address] = (managed, shape, strides, array)
    return _new(address, new, ctypes.cast(_unused, ctypes.c_void_p))


@_Deleter
def _release(managed: int | None, held: dict[int, tuple[Any, ...]] = _held) -> None:
    """What the consumer calls when it is done."""
    if managed is not None:
        held.pop(managed, None)


@_Deleter
def _unused(
    capsule: int | None, held: dict[int, tuple[Any, ...]] = _held, is_valid: Any = _is_valid, pointer: Any = _pointer
) -> None:
    """What Python calls when a capsule dies: a capsule that still has its first name was never taken."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if is_valid(capsule, name):
            held.pop(pointer(capsule, name), None)


# Foreign arrays may outlive this module: the callbacks, and the names that capsules point at, never die.
for _lasting in (_release, _unused, *(name for form in _FORMS for name in form[:2])):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_lasting))


# --- in ---------------------------------------------------------------------------------------------------------------


class _Taken:
    """A foreign structure; tells its owner when the last buffer that shows it is gone."""

    __slots__ = ("address", "deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self.address, self.deleter = address, deleter

    def __del__(self, function: Any = _Deleter) -> None:
        if self.deleter:
            function(self.deleter)(self.address)


def from_dlpack(source: Any) -> Tensor:
    """A "cpu" tensor that shares the memory of any object with `__dlpack__`: each sees what the other writes.

    Raises:
        DeviceError: the memory is not the host's, or it is read-only.
        DTypeError: the element type has no counterpart here, or the object can't be shared.
    """
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise DTypeError("from_dlpack", "the object shares no memory", got=type(source).__name__, expected="__dlpack__")
    _refuse_other_device(int(source.__dlpack_device__()[0]))
    tell(LOOKED)
    try:
        capsule = source.__dlpack__(max_version=_VERSION)
    except TypeError:  # an object from before DLPack 1.0 takes no such argument
        capsule = source.__dlpack__()
    new, used, structure = _form(capsule)
    address = _pointer(id(capsule), new)
    managed = structure.from_address(address)
    inside: _DLTensor = managed.tensor
    _refuse_other_device(inside.device_type)
    if structure is _Versioned and managed.major != _VERSION[0]:
        got = f"{managed.major}.{managed.minor}"
        raise DTypeError("from_dlpack", "a version of DLPack that is not known here", got=got, expected="1")
    if structure is _Versioned and managed.flags & _READ_ONLY:
        raise DeviceError("from_dlpack", "the memory is read-only", hint="share a copy of it")
    dtype = _DTYPES.get((inside.code, inside.bits)) if inside.lanes == 1 else None
    if dtype is None:
        raise DTypeError(
            "from_dlpack",
            "an element type without a counterpart",
            got=f"DLPack code {inside.code}, {inside.bits} bits, {inside.lanes} lanes",
            expected=", ".join(d.name for d in _CODES),
        )
    shape = tuple(inside.shape[i] for i in range(inside.ndim))
    strides = tuple(inside.strides[i] for i in range(inside.ndim)) if inside.strides else contiguous_strides(shape)
    _set_name(id(capsule), used)  # from here on the structure is ours to give back
    owner = _Taken(address, managed.deleter)
    start = (inside.data or 0) + inside.byte_offset
    span = sum((n - 1) * max(s, 0) for n, s in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    return Tensor(Array(Buffer(cpu, start, span * dtype.itemsize, owner), shape, dtype, strides))


def _form(capsule: Any) -> tuple[bytes, bytes, Any]:
    for form in _FORMS:
        if type(capsule).__name__ == "PyCapsule" and _is_valid(id(capsule), form[0]):
            return form
    raise DTypeError("from_dlpack", "not a capsule that can be taken", got=repr(capsule), expected="an unused dltensor")


def _refuse_other_device(kind: int) -> None:
    if kind != HOST[0]:
        got = _DEVICES.get(kind, f"DLPack device {kind}")
        raise DeviceError(
            "from_dlpack", "not in host memory", got=got, expected="CPU", hint="copy it to the host first"
        )
