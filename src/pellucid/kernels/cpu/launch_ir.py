"""A launch in LLVM IR: from the arguments of a Python call to the machine code of a kernel, without Python between.

Every kernel owns a table of the combinations of element types it was compiled for. `launch(n, grain, *arguments)` is a
Python built-in with that table as its self: it finds the row that fits the arguments, reads the addresses out of the
Arrays, writes the block the row's entry point unfolds (see `trampoline`) on the stack and runs it. Anything unusual (a
combination not compiled yet, a wrong argument, workers that don't run yet) goes to `prepare`, which is Python; so does
a kernel that raised.

Python's lock is released while chunks run, but kept for a launch of one chunk of several items: those are a few
microseconds of work, less than the lock may take to come back.

Table: arguments k, rows, `prepare`, `failed`, address of the word that says whether workers run; then rows of entry
point, function, and for each argument its tag and element size. The tag of an Array is the address of its dtype, of
a list of Arrays that plus one, of a number the address of its class. A list reaches the kernel as its addresses.
"""

from __future__ import annotations

from array import array
from functools import cache

from ...base import dtypes
from ...device import Array, Buffer, HostDevice, cpu, pool
from ...device.objects import slots

MOST_ARGUMENTS = 64
MOST_LISTED = 1024  # Arrays in a list
MOST_CLASSES = 32  # of host devices; tests make their own
HEAD, ROW_HEAD = 5, 2  # words of the table before its rows, of a row before its arguments

_IR = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)

define internal ptr @class_of(ptr %object) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 8
  %class = load ptr, ptr %place
  ret ptr %class
}

define internal ptr @slot(ptr %object, i64 %offset) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %value = load ptr, ptr %place
  ret ptr %value
}

; dtype, address of the memory and offset of an Array in host memory; a null dtype for any other, and for one whose
; slots are empty or hold something else
define internal { ptr, i64, i64 } @read_array(ptr %array) {
entry:
  %buffer = call ptr @slot(ptr %array, i64 BUFFER)
  %emptied = icmp eq ptr %buffer, null
  br i1 %emptied, label %none, label %some
some:
  %buffer.class = call ptr @class_of(ptr %buffer)
  %is.buffer = icmp eq ptr %buffer.class, inttoptr (i64 BYTES to ptr)
  br i1 %is.buffer, label %held, label %none
held:
  %device = call ptr @slot(ptr %buffer, i64 DEVICE)
  %nowhere = icmp eq ptr %device, null
  br i1 %nowhere, label %none, label %somewhere
somewhere:
  %class = call ptr @class_of(ptr %device)
  br label %host
host:
  %i = phi i64 [ 0, %somewhere ], [ %next, %other ]
  %host.at = getelementptr ptr, ptr inttoptr (i64 HOSTS to ptr), i64 %i
  %host.class = load ptr, ptr %host.at
  %here = icmp eq ptr %host.class, %class
  br i1 %here, label %read, label %other
other:
  %next = add i64 %i, 1
  %end = icmp eq ptr %host.class, null
  br i1 %end, label %none, label %host
none:
  call void @PyErr_Clear()
  ret { ptr, i64, i64 } zeroinitializer
read:
  %dtype = call ptr @slot(ptr %array, i64 DTYPE)
  %offset.object = call ptr @slot(ptr %array, i64 OFFSET)
  %offset = call i64 @PyLong_AsLongLong(ptr %offset.object)
  %address.object = call ptr @slot(ptr %buffer, i64 ADDRESS)
  %address = call i64 @PyLong_AsLongLong(ptr %address.object)
  %no.offset = icmp eq i64 %offset, -1                        ; what a failure to read it gives, and never one
  %no.address = icmp eq i64 %address, -1
  %unplaced = or i1 %no.offset, %no.address
  br i1 %unplaced, label %none, label %placed
placed:
  %r0 = insertvalue { ptr, i64, i64 } poison, ptr %dtype, 0
  %r1 = insertvalue { ptr, i64, i64 } %r0, i64 %address, 1
  %r2 = insertvalue { ptr, i64, i64 } %r1, i64 %offset, 2
  ret { ptr, i64, i64 } %r2
}

