"""The protocol of the worker pool, in LLVM IR: how a job is published, its chunks claimed, and its end awaited.

It is written at this level because a launch has to cost less than the small kernels it starts, and because a worker
must never need Python's lock: it enters `worker` once and leaves it when the pool is resized. `pool` owns the threads.

A chunk is claimed by subtracting one from `left`: whoever gets r > 0 owns one. Which one is read after the claim, as
the job is, when neither can change any more, because a launch returns only when `done` counts every chunk: the launch
takes chunks from the first one on, workers from the last one back, so that what a core wrote in one launch it finds in
its own cache in the next. `left` may fall below zero: that claims nothing, and the next launch overwrites it. Words
that different threads write lie on different cache lines.

Linux likes to wake a worker on the core of the launch that woke it, and may leave it there for long, the two taking
turns while another core idles: products ran at half speed for whole steps. So a launch notes its core, and a worker
that finds itself there moves to any other core it may use.
"""

from __future__ import annotations

import os
import platform
import threading
from functools import cache

import llvmlite.binding as llvm

from ..base.errors import DeviceError, KernelError

_IR = """
@left = internal global i64 0, align 128
@front = internal global i64 0, align 128                                       ; the next chunk of the launch
@back = internal global i64 0, align 128                                        ; that of the workers
@done = internal global i64 0, align 128
@job = internal global { ptr, ptr, i64, i64 } zeroinitializer, align 128   ; function, block, n, grain
@busy = internal global i64 0, align 128                                        ; 1 while a launch owns the pool
@sleepers = internal global i64 0, align 128
@stop = internal global i64 0, align 128
@workers = internal global i64 0, align 128
@spins = internal global i64 0
@home = internal global i32 -1, align 128                                       ; core of the last launch
@fixed = internal global i64 0                                                  ; 1 where a worker can't leave it
@epoch = internal global i64 0, align 128                                       ; counts wake-ups; under the mutex
@mutex = internal global [16 x i64] zeroinitializer, align 128
@wakeup = internal global [16 x i64] zeroinitializer, align 128

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare i64 @llvm.smin.i64(i64, i64)
DECLARE_PAUSE
CORES

; at the start, and in a forked child, which has none of its parent's workers
define void @reset() {
  store i64 0, ptr @left
  store i64 0, ptr @busy
  store i64 0, ptr @sleepers
  store i64 0, ptr @stop
  store i64 0, ptr @workers
  store i32 -1, ptr @home
  store i64 0, ptr @fixed
  call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  call i32 @pthread_cond_init(ptr @wakeup, ptr null)
  ret void
}

define void @configure(i64 %workers, i64 %spins, i64 %stop) {
  store i64 %spins, ptr @spins
  store atomic i64 %workers, ptr @workers release, align 8
  store atomic i64 %stop, ptr @stop seq_cst, align 8
  call void @wake()
  ret void
}

; n steps of an idle worker, for measuring how long one takes
define void @idle(i64 %n) {
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %next, %again ]
  PAUSE
  %seen = load atomic i64, ptr @left monotonic, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %again, label %out
out:
  ret void
}

; runs one chunk if one is left, and says whether it did; place and way: @front and 1, or @back and -1
define internal i1 @take(ptr %place, i64 %way) {
  %seen = load atomic i64, ptr @left monotonic, align 8
  %some = icmp sgt i64 %seen, 0
  br i1 %some, label %claim, label %none
claim:
  %r = atomicrmw sub ptr @left, i64 1 acq_rel
  %mine = icmp sgt i64 %r, 0
  br i1 %mine, label %work, label %none
work:
  %job = load { ptr, ptr, i64, i64 }, ptr @job
  %fn = extractvalue { ptr, ptr, i64, i64 } %job, 0
  %block = extractvalue { ptr, ptr, i64, i64 } %job, 1
  %n = extractvalue { ptr, ptr, i64, i64 } %job, 2
  %grain = extractvalue { ptr, ptr, i64, i64 } %job, 3
  %k = atomicrmw add ptr %place, i64 %way monotonic
  %lo = mul i64 %k, %grain
  %end = add i64 %lo, %grain
  %hi = call i64 @llvm.smin.i64(i64 %end, i64 %n)
  call void %fn(ptr %block, i64 %lo, i64 %hi)
  %before = atomicrmw add ptr @done, i64 1 acq_rel
  ret i1 true
none:
  ret i1 false
}

define void @worker() {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ 0, %seek ], [ %next, %pause ], [ 0, %awake ]
  %home = load atomic i32, ptr @home monotonic, align 4
  %core = call i32 @core()
  %crowded = icmp eq i32 %home, %core
  br i1 %crowded, label %move, label %seek
move:
  call void @leave(i32 %core)
  br label %seek
seek:
  %took = call i1 @take(ptr @back, i64 -1)
  br i1 %took, label %look, label %nothing
nothing:
  %halt = load atomic i64, ptr @stop acquire, align 8
  %end = icmp ne i64 %halt, 0
  br i1 %end, label %out, label %still
still:
  %limit = load i64, ptr @spins
  %tired = icmp sge i64 %i, %limit
  br i1 %tired, label %sleep, label %pause
pause:
  PAUSE
  %next = add i64 %i, 1
  br label %look
sleep:                            ; say so, then look once more; a launch publishes, then asks who sleeps
  call i32 @pthread_mutex_lock(ptr @mutex)
  %mine = load i64, ptr @epoch
  %others = atomicrmw add ptr @sleepers, i64 1 seq_cst
  fence seq_cst
  %left = load atomic i64, ptr @left seq_cst, align 8
  %late = icmp sgt i64 %left, 0
  %halt2 = load atomic i64, ptr @stop seq_cst, align 8
  %halted = icmp ne i64 %halt2, 0
  %stay = or i1 %late, %halted
  br i1 %stay, label %up, label %wait
up:
  %fewer = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  br label %awake
wait:
  call i32 @pthread_cond_wait(ptr @wakeup, ptr @mutex)
  %now = load i64, ptr @epoch
  %spurious = icmp eq i64 %now, %mine
  br i1 %spurious, label %wait, label %awake
awake:
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %look
out:
  ret void
}

define internal void @wake() noinline {
  call i32 @pthread_mutex_lock(ptr @mutex)
  store atomic i64 0, ptr @sleepers seq_cst, align 8
  %e = load i64, ptr @epoch
  %next = add i64 %e, 1
  store i64 %next, ptr @epoch
  call i32 @pthread_cond_broadcast(ptr @wakeup)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

define void @run(ptr %fn, ptr %block, i64 %n, i64 %grain) {
entry:
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %out, label %some
some:
  %single = icmp sle i64 %n, %grain
  br i1 %single, label %one, label %many
one:
  call void %fn(ptr %block, i64 0, i64 %n)
  ret void
many:
  %w = load atomic i64, ptr @workers monotonic, align 8
  %alone = icmp eq i64 %w, 0
  br i1 %alone, label %serial, label %reserve
reserve:
  %was = atomicrmw xchg ptr @busy, i64 1 acquire
  %taken = icmp ne i64 %was, 0
  br i1 %taken, label %serial, label %publish

serial:
  %lo = phi i64 [ 0, %many ], [ 0, %reserve ], [ %end, %serial ]
  %end = add i64 %lo, %grain
  %hi = call i64 @llvm.smin.i64(i64 %end, i64 %n)
  call void %fn(ptr %block, i64 %lo, i64 %hi)
  %more = icmp slt i64 %end, %n
  br i1 %more, label %serial, label %out

publish:
  %n1 = sub i64 %n, 1
  %q = sdiv i64 %n1, %grain
  %chunks = add i64 %q, 1
  %j0 = insertvalue { ptr, ptr, i64, i64 } poison, ptr %fn, 0
  %j1 = insertvalue { ptr, ptr, i64, i64 } %j0, ptr %block, 1
  %j2 = insertvalue { ptr, ptr, i64, i64 } %j1, i64 %n, 2
  %j3 = insertvalue { ptr, ptr, i64, i64 } %j2, i64 %grain, 3
  store { ptr, ptr, i64, i64 } %j3, ptr @job
  store atomic i64 0, ptr @front monotonic, align 8
  store atomic i64 %q, ptr @back monotonic, align 8
  %core = call i32 @core()
  store atomic i32 %core, ptr @home monotonic, align 4
  store atomic i64 0, ptr @done monotonic, align 8
  store atomic i64 %chunks, ptr @left seq_cst, align 8
  fence seq_cst
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %any = icmp sgt i64 %asleep, 0
  br i1 %any, label %rouse, label %help
rouse:
  call void @wake()
  br label %help
help:
  %took = call i1 @take(ptr @front, i64 1)
  br i1 %took, label %help, label %join
join:
  %i = phi i64 [ 0, %help ], [ %next, %pause ], [ %next, %yield ]
  %d = load atomic i64, ptr @done acquire, align 8
  %all = icmp sge i64 %d, %chunks
  br i1 %all, label %finished, label %waiting
waiting:
  %next = add i64 %i, 1
  %limit = load i64, ptr @spins
  %slow = icmp sge i64 %i, %limit
  br i1 %slow, label %yield, label %pause
pause:
  PAUSE
  br label %join
yield:
  call i32 @sched_yield()
  br label %join
finished:
  store atomic i64 0, ptr @busy release, align 8
  br label %out
out:
  ret void
}

; run(function, block, n, grain) as a Python built-in: four integers in, None out, Python's lock released meanwhile
define ptr @call(ptr %self, ptr %args, i64 %count) {
  %four = icmp eq i64 %count, 4
  br i1 %four, label %read, label %miscounted
miscounted:
  call i32 @PyErr_BadArgument()
  ret ptr null
read:
  %a1 = getelementptr ptr, ptr %args, i64 1
  %a2 = getelementptr ptr, ptr %args, i64 2
  %a3 = getelementptr ptr, ptr %args, i64 3
  %p0 = load ptr, ptr %args
  %p1 = load ptr, ptr %a1
  %p2 = load ptr, ptr %a2
  %p3 = load ptr, ptr %a3
  %i0 = call i64 @PyLong_AsLongLong(ptr %p0)
  %i1 = call i64 @PyLong_AsLongLong(ptr %p1)
  %n = call i64 @PyLong_AsLongLong(ptr %p2)
  %grain = call i64 @PyLong_AsLongLong(ptr %p3)
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %refuse, label %go
refuse:
  ret ptr null
go:
  %fn = inttoptr i64 %i0 to ptr
  %block = inttoptr i64 %i1 to ptr
  %state = call ptr @PyEval_SaveThread()
  call void @run(ptr %fn, ptr %block, i64 %n, i64 %grain)
  call void @PyEval_RestoreThread(ptr %state)
  %none = inttoptr i64 NONE to ptr
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}
"""

