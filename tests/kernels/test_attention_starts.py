"""Attention whose queries begin to see at a key of their own: packed documents, sliding windows, behind a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.errors import ShapeError
from pellucid.device import Array, cpu, pool, reference

from .parity import bits, guarded, numbers
from .test_attention import Host, Shape, agree, true, up

OPERANDS = [None, dtypes.bfloat16]


def documents(lengths: Sequence[int]) -> Host:
    """The start of each position of documents behind one another."""
    return np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).astype(np.int32)


def window(size: int, tq: int, tk: int) -> Host:
    return np.maximum(0, np.arange(tk - tq, tk) - size + 1).astype(np.int32)


@dataclass(frozen=True)
class Bounded:
    """A call, and the starts of its queries: one row for each sequence."""

    shape: Shape
    rows: tuple[tuple[int, ...], ...]

    @property
    def starts(self) -> Host:
        return np.array(self.rows, np.int32)

    def __str__(self) -> str:
        return str(self.shape)


def bounded(shape: Shape, *rows: Host) -> Bounded:
    return Bounded(shape, tuple(tuple(map(int, row)) for row in rows))


LENGTHS = [5, 1, 64, 33, 37, 1, 1, 61]
CASES = [
    bounded(Shape(2, 203, 203, 4, 2, 20), documents(LENGTHS), documents([203])),
    bounded(Shape(2, 203, 203, 2, 1, 64, dropout=0.3), documents(LENGTHS[::-1]), window(17, 203, 203)),
    bounded(
        Shape(1, 300, 300, 1, 1, 33),
        np.maximum(documents([100, 200]), window(150, 300, 300)),  # a window in documents
    ),
    bounded(Shape(2, 40, 170, 2, 2, 16), window(70, 40, 170), 130 + documents([7, 33])),
    bounded(Shape(1, 5, 5, 1, 1, 8), window(1, 5, 5)),
    bounded(Shape(2, 1, 130, 4, 2, 36), np.array([101]), np.array([129])),
    bounded(Shape(2, 1, 1300, 2, 2, 64, dropout=0.2), np.array([1111]), np.array([0])),
    bounded(Shape(0, 5, 5, 2, 2, 8)),
    bounded(Shape(2, 0, 5, 2, 2, 8), np.zeros(0), np.zeros(0)),
]


def place(case: Bounded) -> tuple[Array, Array]:
    starts = case.starts.reshape(case.shape.batch, case.shape.tq)
    return cpu.upload(starts, dtypes.int32), reference.upload(starts, dtypes.int32)


@pytest.mark.parametrize(
    ("dtype", "operand"),
    [*((d, None) for d in dtypes.FLOATS), (dtypes.float32, dtypes.bfloat16), (dtypes.bfloat16, dtypes.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_definition(
    case: Bounded, dtype: DType, operand: DType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = case.shape.keyword | {"operand_dtype": operand}
    kind = "accumulate" if operand is None else "mixed"
    with guarded(monkeypatch):
        q, k, v, do = (up(x, dtype) for x in case.shape.arrays())
        mine, theirs = place(case)
        got = cpu.kernels.attention(q, k, v, mine, **how)
        agree(got, reference.kernels.attention(*map(true, (q, k, v)), theirs, **how), case, kind)
        gradients = cpu.kernels.attention_backward(do, q, k, v, *got, mine, **how)
        wide = [true(x) for x in (do, q, k, v, *got)]
        agree(gradients, reference.kernels.attention_backward(*wide, theirs, **how), case, kind)


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_documents_do_not_reach_one_another_whatever_they_hold(value: float, operand: DType | None) -> None:
    """Every other document holds no number; the rest have the very bits that they have when it does."""
    starts = documents(LENGTHS)
    bad = np.isin(starts, np.unique(starts)[1::2])
    shape = Shape(1, 203, 203, 4, 2, 20)
    clean = shape.arrays()
    spoilt = [np.where(bad[None, :, None, None], value, x) for x in clean]
    how: dict[str, Any] = shape.keyword | {"operand_dtype": operand}
    found = []
    for given in (clean, spoilt):
        q, k, v, do = (up(x, dtypes.float32) for x in given)
        where = cpu.upload(starts[None], dtypes.int32)
        o, lse = cpu.kernels.attention(q, k, v, where, **how)
        gradients = cpu.kernels.attention_backward(do, q, k, v, o, lse, where, **how)
        found.append([numbers(x)[:, ~bad] for x in (o, *gradients)])
    for got, want in zip(found[1], found[0], strict=True):
        assert np.isfinite(got).all()
        assert got.tobytes() == want.tobytes()


def test_a_key_before_the_start_does_not_reach_a_decoding_query() -> None:
    shape = Shape(1, 1, 1300, 2, 1, 20)
    q, k, v, _ = shape.arrays()
    k[:, :777], v[:, :777] = np.nan, np.inf
    starts = cpu.upload(np.array([[777]]), dtypes.int32)
    o, lse = cpu.kernels.attention(*(up(x, dtypes.float32) for x in (q, k, v)), starts, **shape.keyword)
    rest = [up(x, dtypes.float32) for x in (q, k[:, 777:], v[:, 777:])]
    want = cpu.kernels.attention(*rest, **Shape(1, 1, 523, 2, 1, 20).keyword)
    assert numbers(o) == pytest.approx(numbers(want[0]), rel=1e-5)
    assert numbers(lse) == pytest.approx(numbers(want[1]), rel=1e-6)


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
def test_packed_documents_are_as_documents_alone(operand: DType | None) -> None:
    starts, shape = documents(LENGTHS), Shape(1, 203, 203, 4, 2, 20)
    q, k, v, do = (up(x, dtypes.float32) for x in shape.arrays())
    how: dict[str, Any] = shape.keyword | {"operand_dtype": operand}
    where = cpu.upload(starts[None], dtypes.int32)
    o, lse = cpu.kernels.attention(q, k, v, where, **how)
    packed = [o, *cpu.kernels.attention_backward(do, q, k, v, o, lse, where, **how)]
    for start in np.unique(starts).tolist():
        stop = start + int((starts == start).sum())
        a, b, c, g = (x.slice(1, start, stop) for x in (q, k, v, do))
        o, lse = cpu.kernels.attention(a, b, c, **how)
        alone = [o, *cpu.kernels.attention_backward(g, a, b, c, o, lse, **how)]
        for got, want in zip(packed, alone, strict=True):
            rel = 1e-5 if operand is None else 2e-2
            assert numbers(got)[:, start:stop] == pytest.approx(numbers(want), rel=rel, abs=rel)


def test_starts_at_key_0_change_nothing_but_the_way() -> None:
    shape = Shape(2, 70, 90, 4, 2, 24, dropout=0.3)
    q, k, v, do = (up(x, dtypes.float32) for x in shape.arrays())
    starts = cpu.upload(np.zeros((2, 70)), dtypes.int32)
    for operand in OPERANDS:
        how: dict[str, Any] = shape.keyword | {"operand_dtype": operand}
        o, lse = cpu.kernels.attention(q, k, v, **how)
        plain = [o, lse, *cpu.kernels.attention_backward(do, q, k, v, o, lse, **how)]
        same = [*cpu.kernels.attention(q, k, v, starts, **how)]
        same += cpu.kernels.attention_backward(do, q, k, v, o, lse, starts, **how)
        assert bits(same) == bits(plain)


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
def test_the_same_bits_on_any_number_of_threads(operand: DType | None) -> None:
    case, before, found = CASES[1], pool.threads(), []
    how: dict[str, Any] = case.shape.keyword | {"operand_dtype": operand}
    q, k, v, do = (up(x, dtypes.float32) for x in case.shape.arrays())
    starts, _ = place(case)
    try:
        for count in (1, 2, 2, 3):
            pool.set_threads(count)
            o, lse = cpu.kernels.attention(q, k, v, starts, **how)
            found.append(bits([o, lse, *cpu.kernels.attention_backward(do, q, k, v, o, lse, starts, **how)]))
    finally:
        pool.set_threads(before)
    assert found.count(found[0]) == len(found)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 0, 3], "attention: start out of order at position 0, 2; got 3, expected 0 to 2"),
        ([0, 1, 0], "attention: start out of order at position 0, 2; got 0, expected 1 to 2"),
        ([-1, 0, 0], "attention: start out of order at position 0, 0; got -1, expected 0 to 0"),
    ],
)
def test_starts_out_of_order_are_refused(row: list[int], message: str) -> None:
    shape = Shape(1, 3, 3, 1, 1, 4)
    for device in (cpu, reference):
        q, k, v, _ = (device.upload(x, dtypes.float32) for x in shape.arrays())
        with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
            device.kernels.attention(q, k, v, device.upload(np.array([row]), dtypes.int32), **shape.keyword)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions_may_be_given(interleaved: bool) -> None:
    random = np.random.default_rng(0)
    x, angles = random.normal(size=(2, 5, 3, 8)), random.uniform(0, 6, (20, 4))
    where = random.integers(0, 18, (2, 5))
    for inverse in (False, True):
        how = {"offset": 2, "interleaved": interleaved, "inverse": inverse}
        tables = [up(f(angles), dtypes.float32) for f in (np.cos, np.sin)]
        given = cpu.upload(where, dtypes.int32)
        got = numbers(cpu.kernels.rope(up(x, dtypes.float32), *tables, given, **how))
        wide = [reference.upload(f(angles), dtypes.float64) for f in (np.cos, np.sin)]
        there = reference.upload(where, dtypes.int32)
        want = reference.kernels.rope(reference.upload(x, dtypes.float64), *wide, there, **how)
        assert got == pytest.approx(numbers(want), rel=1e-5, abs=1e-6)
        for b, t in np.ndindex(2, 5):
            one = up(x[b : b + 1, t : t + 1], dtypes.float32)
            alone = cpu.kernels.rope(one, *tables, **how | {"offset": int(where[b, t]) + 2})
            assert numbers(alone)[0, 0].tolist() == got[b, t].tolist()
