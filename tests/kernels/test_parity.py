"""Every kernel of the CPU backend against its definition: shapes, dtypes, layouts, guards, repeatability, threads."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import cpu, pool, reference

from .cases import CASES
from .parity import Case, Data, bits, compare, guarded, oracle, run

EVERY = [pytest.param(c, d, id=f"{c.name}-{d.name}") for c in CASES for d in c.dtypes]
LARGEST = [pytest.param(c, c.dtypes[-1], id=c.name) for c in CASES if c.dtypes]


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    before = pool.threads()
    yield
    pool.set_threads(before)


@pytest.mark.parametrize(("case", "dtype"), EVERY)
def test_agrees_with_the_reference(case: Case, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    with guarded(monkeypatch):
        for shape in case.shapes:
            got = run(case, shape, Data(dtype), cpu)
            compare(case, got, oracle(case, shape, Data(dtype)), f"{shape}")
            same = run(case, shape, Data(dtype), reference)
            assert [(g.dtype, g.shape) for g in got] == [(s.dtype, s.shape) for s in same], f"{case.name} {shape}"


@pytest.mark.parametrize(("case", "dtype"), [p for p in EVERY if len(p.values[0].layouts) > 1])  # type: ignore[union-attr]
def test_any_strides(case: Case, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = sorted((s for s in case.shapes if 0 not in s), key=len)
    with guarded(monkeypatch):
        for shape in {shapes[0], shapes[-1], shapes[-2 % len(shapes)]}:
            for layout in case.layouts[1:]:
                got = run(case, shape, Data(dtype, layout), cpu)
                compare(case, got, oracle(case, shape, Data(dtype, layout)), f"{shape} {layout}")


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("case", "dtype"), LARGEST)
def test_the_same_bits_again_and_on_any_number_of_threads(case: Case, dtype: DType) -> None:
    shape = max(case.shapes, key=prod)
    found = []
    for count in (1, 2, 2, 3):
        pool.set_threads(count)
        found.append(bits(run(case, shape, Data(dtype), cpu)))
    assert found.count(found[0]) == len(found)


def test_float16_and_bfloat16_are_tested() -> None:
    tested = {d for c in CASES for d in c.dtypes}
    assert tested >= set(dtypes.FLOATS)
