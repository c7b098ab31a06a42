"""The keys of a Hugging Face `config.json`, each taken once and checked; what nobody took is judged at the end.

A key may change what a model computes, and passing over one gives a model that runs and is wrong. So keys known to
change the computation are refused unless their value says that they don't, and whatever else is left is handed back by
name, to be shown.
"""

from __future__ import annotations

from sys import float_info
from typing import Any, NoReturn

from ...base.errors import CheckpointError

# Keys of families this library doesn't have, and the values (beside null) that leave the computation as it is.
_OFF: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_multiplier": (),
    "attention_sink": (False,),
    "attn_logit_softcapping": (),
    "auto_map": (),
    "clip_qkv": (),
    "cross_attention_hidden_size": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "is_encoder_decoder": (False,),
    "kv_lora_rank": (),
    "layer_types": (),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "moe_intermediate_size": (),
    "mrope_section": (),
    "n_routed_experts": (),
    "n_shared_experts": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0, 1),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1, 1.0),
    "q_lora_rank": (),
    "qk_layernorm": (False,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1, 1.0),
    "rope_local_base_freq": (),
    "rotary_pct": (1, 1.0),
    "scale_embedding": (False,),
    "scale_embeddings": (False,),
    "shared_expert_intermediate_size": (0,),
    "sliding_window": (),
    "text_config": (),
    "use_mamba": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
    "vision_config": (),
}

# Keys that say nothing about the numbers a model computes from given weights: not worth a word.
_SILENT = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "pad_token_id",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)

# A number of JSON may be longer than any float; Python compares the two exactly.
_LARGEST = float_info.max


class Keys:
    """The keys of one file. where: what messages name."""

    def __init__(self, content: dict[str, Any], where: str) -> None:
        self._left, self.where = dict(content), where

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a key, or the default where it is missing."""
        return self._left.pop(name, default)

    def has(self, name: str) -> bool:
        """Whether a key is there, with a value other than null."""
        return self._left.get(name) is not None

    def names(self) -> set[str]:
        """The keys that nobody has taken yet."""
        return set(self._left)

    def whole(self, name: str, default: int | None = None, *, most: int = (1 << 31) - 1) -> int:
        """A count from 1 on; null counts as missing where there is a default. Raises CheckpointError."""
        value = self.take(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.refuse(name, value, expected=f"a whole number from 1 to {most}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A positive number. Raises CheckpointError."""
        value = self.take(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _LARGEST:
            self.refuse(name, value, expected="a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false. Raises CheckpointError."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, expected="true or false")
        return value

    def choice(self, name: str, default: str, *choices: str) -> str:
        """One of some words. Raises CheckpointError for a word this library has nothing for."""
        value = self.take(name, default)
        if value not in choices:
            self.refuse(name, value, expected=" or ".join(map(repr, choices)))
        return value

    def drop(self, *names: str) -> None:
        """Keys that only matter in training, or for what is not computed here."""
        for name in names:
            self._left.pop(name, None)

    def refuse(self, name: str, value: object, *, expected: str) -> NoReturn:
        """Raises the CheckpointError about one key."""
        what = f"{name} is missing" if value is None else f"{name} asks for what this library doesn't have"
        got = None if value is None else repr(value)[:80]
        raise CheckpointError(self.where, what, got=got, expected=expected)

    def done(self) -> tuple[str, ...]:
        """Names of the keys that nobody took and that change nothing. Raises CheckpointError for one that would."""
        for name, neutral in _OFF.items():
            value = self._left.pop(name, None)
            if value is None or any(type(value) is type(v) and value == v for v in neutral):
                continue
            hint = "this model computes something that this library can't; use one of another family"
            what = f"{name} asks for what this library doesn't have"
            raise CheckpointError(self.where, what, got=repr(value)[:80], hint=hint)
        return tuple(sorted(name for name, value in self._left.items() if value is not None and name not in _SILENT))
