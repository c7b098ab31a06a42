"""Rotary tables and their scalings, against the formulas as the papers write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import ConfigError
from pellucid.models import RopeScaling
from pellucid.models.rope import rotary_tables

PAIRS, BASE = 16, 10000.0
PLAIN = BASE ** (-np.arange(PAIRS) / PAIRS)


def test_plain_tables() -> None:
    cos, sin = (t.numpy() for t in rotary_tables(40, 2 * PAIRS, BASE, None, "cpu"))
    angles = np.arange(40)[:, None] * PLAIN
    assert np.array_equal(cos, np.cos(angles).astype(np.float32))
    assert np.array_equal(sin, np.sin(angles).astype(np.float32))


def test_linear_scaling_reads_positions_between_those_of_training() -> None:
    plain = rotary_tables(10, 2 * PAIRS, BASE, None, "cpu")[0].numpy()
    scaled = rotary_tables(40, 2 * PAIRS, BASE, RopeScaling("linear", 4.0), "cpu")[0].numpy()
    assert np.abs(scaled[::4] - plain).max() < 1e-6


def test_llama3_scaling() -> None:
    found = RopeScaling("llama3", 8.0, original_context=512).frequencies(PLAIN, BASE)
    for f, scaled in zip(PLAIN, found, strict=True):
        wavelength = 2 * math.pi / f
        if wavelength < 512 / 4:
            expected = f
        elif wavelength > 512:
            expected = f / 8
        else:
            smooth = (512 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * f / 8 + smooth * f
        assert scaled == pytest.approx(expected, rel=1e-12)
    assert len({round(float(r), 6) for r in found / PLAIN}) > 3  # some pairs of each of the three kinds


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_scaling(truncate: bool) -> None:
    scaling = RopeScaling("yarn", 4.0, original_context=2048, truncate=truncate)
    found = scaling.frequencies(PLAIN, BASE)
    # The pair that turns n times within L tokens: 2 pi n = L base**(-2 i / D) (equation 14 for i).
    edges = [2 * PAIRS * math.log(2048 / (n * 2 * math.pi)) / (2 * math.log(BASE)) for n in (32, 1)]
    if truncate:
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    for i, (f, scaled) in enumerate(zip(PLAIN, found, strict=True)):
        share = min(max((i - edges[0]) / (edges[1] - edges[0]), 0), 1)
        assert scaled == pytest.approx(share * f / 4 + (1 - share) * f, rel=1e-12)
    assert found[0] == PLAIN[0]
    assert found[-1] == pytest.approx(PLAIN[-1] / 4)
    assert scaling.magnitude == 0.1 * math.log(4) + 1
    cos, sin = (t.numpy() for t in rotary_tables(7, 2 * PAIRS, BASE, scaling, "cpu"))
    assert np.allclose(cos**2 + sin**2, scaling.magnitude**2, rtol=1e-6)
    assert RopeScaling("yarn", 4.0, original_context=9, attention_factor=0.5).magnitude == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "ntk", "factor": 2.0}, "unknown kind; got 'ntk', expected 'linear', 'llama3' or 'yarn'"),
        ({"kind": "linear", "factor": 0.0}, "factor must be positive; got 0.0"),
        ({"kind": "linear", "factor": math.inf}, "factor must be positive; got inf"),
        ({"kind": "yarn", "factor": 2.0}, "yarn needs original_context, at least 1"),
        (
            {"kind": "yarn", "factor": 2.0, "original_context": 4, "attention_factor": -1.0},
            "attention_factor must be positive; got -1.0",
        ),
        (
            {"kind": "llama3", "factor": 2.0, "original_context": 4, "low_freq_factor": 4.0},
            "low_freq_factor must be below high_freq_factor; got 4.0 and 4.0",
        ),
    ],
)
def test_impossible_scalings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RopeScaling(**arguments)
    assert str(error.value) == f"RopeScaling: {message}"


def test_a_table_of_any_length_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        rotary_tables(2**31, 4, 10000.0, None, "cpu")
    assert str(caught.value) == (
        "max_seq_len: too long for a table of positions; got 2147483648, expected at most 16777216. "
        "hint: open the model with a shorter max_seq_len"
    )
