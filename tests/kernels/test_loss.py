"""The fused language-model head: chunks agree with the whole, and the logits never exist all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.device import Array, cpu, reference
from pellucid.kernels import spec
from pellucid.kernels.cpu import loss

from .parity import mismatch, numbers

ROWS, WIDTH, VOCABULARY = 1500, 16, 1000


def arguments(device: Any, dtype: dtypes.DType = dtypes.float32) -> list[Array]:
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(ROWS, WIDTH)), random.normal(size=(VOCABULARY, WIDTH))
    targets, weights = random.integers(0, VOCABULARY, ROWS), np.full(ROWS, 1 / ROWS)
    weights[::7] = 0
    kinds = (dtype, dtype, dtypes.int64, dtype)
    return [device.upload(a, kind) for a, kind in zip((x, weight, targets, weights), kinds, strict=True)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 rows, the last one shorter."""
    monkeypatch.setattr(loss, "_LOGITS", 1)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_agree_with_the_definition() -> None:
    got = cpu.kernels.lm_head_loss(*arguments(cpu), operand_dtype=None, gradients=True, for_weight=True)
    wide = arguments(reference, dtypes.float64)
    want = reference.kernels.lm_head_loss(*wide, operand_dtype=None, gradients=True, for_weight=True)
    for g, w in zip(got, want, strict=True):
        bounds = spec.tolerance(spec.KERNELS["lm_head_loss"].tolerance, dtypes.float32)
        wrong = mismatch(numbers(g), numbers(w), bounds, "lm_head_loss")
        assert not wrong, wrong


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("gradients", [True, False])
def test_the_logits_never_exist_all_at_once(gradients: bool) -> None:
    given = arguments(cpu)
    cpu.kernels.lm_head_loss(*given, operand_dtype=None, gradients=gradients, for_weight=gradients)  # plans and tables
    before = cpu.peak_bytes = cpu.bytes_in_use
    cpu.kernels.lm_head_loss(*given, operand_dtype=None, gradients=gradients, for_weight=gradients)
    assert cpu.peak_bytes - before < ROWS * VOCABULARY * 4 / 4


def test_chunks_of_the_usual_size_are_bounded() -> None:
    assert loss._LOGITS * 4 <= 64 << 20
