"""Attention from bfloat16 operands: against the definition that rounds what enters a product, and against itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import cpu, pool, reference
from pellucid.kernels.cpu import isa

from .parity import bits, guarded, numbers
from .test_attention import DECODING, EMPTY, SHAPES, Shape, agree, check, true, up, views

MIXED = {"operand_dtype": dtypes.bfloat16}
BOTH = [dtypes.float32, dtypes.bfloat16]


@pytest.mark.parametrize("dtype", BOTH, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [*SHAPES, *EMPTY, DECODING[0]], ids=str)
def test_agrees_with_the_definition(shape: Shape, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    with guarded(monkeypatch):
        arrays = [up(x, dtype) for x in shape.arrays()]
        check(*arrays, shape.keyword | MIXED, shape, "mixed")


@pytest.mark.parametrize("dtype", BOTH, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_any_strides(shape: Shape, dtype: DType) -> None:
    for name, arrays in views(shape, dtype):
        check(*arrays, shape.keyword | MIXED, name, "mixed")


@pytest.mark.skipif(not isa.current().pairs, reason="no products of bfloat16 pairs are used here")
def test_operands_that_are_exact_in_bfloat16_give_the_exact_scores() -> None:
    shape = Shape(1, 40, 56, 2, 1, 24)
    whole = [np.round(x) for x in shape.arrays()]  # small integers: nothing is rounded but softmax weights
    q, k, v, _ = (up(x, dtypes.float32) for x in whole)
    keyword = shape.keyword | {"scale": 0.25 / np.log2(np.e)}  # so that the factor the kernel puts into q is exact
    _, lse = cpu.kernels.attention(q, k, v, **keyword | MIXED)
    _, want = reference.kernels.attention(true(q), true(k), true(v), **keyword)
    assert numbers(lse) == pytest.approx(numbers(want), rel=1e-6)
    assert bits([cpu.kernels.attention(q, k, v, **keyword)[0]]) != bits(
        [cpu.kernels.attention(q, k, v, **keyword | MIXED)[0]]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_numbers_at_the_edges(value: float, which: int) -> None:
    shape = Shape(1, 40, 72, 2, 1, 24, causal=False)
    given = shape.arrays()
    given[which][0, 5, 0, 3] = value
    arrays = [up(x, dtypes.float32) for x in given[:3]]
    with np.errstate(all="ignore"):
        got = cpu.kernels.attention(*arrays, **shape.keyword, **MIXED)
        same = [reference.upload(numbers(x).astype(np.float32), dtypes.float32) for x in arrays]
        agree(got, reference.kernels.attention(*same, **shape.keyword, **MIXED), (value, which), "mixed")


def test_a_key_that_is_not_a_number_reaches_no_earlier_block_of_queries() -> None:
    shape = Shape(1, 256, 256, 1, 1, 16)
    given = shape.arrays()
    given[1][0, 200], given[2][0, 200] = np.nan, np.nan
    o, lse = cpu.kernels.attention(*(up(x, dtypes.float32) for x in given[:3]), **shape.keyword, **MIXED)
    assert np.isfinite(numbers(o)[:, :160]).all()
    assert np.isfinite(numbers(lse)[..., :200]).all()
    assert np.isnan(numbers(o)[:, 200:]).all()


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[8], SHAPES[9]], ids=str)
def test_the_same_bits_on_any_number_of_threads(shape: Shape) -> None:
    before = pool.threads()
    q, k, v, do = (up(x, dtypes.float32) for x in shape.arrays())
    found = []
    try:
        for count in (1, 2, 2, 3):
            pool.set_threads(count)
            o, lse = cpu.kernels.attention(q, k, v, **shape.keyword, **MIXED)
            found.append(bits([o, lse, *cpu.kernels.attention_backward(do, q, k, v, o, lse, **shape.keyword, **MIXED)]))
    finally:
        pool.set_threads(before)
    assert found.count(found[0]) == len(found)


def test_the_mask_of_dropout_is_the_same_as_in_full_precision() -> None:
    shape = Shape(2, 33, 46, 3, 3, 46, causal=False, dropout=0.4)
    q = up(np.zeros((2, 33, 3, 46)), dtypes.float32)
    v = up(np.broadcast_to(np.eye(46)[:, None], (2, 46, 3, 46)), dtypes.float32)
    mixed, _ = cpu.kernels.attention(q, v, v, **shape.keyword, **MIXED)
    full, _ = cpu.kernels.attention(q, v, v, **shape.keyword)
    assert ((numbers(mixed) != 0) == (numbers(full) != 0)).all()


@pytest.mark.skipif(len(isa.available()) < 2, reason="this processor has one instruction path only")
def test_a_path_without_such_products_keeps_its_operands() -> None:
    shape = replace(SHAPES[1], dropout=0.0)
    program = (
        "import kernels.test_attention as t; from pellucid.base import dtypes\n"
        f"s = t.{shape!r}; a = [t.f32(x) for x in s.arrays()[:3]]\n"
        "options = [s.keyword | {'operand_dtype': d} for d in (None, dtypes.bfloat16)]\n"
        "first, second = (t.numbers(t.cpu.kernels.attention(*a, **o)[0]) for o in options)\n"
        "assert (first == second).all()"
    )
    other = next(path for path in isa.available() if not path.pairs)
    environment = os.environ | {"PELLUCID_ISA": other.name, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
