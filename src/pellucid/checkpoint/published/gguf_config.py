"""The keys of a GGUF file that say what the model computes, as a TransformerConfig, and back.

Everything under the name of the architecture can change the computation, so a key that is not known here is refused by
its name. GGUF keeps real numbers in float32; the shortest decimal that rounds to one is taken for what was meant.

Source: ggml's docs/gguf.md; llama.cpp's llama-arch.cpp (names of keys), llama-model.cpp (what is read, and defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ...base.errors import CheckpointError, ConfigError
from ...models import TransformerConfig
from .gguf_file import GGUFFile
from .gguf_rope import LLAMA3, ROPE_FACTORS, keys_of_scaling, named_numbers, scaling_of, scaling_of_divisors

ARCHITECTURE = "general.architecture"
#: Those this library has, and their key for the epsilon of norms.
_EPSILON = {
    "llama": "attention.layer_norm_rms_epsilon",
    "qwen2": "attention.layer_norm_rms_epsilon",
    "qwen3": "attention.layer_norm_rms_epsilon",
    "gpt2": "attention.layer_norm_epsilon",
}
# A rotary table has a row for each position.
_LONGEST = 1 << 20  # tokens
_WINDOW = "attention.sliding_window"
# The rows of a "llama" file lie in pairs whatever the model had them in before, and come back as halves; a file of ours
# says so where they were pairs.
INTERLEAVED = "pellucid.rope_interleaved"


def architecture_of(metadata: Mapping[str, Any], where: str) -> str:
    """The name of the architecture. Raises CheckpointError for one this library doesn't have."""
    found = metadata.get(ARCHITECTURE)
    if not isinstance(found, str) or found not in _EPSILON:
        expected = ", ".join(_EPSILON)
        got = "none" if found is None else repr(found)
        raise CheckpointError(where, "an architecture this library doesn't have", got=got, expected=expected)
    return found


class _Keys:
    """The keys of one architecture, each taken once; those nobody took are known at the end."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, where: str) -> None:
        self._prefix, self._where = f"{architecture}.", where
        self._left = {k.removeprefix(self._prefix): v for k, v in metadata.items() if k.startswith(self._prefix)}

    def has(self, name: str) -> bool:
        """Whether the file has the key, and nobody took it."""
        return name in self._left

    def text(self, name: str, default: str) -> str:
        """A text. Raises CheckpointError for anything else."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            self._refuse(name, value, "a text")
        return value

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = (1 << 31) - 1) -> int:
        """A count. Raises CheckpointError where it is missing, without a default, or something else."""
        value = self._left.pop(name, default)
        if isinstance(value, np.ndarray) and len(set(value.tolist())) == 1:
            value = value.tolist()[0]  # one for each layer, and all alike
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, value, f"a whole number from {least} to {most}")
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

    def _refuse(self, name: str, value: object, expected: str) -> NoReturn:
        got = "no such key" if value is None else repr(value)
        raise CheckpointError(self._where, f"{self._prefix}{name} can't be used", got=got, expected=expected)


