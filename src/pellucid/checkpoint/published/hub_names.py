"""Where each tensor of a model lies in a Hugging Face folder: the name there, and how it lies.

Llama's names are ours, so most families need none of this; GPT-2 keeps matrices the other way round and queries, keys
and values as one, and Mixtral numbers the matrices of an expert. One table serves reading and writing. Shapes follow
from the configuration alone, so files are compared with it before a model takes any memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...models import TransformerConfig

HEAD = "lm_head.weight"
_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@dataclass(frozen=True)
class Part:
    """One of our tensors: its name and shape, and where it lies: the tensor `stored`, which is ours transposed where
    `transposed` says so; of its last axis the elements `begin` to `end` - 1, all where they are None."""

    name: str
    shape: tuple[int, ...]
    stored: str
    transposed: bool = False
    begin: int | None = None
    end: int | None = None

    @property
    def piece(self) -> tuple[int, ...]:
        """The shape of the part as it lies there."""
        return self.shape[::-1] if self.transposed else self.shape


def parts(config: TransformerConfig, family: str) -> Iterator[Part]:
    """Every tensor of a model, in the order of its parameters."""
    c = config
    if family == "gpt2":
        yield Part("model.embed_tokens.weight", (c.vocab_size, c.d_model), "transformer.wte.weight")
        yield Part("model.embed_positions.weight", (c.max_seq_len, c.d_model), "transformer.wpe.weight")
        for i in range(c.n_layers):
            yield from _gpt2_layer(c, f"model.layers.{i}.", f"transformer.h.{i}.")
        for name in ("weight", "bias"):
            yield Part(f"model.norm.{name}", (c.d_model,), f"transformer.ln_f.{name}")
    else:
        yield _same("model.embed_tokens.weight", c.vocab_size, c.d_model)
        for i in range(c.n_layers):
            yield from _layer(c, i, f"model.layers.{i}.", family)
        yield _same("model.norm.weight", c.d_model)
    if not c.tie_embeddings:
        yield _same(HEAD, c.vocab_size, c.d_model)


def _same(name: str, *shape: int) -> Part:
    return Part(name, shape, name)


def _layer(c: TransformerConfig, number: int, at: str, family: str) -> Iterator[Part]:
    q, kv = c.n_heads * c.head_width, c.kv_heads * c.head_width
    yield _same(f"{at}input_layernorm.weight", c.d_model)
    projections = (("q", q, c.d_model), ("k", kv, c.d_model), ("v", kv, c.d_model), ("o", c.d_model, q))
    for letter, rows, columns in projections:
        yield _same(f"{at}self_attn.{letter}_proj.weight", rows, columns)
        if c.has_out_bias if letter == "o" else c.has_qkv_bias:
            yield _same(f"{at}self_attn.{letter}_proj.bias", rows)
    if c.qk_norm:
        yield _same(f"{at}self_attn.q_norm.weight", c.head_width)
        yield _same(f"{at}self_attn.k_norm.weight", c.head_width)
    yield _same(f"{at}post_attention_layernorm.weight", c.d_model)
    if number not in c.expert_layers or c.experts is None:
        yield from _gated(f"{at}mlp.", c.d_model, c.hidden, bias=c.has_ff_bias)
        return
    theirs = f"{at}block_sparse_moe." if family == "mixtral" else f"{at}mlp."
    yield Part(f"{at}mlp.gate.weight", (c.experts, c.d_model), f"{theirs}gate.weight")
    for e in range(c.experts):
        for part in _gated(f"{at}mlp.experts.{e}.", c.d_model, c.expert_hidden, bias=False):
            own = part.name.split(".")[-2]
            name = _EXPERT[own] if family == "mixtral" else own
            yield Part(part.name, part.shape, f"{theirs}experts.{e}.{name}.weight")


def _gated(at: str, width: int, hidden: int, *, bias: bool) -> Iterator[Part]:
    for name, rows, columns in (("gate", hidden, width), ("up", hidden, width), ("down", width, hidden)):
        yield _same(f"{at}{name}_proj.weight", rows, columns)
        if bias:
            yield _same(f"{at}{name}_proj.bias", rows)


def _gpt2_layer(c: TransformerConfig, at: str, theirs: str) -> Iterator[Part]:
    d, h = c.d_model, c.hidden

    def linear(name: str, stored: str, rows: int, columns: int, begin: int | None, end: int | None) -> Iterator[Part]:
        yield Part(f"{at}{name}.weight", (rows, columns), f"{theirs}{stored}.weight", True, begin, end)
        yield Part(f"{at}{name}.bias", (rows,), f"{theirs}{stored}.bias", False, begin, end)

    def norm(name: str, stored: str) -> Iterator[Part]:
        for kind in ("weight", "bias"):
            yield Part(f"{at}{name}.{kind}", (d,), f"{theirs}{stored}.{kind}")

    yield from norm("input_layernorm", "ln_1")
    for i, letter in enumerate("qkv"):
        yield from linear(f"self_attn.{letter}_proj", "attn.c_attn", d, d, i * d, (i + 1) * d)
    yield from linear("self_attn.o_proj", "attn.c_proj", d, d, None, None)
    yield from norm("post_attention_layernorm", "ln_2")
    yield from linear("mlp.fc_in", "mlp.c_fc", h, d, None, None)
    yield from linear("mlp.fc_out", "mlp.c_proj", d, h, None, None)


def stored_shapes(found: list[Part]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in found:
        last = part.piece[-1] if part.end is None else max(part.end, shapes.get(part.stored, (0,))[-1])
        shapes[part.stored] = (*part.piece[:-1], last)
    return shapes
