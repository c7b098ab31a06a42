"""Shape arithmetic against NumPy's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from pellucid.base import shapes as s
from pellucid.base.errors import ShapeError

SHAPES = [(), (1,), (5,), (0,), (2, 3), (1, 3), (2, 1), (2, 0, 3), (4, 1, 6), (2, 3, 4), (1, 1, 1)]


def elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(n // array.itemsize for n in array.strides)


@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_strides(shape: s.Shape) -> None:
    strides = s.contiguous_strides(shape)
    assert s.is_contiguous(shape, strides)
    if math.prod(shape):
        assert strides == elements(np.zeros(shape))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((1, 3), (99, 1), True),
        ((3, 1), (1, 99), True),
        ((0, 3), (7, 7), True),
        ((), (), True),
    ],
)
def test_is_contiguous(shape: s.Shape, strides: s.Shape, expected: bool) -> None:
    assert s.is_contiguous(shape, strides) is expected


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SHAPES, repeat=2)))
def test_broadcast(a: s.Shape, b: s.Shape) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError):
            s.broadcast(a, b)
        return
    assert s.broadcast(a, b) == expected
    # The axes summed over turn a gradient of the result's shape back into one of the operand's.
    gradient = np.zeros(expected).sum(axis=s.broadcast_axes(a, expected), keepdims=True)
    assert gradient.size == math.prod(a)


def test_broadcast_of_none_and_of_three() -> None:
    assert s.broadcast() == ()
    assert s.broadcast((3, 1), (1, 4), (2, 1, 1)) == (2, 3, 4)


def test_axes() -> None:
    assert s.axis(-1, 3) == 2
    assert s.axes(None, 3) == (0, 1, 2)
    assert s.axes(-2, 3) == (1,)
    assert s.axes(np.int64(-2), 3) == (1,)
    assert s.axes((2, -3), 3) == (0, 2)
    assert s.axes((), 3) == ()
    with pytest.raises(ShapeError):
        s.axis(0, 0)


@pytest.mark.parametrize("over", [(), (0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduced(over: s.Shape, keepdims: bool) -> None:
    assert s.reduced((2, 3, 4), over, keepdims) == np.zeros((2, 3, 4)).sum(axis=over, keepdims=keepdims).shape


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((6,), 6, (6,)),
        ((-1,), 6, (6,)),
        ((2, -1), 6, (2, 3)),
        ((-1, 3, 1), 6, (2, 3, 1)),
        ((), 1, ()),
        ((-1, 3), 0, (0, 3)),
        ((0, 3), 0, (0, 3)),
    ],
)
def test_resolve(shape: Sequence[int], size: int, expected: s.Shape) -> None:
    assert s.resolve(shape, size) == expected


@pytest.mark.parametrize(
    ("shape", "size"), [((4,), 6), ((4, -1), 6), ((-1, -1), 6), ((-2, -3), 6), ((0, -1), 0), ((), 6), ((0,), 6)]
)
def test_resolve_refuses(shape: Sequence[int], size: int) -> None:
    with pytest.raises(ShapeError):
        s.resolve(shape, size)


def factorisations(n: int) -> list[s.Shape]:
    """Shapes of `n` elements, with lengths of one in places."""
    found: list[s.Shape] = [(n,), (n, 1), (1, n)]
    for a in range(2, n):
        if n % a == 0:
            found.extend([(a, n // a), (a, 1, n // a)])
            found.extend((a, b, n // a // b) for b in range(2, n // a) if n // a % b == 0)
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("cut", [slice(None), slice(0, 2), slice(None, None, 2), slice(1, 2)])
def test_view_strides(order: tuple[int, ...], cut: slice) -> None:
    """A view exists exactly where NumPy can reshape without a copy, and it shows the same elements."""
    array = np.arange(4 * 6 * 4).reshape(4, 6, 4)[:, cut].transpose(order)
    for new in factorisations(array.size):
        strides = s.view_strides(array.shape, elements(array), new)
        reshaped = array.reshape(new)
        assert (strides is not None) == np.shares_memory(reshaped, array), new
        if strides is not None:
            shown = as_strided(array, new, [n * array.itemsize for n in strides])
            np.testing.assert_array_equal(shown, reshaped)


def test_view_strides_of_repeated_and_empty() -> None:
    assert s.view_strides((4, 6), (0, 1), (2, 2, 6)) == (0, 0, 1)
    assert s.view_strides((4, 6), (0, 1), (24,)) is None
    assert s.view_strides((0, 6), (9, 9), (3, 0)) == s.contiguous_strides((3, 0))
    assert s.view_strides((), (), (1, 1)) == (1, 1)
