"""The allocator of host memory, in LLVM IR: blocks in free lists by size class, and the Buffers that own them.

An operation allocates its result, so this runs as often as a launch and has to cost as little. `allocator` makes the
Python built-in `allocate(nbytes) -> Buffer` of a device: it takes a block from the free list of its size, or from the
system, and makes the Buffer. The Buffer's `memory` is a capsule whose destructor puts the block back, so a dead Buffer
needs no Python to run, not even while the interpreter shuts down. All of it runs under Python's lock.

A block is 64 bytes of header (size, the device's words, next free block, class), then the memory, at a multiple of 64.
"""

from __future__ import annotations

import ctypes
import platform
from array import array
from collections.abc import Callable
from math import prod

from ..base.dtypes import DType, float32
from ..base.shapes import contiguous_strides
from .array import Array, make_views_by
from .cpu import CACHED, FROM_SYSTEM, IN_USE, KEEP, LISTS, PEAK, POISON, WORDS
from .device import Buffer, Device
from .objects import builtin, constructor, slots
from .pool_protocol import compile_native

_IR = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyCapsule_New(ptr, ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare i64 @PyThread_get_thread_ident()
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; size of the block that serves a request, and its free list: multiples of 64 up to 1 KiB, then steps of an eighth of a
; power of two
define internal { i64, i64 } @classify(i64 %n) {
  %small = icmp ule i64 %n, 1024
  %n63 = add i64 %n, 63
  %up = and i64 %n63, -64
  %multiple = call i64 @llvm.umax.i64(i64 %up, i64 64)
  %number = lshr i64 %multiple, 6
  %less = sub i64 %n, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %less, i1 false)
  %bits = sub i64 64, %zeros
  %exponent = sub i64 %bits, 3
  %step = shl i64 1, %exponent
  %above = sub i64 %step, 1
  %over = add i64 %n, %above
  %steps = lshr i64 %over, %exponent
  %large = shl i64 %steps, %exponent
  %power = mul i64 %bits, 4
  %row = sub i64 %power, 32
  %list = add i64 %row, %steps
  %size = select i1 %small, i64 %multiple, i64 %large
  %index = select i1 %small, i64 %number, i64 %list
  %r0 = insertvalue { i64, i64 } poison, i64 %size, 0
  %r1 = insertvalue { i64, i64 } %r0, i64 %index, 1
  ret { i64, i64 } %r1
}

define i64 @size_class(i64 %n) {
  %class = call { i64, i64 } @classify(i64 %n)
  %size = extractvalue { i64, i64 } %class, 0
  ret i64 %size
}

define internal void @count(ptr %words, i64 %which, i64 %more) alwaysinline {
  %place = getelementptr i64, ptr %words, i64 %which
  %old = load i64, ptr %place
  %new = add i64 %old, %more
  store i64 %new, ptr %place
  ret void
}

; a block from the system, its header filled in; null where there is none
define internal ptr @from_system(ptr %words, i64 %size, i64 %list) noinline {
  %place = alloca ptr
  %all = add i64 %size, 64
  %failed = call i32 @posix_memalign(ptr %place, i64 64, i64 %all)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %none, label %some
none:
  ret ptr null
some:
  %block = load ptr, ptr %place
  %huge = icmp uge i64 %size, 4194304
  br i1 %huge, label %advise, label %head
advise:
  ADVISE
  br label %head
head:
  store i64 %size, ptr %block
  %owner = getelementptr ptr, ptr %block, i64 1
  store ptr %words, ptr %owner
  %number = getelementptr i64, ptr %block, i64 3
  store i64 %list, ptr %number
  call void @count(ptr %words, i64 FROM_SYSTEM, i64 1)
  ret ptr %block
}

define internal void @put_back(ptr %memory) {
  %block = getelementptr i8, ptr %memory, i64 -64
  %size = load i64, ptr %block
  %owner = getelementptr ptr, ptr %block, i64 1
  %words = load ptr, ptr %owner
  %less = sub i64 0, %size
  call void @count(ptr %words, i64 IN_USE, i64 %less)
  %cached.at = getelementptr i64, ptr %words, i64 CACHED
  %cached = load i64, ptr %cached.at
  %more = add i64 %cached, %size
  %keep.at = getelementptr i64, ptr %words, i64 KEEP
  %keep = load i64, ptr %keep.at
  %full = icmp sgt i64 %more, %keep
  br i1 %full, label %drop, label %list
drop:
  call void @free(ptr %block)
  ret void
list:
  store i64 %more, ptr %cached.at
  %number.at = getelementptr i64, ptr %block, i64 3
  %number = load i64, ptr %number.at
  %slot = add i64 %number, LISTS
  %first = getelementptr ptr, ptr %words, i64 %slot
  %next = load ptr, ptr %first
  %link = getelementptr ptr, ptr %block, i64 2
  store ptr %next, ptr %link
  store ptr %block, ptr %first
  ret void
}

define internal void @give_back(ptr %capsule) {
  %memory = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr null)
  call void @put_back(ptr %memory)
  ret void
}