# The core this thread runs on, and how to leave it. Elsewhere than on Linux the system decides.
_CORES = """
declare i32 @getpid()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i32 @core() alwaysinline {
  %core = call i32 @sched_getcpu()
  ret i32 %core
}

; allows this thread every core of the process but one, which moves it off that one at once and keeps it off
define internal void @leave(i32 %core) noinline {
entry:
  %all = alloca [128 x i8], align 8
  %rest = alloca [128 x i8], align 8
  %fixed = load i64, ptr @fixed
  %inside = icmp ult i32 %core, 1024
  %free = icmp eq i64 %fixed, 0
  %able = and i1 %inside, %free
  br i1 %able, label %read, label %out
read:
  %process = call i32 @getpid()
  %failed = call i32 @sched_getaffinity(i32 %process, i64 128, ptr %all)
  %readable = icmp eq i32 %failed, 0
  br i1 %readable, label %forbid, label %stuck
forbid:
  %cores = load [128 x i8], ptr %all
  store [128 x i8] %cores, ptr %rest
  %index = lshr i32 %core, 3
  %byte = getelementptr i8, ptr %rest, i32 %index
  %low = and i32 %core, 7
  %shift = trunc i32 %low to i8
  %bit = shl i8 1, %shift
  %others = xor i8 %bit, -1
  %old = load i8, ptr %byte
  %new = and i8 %old, %others
  store i8 %new, ptr %byte
  %refused = call i32 @sched_setaffinity(i32 0, i64 128, ptr %rest)
  %moved = icmp eq i32 %refused, 0
  br i1 %moved, label %out, label %stuck
stuck:                            ; a single core: stay, and don't ask again
  store i64 1, ptr @fixed
  br label %out
out:
  ret void
}
"""
_NO_CORES = """
define internal i32 @core() alwaysinline {
  ret i32 -2
}

define internal void @leave(i32 %core) {
  ret void
}
"""

