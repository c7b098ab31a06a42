"""The keys of a GGUF file that say what the model computes, as a TransformerConfig, and back.

Everything under the name of the architecture can change the computation, so a key that is not known here is refused by
its name. GGUF keeps real numbers in float32; the shortest decimal that rounds to one is taken for what was meant.

Source: ggml's docs/gguf.md; llama.cpp's llama-arch.cpp (names of keys), llama-model.cpp (what is read, and defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.errors import CheckpointError, ConfigError
from ...models import TransformerConfig

Keys = Mapping[str, Any]

ARCHITECTURE = "general.architecture"
#: Those this library has, and the name of the size of their norms' epsilon.
_EPSILON = {
    "llama": "attention.layer_norm_rms_epsilon",
    "gpt2": "attention.layer_norm_epsilon",
}
# A rotary table has a row for each position.
_LONGEST = 1 << 20  # tokens
# Where a llama.cpp file lies between pairs (x0, x1) and halves is its architecture's; our own exports say which the
# model had, so that it comes back as it was.
INTERLEAVED = "pellucid.rope_interleaved"


def architecture_of(metadata: Keys, where: str) -> str:
    """The name of the architecture. Raises CheckpointError for one this library doesn't have."""
    found = metadata.get(ARCHITECTURE)
    if found not in _EPSILON:
        expected = ", ".join(_EPSILON)
        got = "none" if found is None else repr(found)
        raise CheckpointError(where, "an architecture this library doesn't have", got=got, expected=expected)
    return found


