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