; addresses, then offsets, of a list of Arrays into `room`; their dtype, null where they differ or are something else
define internal ptr @read_list(ptr %list, i64 %length, ptr %room) {
entry:
  br label %items
items:
  %i = phi i64 [ 0, %entry ], [ %next, %keep ]
  %seen = phi ptr [ null, %entry ], [ %dtype, %keep ]
  %more = icmp slt i64 %i, %length
  br i1 %more, label %item, label %out
item:
  %object = call ptr @PyList_GetItem(ptr %list, i64 %i)
  %class = call ptr @class_of(ptr %object)
  %is.array = icmp eq ptr %class, inttoptr (i64 ARRAY to ptr)
  br i1 %is.array, label %array, label %bad
array:
  %facts = call { ptr, i64, i64 } @read_array(ptr %object)
  %dtype = extractvalue { ptr, i64, i64 } %facts, 0
  %address = extractvalue { ptr, i64, i64 } %facts, 1
  %offset = extractvalue { ptr, i64, i64 } %facts, 2
  %unreadable = icmp eq ptr %dtype, null
  %first = icmp eq i64 %i, 0
  %same = icmp eq ptr %dtype, %seen
  %fits = or i1 %first, %same
  %differs = xor i1 %fits, true
  %wrong = or i1 %unreadable, %differs
  br i1 %wrong, label %bad, label %keep
keep:
  %address.at = getelementptr i64, ptr %room, i64 %i
  store i64 %address, ptr %address.at
  %behind = add i64 %i, %length
  %offset.at = getelementptr i64, ptr %room, i64 %behind
  store i64 %offset, ptr %offset.at
  %next = add i64 %i, 1
  br label %items
bad:
  ret ptr null
out:
  ret ptr %seen
}

; addresses of first elements, from what `read_list` wrote
define internal void @advance(ptr %room, i64 %length, i64 %size) {
entry:
  br label %items
items:
  %i = phi i64 [ 0, %entry ], [ %next, %item ]
  %more = icmp slt i64 %i, %length
  br i1 %more, label %item, label %out
item:
  %behind = add i64 %i, %length
  %offset.at = getelementptr i64, ptr %room, i64 %behind
  %offset = load i64, ptr %offset.at
  %bytes = mul i64 %offset, %size
  %address.at = getelementptr i64, ptr %room, i64 %i
  %address = load i64, ptr %address.at
  %place = add i64 %address, %bytes
  store i64 %place, ptr %address.at
  %next = add i64 %i, 1
  br label %items
out:
  ret void
}