class _Keys:
    """The keys of one architecture, each taken once; those nobody took are known at the end."""

    def __init__(self, metadata: Keys, architecture: str, where: str) -> None:
        self._prefix, self._where = f"{architecture}.", where
        self._left = {k.removeprefix(self._prefix): v for k, v in metadata.items() if k.startswith(self._prefix)}

    def whole(self, name: str, default: int | None = None, *, most: int = (1 << 31) - 1) -> int:
        """A count from 1 on. Raises CheckpointError where it is missing, without a default, or something else."""
        value = self._left.pop(name, default)
        if isinstance(value, np.ndarray) and len(set(value.tolist())) == 1:
            value = value.tolist()[0]  # one for each layer, and all alike
        if type(value) is not int or not 1 <= value <= most:
            self._refuse(name, value, f"a whole number from 1 to {most}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A positive number, as short as float32 allows. Raises CheckpointError for anything else."""
        value = self._left.pop(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            self._refuse(name, value, "a positive number")
        return float(str(np.float32(value)))

    def same(self, name: str, expected: object, what: str) -> None:
        """Refuses any value but one, which is also what a missing key means."""
        value = self._left.pop(name, expected)
        if value != expected:
            raise CheckpointError(self._where, f"{self._prefix}{name}: {what}", got=value, expected=expected)

    def drop(self, *names: str) -> tuple[str, ...]:
        """Takes keys that change nothing; returns those there were."""
        found = tuple(f"{self._prefix}{name}" for name in names if name in self._left)
        for name in names:
            self._left.pop(name, None)
        return found

    def done(self) -> None:
        """Refuses what nobody took."""
        if self._left:
            names = ", ".join(f"{self._prefix}{name}" for name in sorted(self._left)[:5])
            hint = "a key of the architecture can change what the model computes, so it is not passed over"
            raise CheckpointError(self._where, "the file asks for what this library doesn't have", got=names, hint=hint)

    def _refuse(self, name: str, value: object, expected: str) -> None:
        got = "no such key" if value is None else repr(value)
        raise CheckpointError(self._where, f"{self._prefix}{name} can't be used", got=got, expected=expected)


def config_of(
    metadata: Keys, shapes: Mapping[str, tuple[int, ...]], where: str
) -> tuple[TransformerConfig, tuple[str, ...]]:
    """The configuration that the keys ask for, and the names of keys that change nothing here.

    shapes: of the tensors in the file, which say how large the vocabulary is and whether the head is tied.

    Raises CheckpointError for a key that is missing, impossible, or asks for what this library doesn't have.
    """
    architecture = architecture_of(metadata, where)
    keys = _Keys(metadata, architecture, where)
    table = shapes.get("token_embd.weight", ())
    if len(table) != 2:
        got = "none" if not table else f"shape {table}"
        raise CheckpointError(where, "no table of embeddings: tensor 'token_embd.weight'", got=got, expected="two axes")
    heads, width = keys.whole("attention.head_count"), keys.whole("embedding_length")
    values: dict[str, Any] = {
        "vocab_size": table[0],
        "d_model": width,
        "n_layers": keys.whole("block_count", most=max(1, len(shapes))),
        "n_heads": heads,
        "n_kv_heads": keys.whole("attention.head_count_kv", heads),
        "d_ff": keys.whole("feed_forward_length"),
        "max_seq_len": keys.whole("context_length", most=_LONGEST),
        "norm_eps": keys.real(_EPSILON[architecture]),
        "tie_embeddings": "output.weight" not in shapes,
    }
    ignored = keys.drop("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
    keys.same("attention.causal", True, "attention to what comes later")
    if architecture == "gpt2":
        keys.same("attention.head_count_kv", heads, "heads that share keys and values")
        values |= {"norm": "layernorm", "positions": "learned", "activation": "gelu_tanh", "biases": True}
        values["head_dim"] = width // heads
    else:
        values |= _llama(keys, metadata, heads, width, where)
    keys.done()
    try:
        return TransformerConfig(**values), ignored
    except ConfigError as error:
        what = f"an impossible model: {error.what}"
        raise CheckpointError(where, what, got=error.got, expected=error.expected) from error


def _llama(keys: _Keys, metadata: Keys, heads: int, width: int, where: str) -> dict[str, Any]:
    """What the architectures with rotary positions say beside the sizes."""
    head = keys.whole("attention.key_length", width // heads or 1)
    keys.same("attention.value_length", head, "values of another length than keys")
    keys.same("rope.dimension_count", head, "a part of the features turned")
    keys.same("expert_count", 0, "mixtures of experts")
    keys.same("expert_used_count", 0, "mixtures of experts")
    keys.same("rope.scaling.type", "none", "scaled rotary positions")
    interleaved = metadata.get(INTERLEAVED, False)
    if type(interleaved) is not bool:
        raise CheckpointError(where, f"{INTERLEAVED} can't be used", got=repr(interleaved), expected="a bool")
    return {"head_dim": head, "rope_base": keys.real("rope.freq_base", 10000.0), "rope_interleaved": interleaved}


# --- and back ---------------------------------------------------------------------------------------------------------


def architecture_for(config: TransformerConfig, where: str) -> str:
    """The architecture that computes what the configuration asks for. Raises CheckpointError where there is none."""
    c = config
    if c.experts is not None:
        raise CheckpointError(where, "mixtures of experts can't be exported as GGUF", got=f"experts {c.experts}")
    family = (c.norm, c.positions, c.activation, c.biases)
    if family == ("rmsnorm", "rope", "swiglu", False):
        return "llama"
    if family == ("layernorm", "learned", "gelu_tanh", True):
        if c.kv_heads != c.n_heads or c.head_width * c.n_heads != c.d_model:
            got = f"{c.n_heads} heads of {c.head_width} and {c.kv_heads} for keys, width {c.d_model}"
            raise CheckpointError(where, "GPT-2's layout has no room for these heads", got=got)
        return "gpt2"
    got = f"norm {c.norm}, positions {c.positions}, activation {c.activation}, biases {c.biases}"
    expected = "rmsnorm, rope, swiglu without biases (Llama), or layernorm, learned, gelu_tanh with biases (GPT-2)"
    raise CheckpointError(where, "llama.cpp has no architecture of this kind", got=got, expected=expected)


def keys_of(config: TransformerConfig, architecture: str) -> dict[str, Any]:
    """The keys that `config_of` reads as this configuration."""
    c = config
    found: dict[str, Any] = {
        "block_count": c.n_layers,
        "context_length": c.max_seq_len,
        "embedding_length": c.d_model,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.n_heads,
        _EPSILON[architecture]: c.norm_eps,
    }
    if architecture != "gpt2":
        found |= {
            "attention.head_count_kv": c.kv_heads,
            "attention.key_length": c.head_width,
            "attention.value_length": c.head_width,
            "rope.dimension_count": c.head_width,
            "rope.freq_base": c.rope_base,
        }
    keys = {ARCHITECTURE: architecture} | {f"{architecture}.{name}": value for name, value in found.items()}
    return keys | ({INTERLEAVED: True} if c.rope_interleaved else {})
