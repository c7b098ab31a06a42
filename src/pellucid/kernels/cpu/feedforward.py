"""The gated feed-forward nonlinearity, fused: one pass over gate and up."""

from __future__ import annotations

from ...device import Array
from .elementwise import GRAIN, binary_of_blocks, fresh, map2, plan, start
from .formats import load, store
from .functions import inlined, like, sigmoid
from .lanes import narrow
from .launch import kernel
from .wide import VECTOR, step, through3to2


@binary_of_blocks
def _swiglu(gate, up):
    return gate * sigmoid(gate) * up


@inlined
def _slopes(d, a, b):
    one = like(1, a)
    s = sigmoid(a)
    return d * b * s * (one + a * (one - s)), d * a * s


@inlined
def _gradients(dy, gate, up, dgate, dup, i, j, k, l, m):  # noqa: E741
    da, db = _slopes(load(dy, j), load(gate, k), load(up, l))
    store(dgate, i, da)
    store(dup, m, db)


@inlined
def _row(dy, gate, up, dgate, dup, i, j, k, l, m, n):  # noqa: E741
    """n elements from the indices i to m on. float32 waits for memory, which takes the writes of single vectors better
    than those of blocks."""
    done = 0
    if narrow(dy) and narrow(gate) and narrow(up):
        done = n - n % step(dy, VECTOR)
        for c in range(0, done, step(dy, VECTOR)):
            through3to2(_slopes, dgate, i + c, dup, m + c, dy, j + c, gate, k + c, up, l + c)
    for c in range(done, n):
        _gradients(dy, gate, up, dgate, dup, i + c, j + c, k + c, l + c, m + c)


@kernel
def _swiglu_backward(lo, hi, dy, gate, up, dgate, dup, table):
    """Elements lo to hi-1 in the order of the results."""
    width = load(table, 0)
    d0, d1, d2 = load(table, 3), load(table, 4), load(table, 5)
    i = lo
    while i < hi:
        row = i // width
        column = i - row * width
        n = min(hi - i, width - column)
        i0 = start(table, 4, 1, row) + column * d0
        i1 = start(table, 4, 2, row) + column * d1
        i2 = start(table, 4, 3, row) + column * d2
        if d0 == 1 and d1 == 1 and d2 == 1:
            _row(dy, gate, up, dgate, dup, i, i0, i1, i2, i, n)
        else:
            for k in range(n):
                _gradients(dy, gate, up, dgate, dup, i + k, i0 + k * d0, i1 + k * d1, i2 + k * d2, i + k)
        i += n


def swiglu(gate: Array, up: Array) -> Array:
    """y = gate sigmoid(gate) up   (Shazeer 2020). One shape, contiguous or strided."""
    return map2(_swiglu, gate, up)


def swiglu_backward(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    """s = sigmoid(gate):  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s. Returns dgate, dup."""
    p = plan(dy.shape, dy.strides, gate.shape, gate.strides, up.shape, up.strides)
    dgate, dup = fresh(p, gate, gate.dtype), fresh(p, up, up.dtype)
    _swiglu_backward(p.size, GRAIN // 2, dy, gate, up, dgate, dup, p.table)
    return dgate, dup


@kernel
def _joint(lo, hi, dy, both, gradients, hidden, dy_row, dy_step):
    """Items: rows."""
    for r in range(lo, hi):
        gate, up = 2 * r * hidden, (2 * r + 1) * hidden
        if dy_step == 1:
            _row(dy, both, both, gradients, gradients, gate, r * dy_row, gate, up, up, hidden)
        else:
            for i in range(hidden):
                at = r * dy_row + i * dy_step
                _gradients(dy, both, both, gradients, gradients, gate + i, at, gate + i, up + i, up + i)


def swiglu_joint_backward(dy: Array, both: Array) -> Array:
    """`swiglu_backward` where gate and up are the halves of each row of `both`, and so are their gradients in the
    result.   dy: (rows, F); both and result: (rows, 2 F), contiguous."""
    rows, hidden = dy.shape
    gradients = both.device.empty(both.shape, both.dtype)
    grain = max(1, GRAIN // 4 // max(1, hidden))
    _joint(rows, grain, dy, both, gradients, hidden, *dy.strides)
    return gradients
