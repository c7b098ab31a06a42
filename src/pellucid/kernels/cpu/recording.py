"""Launches recorded and replayed: what a stretch of Python had the kernels do, done again without the Python.

Between its inputs and its results a training step is a list of launches: the same functions on the same addresses with
the same numbers, whenever shapes and settings are the same. `Recording.of` runs a function once with its memory in a
region of its own (`device.region`) and keeps each launch; `replay` makes them again, in that order, on whatever the
inputs then hold. The bits are those of the function.

That is so only where launches are all that happened. A function that reads or writes an array's memory in Python
(uploads, `.item()`, `.numpy()`), or that keeps memory beyond its results, is not recorded: it ran as it always does,
and `refusal` says why. What no recording can see is a function whose Python would decide differently the next time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...device import Array, Buffer, HostDevice, pool
from ...device.blocks import size_class
from ...device.cpu import watchers
from ...device.region import Region
from . import launch

_one_at_a_time = threading.Lock()
_current: Recording | None = None
BUSY = "something else is being recorded"


class Recording:
    """The launches of a function and what it returned; `refusal`: why there is nothing to replay, None where there is.

    results: Arrays that hold what the function returned, anew after each replay. nbytes: of the memory it works in.
    """

    def __init__(self, device: HostDevice, inputs: Sequence[Array], most_bytes: int) -> None:
        self.results: list[Array] = []
        self.refusal: str | None = None
        self.nbytes = 0
        self._inputs, self._most = {id(a.buffer): a for a in inputs}, most_bytes
        self._region: Region = device.region()
        self._thread = threading.get_ident()
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._run = pool.run
        self._checks = self._over = False

    @classmethod
    def of(
        cls, function: Callable[[], Sequence[Array]], device: HostDevice, *, inputs: Sequence[Array], most_bytes: int
    ) -> Recording:
        """Runs the function in this thread and records it. It returns every Array that is to outlive it.

        inputs: Arrays it reads whose numbers the caller changes before a replay.
        Where it needs more than `most_bytes` it runs as always, and while anything else is recorded, which may wait for
        this or be what calls it.
        """
        made = cls(device, inputs, most_bytes)
        if _current is not None:
            made.results, made.refusal = list(function()), BUSY
            return made
        with _one_at_a_time:
            made._record(function)
        return made

    def replay(self) -> None:
        """Makes the launches again, one after another: `results` hold what the function would return now."""
        assert self.refusal is None
        pool.ready()
        for call, arguments in self._calls:
            call(*arguments)

    def free(self) -> None:
        """Forgets the launches and gives their memory back, but for what a living Array still holds."""
        self._calls, self.results, self.refusal = [], [], "it was freed"
        self._region.free()

    def told(self, why: str) -> None:
        if self._is_mine() and not self._checks:
            self._refuse(why)

    def check(self, function: Callable[..., None], *arguments: Any) -> None:
        """Repeated in each replay, at its place between the launches; a check within another with that one."""
        if not self._is_mine() or self._checks:
            function(*arguments)
            return
        self._checks = True
        try:
            function(*arguments)
        finally:
            self._checks = False
        if self.refusal is None:
            self._calls.append((function, tuple(map(self._at_its_place, arguments))))

    def _record(self, function: Callable[[], Sequence[Array]]) -> None:
        global _current
        pool.ready()
        try:
            _current = self
            self._run, pool.run = pool.run, self._unseen
            watchers.append(self)
            launch.record_by(self._recorder)
            with self._region:
                self.results = list(function())
        except BaseException:
            self._refuse("it failed")
            self._region.free()
            raise
        finally:
            try:
                self._end()
            finally:
                self._end()  # all of it, where a signal's handler raised in the midst of it
        self.nbytes = self._region.nbytes
        buffers = {id(a.buffer): a.buffer for a in self.results if self._region.owns(a.buffer)}
        kept = sum(size_class(b.nbytes) for b in buffers.values())
        if self.refusal is None and self._region.held != kept:
            self._refuse("it keeps memory beyond its results")
        if self.refusal is not None:
            self._calls = []
            self._region.free()

    def _end(self) -> None:
        """Everything as it was before; once more does no harm."""
        global _current
        self._over = True
        self._region.leave()
        if self in watchers:
            watchers.remove(self)
        if pool.run == self._unseen:
            pool.run = self._run
        launch.record_by(None)
        _current = None

    def _is_mine(self) -> bool:
        """Whether this is what is recorded, and not another thread."""
        return not self._over and threading.get_ident() == self._thread

    def _recorder(self, of: launch.Launch) -> Callable[..., None]:
        def record(n_items: int, grain: int, *arguments: Any) -> None:
            if self._is_mine() and self.refusal is None and not self._checks:
                of.native(n_items, grain, *arguments)
                self._calls.append((of.native, (n_items, grain, *map(self._at_its_place, arguments))))
                if self._region.nbytes > self._most:
                    self._refuse(f"it needs more than {self._most:,} bytes")
                return
            of.native(n_items, grain, *arguments)
            if not self._over and self.refusal is None and not self._checks and self._touches(arguments):
                self._refuse("another thread computes a part of it")

        return record

    def _touches(self, arguments: Iterable[Any]) -> bool:
        """Whether one of the arguments is memory of the region."""
        return any(
            self._touches(a) if type(a) is list else type(a) is Array and self._region.owns(a.buffer) for a in arguments
        )

    def _at_its_place(self, argument: Any) -> Any:
        """An argument as it can be kept: memory of the region by its address alone, so that it is given to others, and
        of the inputs, so that it can be told whether anybody else keeps them."""
        if type(argument) is list:
            return [self._at_its_place(a) for a in argument]
        if type(argument) is not Array:
            return argument
        if id(argument.buffer) not in self._inputs and not self._region.owns(argument.buffer):
            return argument
        b = argument.buffer
        place = Buffer(b.device, b.address, b.nbytes, None)
        return Array(place, argument.shape, argument.dtype, argument.strides, argument.offset)

    def _unseen(self, *arguments: Any) -> None:
        if self._is_mine():
            self._refuse("it calls native code that is not a launch")
        self._run(*arguments)

    def _refuse(self, why: str) -> None:
        if self.refusal is None:
            self.refusal, self._calls = why, []
            self._region.leave()


def _after_fork() -> None:
    """The thread that recorded may be another one, which is not here."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()
    if _current is not None:
        _current._refuse("the process was forked")
        _current._end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
