"""A Hugging Face `config.json` as a TransformerConfig, for the families of which every option is here.

Where a key is missing, the family's own default counts, as in the `transformers` library (configuration_FAMILY.py,
modeling_rope_utils.py), but for sizes: those have to be there.
"""

from __future__ import annotations

from math import log
from typing import Any

from ...base.errors import CheckpointError, ConfigError
from ...models import RopeScaling, TransformerConfig
from .hub_keys import Keys

#: Families, and the class a folder of each names.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
#: GPT-2's names for our activations.
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}

# A rotary table has a row for each position.
_LONGEST = 1 << 20  # tokens
_TRAINING_ONLY = (
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "output_router_logits",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
)
_ROPE_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "original_max_position_embeddings",
            "truncate",
        }
    ),
}


def config_of(content: dict[str, Any], where: str, *, tensors: int) -> tuple[TransformerConfig, str, tuple[str, ...]]:
    """The configuration, the family, and the names of keys that change nothing here. tensors: in the files, which no
    model has more layers than.

    Raises:
        CheckpointError: a family, a class, or the value of a key that this library has nothing for.
    """
    family = content.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        got = "no model_type" if family is None else repr(family)[:80]
        expected = ", ".join(FAMILIES)
        raise CheckpointError(where, "a family of models this library doesn't have", got=got, expected=expected)
    classes = content.get("architectures")
    named = classes if isinstance(classes, list) else [classes]
    if classes is not None and FAMILIES[family] not in named and "GPT2Model" not in named:
        hint = "other heads than a language model's can't be used"
        raise CheckpointError(
            where, "not a language model", got=repr(classes)[:80], expected=FAMILIES[family], hint=hint
        )
    for name in ("num_hidden_layers", "n_layer"):
        layers = content.get(name)
        if isinstance(layers, int) and layers > tensors:
            raise CheckpointError(where, f"{name}: more layers than tensors", got=layers, expected=f"at most {tensors}")
    keys = Keys(content, where)
    keys.drop(*_TRAINING_ONLY)
    try:
        config = TransformerConfig(**(_gpt2(keys) if family == "gpt2" else _llama(keys, family)))
    except ConfigError as error:
        what = f"an impossible model: {error.where}: {error.what}"
        raise CheckpointError(where, what, got=error.got, expected=error.expected) from error
    return config, family, keys.done()


def _llama(keys: Keys, family: str) -> dict[str, Any]:
    """The families that are Llama with changes."""
    layers, context = keys.whole("num_hidden_layers"), keys.whole("max_position_embeddings", most=_LONGEST)
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    kv_heads = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32, "qwen3_moe": 4}.get(family, heads)
    head = 128 if family == "qwen3" else width // heads or 1
    keys.choice("hidden_act", "silu", "silu", "swish")
    keys.drop("pretraining_tp")  # another order of the same sums
    values: dict[str, Any] = {
        "vocab_size": keys.whole("vocab_size"),
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": keys.whole("num_key_value_heads", kv_heads),
        "head_dim": keys.whole("head_dim", head),
        "d_ff": keys.whole("intermediate_size"),
        "max_seq_len": context,
        "norm_eps": keys.real("rms_norm_eps", 1e-5 if family == "mixtral" else 1e-6),
        "tie_embeddings": keys.flag("tie_word_embeddings", False),
        "qk_norm": family.startswith("qwen3"),
        **_rope(keys, context, 1e6 if family == "mixtral" else 1e4),
    }
    if family == "llama":
        bias = keys.flag("attention_bias", False)
        values |= {"qkv_bias": bias, "out_bias": bias, "ff_bias": keys.flag("mlp_bias", False)}
    elif family == "qwen2":
        values |= {"qkv_bias": True, "out_bias": False}
    elif family.startswith("qwen3"):
        bias = keys.flag("attention_bias", False)
        values |= {"qkv_bias": bias, "out_bias": bias}
    if family in ("mixtral", "qwen3_moe"):
        values |= _experts(keys, family, layers, values["d_ff"])
    return values | _windows(keys, family, layers)


def _experts(keys: Keys, family: str, layers: int, hidden: int) -> dict[str, Any]:
    active = keys.whole("num_experts_per_tok", 2 if family == "mixtral" else 8)
    if family == "mixtral":
        return {"experts": keys.whole("num_local_experts", 8), "active_experts": active, "moe_d_ff": hidden}
    if not keys.flag("norm_topk_prob", False):
        keys.refuse("norm_topk_prob", False, expected="true: gates that sum to 1")
    step, dense = keys.whole("decoder_sparse_step", 1), keys.take("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        keys.refuse("mlp_only_layers", dense, expected="numbers of layers")
    sparse = tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0)
    count = keys.whole("num_experts", keys.take("num_local_experts", 128))
    values = {"experts": count, "active_experts": active}
    values["moe_d_ff"] = keys.whole("moe_intermediate_size", 768)
    if not sparse:
        keys.refuse("decoder_sparse_step", step, expected="at least one layer with experts")
    return {**values, "moe_layers": None if len(sparse) == layers else sparse}


