"""Memory apart: blocks that one stretch of work allocated, kept at their places so that the work can be done again.

While a region is open, allocations of one thread come from its own free lists, and a block that is freed serves later
allocations in it: the peak is that of the work. Once it is closed nobody is given any of it, so whoever writes to these
addresses again, in the same order, writes to memory of its own. `free` gives it back; a block that a Buffer still
holds then goes when that Buffer does.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from array import array as int64_words
from typing import TYPE_CHECKING, NoReturn

from ..base.errors import DeviceError
from . import blocks
from .cpu import CACHED, IN_USE, KEEP, PEAK, POISON, WORDS
from .device import Buffer

if TYPE_CHECKING:
    from .cpu import HostDevice

_retired: list[int64_words[int]] = []  # of regions that were freed; the block of a living Buffer counts itself out


class Region:
    """Memory of a host device. `with region: ...` has the allocations of this thread come from it; one thread of a
    device at a time. Counts as in use on the device from then on."""

    def __init__(self, device: HostDevice, words: int64_words[int]) -> None:
        self._device, self._of_device = device, words
        self._words = _fresh_words()
        self._words[KEEP], self._words[POISON] = 1 << 62, words[POISON]
        self._counted = 0

    def __enter__(self) -> Region:
        blocks.divert(self._device, self._words, threading.get_ident())
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
        self._counted, of_device = self.nbytes, self._of_device
        of_device[IN_USE] += self._counted
        of_device[PEAK] = max(of_device[PEAK], of_device[IN_USE])

    def leave(self) -> None:
        """Has allocations come from the device again, before the end of the `with`."""
        blocks.divert(self._device, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all its blocks."""
        return self._words[IN_USE] + self._words[CACHED]

    @property
    def held(self) -> int:
        """Bytes of those that living Buffers hold."""
        return self._words[IN_USE]

    def owns(self, buffer: Buffer) -> bool:
        """Whether a Buffer is of this region."""
        return blocks.owner(buffer) == self._words.buffer_info()[0]

    def __reduce__(self) -> NoReturn:
        raise DeviceError("Region", "memory apart can't be copied", hint="copy what is computed in it")

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_counted"):  # it was made to its end
            self.free()

    def free(self) -> None:
        """Gives its memory back to the system. Nothing may be written to its addresses any more."""
        words, self._words = self._words, _fresh_words()
        self._of_device[IN_USE] -= self._counted
        self._counted = words[KEEP] = 0
        blocks.trim(words.buffer_info()[0])
        _retired.append(words)


def _fresh_words() -> int64_words[int]:
    for i, words in enumerate(_retired):
        if not words[IN_USE]:
            del _retired[i]
            break
    else:
        words = int64_words("q", bytes(8 * WORDS))
        # A Buffer may outlive everything here, as the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
        return words
    words[:] = int64_words("q", bytes(8 * WORDS))
    return words
