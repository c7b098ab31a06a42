"""The CPU worker pool: one job at a time, in chunks that the caller takes from the front and workers from the back.

A job is the address of a native function `void(i64* block, i64 lo, i64 hi)`, the address of the block it reads its
arguments from, and n items in chunks of `grain`. Chunk k is always items k * grain to min((k + 1) * grain, n), whoever
runs it, so a job whose chunks are independent gives the same bits for any number of threads.

Workers are daemon threads that enter the native loop of `pool_protocol` once and stay there without Python's lock:
they look for chunks for `_SPIN_S`, then sleep until the next launch. A launch that finds the pool busy (another Python
thread, a launch from inside a job) runs its own chunks alone, in order: nothing waits, nothing deadlocks. Workers
start with the first launch that has more than one chunk, and again in the child of a fork.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from array import array
from collections.abc import Callable

from ..base.errors import DeviceError
from ..base.settings import settings
from .objects import builtin
from .pool_protocol import compile_native, compile_protocol

__all__ = ["compile_native", "native_run", "ready", "run", "running_flag", "set_threads", "start", "threads"]

_SPIN_S = 80e-6  # how long a worker without work keeps looking, and how long a launch waits before it yields its core

_native = compile_protocol()
_reset = ctypes.CFUNCTYPE(None)(_native["reset"])
_configure = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(_native["configure"])
_worker = ctypes.CFUNCTYPE(None)(_native["worker"])


_launch = builtin("run", _native["call"], None)
_running = array("q", [0])
_count = settings().threads
_threads: list[threading.Thread] = []
_lock = threading.Lock()
_spins = 0


def start() -> None:
    """Brings the workers up to the count. Raises DeviceError if the system refuses a thread."""
    global run, _spins
    with _lock:
        if not _spins:
            idle = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_native["idle"])
            began = time.perf_counter()
            idle(4000)
            _spins = max(100, int(4000 * _SPIN_S / (time.perf_counter() - began)))
        while len(_threads) < _count - 1:
            thread = threading.Thread(target=_worker, name=f"pellucid-{len(_threads) + 1}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise DeviceError(
                    "cpu",
                    "the system refuses another thread",
                    got=f"{len(_threads) + 1} running",
                    expected=f"{_count}",
                    hint="set PELLUCID_THREADS to a smaller number",
                ) from None
            _threads.append(thread)
        _configure(len(_threads), _spins, 0)
        run = _launch
        _running[0] = 1


def _first_run(address: int, block_address: int, n: int, grain: int) -> None:
    if grain < n:
        start()
    _launch(address, block_address, n, grain)


def _after_fork() -> None:
    global run, _lock
    _lock = threading.Lock()
    _threads.clear()
    _reset()
    run = _first_run
    _running[0] = 0


run: Callable[[int, int, int, int], None] = _first_run
"""`run(address, block_address, n, grain)`: runs a native `void(i64* block, i64 lo, i64 hi)` over n items in chunks of
`grain` (at least 1) and returns when all are done. Look it up as `pool.run` at every call: it changes with the
workers. It checks nothing; what the addresses point to must stay alive until it returns."""


def native_run() -> int:
    """Address of the same as a native function `void(ptr function, i64* block, i64 n, i64 grain)`, for native callers.
    It never starts workers: it uses those that run."""
    return _native["run"]


def ready() -> None:
    """Starts the workers unless they run: before a native function that launches through `native_run`."""
    if not _running[0]:
        start()


def running_flag() -> int:
    """Address of a word that is 1 while workers run, 0 before `start`: for native callers of `native_run`."""
    return _running.buffer_info()[0]


def threads() -> int:
    """Threads a job runs on, the caller's included."""
    return _count


def set_threads(n: int) -> None:
    """Changes the number of threads; the workers of before end first. No launch may run at the same time."""
    global run, _count
    if not 1 <= n <= 1024:
        raise DeviceError("set_threads", "not a thread count", got=n, expected="1 to 1024")
    with _lock:
        run = _first_run
        _running[0] = 0
        _configure(0, _spins, 1)
        for thread in _threads:
            thread.join()
        _threads.clear()
        _configure(0, _spins, 0)
        _count = n


_reset()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
