"""Along one row: sums and extremes that vectorise, shared by reductions, normalisation and losses.

A row is n elements from position i on, d steps apart. Sums run in float32 (float64 for float64) in an order that LLVM
picks once for the width of a vector; the same n gives the same bits in every run and on any number of threads.
Long rows are summed in pieces, the pieces in float64, so that the error does not grow with the length.
"""

from __future__ import annotations

import numpy as np

from ...device import Array
from . import functions
from .formats import load
from .functions import exp, inner, like, summing

PIECE = 4096  # elements summed in the element's own precision


def packed(x: Array) -> bool:
    """Whether the rows of `x` lie one behind the other without gaps."""
    return x.is_contiguous


@summing
def sum_piece(x, i, d, n):
    """Sum of a row in the type of its elements; integers in int64."""
    total = load(x, i) * 0 if False else like_zero(x)
    if d == 1:
        for k in range(n):
            total += load(x, i + k)
    else:
        for k in range(n):
            total += load(x, i + k * d)
    return total
