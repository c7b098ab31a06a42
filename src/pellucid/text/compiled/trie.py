"""A trie over bytes as a double array (Aoe 1989): the dictionary of the Unigram loops, one look-up a byte.

Node s has its child for byte c at t = base(s) + c, if check(t) == s. Four int32 a node, so that a step reads one cache
line: base, check, value (the number of the piece that ends here, or -1), and one that is free.
"""

from __future__ import annotations

import numpy as np

from ...kernels.cpu.functions import inlined
from ..native import shared
from .loops import loops

WORDS = 4  # int32 of a node
_NEAREST = 64  # places tried for a node with several children before the end of the array is taken

__all__ = ["WORDS", "build_trie", "step", "value"]


@inlined
def step(nodes, s, byte):
    """The child of node `s` for a byte, or -1."""
    t = np.int64(nodes[WORDS * s]) + np.int64(byte)
    return t if nodes[WORDS * t + 1] == s else np.int64(-1)


@inlined
def value(nodes, s):
    """The piece that ends at node `s`, or -1."""
    return np.int64(nodes[WORDS * s + 2])


@inlined
def _take(nodes, after, before, t, parent):
    """Takes place `t` out of the ring of free places, for a child of `parent`."""
    nodes[WORDS * t + 1] = parent
    after[before[t]] = after[t]
    before[after[t]] = before[t]


@loops
def _build(lo, hi, data, starts, numbers, nodes, after, before, first, last, depth, size):
    """Nodes of the sorted pieces, in the order of breadth. The queue is the array itself: first, last and depth say of
    each node which pieces it leads to. size[0] becomes the length in use, or -1 where the array is too short."""
    for _ in range(lo, hi):
        places = after.shape[0]
        for t in range(places):
            nodes[WORDS * t], nodes[WORDS * t + 1], nodes[WORDS * t + 2], nodes[WORDS * t + 3] = 0, -1, -1, 0
            after[t], before[t] = (t + 1) % places, (t - 1) % places
        # Place 0 is the root and the head of the ring.
        nodes[1] = -2
        order = np.empty(places, np.int32)
        order[0], first[0], last[0], depth[0] = 0, 0, numbers.shape[0], 0
        head, tail, end = 0, 1, 1
        children = np.empty(256, np.int64)
        while head < tail:
            s = np.int64(order[head])
            head += 1
            a, b, d = np.int64(first[s]), np.int64(last[s]), np.int64(depth[s])
            if a < b and starts[a] + d == starts[a + 1]:
                nodes[WORDS * s + 2] = numbers[a]
                a += 1
            if a == b:
                continue
            n = 0
            for i in range(a, b):
                c = np.int64(data[starts[i] + d])
                if n == 0 or children[n - 1] != c:
                    children[n] = c
                    n += 1
            t, tries = np.int64(after[0]), 0
            base = np.int64(-1)
            while base < 0:
                if t == 0 or tries == _NEAREST:
                    base = end
                    break
                if t >= children[0]:
                    base = t - children[0]
                    for k in range(1, n):
                        if base + children[k] >= places or nodes[WORDS * (base + children[k]) + 1] != -1:
                            base = np.int64(-1)
                            break
                    tries += 1
                t = np.int64(after[t])
            if base + 512 >= places:
                size[0] = -1
                return
            nodes[WORDS * s] = base
            i = a
            for k in range(n):
                t = base + children[k]
                _take(nodes, after, before, t, s)
                end = max(end, t + 1)
                first[t], depth[t] = i, d + 1
                while i < b and np.int64(data[starts[i] + d]) == children[k]:
                    i += 1
                last[t] = i
                order[tail] = t
                tail += 1
        size[0] = end + 256


def build_trie(data: np.ndarray, starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The array of nodes, flat int32, for pieces in ascending order of their bytes, all different and none empty.

    data: uint8, the pieces in a row; starts: int64 (n + 1); numbers: int32 (n), what `value` gives for each.
    """
    places = len(data) + len(data) // 4 + 2048
    size = np.full(1, -1, np.int64)
    while True:
        nodes = np.empty(places * WORDS, np.int32)
        scratch = [shared(np.empty(places, np.int32)) for _ in range(5)]
        if len(numbers):
            _build(1, 1, *map(shared, (data, starts, numbers, nodes)), *scratch, shared(size))
        else:
            nodes[:] = -1
            nodes[0], size[0] = 0, 256
        if size[0] >= 0:
            return nodes[: WORDS * int(size[0])].copy()
        places *= 2
