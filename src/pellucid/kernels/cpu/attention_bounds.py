"""Where attention begins: the blocks of queries, and the first key of each, when `starts` bounds what a query sees.

Without bounds a block is so many queries, whatever they are, and begins with key 0. With them, a block also ends where
no query behind sees a key before (a new document), so its tiles begin with that document and hold no key of another:
documents cannot reach one another, not even with numbers that are infinite or none. Keys before the first one that a
block sees are never read, which makes packed documents cost what they would cost alone.

Within a block the first keys may still differ (a window that slides along): those scores are hidden one by one, and
the same is true of them as of keys on the diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...base import dtypes
from ...device import Array
from ...device.cpu import view
from .attention_tiles import memory, queries
from .formats import load, store
from .functions import inner
from .lanes import VECTOR, apart, vload, vsplat, vstore, width
from .lanes_math import vbelow
from .launch import kernel


class Bounds(NamedTuple):
    """plan: int32, for each sequence the first query of each block (and the number of queries behind the last one,
    tq + 1 numbers), the first key of each query (tq), and the number of blocks. blocks: the most of any sequence.
    bounded: whether there is a plan."""

    plan: Array
    blocks: int
    bounded: bool


def bounds(q: Array, k: Array, starts: Array | None, lanes: int) -> Bounds:
    """The blocks of `lanes` queries at most."""
    batch, tq = q.shape[:2]
    if starts is None or batch == 0 or tq == 0:
        return Bounds(q.device.empty((1,), dtypes.int32), -(-tq // lanes), False)
    size = 2 * tq + 2
    plan = q.device.empty((batch, size), dtypes.int32)
    _plan(batch, 1, memory(starts), memory(plan), tq, k.shape[1] - tq, lanes, *starts.strides)
    return Bounds(memory(plan), int(view(plan)[:, -1].max()), True)


@kernel
def _plan(lo, hi, starts, plan, tq, before, lanes, batch_step, time_step):
    """Items: sequences. `before`: keys before the first query."""
    for b in range(lo, hi):
        at, count, begin = b * (2 * tq + 2), 0, 0
        for t in range(tq):
            start = load(starts, b * batch_step + t * time_step)
            store(plan, at + tq + 1 + t, start)
            if t == 0 or t - begin == lanes or start >= t + before:
                store(plan, at + count, t)
                count += 1
                begin = t
        for i in range(count, tq + 1):
            store(plan, at + i, tq)
        store(plan, at + 2 * tq + 1, count)


@inner
def block_at(plan, b, block, lanes, tq, bounded):
    """The first query of a block and the number of its queries, 0 for one that this sequence does not have."""
    if bounded:
        at = b * (2 * tq + 2) + block
        first = np.int64(load(plan, at))
        return first, np.int64(load(plan, at + 1)) - first
    return block * lanes, min(lanes, tq - block * lanes)


@inner
def first_key(plan, b, t, tq, bounded):
    """The first key that query t sees."""
    return np.int64(load(plan, b * (2 * tq + 2) + tq + 1 + t)) if bounded else np.int64(0)


@inner
def begins_document(plan, b, t, tq, before):
    """Whether key t is the first that any query from there on sees; false for keys before the queries."""
    return t >= before and np.int64(load(plan, b * (2 * tq + 2) + tq + 1 + t - before)) == t


@inner
def span(x, lowest, plan, b, i0, rows, tq, tk, causal, bounded):
    """The keys that a block of queries sees: the first, the end, and how far behind the first one its last query
    begins. Where queries begin apart, x[lowest + l] = the first key of query i0 + l, counted from that of the block;
    lanes from `rows` on as the last."""
    end = max(0, min(tk, i0 + rows + tk - tq)) if causal else tk
    begin = first_key(plan, b, i0, tq, bounded)
    last = first_key(plan, b, i0 + rows - 1, tq, bounded) - begin
    if last > 0:
        for l in range(queries(x)):  # noqa: E741
            store(x, lowest + l, first_key(plan, b, i0 + min(l, rows - 1), tq, True) - begin)
    return begin, end, last


@inner
def hide_earlier(s, s0, first, rows, lowest, value):
    """Writes `value` into the lanes whose first key is behind key first + r, in row r."""
    apart()
    w, lanes = width(s, VECTOR), queries(s)
    hidden = vsplat(s, value)
    for r in range(rows):
        key = vsplat(s, first + r)
        for half in range(0, lanes, w):
            at = s0 + r * lanes + half
            vstore(s, at, vbelow(key, vload(s, lowest + half), hidden, vload(s, at)))