define ptr @launch(ptr %self, ptr %args, i64 %count) {
entry:
  %tags = alloca [MOST x ptr]
  %values = alloca [MOST x i64]
  %offsets = alloca [MOST x i64]
  %block = alloca [BLOCK x i64]
  %table = call ptr @PyLong_AsVoidPtr(ptr %self)
  %k = load i64, ptr %table
  %rows.at = getelementptr i64, ptr %table, i64 1
  %rows = load i64, ptr %rows.at
  %prepare.at = getelementptr i64, ptr %table, i64 2
  %prepare = load ptr, ptr %prepare.at
  %failed.at = getelementptr i64, ptr %table, i64 3
  %failed = load ptr, ptr %failed.at
  %expected = add i64 %k, 2
  %complete = icmp eq i64 %count, %expected
  br i1 %complete, label %sizes, label %unusual

sizes:
  %n.object = load ptr, ptr %args
  %grain.at = getelementptr ptr, ptr %args, i64 1
  %grain.object = load ptr, ptr %grain.at
  %n.class = call ptr @class_of(ptr %n.object)
  %grain.class = call ptr @class_of(ptr %grain.object)
  %n.int = icmp eq ptr %n.class, inttoptr (i64 INT to ptr)
  %grain.int = icmp eq ptr %grain.class, inttoptr (i64 INT to ptr)
  %ints = and i1 %n.int, %grain.int
  br i1 %ints, label %measure, label %unusual
measure:
  %n = call i64 @PyLong_AsLongLong(ptr %n.object)
  %grain = call i64 @PyLong_AsLongLong(ptr %grain.object)     ; -1 where it does not fit
  %grain.good = icmp sgt i64 %grain, 0
  %n.fits = icmp ne i64 %n, -1
  %good = and i1 %grain.good, %n.fits
  br i1 %good, label %read, label %clear

; tag and value of each argument
read:
  %i = phi i64 [ 0, %measure ], [ %i.next, %keep ]
  %i.more = icmp slt i64 %i, %k
  br i1 %i.more, label %look, label %search
look:
  %position = add i64 %i, 2
  %object.at = getelementptr ptr, ptr %args, i64 %position
  %object = load ptr, ptr %object.at
  %class = call ptr @class_of(ptr %object)
  %is.array = icmp eq ptr %class, inttoptr (i64 ARRAY to ptr)
  br i1 %is.array, label %array, label %number
array:
  %facts = call { ptr, i64, i64 } @read_array(ptr %object)
  %dtype = extractvalue { ptr, i64, i64 } %facts, 0
  %start = extractvalue { ptr, i64, i64 } %facts, 1
  %offset = extractvalue { ptr, i64, i64 } %facts, 2
  %unreadable = icmp eq ptr %dtype, null
  br i1 %unreadable, label %unusual, label %keep
number:
  %is.list = icmp eq ptr %class, inttoptr (i64 LIST to ptr)
  br i1 %is.list, label %list, label %no.list
list:
  %length = call i64 @PyList_Size(ptr %object)
  %pairs = mul i64 %length, 2
  %crowded = icmp sgt i64 %length, LISTED
  %nothing = icmp eq i64 %length, 0
  %unlisted = or i1 %crowded, %nothing
  br i1 %unlisted, label %unusual, label %listed
listed:
  %room.at = alloca i64, i64 %pairs
  %list.dtype = call ptr @read_list(ptr %object, i64 %length, ptr %room.at)
  %mixed = icmp eq ptr %list.dtype, null
  %list.tag = getelementptr i8, ptr %list.dtype, i64 1
  %list.value = ptrtoint ptr %room.at to i64
  br i1 %mixed, label %unusual, label %keep
no.list:
  %is.int = icmp eq ptr %class, inttoptr (i64 INT to ptr)
  br i1 %is.int, label %int, label %other
int:
  %int.value = call i64 @PyLong_AsLongLong(ptr %object)
  %minus.one = icmp eq i64 %int.value, -1
  br i1 %minus.one, label %doubt, label %keep
doubt:
  %error = call ptr @PyErr_Occurred()
  %fits = icmp eq ptr %error, null
  br i1 %fits, label %keep, label %clear
other:
  %is.float = icmp eq ptr %class, inttoptr (i64 FLOAT to ptr)
  br i1 %is.float, label %float, label %rest
float:
  %double = call double @PyFloat_AsDouble(ptr %object)
  %double.bits = bitcast double %double to i64
  br label %keep
rest:
  %is.bool = icmp eq ptr %class, inttoptr (i64 BOOL to ptr)
  br i1 %is.bool, label %bool, label %unusual
bool:
  %true = icmp eq ptr %object, inttoptr (i64 TRUE to ptr)
  %bit = zext i1 %true to i64
  br label %keep
keep:
  %tag = phi ptr [ %dtype, %array ], [ %list.tag, %listed ], [ %class, %int ], [ %class, %doubt ], [ %class, %float ],
    [ %class, %bool ]
  %value = phi i64 [ %start, %array ], [ %list.value, %listed ], [ %int.value, %int ], [ -1, %doubt ],
    [ %double.bits, %float ], [ %bit, %bool ]
  %steps = phi i64 [ %offset, %array ], [ %length, %listed ], [ 0, %int ], [ 0, %doubt ], [ 0, %float ], [ 0, %bool ]
  %tag.to = getelementptr ptr, ptr %tags, i64 %i
  store ptr %tag, ptr %tag.to
  %value.to = getelementptr i64, ptr %values, i64 %i
  store i64 %value, ptr %value.to
  %steps.to = getelementptr i64, ptr %offsets, i64 %i
  store i64 %steps, ptr %steps.to
  %i.next = add i64 %i, 1
  br label %read

; the row with these tags
search:
  %double.k = mul i64 %k, 2
  %width = add i64 %double.k, ROW_HEAD
  %first = getelementptr i64, ptr %table, i64 HEAD
  br label %try
try:
  %r = phi i64 [ 0, %search ], [ %r.next, %differs ]
  %row = phi ptr [ %first, %search ], [ %row.next, %differs ]
  %r.more = icmp slt i64 %r, %rows
  br i1 %r.more, label %compare, label %unusual
compare:
  %j = phi i64 [ 0, %try ], [ %j.next, %same ]
  %j.more = icmp slt i64 %j, %k
  br i1 %j.more, label %one, label %pack
one:
  %j.double = mul i64 %j, 2
  %j.word = add i64 %j.double, ROW_HEAD
  %want.at = getelementptr i64, ptr %row, i64 %j.word
  %want = load ptr, ptr %want.at
  %have.at = getelementptr ptr, ptr %tags, i64 %j
  %have = load ptr, ptr %have.at
  %equal = icmp eq ptr %want, %have
  br i1 %equal, label %same, label %differs
same:
  %j.next = add i64 %j, 1
  br label %compare
differs:
  %r.next = add i64 %r, 1
  %row.next = getelementptr i64, ptr %row, i64 %width
  br label %try

; the block: function, status, then address or value and element size of each argument
pack:
  %function.at = getelementptr i64, ptr %row, i64 1
  %function = load i64, ptr %function.at
  store i64 %function, ptr %block
  %status.at = getelementptr i64, ptr %block, i64 1
  store i64 0, ptr %status.at
  br label %fill
fill:
  %m = phi i64 [ 0, %pack ], [ %m.next, %store ]
  %m.more = icmp slt i64 %m, %k
  br i1 %m.more, label %put, label %ready
put:
  %m.double = mul i64 %m, 2
  %m.word = add i64 %m.double, 2
  %size.word = add i64 %m.word, 1
  %size.at = getelementptr i64, ptr %row, i64 %size.word
  %size = load i64, ptr %size.at
  %value.at = getelementptr i64, ptr %values, i64 %m
  %packed = load i64, ptr %value.at
  %steps.at = getelementptr i64, ptr %offsets, i64 %m
  %behind = load i64, ptr %steps.at
  %m.tag.at = getelementptr i64, ptr %tags, i64 %m
  %m.tag = load i64, ptr %m.tag.at
  %odd = and i64 %m.tag, 1
  %is.listed = icmp ne i64 %odd, 0
  br i1 %is.listed, label %addresses, label %address
addresses:
  %places = inttoptr i64 %packed to ptr
  call void @advance(ptr %places, i64 %behind, i64 %size)
  br label %store
address:
  %bytes = mul i64 %behind, %size
  %moved = add i64 %packed, %bytes
  br label %store
store:
  %final = phi i64 [ %packed, %addresses ], [ %moved, %address ]
  %to = getelementptr i64, ptr %block, i64 %m.word
  store i64 %final, ptr %to
  %size.to = getelementptr i64, ptr %block, i64 %size.word
  store i64 %size, ptr %size.to
  %m.next = add i64 %m, 1
  br label %fill

ready:
  %entry.point = load ptr, ptr %row
  %single = icmp sle i64 %n, %grain
  %several = icmp sgt i64 %grain, 1
  %short = and i1 %single, %several
  br i1 %short, label %here, label %workers
here:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %work, label %done
work:
  call void %entry.point(ptr %block, i64 0, i64 %n)
  br label %check
workers:
  %flag.at = getelementptr i64, ptr %table, i64 4
  %flag.place = load ptr, ptr %flag.at
  %running = load i64, ptr %flag.place
  %started = icmp ne i64 %running, 0
  %go = or i1 %started, %single
  br i1 %go, label %parallel, label %unusual
parallel:
  %state = call ptr @PyEval_SaveThread()
  call void inttoptr (i64 RUN to ptr)(ptr %entry.point, ptr %block, i64 %n, i64 %grain)
  call void @PyEval_RestoreThread(ptr %state)
  br label %check
check:
  %status = load i64, ptr %status.at
  %bad = icmp ne i64 %status, 0
  br i1 %bad, label %raised, label %done
done:
  call void @Py_IncRef(ptr inttoptr (i64 NONE to ptr))
  ret ptr inttoptr (i64 NONE to ptr)
raised:
  %raising = call ptr @PyObject_Vectorcall(ptr %failed, ptr null, i64 0, ptr null)
  ret ptr %raising
clear:
  call void @PyErr_Clear()
  br label %unusual
unusual:
  %prepared = call ptr @PyObject_Vectorcall(ptr %prepare, ptr %args, i64 %count, ptr null)
  ret ptr %prepared
}
"""


_hosts = array("q", [id(HostDevice), *[0] * MOST_CLASSES])
_known = [HostDevice]


def allow(host: type[HostDevice]) -> None:
    """Lets launches read memory of a kind of host device, which stays allowed."""
    if host not in _known:
        assert len(_known) < MOST_CLASSES
        _hosts[len(_known)] = id(host)
        _known.append(host)


@cache
def native_launch() -> int:
    """Address of `launch`, compiled once."""
    made = Array(cpu.allocate(1), (1,), dtypes.uint8, (1,), 0)
    buffer, dtype, offset = slots(made, "buffer", "dtype", "offset")
    address, device = slots(made.buffer, "address", "device")
    places = {
        "ARRAY": id(Array),
        "BYTES": id(Buffer),
        "BUFFER": buffer,
        "DTYPE": dtype,
        "OFFSET": offset,
        "ADDRESS": address,
    }
    places |= {"DEVICE": device, "HOSTS": _hosts.buffer_info()[0]}
    sizes = {"ROW_HEAD": ROW_HEAD, "HEAD": HEAD, "MOST": MOST_ARGUMENTS, "BLOCK": 2 * MOST_ARGUMENTS + 2}
    sizes["LISTED"] = MOST_LISTED
    text = _IR
    objects = {"INT": id(int), "FLOAT": id(float), "BOOL": id(bool), "LIST": id(list)}
    objects |= {"TRUE": id(True), "NONE": id(None)}
    for name, number in {**places, **sizes, **objects, "RUN": pool.native_run()}.items():
        text = text.replace(name, str(number))
    (found,) = pool.compile_native(text, "launch")
    return found
