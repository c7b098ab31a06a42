"""Cutting UTF-8 text at every occurrence of a string: what `Split` with plain characters asks for in a file.

An occurrence is a match, what stands between two of them is not; `INVERT` turns that round. Which of these pieces are
put together or dropped follows from the flags, and for each piece from the one before it alone. A string that is valid
UTF-8 is found in valid UTF-8 only where characters begin, so bytes are compared.

`marks[i]` becomes 1 where a piece begins, 2 where one begins that is dropped.
"""

from __future__ import annotations

from ...kernels.cpu.functions import inner
from ..patterns import CONTIGUOUS, DROP, INVERT, JOIN_NEXT, JOIN_PREVIOUS
from .loops import loops


@inner
def occurrence(data, i, end, text):
    """Where `text` begins next, from i on; `end` where it doesn't."""
    last = end - len(text)
    while i <= last:
        n = 0
        while n < len(text) and data[i + n] == text[n]:
            n += 1
        if n == len(text):
            return i
        i += 1
    return end


@inner
def mark_of(match, before, first, flags):
    """The mark of a piece that is a match or not, behind one that was or wasn't."""
    if flags & DROP:
        return 2 if match else 1
    if first:
        return 1
    if flags & CONTIGUOUS:
        return 1 if match != before else 0
    if flags & JOIN_PREVIOUS:
        return 0 if match and not before else 1
    if flags & JOIN_NEXT:
        return 0 if before and not match else 1
    return 1


@loops
def split(lo, hi, data, starts, marks, text, flags):
    """Marks the pieces of texts lo to hi-1; text k is bytes starts[k] to starts[k+1]-1."""
    found = (flags & INVERT) == 0
    for k in range(lo, hi):
        i, end = starts[k], starts[k + 1]
        before, first = False, True
        while i < end:
            at = occurrence(data, i, end, text)
            if at > i:
                marks[i] = mark_of(not found, before, first, flags)
                before, first = not found, False
            if at < end:
                marks[at] = mark_of(found, before, first, flags)
                before, first = found, False
                at += len(text)
            i = at
