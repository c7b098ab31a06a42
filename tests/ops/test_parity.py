"""The operations on the compiled CPU kernels against the reference, within the tolerances of the kernel table."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import cpu, reference
from pellucid.kernels.spec import tolerance

from .cases import ARRANGEMENTS, CASES, Case
from .results import DTYPES, results


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_parity(case: Case, arrangement: str, dtype: DType) -> None:
    expected = results(case, reference, dtype, arrangement)
    found = results(case, cpu, dtype, arrangement)
    # Several kernels in a row round 16-bit values several times, and bf16 operands are rounded before the product.
    allowed = tolerance("mixed" if dtype is dtypes.bfloat16 or "bf16" in case.name else "accumulate", dtype)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        want, got = value.astype(np.float64), found[name].astype(np.float64)
        largest = max(1.0, np.abs(want).max(initial=0.0))
        np.testing.assert_allclose(got, want, rtol=allowed.relative, atol=allowed.absolute * largest, err_msg=name)
