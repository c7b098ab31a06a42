"""TransformerConfig: everything that defines a decoder-only transformer, and what follows from it by arithmetic.

One configuration covers two families: Llama's (RMSNorm, rotary positions, grouped-query attention, SwiGLU) and GPT-2's
(LayerNorm, learned positions, GELU, biases, dropout). Parameter counts, FLOPs and bytes are computed here from the
numbers alone; tests hold the built model to them. Any layers can be mixtures of experts (`experts`), which makes the
model larger than what a token passes through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..base.errors import ConfigError
from .rope import RopeScaling


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model: `total`, those `active` for one token (of the experts, those it is sent to), and the parts
    of the total; routers and experts belong to the feed-forward layers."""

    total: int
    active: int
    embedding: int
    attention: int
    feedforward: int
    norms: int
    head: int

    def __str__(self) -> str:
        return f"{_short(self.total)} total, {_short(self.active)} active"


def _short(n: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= limit:
            return f"{n / limit:.1f}{unit}"
    return str(n)


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder-only transformer language model.

    vocab_size, max_seq_len: tokens. d_model, d_ff, head_dim: features (head_dim None = d_model / n_heads; d_ff None =
    8/3 d_model rounded up to 64 with SwiGLU, 4 d_model with GELU). n_kv_heads None = n_heads. dropout: probability on
    embeddings, attention weights and both residual branches. precision: "bfloat16" rounds the operands of matrix
    products, weights and sums stay float32. init_std: standard deviation of the initial weights (None: see
    `weight_std`). seed: of the initial weights and of dropout.

    rope_scaling: for texts longer than those of training (None: plain frequencies). qk_norm: RMSNorm over the features
    of each head of queries and keys, before they are rotated (Qwen3). biases: in every linear layer and LayerNorm;
    qkv_bias, out_bias and ff_bias say otherwise for the projections into attention, the one out of it, and the
    feed-forward layer (None: as `biases`). window: a query sees this many positions at most, its own included
    (None: all before it), in the layers numbered in window_layers (None: all).

    experts: networks in each feed-forward layer of `moe_layers` (None: no such layers), `active_experts` of which a
    token goes through (None: 2, or the only one). moe_layers: numbers of those layers (None: all; the others stay
    dense). moe_d_ff: features of an expert (None: see `expert_hidden`). shared_expert: another one that every token
    goes through. aux_weight, z_weight: of the load-balancing and router z losses of each such layer, added in training
    (0: off).
    """

    vocab_size: int
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int | None = None
    head_dim: int | None = None
    d_ff: int | None = None
    max_seq_len: int = 256
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: float = 1e-5
    positions: Literal["rope", "learned"] = "rope"
    rope_base: float = 10000.0
    rope_interleaved: bool = False
    rope_scaling: RopeScaling | None = None
    qk_norm: bool = False
    activation: Literal["swiglu", "gelu", "gelu_tanh"] = "swiglu"
    biases: bool = False
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    ff_bias: bool | None = None
    window: int | None = None
    window_layers: tuple[int, ...] | None = None
    dropout: float = 0.0
    tie_embeddings: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"
    checkpoint_blocks: bool = False
    init_std: float | None = None
    seed: int = 0
    experts: int | None = None
    active_experts: int | None = None
    moe_layers: tuple[int, ...] | None = None
    moe_d_ff: int | None = None
    shared_expert: bool = False
    aux_weight: float = 0.01
    z_weight: float = 1e-3

    def __post_init__(self) -> None:
        where = "TransformerConfig"
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len"):
            if getattr(self, name) < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=getattr(self, name))
        for name in ("n_kv_heads", "head_dim", "d_ff"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(where, f"{name} must be at least 1", got=value)
        if self.head_dim is None and self.d_model % self.n_heads:
            raise ConfigError(
                where,
                "d_model is not a multiple of n_heads",
                got=f"{self.d_model} and {self.n_heads}",
                hint="choose another number of heads, or set head_dim",
            )
        if self.n_heads % self.kv_heads:
            raise ConfigError(
                where, "n_heads is not a multiple of n_kv_heads", got=f"{self.n_heads} and {self.kv_heads}"
            )
        if self.positions == "rope" and self.head_width % 2:
            raise ConfigError(where, "rotary positions need an even head_dim", got=self.head_width)
        if not 0 <= self.dropout < 1:
            raise ConfigError(where, "dropout is not a probability", got=self.dropout, expected="0 <= dropout < 1")
        if not (self.norm_eps > 0 and self.rope_base > 0):
            raise ConfigError(
                where, "norm_eps and rope_base must be positive", got=f"{self.norm_eps} and {self.rope_base}"
            )
        if self.rope_scaling is not None and (self.positions != "rope" or self.rope_base <= 1):
            got = f"positions {self.positions!r}, rope_base {self.rope_base}"
            raise ConfigError(where, "rope_scaling needs rotary positions and rope_base above 1", got=got)
        self._check_windows(where)
        if self.init_std is not None and not 0 < self.init_std < float("inf"):
            raise ConfigError(where, "init_std must be positive", got=self.init_std)
        if not 0 <= self.seed < 2**64:
            raise ConfigError(where, "seed out of range", got=self.seed, expected="0 to 2**64 - 1")
        self._check_experts(where)

    def _check_windows(self, where: str) -> None:
        if self.window is None:
            if self.window_layers is not None:
                hint = "set window, the positions a query sees"
                raise ConfigError(where, "window_layers without window", got=self.window_layers, hint=hint)
            return
        if self.window < 1:
            raise ConfigError(where, "window must be at least 1", got=self.window)
        object.__setattr__(self, "window_layers", self._layers(where, "window_layers", self.window_layers))

    def _layers(self, where: str, name: str, given: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Numbers of layers, sorted. Raises ConfigError for what are none, or one twice."""
        if given is None:
            return None
        layers = tuple(sorted(set(given)))
        bad = [i for i in layers if not 0 <= i < self.n_layers]
        if bad or not layers or len(layers) != len(given):
            got, expected = bad[0] if bad else tuple(given), f"different ones of 0 to {self.n_layers - 1}"
            raise ConfigError(where, f"{name} are not layers of the model", got=got, expected=expected)
        return layers

    def _check_experts(self, where: str) -> None:
        for name in ("aux_weight", "z_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(where, f"{name} must be a number from 0 on", got=getattr(self, name))
        if self.experts is None:
            for name in ("active_experts", "moe_layers", "moe_d_ff", "shared_expert"):
                if getattr(self, name) not in (None, False):
                    hint = "set experts, the number in a layer"
                    raise ConfigError(where, f"{name} without experts", got=getattr(self, name), hint=hint)
            return
        if self.experts < 1:
            raise ConfigError(
                where, "experts must be at least 1", got=self.experts, hint="None makes every layer dense"
            )
        if not 1 <= self.experts_of_token <= self.experts:
            got, expected = self.active_experts, f"1 to {self.experts}, the experts in a layer"
            raise ConfigError(where, "active_experts out of range", got=got, expected=expected)
        if self.moe_d_ff is not None and self.moe_d_ff < 1:
            raise ConfigError(where, "moe_d_ff must be at least 1", got=self.moe_d_ff)
        if self.activation != "swiglu" or self.has_ff_bias:
            got = f"activation {self.activation}, biases {self.has_ff_bias}"
            raise ConfigError(where, "experts are SwiGLU without biases", got=got)
        object.__setattr__(self, "moe_layers", self._layers(where, "moe_layers", self.moe_layers))

    @classmethod
    def gpt2(cls, vocab_size: int, **changes: object) -> TransformerConfig:
        """The GPT-2 family: LayerNorm, learned positions, GELU (tanh form), biases, tied head."""
        base = cls(vocab_size, norm="layernorm", positions="learned", activation="gelu_tanh", biases=True)
        return replace(base, **changes)  # type: ignore[arg-type]

    # --- derived ------------------------------------------------------------------------------------------------------

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer."""
        if self.d_ff is not None:
            return self.d_ff
        return (8 * self.d_model // 3 + 63) // 64 * 64 if self.activation == "swiglu" else 4 * self.d_model

    @property
    def has_qkv_bias(self) -> bool:
        """Biases in the projections to queries, keys and values."""
        return self.biases if self.qkv_bias is None else self.qkv_bias

    @property
    def has_out_bias(self) -> bool:
        """A bias in the projection of the heads back to the width."""
        return self.biases if self.out_bias is None else self.out_bias

    @property
    def has_ff_bias(self) -> bool:
        """Biases in the feed-forward layers."""
        return self.biases if self.ff_bias is None else self.ff_bias

    def window_of(self, layer: int) -> int | None:
        """How many positions a query of a layer sees; None where that is all of the context."""
        if self.window is None or self.window >= self.max_seq_len:
            return None
        return self.window if self.window_layers is None or layer in self.window_layers else None

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that are mixtures of experts."""
        if self.experts is None:
            return ()
        return tuple(range(self.n_layers)) if self.moe_layers is None else self.moe_layers

    @property
    def experts_of_token(self) -> int:
        """How many experts of a layer a token goes through, the shared one not counted."""
        return min(2, self.experts or 0) if self.active_experts is None else self.active_experts

    @property
    def expert_hidden(self) -> int:
        """Width of an expert: `moe_d_ff`, else `hidden` shared among the experts a token goes through, rounded up to a
        multiple of 32, so that a token passes through as much as in a dense layer; 0 without experts."""
        if self.moe_d_ff is not None or self.experts is None:
            return self.moe_d_ff or 0
        return -(-self.hidden // (32 * (self.experts_of_token + self.shared_expert))) * 32

    @property
    def weight_std(self) -> float:
        """Standard deviation of the initial weights: `init_std`, else 0.02 (768 / d_model)**0.5, which is GPT-2's 0.02
        at GPT-2's width and keeps the size of a product's result the same at every other."""
        return 0.02 * (768 / self.d_model) ** 0.5 if self.init_std is None else self.init_std

    @property
    def is_gated(self) -> bool:
        return self.activation == "swiglu"

    def parameter_counts(self) -> ParameterCounts:
        """Parameters by part, tied tables counted once."""
        d, h, bias = self.d_model, self.hidden, int(self.has_ff_bias)
        q, kv = self.n_heads * self.head_width, self.kv_heads * self.head_width
        into, out = d + self.has_qkv_bias, q + self.has_out_bias
        attention = self.n_layers * ((q + 2 * kv) * into + d * out + 2 * self.head_width * self.qk_norm)
        up = 2 if self.is_gated else 1
        sparse = len(self.expert_layers)
        expert = 3 * d * self.expert_hidden
        in_layer = 0 if self.experts is None else self.experts * (d + expert) + self.shared_expert * expert
        feedforward = (self.n_layers - sparse) * (up * h * (d + bias) + d * (h + bias)) + sparse * in_layer
        idle = 0 if self.experts is None else sparse * (self.experts - self.experts_of_token) * expert
        one_norm = d * (1 + (self.norm == "layernorm" and self.biases))
        norms = (2 * self.n_layers + 1) * one_norm
        embedding = self.vocab_size * d + (self.max_seq_len * d if self.positions == "learned" else 0)
        head = 0 if self.tie_embeddings else self.vocab_size * d
        total = embedding + attention + feedforward + norms + head
        return ParameterCounts(total, total - idle, embedding, attention, feedforward, norms, head)

    def matmul_parameters(self) -> int:
        """Weights that take part in a matrix product for a token (tables that are only looked up do not)."""
        counts, d = self.parameter_counts(), self.d_model
        no_matrix = self.n_layers * (
            self.has_qkv_bias * (self.n_heads + 2 * self.kv_heads) * self.head_width
            + self.has_out_bias * d
            + self.qk_norm * 2 * self.head_width
        ) + (self.n_layers - len(self.expert_layers)) * self.has_ff_bias * ((1 + self.is_gated) * self.hidden + d)
        idle = counts.total - counts.active
        return counts.attention + counts.feedforward - idle - no_matrix + self.vocab_size * d

    def flops_per_token(self, seq_len: int, *, training: bool = True) -> int:
        """FLOPs of one token in a sequence of `seq_len`: 2 a weight, and for causal attention 4 for each head feature,
        layer and visible key (on average); times 3 in training, where backward costs twice the forward."""
        seen = [min(self.window_of(i) or seq_len, seq_len) for i in range(self.n_layers)]
        # of the keys of all queries: a triangle up to the window, then a strip
        pairs = sum(w * (w + 1) // 2 + (seq_len - w) * w for w in seen)
        attention = 4 * self.n_heads * self.head_width * pairs // seq_len
        forward = 2 * self.matmul_parameters() + attention
        return 3 * forward if training else forward

    def training_bytes(self, batch: int, seq_len: int) -> int:
        """Bytes a training step holds: weights, gradients and both AdamW moments (16 bytes a parameter), and what the
        tape keeps for backward (`tape_bytes`)."""
        return 16 * self.parameter_counts().total + self.tape_bytes(batch, seq_len)

    def tape_bytes(self, batch: int, seq_len: int) -> int:
        """Bytes the recorded operations keep for backward, by the `saves` of each operation, float32; allocations are
        multiples of what the shapes need and exact up to nothing: the tests compare for equality."""
        n, d, h = batch * seq_len, self.d_model, self.hidden
        q, kv = self.n_heads * self.head_width, self.kv_heads * self.head_width
        stats = 1 if self.norm == "rmsnorm" else 2
        block = 2 * (d + stats)  # both norms: input and statistics
        block += 2 * d  # their outputs, inputs of the projections
        block += q + 2 * kv + q + self.n_heads  # attention: q, k, v, o and the log-sum-exp
        if self.qk_norm:
            block += q + kv + self.n_heads + self.kv_heads  # queries and keys before their norms, and statistics
        sparse = len(self.expert_layers)
        dense = 3 * h if self.is_gated else 2 * h  # gate, up (or the GELU's input) and the product
        total = self.n_layers * block + (self.n_layers - sparse) * dense + d + stats  # the last norm
        head = n * d + self.vocab_size * d  # gradients that the fused loss keeps
        routed = 0
        if self.experts is not None:
            e, k, width = self.experts, self.experts_of_token, self.expert_hidden
            row = 2 * width + 2 + 4  # gate and up; the gate's number twice; where it comes from and goes to (int64)
            total += sparse * (e + k * row + 3 * width * self.shared_expert)
            routed = sparse * (2 + e + 2 * (e + 1)) + (2 + e) * (sparse > 1)  # statistics, bounds (int64), their sum
        if self.checkpoint_blocks:
            total = self.n_layers * d + d + stats
            routed = (sparse + (sparse > 1)) * (2 + (self.experts or 0))
        return 4 * (n * total + head + routed)
