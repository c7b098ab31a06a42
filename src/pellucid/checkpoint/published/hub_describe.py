"""A TransformerConfig as a Hugging Face `config.json`: the family that computes the same, and its keys.

A model that no family computes is refused, by the name of what is in the way.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import ConfigError
from ...models import RopeScaling, TransformerConfig
from .hub_config import ACTIVATIONS, FAMILIES

WHERE = "Hugging Face export"


def describe(config: TransformerConfig, *, dtype: str, eos_ids: tuple[int, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The family and the content of `config.json`. dtype: of the weights, by the name it has there.

    Raises:
        ConfigError: a model that the layout of no family can hold.
    """
    c = config
    family = family_of(c)
    content: dict[str, Any] = {"architectures": [FAMILIES[family]], "model_type": family}
    if family == "gpt2":
        content |= {
            "activation_function": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == c.activation),
            "attn_pdrop": c.dropout,
            "embd_pdrop": c.dropout,
            "layer_norm_epsilon": c.norm_eps,
            "n_embd": c.d_model,
            "n_head": c.n_heads,
            "n_inner": c.hidden,
            "n_layer": c.n_layers,
            "n_positions": c.max_seq_len,
            "resid_pdrop": c.dropout,
        }
    else:
        content |= {
            "attention_dropout": c.dropout,
            "head_dim": c.head_width,
            "hidden_act": "silu",
            "hidden_size": c.d_model,
            "intermediate_size": c.hidden,
            "max_position_embeddings": c.max_seq_len,
            "num_attention_heads": c.n_heads,
            "num_hidden_layers": c.n_layers,
            "num_key_value_heads": c.kv_heads,
            "rms_norm_eps": c.norm_eps,
            "rope_scaling": None if c.rope_scaling is None else _scaling(c.rope_scaling),
            "rope_theta": c.rope_base,
        }
        content |= _of_family(c, family)
    ends = list(eos_ids)
    content |= {
        "bos_token_id": None,
        "eos_token_id": None if not ends else ends[0] if len(ends) == 1 else ends,
        "initializer_range": c.weight_std,
        "tie_word_embeddings": c.tie_embeddings,
        "torch_dtype": dtype,
        "vocab_size": c.vocab_size,
    }
    return family, content


def family_of(config: TransformerConfig) -> str:
    """The family whose layout holds a model. Raises ConfigError where there is none, naming what is in the way."""
    c = config
    if (c.norm, c.positions) == ("layernorm", "learned"):
        _need(c.activation != "swiglu", f"activation {c.activation!r} with LayerNorm")
        _need(c.has_qkv_bias and c.has_out_bias and c.has_ff_bias and c.biases, "no biases with LayerNorm")
        _need(c.kv_heads == c.n_heads, "grouped-query attention with learned positions", f"{c.kv_heads} key heads")
        _need(c.head_width * c.n_heads == c.d_model, "heads that are not a share of the width", c.head_width)
        _need(not c.qk_norm, "norms of queries and keys with LayerNorm")
        _need(_windows(c) == (), "a window of positions with learned positions", c.window)
        return "gpt2"
    _need(c.norm == "rmsnorm" and c.positions == "rope", f"{c.norm} with {c.positions} positions")
    _need(c.activation == "swiglu", f"activation {c.activation!r} with RMSNorm")
    _need(not c.shared_expert, "a shared expert")
    windows, every = _windows(c), tuple(range(c.n_layers))
    if c.experts is not None:
        if c.qk_norm:
            _need(c.has_qkv_bias == c.has_out_bias, "biases in one part of attention only")
            _need(windows in ((), every), "windows in some of the layers with experts")
            return "qwen3_moe"
        _need(not (c.has_qkv_bias or c.has_out_bias), "biases in attention with experts")
        _need(c.expert_layers == every, "experts in some of the layers, without norms of queries and keys")
        _need(windows in ((), every), "windows in some of the layers with experts")
        return "mixtral"
    if c.qk_norm:
        _need(c.has_qkv_bias == c.has_out_bias, "biases in one part of attention only")
        _need(not c.has_ff_bias, "biases in the feed-forward layer, with norms of queries and keys")
        return "qwen3"
    if c.has_qkv_bias and not c.has_out_bias:
        _need(not c.has_ff_bias, "biases in the feed-forward layer, but not out of attention")
        return "qwen2"
    _need(c.has_qkv_bias == c.has_out_bias, "a bias out of attention alone")
    if windows:
        _need(windows == every, "windows in some of the layers, without biases or norms of queries and keys")
        _need(not (c.has_qkv_bias or c.has_ff_bias), "a window of positions with biases")
        return "mistral"
    return "llama"


def _windows(c: TransformerConfig) -> tuple[int, ...]:
    return tuple(i for i in range(c.n_layers) if c.window_of(i) is not None)


def _need(holds: bool, what: str, got: object = None) -> None:
    if not holds:
        hint = "keep it as a checkpoint of Pellucid"
        raise ConfigError(WHERE, f"no published layout holds {what}", got=got, hint=hint)


def _of_family(c: TransformerConfig, family: str) -> dict[str, Any]:
    """The keys that only some families have."""
    found: dict[str, Any] = {}
    if family in ("llama", "qwen3", "qwen3_moe"):
        found["attention_bias"] = c.has_qkv_bias
    if family == "llama":
        found["mlp_bias"] = c.has_ff_bias
    windows = _windows(c)
    if family in ("mistral", "mixtral"):
        found["sliding_window"] = c.window if windows else None
    elif family.startswith("qwen"):
        found |= {"use_sliding_window": bool(windows), "sliding_window": c.window if windows else None}
        if family != "qwen3_moe":
            kinds = ["sliding_attention" if i in windows else "full_attention" for i in range(c.n_layers)]
            found["layer_types"] = kinds
    if family == "mixtral":
        found |= {"num_local_experts": c.experts, "num_experts_per_tok": c.experts_of_token}
        found["intermediate_size"] = c.expert_hidden
    if family == "qwen3_moe":
        found |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [i for i in range(c.n_layers) if i not in c.expert_layers],
            "moe_intermediate_size": c.expert_hidden,
            "norm_topk_prob": True,
            "num_experts": c.experts,
            "num_experts_per_tok": c.experts_of_token,
        }
    if c.experts is not None:
        found["router_aux_loss_coef"] = c.aux_weight
    return found


def _scaling(s: RopeScaling) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": s.kind, "factor": s.factor}
    if s.kind == "linear":
        return found
    found["original_max_position_embeddings"] = s.original_context
    if s.kind == "llama3":
        return {**found, "low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor}
    named = {} if s.attention_factor is None else {"attention_factor": s.attention_factor}
    return {**found, "beta_fast": s.beta_fast, "beta_slow": s.beta_slow, "truncate": s.truncate, **named}
