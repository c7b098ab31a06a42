"""TransformerLM: a decoder-only transformer language model, in the order a token passes through it.

ids -> embedding (+ learned positions) -> n_layers x [x + attention(norm(x)); x + feedforward(norm(x))] -> norm -> head.
Pre-normalisation throughout (Radford et al. 2019; Touvron et al. 2023). Parameters carry the names of Hugging Face's
Llama layout. The loss goes through the fused head, so logits of a whole batch exist only when asked for.

Initial weights: N(0, s**2) for every matrix and table, s = `config.weight_std`, with s / sqrt(2 n_layers) for the two
projections that write into the residual stream (Radford et al. 2019); norm weights 1, biases 0; drawn in the order of
`named_parameters` from the generator of `config.seed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import ConfigError
from ..base.rng import Generator
from ..device import Array, Device
from ..device import device as find_device
from ..nn import (
    Dropout,
    Embedding,
    GELUFeedForward,
    HeldMatrix,
    KVCache,
    LayerNorm,
    Linear,
    MixtureOfExperts,
    Module,
    RMSNorm,
    Routing,
    SelfAttention,
    SwiGLU,
    refuse_adapters,
)
from ..nn.held import held_dtype, hold, refuse
from ..ops import activation_checkpoint, concatenate, linear, lm_head_loss, tensor
from ..tape import Parameter, Tensor
from ..tape.state import state
from .config import TransformerConfig
from .placed import IN_ORDER, Checked, Ids, Placed, Places, checked_batch, checked_ids
from .rope import rotary_tables
from .routing import RoutingReport, penalty
from .step import Step, filled


class Block(Module):
    """One layer: x + attention(norm(x)), then x + feedforward(norm(x)); `number` says whether that is a mixture of
    experts."""

    def __init__(
        self,
        config: TransformerConfig,
        number: int,
        *,
        generator: Generator | None,
        dropout: Generator,
        device: str | Device,
    ) -> None:
        c = config
        shared: dict[str, Any] = {
            "generator": generator,
            "std": c.weight_std,
            "out_std": c.weight_std / sqrt(2 * c.n_layers),
            "operand_dtype": operand_dtype(c),
            "device": device,
        }
        self.input_layernorm = norm(c, device, operand_dtype(c))
        self.self_attn = SelfAttention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            c.head_width,
            bias=c.has_qkv_bias,
            out_bias=c.has_out_bias,
            qk_norm_eps=c.norm_eps if c.qk_norm else None,
            window=c.window_of(number),
            dropout=c.dropout,
            interleaved=c.rope_interleaved,
            **shared,
        )
        self.self_attn.generator = dropout
        narrow = None if number in c.expert_layers else operand_dtype(c)
        self.post_attention_layernorm = norm(c, device, narrow)
        if number in c.expert_layers and c.experts is not None:
            self.mlp: Module = MixtureOfExperts(
                c.d_model, c.expert_hidden, c.experts, c.experts_of_token, shared=c.shared_expert, **shared
            )
        elif c.is_gated:
            self.mlp = SwiGLU(c.d_model, c.hidden, bias=c.has_ff_bias, **shared)
        else:
            approximate = c.activation == "gelu_tanh"
            self.mlp = GELUFeedForward(c.d_model, c.hidden, bias=c.has_ff_bias, approximate=approximate, **shared)
        self.dropout = Dropout(c.dropout, generator=dropout)

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        routing: Routing | None = None,
        places: Places = IN_ORDER,
    ) -> Tensor:
        there = places._asdict()
        drops = self.training and self.dropout.p > 0
        if drops:
            x = x + self.dropout(self.self_attn(self.input_layernorm(x), rotary, cache, **there))
        else:
            x = self.self_attn(self.input_layernorm(x), rotary, cache, residual=x, **there)
        inner = self.post_attention_layernorm(x)
        if isinstance(self.mlp, MixtureOfExperts):
            return x + self.dropout(self.mlp(inner, routing))
        return x + self.dropout(self.mlp(inner)) if drops else self.mlp(inner, residual=x)

    def checkpointed(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, routing: Routing | None, places: Places = IN_ORDER
    ) -> Tensor:
        """The same, with only `x` kept for backward."""
        generators = (self.dropout.generator,)
        if routing is None or not isinstance(self.mlp, MixtureOfExperts):
            return activation_checkpoint(lambda x: self(x, rotary, places=places), x, generators=generators)

        def run(x: Tensor) -> Tensor:
            """Result and statistics as one tensor: a gradient comes back through what is returned and nothing else."""
            inside = Routing(routing.counted)
            return concatenate([self(x, rotary, None, inside, places).reshape(-1), *inside.statistics])

        flat, size = activation_checkpoint(run, x, generators=generators), prod(x.shape)
        routing.statistics.append(flat[size:])
        return flat[:size].reshape(x.shape)


class Transformer(Module):
    """The trunk: ids to normalised hidden states."""

    def __init__(
        self, config: TransformerConfig, *, generator: Generator | None, dropout: Generator, device: str | Device
    ) -> None:
        c = config
        self.config = c
        table: dict[str, Any] = {"generator": generator, "std": c.weight_std, "device": device}
        self.embed_tokens = Embedding(c.vocab_size, c.d_model, **table)
        if c.positions == "learned":
            self.embed_positions = Embedding(c.max_seq_len, c.d_model, **table)
        self.layers = [Block(c, i, generator=generator, dropout=dropout, device=device) for i in range(c.n_layers)]
        self.norm = norm(c, device)
        self.dropout = Dropout(c.dropout, generator=dropout)
        self.rotary = None
        if c.positions == "rope":
            self.rotary = rotary_tables(c.max_seq_len, c.head_width, c.rope_base, c.rope_scaling, device)

    def __call__(
        self,
        ids: Tensor,
        caches: Sequence[KVCache] | None = None,
        routing: Routing | None = None,
        places: Places = IN_ORDER,
    ) -> Tensor:
        start = 0 if caches is None else filled(caches, *ids.shape)
        x = self.embed_tokens(ids)
        if self.config.positions == "learned":
            x = x + self._positions(start, ids.shape[1], places.positions)
        x = self.dropout(x)
        for i, layer in enumerate(self.layers):
            if caches is not None:
                x = layer(x, self.rotary, caches[i])
            elif self.config.checkpoint_blocks and self.training:
                x = layer.checkpointed(x, self.rotary, routing, places)
            else:
                x = layer(x, self.rotary, None, routing, places)
        return self.norm(x)

    def _positions(self, start: int, count: int, positions: Tensor | None) -> Tensor:
        """Rows of the table of positions."""
        if positions is not None:
            return self.embed_positions(positions)
        table = self.embed_positions.weight
        if isinstance(table, HeldMatrix):
            return table.rows(tensor(np.arange(start, start + count), device=table.device))
        return table[start : start + count]


class TransformerLM(Module):
    """A transformer with a language-model head. `config` says everything about its shape.

    Raises ConfigError for an impossible configuration and DeviceError for a device that is not there.
    """

    def __init__(self, config: TransformerConfig, *, device: str | Device = "cpu", draw: bool = True) -> None:
        """draw: initial weights; False leaves memory that nobody wrote, for a caller that loads every one of them."""
        where = find_device(device)
        generator = Generator(config.seed) if draw else None
        self.config = config
        self.dropout_generator = Generator(config.seed).split(1)
        self.model = Transformer(config, generator=generator, dropout=self.dropout_generator, device=where)
        self.lm_head = None
        self._step = Step(config, operand_dtype(config))
        self._routed: tuple[list[Array], float] | None = None
        if not config.tie_embeddings:
            std = config.weight_std
            self.lm_head = Linear(
                config.d_model, config.vocab_size, generator=generator, bias=False, std=std, device=where
            )

    @property
    def device(self) -> Device:
        return self.model.embed_tokens.weight.device

    @property
    def head_weight(self) -> Tensor | HeldMatrix:
        """The matrix that turns hidden states into logits: (vocab_size, d_model)."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def weights_dtype(self) -> DType:
        """What the matrices are in memory: float32, unless `hold_weights` or `quantize` made them something else."""
        return self.head_weight.dtype

    def __call__(self, ids: Ids) -> Tensor:
        """Logits: (batch, time, vocab_size), from ids (batch, time) or (time,)."""
        return self._logits(self.model(tensor(checked_ids(ids, self.config), device=self.device)))

    def loss(self, ids: Ids, targets: Ids, weights: Any = None, *, starts: Any = None, positions: Any = None) -> Tensor:
        """Cross-entropy in nats/token, shape (): sum of weights * -ln p(target), the mean where weights is None.

        ids, targets: (batch, time); weights: (batch, time) float, usually summing to 1. While training, a model with
        mixtures of experts adds their `penalty`, times the sum of the weights; `routing_report` tells how much.
        Positions behind the last weighted one of their document reach no loss: they are padding, and go to no expert.

        starts, positions: (batch, time) int32, of packed documents: the first place in its row that each token sees,
        and its own place in its document. None: a row is one document.

        Raises ConfigError where the weights are held for inference, nothing beside them is trained, and gradients are
        recorded.
        """
        if isinstance(self.head_weight, HeldMatrix) and state.recording and next(self.named_trained(), None) is None:
            refuse("loss", self.head_weight.dtype)
        return self.loss_of(self.checked(ids, targets, weights, starts=starts, positions=positions).on(self.device))

    def checked(
        self, ids: Ids, targets: Ids, weights: Any = None, *, starts: Any = None, positions: Any = None
    ) -> Checked:
        """The arguments of `loss`, checked; `checked(...).on(device)` is what `loss_of` takes."""
        return checked_batch("loss", self.config, ids, targets, weights, starts, positions)

    def loss_of(self, batch: Placed) -> Tensor:
        """`loss` of what is on the device: nothing in here looks at a number."""
        c, head, n = self.config, self.head_weight, batch.targets.size
        routing = None if c.experts is None else Routing(batch.counted)
        x = self.model(batch.inputs, None, routing, Places(batch.starts, batch.positions))
        loss = lm_head_loss(
            x.reshape(n, c.d_model),
            head.restored() if isinstance(head, HeldMatrix) else head,
            batch.targets.reshape(n),
            weights=batch.weights,
            operand_dtype=operand_dtype(c),
        )
        if routing is None or not self.training:
            return loss
        self._routed = [s.array for s in routing.statistics], batch.share
        added = penalty(routing.statistics, c, batch.share)
        return loss if added is None else loss + added

    def routing_report(self) -> RoutingReport | None:
        """What the routers did in the last training loss; None without mixtures of experts. Waits for the device."""
        return None if self._routed is None else RoutingReport.of(self._routed[0], self.config, self._routed[1])

    # --- with a cache -------------------------------------------------------------------------------------------------

    def new_caches(self, batch: int = 1, capacity: int | None = None) -> list[KVCache]:
        """Empty caches, one a layer, for `capacity` positions (None: max_seq_len)."""
        c = self.config
        room = c.max_seq_len if capacity is None else capacity
        # one stretch of memory: the pages of a large one are large
        sizes = (batch, room, c.kv_heads, c.head_width)
        memory = self.device.empty((c.n_layers, 2, *sizes), dtypes.float32)
        return [
            KVCache(*sizes, dtype=dtypes.float32, device=self.device, memory=memory.select(0, i))
            for i in range(c.n_layers)
        ]

    def forward_cached(self, ids: Ids, caches: Sequence[KVCache], *, last_only: bool = False) -> Tensor:
        """Logits of new positions that follow those in the caches, which are extended: (batch, time or 1, vocab_size).

        Reads only the new ids. Raises ConfigError if there is not one cache a layer, DataError past the context, and
        ShapeError for caches that are full, of another batch, or not all filled alike, and DTypeError for those that
        are not float32; the caches stay as they were.
        """
        if len(caches) != self.config.n_layers:
            raise ConfigError("forward_cached", "not one cache a layer", got=len(caches), expected=self.config.n_layers)
        start = caches[0].length
        host = self._host_ids(ids, start)
        logits = self._step(self, host, caches, last_only=last_only)
        if logits is None:
            x = self.model(tensor(np.atleast_2d(host), device=self.device), caches)
            logits = self._logits(x[:, -1:] if last_only else x)
        return logits

    # --- weights held for inference -----------------------------------------------------------------------------------

    def quantize(self) -> int:
        """Embedding, projections and head in int8 with one scale a row (absolute maximum): a quarter of the memory, and
        of the reading that decoding costs. Returns the bytes of all weights then. See `hold_weights`."""
        return self.hold_weights(dtypes.int8)

    def hold_weights(self, dtype: str | DType) -> int:
        """Holds every matrix in "int8", "bfloat16" or "float32" for inference, in one stretch of memory; returns the
        bytes of all weights then. Numbers that bfloat16 holds all as they are, as those of models published in it, take
        its room for float32 too. Norms and biases stay float32; a mixture of experts keeps float32 weights as they are
        and refuses narrower ones.

        It is one way: the parameters are gone, and training, saving or exporting this model raises ConfigError; an
        adapter (`add_lora`) is trained through held weights. The model is in `eval` from then on. Raises ConfigError
        for another dtype, for weights that are not finite, and for a model whose weights are held already or that has
        adapters; it stays as it was.
        """
        refuse_adapters("hold_weights", self)
        wanted, head = held_dtype(dtype), self.head_weight
        if self.config.experts is not None:
            if wanted is not dtypes.float32:
                hint = "use its float32 weights"
                raise ConfigError("hold_weights", "a mixture of experts can't be held in less than float32", hint=hint)
            self.eval()
            return sum(p.nbytes for p in self.parameters())
        if isinstance(head, HeldMatrix):
            refuse("hold_weights", head.dtype)
        table = self.model.embed_tokens.weight
        layers = [m for m in _modules(self) if isinstance(m, Linear | Embedding)]
        # in the order of a decode step: the layers, then the head, which is the embedding's table where it is tied
        layers.sort(key=lambda m: m.weight is head or m.weight is table)
        rest = [p for p in self.parameters() if p.ndim != 2]
        for layer, matrix in zip(layers, hold([m.weight for m in layers], wanted), strict=True):
            layer.weight = matrix
        for p in rest:
            p.requires_grad = False
        self.eval()
        return sum(p.nbytes for p in (*rest, *(layer.weight for layer in layers)))

    def restore_weights(self) -> None:
        """Float32 parameters again in place of held matrices: the numbers these stand for, so what was rounded stays
        so. Everything is trained again, an adapter beside it too, and the model is in `train`. Nothing where none is
        held."""
        held = [m for m in _modules(self) if isinstance(m, Linear | Embedding) and isinstance(m.weight, HeldMatrix)]
        if not held:
            return
        for layer in held:
            assert isinstance(layer.weight, HeldMatrix)
            layer.weight = Parameter(layer.weight.restored())
        self.unfreeze()
        self.train()

    def log_probs(
        self, ids: Ids, targets: Ids, counted: Any, *, starts: Any = None, positions: Any = None
    ) -> list[Tensor]:
        """ln p of the counted targets of each row, summed: one tensor of shape () a row, nats.

        counted: (batch, time), 1 where a target counts and 0 elsewhere. Raises what `loss` raises.
        """
        head = self.head_weight
        if isinstance(head, HeldMatrix):
            if state.recording and next(self.named_trained(), None) is None:
                refuse("log_probs", head.dtype)
            head = head.restored()
        batch = checked_batch("log_probs", self.config, ids, targets, counted, starts, positions).on(self.device)
        assert batch.weights is not None
        minus = -batch.weights.reshape(batch.targets.shape)
        routing = None if self.config.experts is None else Routing(None)
        x = self.model(batch.inputs, None, routing, Places(batch.starts, batch.positions))
        how = {"operand_dtype": operand_dtype(self.config)}
        return [lm_head_loss(x[i], head, batch.targets[i], weights=minus[i], **how) for i in range(len(x))]

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _logits(self, x: Tensor) -> Tensor:
        head, operand = self.head_weight, operand_dtype(self.config)
        if isinstance(head, HeldMatrix):
            return head.linear(x, operand_dtype=operand)
        return linear(x, head, operand_dtype=operand)

    def _host_ids(self, ids: Ids, start: int) -> int | np.ndarray:
        """Ids (B, T), checked; one alone is a number. A list of it, as decoding has, costs no array."""
        one = ids[0] if type(ids) is list and len(ids) == 1 else None
        if type(one) is int and 0 <= one < self.config.vocab_size and start < self.config.max_seq_len:
            return one
        host = checked_ids(ids, self.config, start=start)
        return int(host[0, 0]) if host.size == 1 else host


def _modules(module: Module) -> Iterator[Module]:
    """A module and everything below it."""
    yield module
    for _, child in module.children():
        yield from _modules(child)


def norm(config: TransformerConfig, device: str | Device, result_dtype: dtypes.DType | None = None) -> Module:
    """The configured normalisation layer."""
    how: dict[str, Any] = {"eps": config.norm_eps, "result_dtype": result_dtype, "device": device}
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, **how)
    return LayerNorm(config.d_model, bias=config.biases, **how)


def operand_dtype(config: TransformerConfig) -> dtypes.DType | None:
    """What operands of matrix products are rounded to; None leaves them as they are."""
    return dtypes.bfloat16 if config.precision == "bfloat16" else None
