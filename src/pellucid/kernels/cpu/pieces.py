"""Many arrays as the items of one launch: each is cut into pieces of at most GRAIN elements, small ones are one piece.

Pieces depend on shapes alone, so what is computed from them does not change with the number of threads.

What runs over all parameters waits for memory, and a processor reads ahead within a page only. So a piece is walked
over in blocks: `ask_block` for each array that is read, then the block.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from operator import attrgetter

from ...base.shapes import Shape
from ...device import Array
from .elementwise import words
from .functions import inlined
from .lanes import ask_run

GRAIN = 1 << 15  # elements of a piece; where there are no more in all, another thread would only wake up for them
BLOCK = 256  # elements
_AHEAD = 512  # elements from a block to the one asked of memory

shape_of = attrgetter("shape")


@lru_cache(256)
def pieces(shapes: tuple[Shape, ...]) -> tuple[int, int, Array]:
    """The pieces of arrays of these shapes: how many, how many make a chunk, and a table of int64 with number of the
    array, first element, last element + 1 for each."""
    found: list[int] = []
    for number, shape in enumerate(shapes):
        n = prod(shape)
        for first in range(0, n, GRAIN):
            found += [number, first, min(first + GRAIN, n)]
    items = len(found) // 3
    return items, items + 1 if sum(map(prod, shapes)) <= GRAIN else 1, words(found)


@inlined
def ask_block(x, i):
    """Asks memory for the block some way behind the one that begins at i."""
    ask_run(x, i + _AHEAD, BLOCK)
