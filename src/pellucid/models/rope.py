"""Rotary positions of a model: frequencies, stretched for long contexts where asked for, and the tables made of them.

Position t turns pair i of a head by t f_i, f_i = rope_base**(-2 i / head_dim) (Su et al. 2021). A model that was
trained on short texts reads longer ones when slow frequencies are made slower still; `RopeScaling` names the ways of
published models. Whatever a way does, it ends in two tables, so no kernel knows about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite, log, pi
from typing import Any, Literal

import numpy as np

from ..base import dtypes
from ..base.errors import ConfigError
from ..device import Device
from ..ops import tensor
from ..tape import Tensor

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies for texts longer than those of training. f: the plain frequency, s: `factor`, L: `original_context`
    in tokens, the longest text of the first training.

    linear: f / s (Chen et al. 2023, arXiv 2306.15595).

    llama3: f where a wavelength 2 pi / f is below L / high_freq_factor, f / s where it is above L / low_freq_factor,
    and between the two (1 - m) f / s + m f, m = (L f / 2 pi - low) / (high - low) (Llama 3.1, 2024).

    yarn: r f / s + (1 - r) f, r rising from 0 to 1 between the pairs that turn beta_fast and beta_slow times within L
    (`truncate` widens that to whole pairs), and cos and sin times attention_factor, None: 0.1 ln s + 1 (Peng et al.
    2023, arXiv 2309.00071, sections 3.2 and 3.4).
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        where = "RopeScaling"
        if self.kind not in ("linear", "llama3", "yarn"):
            expected = "'linear', 'llama3' or 'yarn'"
            raise ConfigError(where, "unknown kind", got=repr(self.kind), expected=expected)
        names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
        for name in names + ("attention_factor",) * (self.attention_factor is not None):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ConfigError(where, f"{name} must be positive", got=value)
        if self.kind != "linear" and (self.original_context is None or self.original_context < 1):
            what = f"{self.kind} needs original_context, at least 1"
            raise ConfigError(where, what, got=self.original_context)
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            got = f"{self.low_freq_factor} and {self.high_freq_factor}"
            raise ConfigError(where, "low_freq_factor must be below high_freq_factor", got=got)

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * log(self.factor) + 1 if self.factor > 1 else 1.0

    def frequencies(self, plain: Host, base: float) -> Host:
        """The frequencies in the place of the plain ones, (pairs,), float64."""
        if self.kind == "linear":
            return plain / self.factor
        assert self.original_context is not None
        if self.kind == "llama3":
            turns = self.original_context * plain / (2 * pi)
            low, high = self.low_freq_factor, self.high_freq_factor
            share = np.clip((turns - low) / (high - low), 0, 1)
            return (1 - share) * plain / self.factor + share * plain
        share = self._ramp(len(plain), base)
        return share * plain / self.factor + (1 - share) * plain

    def _ramp(self, pairs: int, base: float) -> Host:
        """How far each pair is stretched: 0 for fast ones, 1 for slow ones."""

        def pair_that_turns(times: float) -> float:
            assert self.original_context is not None
            return pairs * log(self.original_context / (times * 2 * pi)) / log(base)

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        if low == high:
            high += 0.001  # a step instead of a slope
        return np.clip((np.arange(pairs) - low) / (high - low), 0, 1)


_MOST_POSITIONS = 1 << 24


def rotary_tables(
    positions: int, head_dim: int, base: float, scaling: RopeScaling | None, device: str | Device
) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency: (positions, head_dim / 2) each, computed in float64.

    Raises ConfigError for more positions than any model has: a damaged file can ask for any number.
    """
    if positions > _MOST_POSITIONS:
        hint = "open the model with a shorter max_seq_len"
        raise ConfigError(
            "max_seq_len",
            "too long for a table of positions",
            got=positions,
            expected=f"at most {_MOST_POSITIONS}",
            hint=hint,
        )
    half = head_dim // 2
    frequencies = base ** (-np.arange(half) / half)
    magnitude = 1.0
    if scaling is not None:
        frequencies, magnitude = scaling.frequencies(frequencies, base), scaling.magnitude
    angles = np.arange(positions)[:, None] * frequencies
    return (
        tensor(magnitude * np.cos(angles), dtype=dtypes.float32, device=device),
        tensor(magnitude * np.sin(angles), dtype=dtypes.float32, device=device),
    )