; every free block of a device, back to the system
define void @trim(ptr %words) {
entry:
  br label %lists
lists:
  %i = phi i64 [ LISTS, %entry ], [ %i.next, %done ]
  %more = icmp slt i64 %i, WORDS
  br i1 %more, label %list, label %out
list:
  %first = getelementptr ptr, ptr %words, i64 %i
  br label %blocks
blocks:
  %block = load ptr, ptr %first
  %empty = icmp eq ptr %block, null
  br i1 %empty, label %done, label %drop
drop:
  %link = getelementptr ptr, ptr %block, i64 2
  %next = load ptr, ptr %link
  store ptr %next, ptr %first
  call void @free(ptr %block)
  br label %blocks
done:
  %i.next = add i64 %i, 1
  br label %lists
out:
  %cached = getelementptr i64, ptr %words, i64 CACHED
  store i64 0, ptr %cached
  ret void
}

; allocate(nbytes); self: the address of (words, device, what to call for a request that can't be served, other words,
; the thread that takes its blocks from those, 0 for none)
define ptr @allocate(ptr %self, ptr %args, i64 %count) {
entry:
  %site = call ptr @PyLong_AsVoidPtr(ptr %self)
  %usual = load ptr, ptr %site
  %thread.at = getelementptr i64, ptr %site, i64 4
  %thread = load i64, ptr %thread.at
  %undiverted = icmp eq i64 %thread, 0
  br i1 %undiverted, label %start, label %ask
ask:
  %me = call i64 @PyThread_get_thread_ident()
  %mine = icmp eq i64 %me, %thread
  %others.at = getelementptr ptr, ptr %site, i64 3
  %others = load ptr, ptr %others.at
  %chosen = select i1 %mine, ptr %others, ptr %usual
  br label %start
start:
  %words = phi ptr [ %usual, %entry ], [ %chosen, %ask ]
  %device.at = getelementptr ptr, ptr %site, i64 1
  %device = load ptr, ptr %device.at
  %one = icmp eq i64 %count, 1
  br i1 %one, label %read, label %refuse
read:
  %request = load ptr, ptr %args
  %n = call i64 @PyLong_AsLongLong(ptr %request)
  %wrong = icmp slt i64 %n, 0
  br i1 %wrong, label %clear, label %classes
classes:
  %class = call { i64, i64 } @classify(i64 %n)
  %size = extractvalue { i64, i64 } %class, 0
  %list = extractvalue { i64, i64 } %class, 1
  %slot = add i64 %list, LISTS
  %first = getelementptr ptr, ptr %words, i64 %slot
  %free = load ptr, ptr %first
  %empty = icmp eq ptr %free, null
  br i1 %empty, label %system, label %cached
system:
  %new = call ptr @from_system(ptr %words, i64 %size, i64 %list)
  %none = icmp eq ptr %new, null
  br i1 %none, label %refuse, label %have
cached:
  %link = getelementptr ptr, ptr %free, i64 2
  %next = load ptr, ptr %link
  store ptr %next, ptr %first
  %less = sub i64 0, %size
  call void @count(ptr %words, i64 CACHED, i64 %less)
  br label %have
have:
  %block = phi ptr [ %new, %system ], [ %free, %cached ]
  call void @count(ptr %words, i64 IN_USE, i64 %size)
  %used.at = getelementptr i64, ptr %words, i64 IN_USE
  %used = load i64, ptr %used.at
  %peak.at = getelementptr i64, ptr %words, i64 PEAK
  %peak = load i64, ptr %peak.at
  %most = call i64 @llvm.umax.i64(i64 %used, i64 %peak)
  store i64 %most, ptr %peak.at
  %memory = getelementptr i8, ptr %block, i64 64
  %poison.at = getelementptr i64, ptr %words, i64 POISON
  %poison = load i64, ptr %poison.at
  %poisoned = icmp ne i64 %poison, 0
  br i1 %poisoned, label %spoil, label %own
spoil:                    ; every float format reads this as NaN, every integer as -1 or its largest
  call void @llvm.memset.p0.i64(ptr %memory, i8 255, i64 %size, i1 false)
  br label %own
own:
  %capsule = call ptr @PyCapsule_New(ptr %memory, ptr null, ptr @give_back)
  %unowned = icmp eq ptr %capsule, null
  br i1 %unowned, label %lost, label %make
lost:                     ; no memory for Python's own objects
  call void @put_back(ptr %memory)
  ret ptr null
make:
  %bits = ptrtoint ptr %memory to i64
  %address = call ptr @PyLong_FromLongLong(i64 %bits)
  %buffer = call ptr @PyType_GenericAlloc(ptr inttoptr (i64 TYPE to ptr), i64 0)
  %no.address = icmp eq ptr %address, null
  %no.buffer = icmp eq ptr %buffer, null
  %no = or i1 %no.address, %no.buffer
  br i1 %no, label %undo, label %fill
undo:                     ; one of these is null, which is allowed
  call void @Py_DecRef(ptr %buffer)
  call void @Py_DecRef(ptr %address)
  call void @Py_DecRef(ptr %capsule)
  ret ptr null
fill:
  call void @Py_IncRef(ptr %device)
  call void @Py_IncRef(ptr %request)
  %to.device = getelementptr i8, ptr %buffer, i64 AT_DEVICE
  store ptr %device, ptr %to.device
  %to.address = getelementptr i8, ptr %buffer, i64 AT_ADDRESS
  store ptr %address, ptr %to.address
  %to.nbytes = getelementptr i8, ptr %buffer, i64 AT_NBYTES
  store ptr %request, ptr %to.nbytes
  %to.memory = getelementptr i8, ptr %buffer, i64 AT_MEMORY
  store ptr %capsule, ptr %to.memory
  ret ptr %buffer
clear:
  call void @PyErr_Clear()
  br label %refuse
refuse:
  %refusal.at = getelementptr ptr, ptr %site, i64 2
  %refusal = load ptr, ptr %refusal.at
  %result = call ptr @PyObject_Vectorcall(ptr %refusal, ptr %args, i64 %count, ptr null)
  ret ptr %result
}
"""

# Large blocks on large pages, as far as the system has them.
_ADVISE = """
  %bits = ptrtoint ptr %block to i64
  %down = and i64 %bits, -4096
  %page = inttoptr i64 %down to ptr
  %advised = call i32 @madvise(ptr %page, i64 %all, i32 14)