def _windows(keys: Keys, family: str, layers: int) -> dict[str, Any]:
    """Which layers see a window of positions only."""
    # A key that isn't there has the family's default; null says that there is no window.
    default = 4096 if family in ("mistral", "qwen2", "qwen3", "qwen3_moe") else None
    window = keys.take("sliding_window", default)
    if family.startswith("qwen"):
        switched_on = keys.flag("use_sliding_window", False)
        first, kinds = keys.take("max_window_layers", 28), keys.take("layer_types")
        if not switched_on:
            window = None
        if type(first) is not int:
            keys.refuse("max_window_layers", first, expected="a number of layers")
        if kinds is None:
            chosen = tuple(range(0 if family == "qwen3_moe" else max(0, first), layers))
        else:
            known = ("full_attention", "sliding_attention")
            if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
                keys.refuse("layer_types", kinds, expected=f"one of {' and '.join(known)} for each of {layers} layers")
            chosen = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
            if chosen and window is None:
                keys.refuse("layer_types", kinds, expected="full_attention alone, without a window")
        if not chosen:
            window = None
    else:
        chosen = tuple(range(layers))
        kinds = keys.take("layer_types")
        wanted = "full_attention" if window is None else "sliding_attention"
        if kinds is not None and (not isinstance(kinds, list) or not kinds or any(kind != wanted for kind in kinds)):
            keys.refuse("layer_types", kinds, expected=f"{wanted} in every layer")
    if window is None:
        return {}
    if type(window) is not int or window < 1:
        keys.refuse("sliding_window", window, expected="a whole number from 1 on")
    if family == "llama":
        keys.refuse("sliding_window", window, expected="null in this family")
    return {"window": window, "window_layers": None if len(chosen) == layers else chosen}


def _rope(keys: Keys, context: int, base: float) -> dict[str, Any]:
    """Rotary positions, in the spelling of today (`rope_parameters`) or of before (`rope_theta`, `rope_scaling`)."""
    found = [name for name in ("rope_parameters", "rope_scaling") if keys.has(name)]
    first = keys.take("original_max_position_embeddings")
    table = keys.take(found[0]) if found else {}
    if len(found) > 1 and keys.take(found[1]) != table:
        keys.refuse(found[1], "other values than rope_parameters", expected="one of both")
    name = found[0] if found else "rope_scaling"
    if not isinstance(table, dict):
        keys.refuse(name, table, expected="a table")
    base = keys.real("rope_theta", base)
    inner = Keys(table, f"{keys.where}: {name}")
    base = inner.real("rope_theta", base)
    kind: Any = inner.take("rope_type", inner.take("type", "default"))
    inner.drop("type")
    if kind not in list(_ROPE_KEYS):  # a list, which anything can be looked up in
        inner.refuse("rope_type", kind, expected=", ".join(_ROPE_KEYS))
    if inner.real("partial_rotary_factor", 1.0) != 1.0:
        inner.refuse("partial_rotary_factor", table["partial_rotary_factor"], expected="1.0")
    if unknown := sorted(inner.names() - _ROPE_KEYS[kind]):
        inner.refuse(unknown[0], table[unknown[0]], expected=f"no such key with rope_type {kind!r}")
    if kind == "default":
        return {"rope_base": base, "rope_scaling": None}
    values: dict[str, Any] = {}
    if kind != "linear":
        start = first if first is not None else inner.take("original_max_position_embeddings", context)
        inner.drop("original_max_position_embeddings")
        if type(start) is not int or start < 1:
            inner.refuse("original_max_position_embeddings", start, expected="a whole number from 1 on")
        values["original_context"] = start
    if kind == "llama3":
        values |= {name: inner.real(name) for name in ("low_freq_factor", "high_freq_factor")}
    values["factor"] = inner.real("factor", context / values["original_context"] if kind == "yarn" else None)
    if kind == "yarn":
        values |= {"beta_fast": inner.real("beta_fast", 32.0), "beta_slow": inner.real("beta_slow", 1.0)}
        values["truncate"] = inner.flag("truncate", True)
        values["attention_factor"] = _attention_factor(inner, values["factor"])
    return {"rope_base": base, "rope_scaling": RopeScaling(kind, **values)}


def _attention_factor(inner: Keys, factor: float) -> float | None:
    """What cos and sin are multiplied by, where the file says more about it than the factor: named outright, or as the
    quotient of two that DeepSeek's models state (mscale, mscale_all_dim)."""
    named = inner.take("attention_factor")
    both = [inner.take("mscale"), inner.take("mscale_all_dim")]
    if named is not None:
        if type(named) not in (int, float):
            inner.refuse("attention_factor", named, expected="a positive number")
        return float(named)
    if any(v is not None and type(v) not in (int, float) for v in both):
        inner.refuse("mscale", both, expected="numbers")
    if not all(both):
        return None
    over, under = (0.1 * scale * log(factor) + 1 if factor > 1 else 1.0 for scale in both)
    return over / under


def _gpt2(keys: Keys) -> dict[str, Any]:
    width, heads = keys.whole("n_embd"), keys.whole("n_head")
    context = keys.whole("n_positions", keys.take("n_ctx"), most=_LONGEST)
    for name, wanted in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if keys.flag(name, wanted) is not wanted:
            keys.refuse(name, not wanted, expected=str(wanted).lower())
    keys.drop("n_ctx", "reorder_and_upcast_attn", "task_specific_params")
    keys.drop(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    act = keys.choice("activation_function", "gelu_new", *ACTIVATIONS)
    return {
        "vocab_size": keys.whole("vocab_size"),
        "d_model": width,
        "n_layers": keys.whole("n_layer"),
        "n_heads": heads,
        "d_ff": keys.whole("n_inner", 4 * width),
        "max_seq_len": context,
        "norm": "layernorm",
        "norm_eps": keys.real("layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "activation": ACTIVATIONS[act],
        "biases": True,
        "tie_embeddings": keys.flag("tie_word_embeddings", True),
    }
