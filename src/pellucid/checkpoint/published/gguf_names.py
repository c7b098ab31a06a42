"""The tensors of a GGUF file and those of a model: which is which, its shape, and how its rows lie.

Two things differ beside the names. A "llama" file turns neighbouring features by the same angle where Hugging Face's
layout, and ours, turns feature i and i + d/2: the rows of its query and key projections are in another order, which
`paired` says. And GPT-2's three projections are one matrix there, of which a row here is a part.

Source: gguf-py's tensor_mapping.py; llama.cpp's convert_hf_to_gguf.py, `LlamaModel.permute`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...models import TransformerConfig

Host = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One of our tensors. stored: its name in the file; start: the first of its rows there, where it is a part of a
    tensor; paired: heads, where its rows lie in pairs of neighbours."""

    name: str
    stored: str
    shape: Shape
    start: int | None = None
    paired: int | None = None


#: The tensor of a Llama 3 file that says how its rotary frequencies are stretched.
ROPE_FACTORS = "rope_freqs.weight"


def rows_of(config: TransformerConfig, architecture: str) -> list[Row]:
    """Every tensor of the model, in the order of the file."""
    c, gpt2 = config, architecture == "gpt2"
    rows = [Row("model.embed_tokens.weight", "token_embd.weight", (c.vocab_size, c.d_model))]
    if gpt2:
        rows.append(Row("model.embed_positions.weight", "position_embd.weight", (c.max_seq_len, c.d_model)))
    for i in range(c.n_layers):
        rows += _gpt2_layer(c, i) if gpt2 else _llama_layer(c, i, architecture)
    rows += _norm("model.norm", "output_norm", c.d_model, bias=gpt2)
    if not c.tie_embeddings:
        rows.append(Row("lm_head.weight", "output.weight", (c.vocab_size, c.d_model)))
    return rows


def _norm(name: str, stored: str, width: int, *, bias: bool = False) -> Iterator[Row]:
    for what in ("weight", "bias") if bias else ("weight",):
        yield Row(f"{name}.{what}", f"{stored}.{what}", (width,))


def _llama_layer(c: TransformerConfig, i: int, architecture: str) -> Iterator[Row]:
    ours, theirs = f"model.layers.{i}", f"blk.{i}"
    q, kv = c.n_heads * c.head_width, c.kv_heads * c.head_width
    turned = architecture == "llama" and not c.rope_interleaved
    yield from _norm(f"{ours}.input_layernorm", f"{theirs}.attn_norm", c.d_model)
    for name, stored, outputs, inputs, heads in (
        ("self_attn.q_proj", "attn_q", q, c.d_model, c.n_heads),
        ("self_attn.k_proj", "attn_k", kv, c.d_model, c.kv_heads),
        ("self_attn.v_proj", "attn_v", kv, c.d_model, None),
        ("self_attn.o_proj", "attn_output", c.d_model, q, None),
        ("mlp.gate_proj", "ffn_gate", c.hidden, c.d_model, None),
        ("mlp.up_proj", "ffn_up", c.hidden, c.d_model, None),
        ("mlp.down_proj", "ffn_down", c.d_model, c.hidden, None),
    ):
        paired = heads if turned else None
        yield Row(f"{ours}.{name}.weight", f"{theirs}.{stored}.weight", (outputs, inputs), paired=paired)
        if c.biases:
            yield Row(f"{ours}.{name}.bias", f"{theirs}.{stored}.bias", (outputs,), paired=paired)
    yield from _norm(f"{ours}.post_attention_layernorm", f"{theirs}.ffn_norm", c.d_model)


def _gpt2_layer(c: TransformerConfig, i: int) -> Iterator[Row]:
    ours, theirs, d = f"model.layers.{i}", f"blk.{i}", c.d_model
    yield from _norm(f"{ours}.input_layernorm", f"{theirs}.attn_norm", d, bias=True)
    for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
        for what, shape in (("weight", (d, d)), ("bias", (d,))):
            yield Row(f"{ours}.self_attn.{name}.{what}", f"{theirs}.attn_qkv.{what}", shape, start=number * d)
    for name, stored, outputs, inputs in (
        ("self_attn.o_proj", "attn_output", d, d),
        ("mlp.fc_in", "ffn_up", c.hidden, d),
        ("mlp.fc_out", "ffn_down", d, c.hidden),
    ):
        yield Row(f"{ours}.{name}.weight", f"{theirs}.{stored}.weight", (outputs, inputs))
        yield Row(f"{ours}.{name}.bias", f"{theirs}.{stored}.bias", (outputs,))
    yield from _norm(f"{ours}.post_attention_layernorm", f"{theirs}.ffn_norm", d, bias=True)


def stored_shapes(rows: list[Row]) -> dict[str, Shape]:
    """Name and shape of each tensor in the file, in its order."""
    found: dict[str, Shape] = {}
    for row in rows:
        before = found.get(row.stored, (0,))
        found[row.stored] = (before[0] + row.shape[0], *row.shape[1:])
    return found


def halves_of_pairs(rows: Host, heads: int) -> Host:
    """Rows in pairs of neighbours, (x0, x1), (x2, x3), ..., as halves: x0, x2, ... x1, x3, ... of each head."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def pairs_of_halves(rows: Host, heads: int) -> Host:
    """The reverse of `halves_of_pairs`."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
