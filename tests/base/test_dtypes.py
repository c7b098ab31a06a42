"""Number formats: names, promotion, and what a Python scalar becomes beside a tensor."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from pellucid.base import dtypes as d
from pellucid.base.errors import DTypeError

SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


def test_the_list() -> None:
    assert {t.name: t.itemsize for t in d.ALL} == SIZES
    assert tuple(t for t in d.ALL if t.is_float) == d.FLOATS


@pytest.mark.parametrize("t", d.ALL, ids=repr)
def test_found_by_name_and_numpy_type(t: d.DType) -> None:
    assert d.dtype(t) is t
    assert d.dtype(t.name) is t
    assert d.dtype(t.numpy) is t
    assert d.dtype(t.numpy.type) is t
    assert pickle.loads(pickle.dumps(t)) is t
    assert copy.deepcopy(t) is t
    assert repr(t) == f"pellucid.{t.name}"


def test_bfloat16_is_not_float16() -> None:
    assert d.bfloat16.numpy == np.dtype(ml_dtypes.bfloat16)
    assert d.float16.numpy == np.dtype(np.float16)


@pytest.mark.parametrize("value", ["complex64", np.complex64, "U3", object(), np.uint32])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(DTypeError):
        d.dtype(value)


@pytest.mark.parametrize("b", d.ALL, ids=repr)
@pytest.mark.parametrize("a", d.ALL, ids=repr)
def test_promotion(a: d.DType, b: d.DType) -> None:
    """Symmetric; the wider kind wins; both values fit within a kind, and no smaller type would hold both."""
    both = d.promote(a, b)
    assert both is d.promote(b, a)
    kinds = ("bool", "int", "float")
    assert kinds.index(both.kind) == max(kinds.index(a.kind), kinds.index(b.kind))
    if a.kind == b.kind and d.bfloat16 not in (a, b):
        assert both.numpy == np.promote_types(a.numpy, b.numpy)
    elif a.kind != b.kind:
        assert both is (a if a.kind == both.kind else b)
    elif {a, b} == {d.float16, d.bfloat16}:
        assert both is d.float32
    else:
        assert both is (a if a.itemsize >= b.itemsize else b)


@pytest.mark.parametrize("beside", d.ALL, ids=repr)
def test_scalars(beside: d.DType) -> None:
    assert d.of_scalar(True, beside) is beside
    assert d.of_scalar(7, beside) is (d.int64 if beside is d.bool_ else beside)
    assert d.of_scalar(0.5, beside) is (beside if beside.is_float else d.float32)