def config_of(file: GGUFFile) -> tuple[TransformerConfig, tuple[str, ...]]:
    """The configuration that a file asks for, and the names of keys that change nothing here. Which projections have
    biases, how large the vocabulary is and whether the head is tied is told by its tensors.

    Raises CheckpointError for a key that is missing, impossible, or asks for what this library doesn't have.
    """
    where, architecture = file.path, architecture_of(file.metadata, file.path)
    keys = _Keys(file.metadata, architecture, where)
    table = file.shape("token_embd.weight") if "token_embd.weight" in file else ()
    if len(table) != 2:
        got = "none" if not table else f"shape {table}"
        raise CheckpointError(where, "no table of embeddings: tensor 'token_embd.weight'", got=got, expected="two axes")
    heads, width = keys.whole("attention.head_count"), keys.whole("embedding_length")
    context = keys.whole("context_length", most=_LONGEST)
    values: dict[str, Any] = {
        "vocab_size": table[0],
        "d_model": width,
        "n_layers": keys.whole("block_count", most=max(1, len(file))),
        "n_heads": heads,
        "d_ff": keys.whole("feed_forward_length"),
        "max_seq_len": context,
        "norm_eps": keys.real(_EPSILON[architecture]),
        "tie_embeddings": "output.weight" not in file,
    }
    ignored = keys.drop("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
    keys.same("attention.causal", True, "attention to what comes later")
    keys.same("expert_count", 0, "mixtures of experts")
    keys.same("expert_used_count", 0, "mixtures of experts")
    if architecture == "gpt2":
        keys.same("attention.head_count_kv", heads, "heads that share keys and values")
        values |= {"norm": "layernorm", "positions": "learned", "activation": "gelu_tanh", "biases": True}
    else:
        values |= _llama(keys, file, architecture, heads, width, context)
    keys.done()
    try:
        return TransformerConfig(**values), ignored
    except ConfigError as error:
        what = f"an impossible model: {error.what}"
        raise CheckpointError(where, what, got=error.got, expected=error.expected) from error


def _llama(keys: _Keys, file: GGUFFile, architecture: str, heads: int, width: int, context: int) -> dict[str, Any]:
    """What the architectures with rotary positions say beside the sizes."""
    where = file.path
    kv_heads = keys.whole("attention.head_count_kv", heads)
    head = keys.whole("attention.key_length", max(1, width // heads))
    keys.same("attention.value_length", head, "values of another length than keys")
    keys.same("rope.dimension_count", head, "a part of the features rotated")
    interleaved = file.metadata.get(INTERLEAVED, False)
    if type(interleaved) is not bool or (interleaved and architecture != "llama"):
        raise CheckpointError(where, f"{INTERLEAVED} can't be used", got=repr(interleaved), expected="false")
    base = keys.real("rope.freq_base", 10000.0)
    try:
        scaling = scaling_of(keys, context, where)
    except ConfigError as error:
        raise CheckpointError(where, f"impossible rotary positions: {error.what}", got=error.got) from error
    if ROPE_FACTORS in file:
        if file.shape(ROPE_FACTORS) != (head // 2,):
            got, what = file.shape(ROPE_FACTORS), f"tensor '{ROPE_FACTORS}' has another shape"
            raise CheckpointError(where, what, got=got, expected=(head // 2,))
        if scaling is not None:
            raise CheckpointError(where, f"rotary positions scaled twice: tensor '{ROPE_FACTORS}'", got=scaling.kind)
        scaling = scaling_of_divisors(file[ROPE_FACTORS], base, head, file.metadata.get(LLAMA3), where)
    biases = {
        name: True
        for name, stored in (("qkv_bias", "attn_q"), ("out_bias", "attn_output"), ("ff_bias", "ffn_up"))
        if f"blk.0.{stored}.bias" in file
    }
    if len(biases) == 3:
        biases = {"biases": True}
    window = keys.whole(_WINDOW, least=0) if keys.has(_WINDOW) else 0
    return {
        "n_kv_heads": kv_heads,
        "head_dim": head,
        "rope_base": base,
        "rope_interleaved": interleaved,
        "rope_scaling": scaling,
        "qk_norm": architecture == "qwen3",
        "window": window or None,
        **biases,
    }


# --- and back ---------------------------------------------------------------------------------------------------------


def architecture_for(config: TransformerConfig, where: str) -> str:
    """The architecture that computes what the configuration asks for. Raises CheckpointError where there is none."""
    c = config
    if c.experts is not None:
        raise CheckpointError(where, "mixtures of experts can't be exported as GGUF", got=f"experts {c.experts}")
    for layer in range(c.n_layers):
        if (window := c.window_of(layer)) is not None:
            what, got = "windows of positions can't be exported as GGUF", f"{window} of {c.max_seq_len} positions"
            raise CheckpointError(where, what, got=got, hint="llama.cpp would attend to all of them")
    biases = (c.has_qkv_bias, c.has_out_bias, c.has_ff_bias)
    if (c.norm, c.positions, c.activation) == ("rmsnorm", "rope", "swiglu"):
        if c.qk_norm:
            if any(biases) or c.rope_interleaved:
                got = f"biases {any(biases)}, rope_interleaved {c.rope_interleaved}"
                raise CheckpointError(where, "llama.cpp has norms of queries and keys in Qwen3's layout only", got=got)
            return "qwen3"
        return "qwen2" if biases == (True, False, False) and not c.rope_interleaved else "llama"
    if (c.norm, c.positions, c.activation, c.biases, *biases) == ("layernorm", "learned", "gelu_tanh", *4 * (True,)):
        if c.kv_heads != c.n_heads or c.head_width * c.n_heads != c.d_model or c.qk_norm:
            got = f"{c.n_heads} heads of {c.head_width}, {c.kv_heads} for keys, width {c.d_model}, qk_norm {c.qk_norm}"
            raise CheckpointError(where, "GPT-2's layout has no room for these heads", got=got)
        return "gpt2"
    got = f"norm {c.norm}, positions {c.positions}, activation {c.activation}, biases {c.biases}"
    expected = "rmsnorm, rope, swiglu (Llama, Qwen), or layernorm, learned, gelu_tanh with biases (GPT-2)"
    raise CheckpointError(where, "llama.cpp has no architecture of this kind", got=got, expected=expected)


def keys_of(config: TransformerConfig, architecture: str, where: str) -> dict[str, Any]:
    """The keys that `config_of` reads as this configuration. Raises CheckpointError for rotary positions that no key
    can say."""
    c = config
    found: dict[str, Any] = {
        "block_count": c.n_layers,
        "context_length": c.max_seq_len,
        "embedding_length": c.d_model,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.n_heads,
        _EPSILON[architecture]: c.norm_eps,
    }
    more: dict[str, Any] = {}
    if architecture != "gpt2":
        found |= {
            "attention.head_count_kv": c.kv_heads,
            "attention.key_length": c.head_width,
            "attention.value_length": c.head_width,
            "rope.dimension_count": c.head_width,
            "rope.freq_base": c.rope_base,
        }
        if c.rope_scaling is not None:
            found |= keys_of_scaling(c.rope_scaling, where)
            if c.rope_scaling.kind == "llama3":
                more[LLAMA3] = named_numbers(c.rope_scaling)
        if c.rope_interleaved:
            more[INTERLEAVED] = True
    return {ARCHITECTURE: architecture} | {f"{architecture}.{name}": value for name, value in found.items()} | more
