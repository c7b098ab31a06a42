"""The gradient check itself: what it finds, what it lets through, what it says."""

from __future__ import annotations

import numpy as np
import pytest
from opaque import opaque_device

from pellucid.base import dtypes
from pellucid.base.errors import DTypeError, GradientError
from pellucid.tape import Tensor, gradcheck, no_grad

from .toy import Exponential, Product, Stack, Sum, Total, Wrong, leaf, numbers

_VALUES = np.linspace(-1, 1, 6).reshape(2, 3)


def _some(a: Tensor, b: Tensor) -> Tensor:
    return Product.apply(Exponential.apply(a), Sum.apply(a, b))


def test_right_gradients_pass() -> None:
    a, b = leaf(_VALUES), leaf(_VALUES[::-1].copy(), grad=False)
    error = gradcheck(_some, [a, b])
    assert 0 < error < 1e-8
    assert a.grad is None
    np.testing.assert_array_equal(numbers(a), _VALUES)


def test_wrong_gradient_is_named() -> None:
    with pytest.raises(GradientError) as caught:
        gradcheck(lambda a, b: Sum.apply(a, Wrong.apply(b)), [leaf(_VALUES), leaf(_VALUES)], seed=3)
    said = str(caught.value)
    assert said.startswith(
        "gradcheck: backward disagrees with central differences for input 1 at index (0, 0), 6 of 6 elements in all; "
        "got "
    )
    got, expected = (float(part.split()[-1]) for part in said.split("; ")[1].split(", "))
    assert got == pytest.approx(-expected, rel=1e-6)


def test_missing_gradient_is_wrong() -> None:
    with pytest.raises(GradientError, match="input 0"):
        gradcheck(lambda a, b: Sum.apply(a.detach(), b), [leaf(_VALUES), leaf(_VALUES)])


def test_unused_input_has_gradient_zero() -> None:
    assert gradcheck(lambda a, b: Total.apply(b), [leaf(_VALUES), leaf(_VALUES)]) < 1e-8


def test_not_a_number_is_wrong() -> None:
    with pytest.raises(GradientError, match="got nan"):
        gradcheck(Exponential.apply, [leaf([np.nan])])


def test_views_none_and_integers() -> None:
    stored = leaf(np.arange(24.0).reshape(4, 6) / 10, grad=False)
    view = Tensor(stored.array.slice(1, 0, 6, 2).transpose())  # (3, 4), steps 2 and 6
    positions = leaf([0, 1], dtype=dtypes.int64, grad=False)

    def function(x: Tensor, nothing: Tensor | None, index: Tensor) -> Tensor:
        assert nothing is None
        assert index.dtype is dtypes.int64
        return Product.apply(x, x)

    gradcheck(function, [view, None, positions])


def test_lists_of_inputs_empty_inputs_and_no_grad() -> None:
    with no_grad():
        gradcheck(lambda *parts: Stack.apply(*parts), [leaf(_VALUES), leaf(np.ones((0, 3))), leaf(_VALUES)])
        assert gradcheck(Exponential.apply, [leaf(np.ones((0, 3)))]) == 0.0


def test_any_device() -> None:
    with opaque_device() as device:
        a, b = leaf(_VALUES, device=device), leaf(_VALUES, device=device)
        assert gradcheck(_some, [a, b]) == gradcheck(_some, [leaf(_VALUES), leaf(_VALUES)])


def test_narrow_floats_are_refused() -> None:
    with pytest.raises(DTypeError) as caught:
        gradcheck(Exponential.apply, [leaf([1.0], dtype=dtypes.float32)])
    assert str(caught.value) == "gradcheck: input 0 is too narrow; got float32, expected float64"
    narrow = leaf([1.0], dtype=dtypes.float32)
    with pytest.raises(DTypeError) as caught:
        gradcheck(lambda a: Exponential.apply(narrow), [leaf([1.0])])
    assert str(caught.value) == "gradcheck: the result is too narrow; got float32, expected float64"