# Instruction that tells the core, or the core beside it, that this is a waiting loop.
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


_lock = threading.Lock()
_known: set[str] = set()  # names of the functions compiled so far


def compile_native(text: str, *names: str, opt: int = 2) -> tuple[int, ...]:
    """Addresses of functions of a module of LLVM IR, compiled for this host; `opt` is LLVM's level, 0 to 3.

    The code stays mapped until the process ends. Raises KernelError for a function of a name that was compiled
    before, and RuntimeError, with LLVM's message, for text that does not parse.
    """
    with _lock:
        engine, machine = _engine(opt)
        module = llvm.parse_assembly(text)
        module.verify()
        defined = {f.name for f in module.functions if not f.is_declaration}
        if twice := sorted(defined & _known):
            raise KernelError("compile_native", "a function of that name exists", got=twice[0], hint="number the names")
        if opt:
            passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=opt))
            passes.getModulePassManager().run(module, passes)
        engine.add_module(module)
        engine.finalize_object()
        _known.update(defined)
        return tuple(engine.get_function_address(name) for name in names)


@cache
def _engine(opt: int) -> tuple[llvm.ExecutionEngine, llvm.TargetMachine]:
    """The compiler of one level: setting one up takes as long as compiling a small function."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=opt, jit=True
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), machine


def compile_protocol() -> dict[str, int]:
    """Addresses of the functions above, `call` being one for Python.

    Raises DeviceError on a system without POSIX threads.
    """
    if os.name != "posix":
        raise DeviceError("cpu", "the worker pool needs POSIX threads", got=os.name, hint="use Linux, macOS or WSL")
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    declare, pause = _PAUSES.get(machine, ("", ""))
    cores = _CORES if platform.system() == "Linux" else _NO_CORES
    text = (
        _IR.replace("CORES", cores)
        .replace("DECLARE_PAUSE", declare)
        .replace("PAUSE", pause)
        .replace("NONE", str(id(None)))
    )
    names = ("call", "reset", "configure", "idle", "worker", "run")
    return dict(zip(names, compile_native(text, *names), strict=True))
