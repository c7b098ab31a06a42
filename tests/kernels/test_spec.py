"""The table of kernels: complete, true to the signatures of every backend, and counting what it says it counts."""

from __future__ import annotations

import inspect
from types import ModuleType

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import KernelError
from pellucid.device import cpu
from pellucid.kernels import cpu as cpu_kernels
from pellucid.kernels import reference as reference_kernels
from pellucid.kernels import spec

from .cases import CASES

BACKENDS = (reference_kernels, cpu_kernels)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_a_backend_has_the_kernels_of_the_table(backend: ModuleType) -> None:
    assert sorted(backend.__all__) == sorted(spec.KERNELS)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@pytest.mark.parametrize("row", spec.KERNELS.values(), ids=lambda r: r.name)
def test_signatures(row: spec.Kernel, backend: ModuleType) -> None:
    parameters = inspect.signature(getattr(backend, row.name)).parameters.values()
    found = [(p.name, p.kind is inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    assert found == [(a.name, a.keyword) for a in row.arguments]


@pytest.mark.parametrize("row", spec.KERNELS.values(), ids=lambda r: r.name)
def test_a_kernel_has_one_signature_and_one_description(row: spec.Kernel) -> None:
    functions = [getattr(backend, row.name) for backend in BACKENDS]
    signatures = {str(inspect.signature(f)) for f in functions}
    assert len(signatures) == 1
    assert all(inspect.getdoc(f) for f in functions)


def test_every_kernel_has_a_parity_case() -> None:
    assert sorted({c.kernel for c in CASES}) == sorted(spec.KERNELS)


def test_families_are_the_modules_of_the_reference() -> None:
    for row in spec.KERNELS.values():
        assert getattr(reference_kernels, row.name).__module__.endswith("." + row.family)


def test_work_of_a_matrix_product() -> None:
    a, b = (cpu.upload(np.zeros(s), dtypes.float32) for s in ((4, 5, 6), (6, 7)))
    row = spec.KERNELS["matmul"]
    bound = row.bind(a, b, bias=None, operand_dtype=None, result_dtype=None)
    assert row.flops(bound) == 2 * 4 * 5 * 6 * 7
    y = cpu_kernels.matmul(a, b)
    assert row.bytes(bound, y) == 4 * (4 * 5 * 6 + 6 * 7 + 4 * 5 * 7)


def test_work_of_causal_attention_counts_the_pairs_that_are_seen() -> None:
    q = cpu.upload(np.zeros((1, 3, 2, 8)), dtypes.float32)
    options = {"causal": True, "scale": 1.0, "dropout": 0.0, "seed": 0, "counter": 0, "operand_dtype": None}
    row = spec.KERNELS["attention"]
    assert row.flops(row.bind(q, q, q, None, **options)) == 4 * 2 * 8 * (1 + 2 + 3)
    assert row.flops(row.bind(q, q, q, None, **options | {"causal": False})) == 4 * 2 * 8 * 9


def test_bytes_of_a_kernel_that_writes_in_place_count_reading_and_writing() -> None:
    x = cpu.upload(np.zeros(10), dtypes.float32)
    row = spec.KERNELS["assign_"]
    assert row.bytes(row.bind(x, x), None) == 3 * 40


def test_every_kernel_counts_its_work() -> None:
    for row in spec.KERNELS.values():
        assert row.tolerance in spec.CLASSES
        assert set(row.writes) <= {a.name for a in row.arguments}
        assert row.dtypes


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KernelError) as caught:
        spec.KERNELS["add"].bind(1)
    assert str(caught.value) == "add: arguments do not fit; got a, expected a, b"


def test_tolerances() -> None:
    assert spec.tolerance("exact", dtypes.float32) == spec.Tolerance(0.0, 0.0)
    assert spec.tolerance("accumulate", dtypes.int64) == spec.Tolerance(0.0, 0.0)
    for kind in spec.CLASSES:
        bounds = [spec.tolerance(kind, d).relative for d in (dtypes.float64, dtypes.float32, dtypes.float16)]
        assert bounds == sorted(bounds)
