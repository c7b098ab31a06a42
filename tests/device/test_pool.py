"""The worker pool: chunks, thread counts, sleep, forks, several launchers, interruption."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from pellucid.base.errors import DeviceError, KernelError
from pellucid.device import pool

# mark: block[2 * lo] = hi and block[2 * lo + 1] counts the calls. slow: the same after a million steps.
# nested: launches `mark` from inside a job, block[0] being the address of the pool's own launch function.
_IR = """
define void @mark(ptr %block, i64 %lo, i64 %hi) {
  %slot = mul i64 %lo, 2
  %place = getelementptr i64, ptr %block, i64 %slot
  store i64 %hi, ptr %place
  %count = getelementptr i64, ptr %place, i64 1
  %before = load i64, ptr %count
  %after = add i64 %before, 1
  store i64 %after, ptr %count
  ret void
}
define void @slow(ptr %block, i64 %lo, i64 %hi) {
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %next, %again ]
  %next = add i64 %i, 1
  %kept = load volatile i64, ptr %block
  %more = icmp slt i64 %next, 1000000
  br i1 %more, label %again, label %out
out:
  call void @mark(ptr %block, i64 %lo, i64 %hi)
  ret void
}
define void @nested(ptr %block, i64 %lo, i64 %hi) {
  %launch = load ptr, ptr %block
  %offset = mul i64 %lo, 20
  %from = add i64 %offset, 1
  %place = getelementptr i64, ptr %block, i64 %from
  call void %launch(ptr @mark, ptr %place, i64 10, i64 3)
  ret void
}
"""
MARK, SLOW, NESTED = pool.compile_native(_IR, "mark", "slow", "nested")


@pytest.fixture(autouse=True)
def _two_threads():
    before = pool.threads()
    pool.set_threads(2)
    yield
    pool.set_threads(before)


def _run(function: int, n: int, grain: int) -> list[tuple[int, int]]:
    """The chunks that ran, each checked to have run once."""
    words = (ctypes.c_int64 * (2 * max(n, 1)))()
    pool.run(function, ctypes.addressof(words), n, grain)
    assert all(words[2 * i + 1] == (1 if words[2 * i] else 0) for i in range(n))
    return [(i, words[2 * i]) for i in range(n) if words[2 * i]]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "grain"), [(0, 1), (1, 1), (1, 5), (5, 5), (6, 5), (63, 1), (100, 7), (1000, 64)])
def test_chunks_depend_on_items_and_grain_only(threads: int, n: int, grain: int) -> None:
    pool.set_threads(threads)
    assert _run(MARK, n, grain) == [(lo, min(lo + grain, n)) for lo in range(0, n, grain)]


def test_many_launches_in_a_row() -> None:
    for i in range(3000):
        assert len(_run(MARK, 5, 1 + i % 3)) == (5, 3, 2)[i % 3]


def test_work_is_shared() -> None:
    _run(MARK, 4, 1)
    workers = [t for t in threading.enumerate() if t.name.startswith("pellucid-")]
    assert len(workers) == 1
    assert all(t.daemon for t in workers)


def test_one_thread_has_no_worker() -> None:
    pool.set_threads(1)
    assert len(_run(MARK, 10, 1)) == 10
    assert not [t for t in threading.enumerate() if t.name.startswith("pellucid-")]


def test_nested_launch() -> None:
    words = (ctypes.c_int64 * 101)()
    words[0] = pool.native_run()
    for _ in range(100):
        words[1:] = [0] * 100
        pool.run(NESTED, ctypes.addressof(words), 5, 1)
        for k in range(5):
            assert [words[1 + 20 * k + 2 * lo] for lo in (0, 3, 6, 9)] == [3, 6, 9, 10]


def test_two_launchers_at_once() -> None:
    failures: list[BaseException] = []

    def hammer() -> None:
        try:
            for i in range(300):
                assert len(_run(SLOW if i % 100 == 0 else MARK, 8, 1)) == 8
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_idle_workers_use_no_processor() -> None:
    _run(MARK, 10, 1)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.01
    assert len(_run(MARK, 10, 1)) == 10


def test_fork() -> None:
    _run(MARK, 10, 1)
    child = os.fork()
    if child == 0:
        good = len(_run(MARK, 10, 1)) == 10 and len(_run(SLOW, 10, 1)) == 10 and len(pool._threads) == 1
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(_run(MARK, 10, 1)) == 10


def test_fork_while_another_thread_launches() -> None:
    done = threading.Event()
    busy = threading.Thread(target=lambda: [_run(SLOW, 8, 1) for _ in iter(lambda: not done.is_set(), False)])
    busy.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if len(_run(MARK, 10, 1)) == 10 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        busy.join()


def _run_for_ever() -> None:
    while True:
        _run(SLOW, 64, 1)


def test_interrupt_leaves_the_pool_usable() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background ignores it
    try:
        timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            _run_for_ever()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(_run(MARK, 10, 1)) == 10


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(TypeError):
        pool.run(MARK, "no address", 2, 1)  # type: ignore[arg-type]
    _run(MARK, 2, 1)
    with pytest.raises(TypeError):
        pool.run(MARK, "no address", 2, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pool.run(MARK)  # type: ignore[call-arg]
    with pytest.raises(DeviceError, match="set_threads: not a thread count; got 0, expected 1 to 1024"):
        pool.set_threads(0)


def test_names_of_native_functions_are_unique() -> None:
    with pytest.raises(KernelError, match="compile_native: a function of that name exists; got mark"):
        pool.compile_native("define void @mark() { ret void }", "mark")


def _python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_exit_is_clean() -> None:
    code = f"""
        import ctypes
        from pellucid.device import pool
        (mark,) = pool.compile_native({_IR!r}, "mark")
        words = (ctypes.c_int64 * 40)()
        pool.run(mark, ctypes.addressof(words), 20, 1)
        print(pool.threads(), len(pool._threads))
    """
    assert _python(code, PELLUCID_THREADS="3") == "3 2\n"
    assert _python(code, PELLUCID_THREADS="1") == "1 0\n"


def test_devices_load_without_compiler() -> None:
    assert (
        _python("import sys, pellucid.device; print('llvmlite' in sys.modules, 'numba' in sys.modules)")
        == "False False\n"
    )
