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

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...device import Array, Buffer, HostDevice, pool
from ...device.blocks import size_class
from ...device.cpu import watchers
from ...device.region import Region
from . import launch

_one_at_a_time = threading.Lock()


class Recording:
    """The launches of a function and what it returned; `refusal`: why there is nothing to replay, None where there is.

    results: Arrays that hold what the function returned, anew after each replay. nbytes: of the memory it works in.
    """

    def __init__(self, device: HostDevice, most_bytes: int) -> None:
        self.results: list[Array] = []
        self.refusal: str | None = None
        self.nbytes = 0
        self._device, self._most = device, most_bytes
        self._region: Region = device.region()
        self._thread = threading.get_ident()
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._run = pool.run
        self._checks = False

    @classmethod
    def of(cls, function: Callable[[], Sequence[Array]], device: HostDevice, *, most_bytes: int) -> Recording:
        """Runs the function in this thread and records it. It returns every Array that is to outlive it.

        Where it needs more than `most_bytes` it runs as always. Waits while another thread records.
        """
        made = cls(device, most_bytes)
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

    def looks(self) -> None:
        if threading.get_ident() == self._thread and not self._checks:
            self._refuse("Python looks into an array's memory")

    def check(self, function: Callable[..., None], *arguments: Any) -> None:
        """Repeated in each replay, at its place between the launches."""
        if threading.get_ident() != self._thread:
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
        pool.ready()
        self._run, pool.run = pool.run, self._unseen
        watchers.append(self)
        launch.record_by(self._recorder)
        try:
            with self._region:
                self.results = list(function())
        except BaseException:
            self._refuse("it failed")
            self._region.free()
            raise
        finally:
            launch.record_by(None)
            watchers.remove(self)
            pool.run = self._run
        self.nbytes = self._region.nbytes
        buffers = {id(a.buffer): a.buffer for a in self.results if self._region.owns(a.buffer)}
        kept = sum(size_class(b.nbytes) for b in buffers.values())
        if self.refusal is None and self._region.held != kept:
            self._refuse("it keeps memory beyond its results")
        if self.refusal is not None:
            self._calls = []
            self._region.free()

    def _recorder(self, of: launch.Launch) -> Callable[..., None]:
        def record(n_items: int, grain: int, *arguments: Any) -> None:
            if threading.get_ident() == self._thread and self.refusal is None and not self._checks:
                of.native(n_items, grain, *arguments)
                self._calls.append((of.native, (n_items, grain, *map(self._at_its_place, arguments))))
                if self._region.nbytes > self._most:
                    self._refuse(f"it needs more than {self._most:,} bytes")
            else:
                of.native(n_items, grain, *arguments)

        return record

    def _at_its_place(self, argument: Any) -> Any:
        """An argument as it can be kept: memory of the region by its address alone, so that it is given to others."""
        if type(argument) is list:
            return [self._at_its_place(a) for a in argument]
        if type(argument) is not Array or not self._region.owns(argument.buffer):
            return argument
        b = argument.buffer
        place = Buffer(b.device, b.address, b.nbytes, None)
        return Array(place, argument.shape, argument.dtype, argument.strides, argument.offset)

    def _unseen(self, *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            self._refuse("it calls native code that is not a launch")
        self._run(*arguments)

    def _refuse(self, why: str) -> None:
        if self.refusal is None:
            self.refusal, self._calls = why, []
            self._region.leave()
