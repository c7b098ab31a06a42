"""Where CPython keeps what native code reads from our objects: the slots of Arrays and Buffers, and built-in functions.

Generated code that looks into an Array itself, instead of being handed numbers by Python, is what makes a launch cost
a tenth of a microsecond. It needs the place of each slot in an object. CPython says where (a slot's descriptor holds
its offset), and `slots` compares that with an object before it trusts it.
"""

from __future__ import annotations

import ctypes
from array import array as int64_words
from collections.abc import Callable
from typing import Any

from ..base.errors import DeviceError
from .pool_protocol import compile_native

_MEMBER = 40  # bytes from a slot's descriptor to the pointer to its PyMemberDef: behind object head, class, two names
_OFFSET = 16  # bytes from a PyMemberDef to the offset: behind the name and the kind
_METH_FASTCALL = 0x80

_CONSTRUCTOR = """
declare ptr @PyType_GenericAlloc(ptr, i64)
declare i32 @PyErr_BadArgument()
declare void @Py_IncRef(ptr)

define ptr @NAME(ptr %self, ptr %args, i64 %count) {
  %complete = icmp eq i64 %count, COUNT
  br i1 %complete, label %make, label %miscounted
miscounted:
  %zero = call i32 @PyErr_BadArgument()
  ret ptr null
make:
  %object = call ptr @PyType_GenericAlloc(ptr inttoptr (i64 CLASS to ptr), i64 0)
  %none = icmp eq ptr %object, null
  br i1 %none, label %out, label %fill
fill:
  FILL
  br label %out
out:
  ret ptr %object
}
"""
_FILL = """
  %from.NUMBER = getelementptr ptr, ptr %args, i64 NUMBER
  %value.NUMBER = load ptr, ptr %from.NUMBER
  call void @Py_IncRef(ptr %value.NUMBER)
  %to.NUMBER = getelementptr i8, ptr %object, i64 OFFSET
  store ptr %value.NUMBER, ptr %to.NUMBER
"""

_kept: list[Any] = []  # what native descriptions of built-ins point to


def slots(made: object, *names: str) -> tuple[int, ...]:
    """Bytes from an object's address to the pointers that its `__slots__` of these names hold.

    Raises DeviceError for a Python that lays its objects out in another way than CPython.
    """
    found = []
    for name in names:
        member = ctypes.c_void_p.from_address(id(type(made).__dict__[name]) + _MEMBER).value
        offset = ctypes.c_int64.from_address((member or 0) + _OFFSET).value
        inside = 16 <= offset < type(made).__basicsize__
        if not inside or ctypes.c_void_p.from_address(id(made) + offset).value != id(getattr(made, name)):
            raise DeviceError("cpu", "objects are laid out in an unknown way", got=name, hint="use CPython")
        found.append(offset)
    return tuple(found)


def builtin(name: str, address: int, self_: object) -> Callable[..., Any]:
    """A native `PyObject *(PyObject *self, PyObject **arguments, int64 count)` as a Python function with that self."""
    text = ctypes.create_string_buffer(name.encode())
    method = int64_words("q", [ctypes.addressof(text), address, _METH_FASTCALL, 0])
    _kept.append((text, method))
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return create(method.buffer_info()[0], self_, None)


def constructor(sample: object, *names: str) -> Callable[..., Any]:
    """A Python function of as many positional arguments that makes an object of the class of `sample`, without its
    constructor, from the values of these slots."""
    kind = type(sample)
    name = f"new_{kind.__name__.lower()}"
    fill = "".join(
        _FILL.replace("NUMBER", str(i)).replace("OFFSET", str(offset)) for i, offset in enumerate(slots(sample, *names))
    )
    text = _CONSTRUCTOR.replace("FILL", fill.strip())
    for word, value in (("NAME", name), ("COUNT", len(names)), ("CLASS", id(kind))):
        text = text.replace(word, str(value))
    (address,) = compile_native(text, name)
    return builtin(name, address, None)
