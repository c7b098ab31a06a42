"""How a GGUF file says that rotary positions are stretched: keys for linear and YaRN, a tensor for Llama 3's way.

That tensor holds what each frequency is divided by, not the four numbers it was made of. Those are looked for: the
largest divisor is the factor, and the rest are the numbers of the published models, or those that a file of ours names;
what they give must be the tensor.

Source: llama.cpp, llama-model.cpp and ggml's `rope_yarn`; convert_hf_to_gguf.py, `generate_extra_tensors`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...base.errors import CheckpointError, ConfigError
from ...models import RopeScaling, TransformerConfig

Host = np.ndarray[Any, Any]

#: The tensor of Llama 3's divisors: (head_dim / 2,).
ROPE_FACTORS = "rope_freqs.weight"
#: Of our own files: factor, original context, low and high frequency factor.
LLAMA3 = "pellucid.rope_llama3"

_PUBLISHED = [(float(context), 1.0, 4.0) for context in (8192, 4096, 2048, 16384, 32768, 65536, 131072)]
_AGREEMENT = 1e-5  # relative, of float32 divisors
_SCALING = "rope.scaling."


class Keys(Protocol):
    """The keys of an architecture, as `gguf_config` takes them."""

    def has(self, name: str) -> bool: ...
    def whole(self, name: str, default: int | None = None) -> int: ...
    def real(self, name: str, default: float | None = None) -> float: ...
    def text(self, name: str, default: str) -> str: ...


def scaling_of(keys: Keys, context: int, where: str) -> RopeScaling | None:
    """What the keys ask for. Raises CheckpointError for a way this library doesn't have."""
    kind = keys.text(f"{_SCALING}type", "linear")
    factor = keys.real("rope.scale_linear", 1.0)
    factor = keys.real(f"{_SCALING}factor", factor)
    original = keys.whole(f"{_SCALING}original_context_length", context)
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind != "yarn":
        expected = "none, linear or yarn"
        raise CheckpointError(
            where, "rotary positions scaled in a way this library doesn't have", got=repr(kind), expected=expected
        )
    attention = keys.real(f"{_SCALING}attn_factor", 1.0)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=keys.real(f"{_SCALING}yarn_beta_fast", 32.0),
        beta_slow=keys.real(f"{_SCALING}yarn_beta_slow", 1.0),
        attention_factor=None if attention == 1 else attention * _yarn_magnitude(factor),
    )


def _yarn_magnitude(factor: float) -> float:
    return RopeScaling("yarn", factor, 1).magnitude


def keys_of_scaling(scaling: RopeScaling, where: str) -> dict[str, Any]:
    """The keys that `scaling_of` reads as this. Raises CheckpointError for what they can't say."""
    s = scaling
    if s.kind == "llama3":
        return {}
    found: dict[str, Any] = {f"{_SCALING}type": s.kind, f"{_SCALING}factor": s.factor}
    if s.kind == "linear":
        return found
    if not s.truncate:
        raise CheckpointError(where, "YaRN without whole pairs can't be exported as GGUF", got="truncate False")
    found |= {f"{_SCALING}original_context_length": s.original_context}
    if s.attention_factor is not None:
        found[f"{_SCALING}attn_factor"] = s.attention_factor / _yarn_magnitude(s.factor)
    defaults = RopeScaling("yarn", s.factor, s.original_context)
    for name in ("beta_fast", "beta_slow"):
        if getattr(s, name) != getattr(defaults, name):
            found[f"{_SCALING}yarn_{name}"] = getattr(s, name)
    return found


def divisors(scaling: RopeScaling, base: float, head_dim: int) -> Host:
    """What Llama 3's way divides each frequency by, float32: (head_dim / 2,)."""
    half = head_dim // 2
    plain = base ** (-np.arange(half) / half)
    return (plain / scaling.frequencies(plain, base)).astype(np.float32)


def scaling_of_divisors(found: Host, base: float, head_dim: int, named: object, where: str) -> RopeScaling:
    """Llama 3's numbers behind its divisors; `named`: those that a file of ours says.

    Raises CheckpointError where no numbers of published models give these divisors.
    """
    if not np.isfinite(found).all() or (found < 1).any():
        got = f"{found.min()} to {found.max()}"
        raise CheckpointError(where, f"tensor '{ROPE_FACTORS}' has no divisors", got=got, expected="numbers from 1 on")
    factor = float(found.max())
    tried = [(factor, *others) for others in _PUBLISHED]
    if isinstance(named, np.ndarray) and named.shape == (4,):
        tried.insert(0, tuple(named.tolist()))
    for of, context, low, high in tried:
        try:
            scaling = RopeScaling("llama3", of, int(context), low_freq_factor=low, high_freq_factor=high)
        except (ConfigError, ValueError, OverflowError):
            continue  # numbers that no file of ours has
        if np.abs(divisors(scaling, base, head_dim) / found - 1).max() <= _AGREEMENT:
            return scaling
    what = f"tensor '{ROPE_FACTORS}' stretches rotary positions in no way of a published model"
    raise CheckpointError(where, what, got=f"divisors up to {factor:g}", expected="Llama 3's, from 8192 tokens say")


def named_numbers(scaling: RopeScaling) -> Host:
    """The numbers under `LLAMA3`."""
    s = scaling
    return np.array([s.factor, s.original_context, s.low_freq_factor, s.high_freq_factor], np.float64)


def factors_tensor(config: TransformerConfig) -> Host | None:
    """The tensor `ROPE_FACTORS` of a model, or None."""
    if config.rope_scaling is None or config.rope_scaling.kind != "llama3":
        return None
    return divisors(config.rope_scaling, config.rope_base, config.head_width)