"""


_REMEMBERED = 4096  # shapes
_SAMPLE = Buffer(None, 1 << 40, 1 << 41, object())  # type: ignore[arg-type]


def _compile() -> tuple[int, ...]:
    places = zip(
        ("AT_ADDRESS", "AT_DEVICE", "AT_MEMORY", "AT_NBYTES"),
        slots(_SAMPLE, "address", "device", "memory", "nbytes"),
        strict=True,
    )
    names = dict(places) | {
        "ADVISE": _ADVISE.strip() if platform.system() == "Linux" else "",
        "TYPE": id(Buffer),
        "LISTS": LISTS,
        "WORDS": WORDS,
    }
    names |= {"IN_USE": IN_USE, "CACHED": CACHED, "PEAK": PEAK, "KEEP": KEEP, "POISON": POISON}
    names |= {"FROM_SYSTEM": FROM_SYSTEM}
    text = _IR
    for name, value in names.items():
        text = text.replace(name, str(value))
    return compile_native(text, "allocate", "trim", "size_class")


_allocate, _trim, _size_class = _compile()
_sites: dict[Device, tuple[array[int], array[int], object]] = {}  # what the built-ins point to

trim: Callable[[int], None] = ctypes.PYFUNCTYPE(None, ctypes.c_int64)(_trim)
"""Gives every free block of the device with these words, by their address, back to the system. Under Python's lock, as
all that walks in these lists."""

size_class: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(_size_class)
"""Bytes of the block that serves a request of `nbytes`."""


new_array: Callable[[Buffer, tuple[int, ...], DType, tuple[int, ...], int], Array] = constructor(
    Array(_SAMPLE, (1,), float32, (1,), 0), "buffer", "shape", "dtype", "strides", "offset"
)
"""`Array(buffer, shape, dtype, strides, offset)` in a third of the time: every result of a kernel and every view."""

make_views_by(new_array)


def allocator(device: Device, words: array[int], refuse: Callable[[int], Buffer]) -> Callable[[int], Buffer]:
    """`allocate(nbytes)` of a device with these words; `refuse` is called for a request that can't be served. Where two
    threads ask for it at once, both get that of the first."""
    fresh = array("q", [words.buffer_info()[0], id(device), id(refuse), 0, 0])
    site = _sites.setdefault(device, (fresh, words, refuse))[0]
    # A Buffer may die after this list does, when the interpreter shuts down, and its block still counts itself out.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    return builtin("allocate", _allocate, site.buffer_info()[0])


def divert(device: Device, words: array[int] | None, thread: int = 0) -> None:
    """Has one thread take its blocks of the device from other words, which must outlive them; None: as usual again."""
    site = _sites[device][0]
    site[3], site[4] = (0, 0) if words is None else (words.buffer_info()[0], thread)


def owner(buffer: Buffer) -> int:
    """The address of the words whose block holds a Buffer; 0 for memory that is not of a block."""
    if type(buffer.memory).__name__ != "PyCapsule":
        return 0
    return ctypes.c_int64.from_address(buffer.address - 64 + 8).value


def emptier(device: Device) -> Callable[[tuple[int, ...], DType], Array]:
    """`empty(shape, dtype)` of a device: a fresh uninitialised contiguous array."""
    known: dict[tuple[tuple[int, ...], DType], tuple[int, tuple[int, ...]]] = {}

    def empty(shape: tuple[int, ...], dtype: DType) -> Array:
        found = known.get((shape, dtype))
        if found is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            found = known[shape, dtype] = prod(shape) * dtype.itemsize, contiguous_strides(shape)
        nbytes, strides = found
        return new_array(device.allocate(nbytes), shape, dtype, strides, 0)

    return empty
