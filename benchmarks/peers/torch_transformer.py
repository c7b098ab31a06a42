"""Peer: the decoder-only transformer of case train in plain PyTorch, eager or compiled, float32 or bf16 autocast.

Pre-normalised blocks of RMSNorm, rotary positions (halves rotated, as in published Llama weights), grouped-query
attention and SwiGLU, tied head; fused AdamW on matrices with decay, on norms without. Modules carry the names of
published checkpoints, so the weights that the other side starts from are loaded by name. What PyTorch offers for speed
on a CPU is used: its fused attention, its fused optimizer, autocast with cached casts.

As a program: `python -m benchmarks.peers.torch_transformer --model 100m --shape 1x512 --bf16` prints tokens/s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.models import TransformerConfig

from ..train import BETAS, CLIP, DECAY, EPS, MODELS, RATE, SEED, Weights, initial_weights, parse_shape, random_ids


def lacks_compiler() -> str | None:
    """Why torch.compile cannot work here, None where it can: on a CPU it writes C++."""
    name = os.environ.get("CXX", "g++")
    return None if shutil.which(name) else f"torch.compile needs a C++ compiler, and there is no {name}"


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of the first and second half of a head, turned. x: (batch, heads, tokens, head)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention. x: (batch, tokens, width)."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = c.n_heads, c.kv_heads, c.head_width
        self.q_proj = nn.Linear(c.d_model, self.heads * self.head, bias=False)
        self.k_proj = nn.Linear(c.d_model, self.kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(c.d_model, self.kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, c.d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        q = self.q_proj(x).view(rows, tokens, self.heads, self.head).transpose(1, 2)
        k, v = (
            project(x).view(rows, tokens, self.kv_heads, self.head).transpose(1, 2)
            for project in (self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, tokens, -1))


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.d_model, c.hidden, bias=False)
        self.up_proj = nn.Linear(c.d_model, c.hidden, bias=False)
        self.down_proj = nn.Linear(c.hidden, c.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.d_model, eps=c.norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.d_model, eps=c.norm_eps)
        self.mlp = SwiGLU(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """ids (batch, tokens) -> normalised hidden states (batch, tokens, width)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.layers = nn.ModuleList([Block(c) for _ in range(c.n_layers)])
        self.norm = nn.RMSNorm(c.d_model, eps=c.norm_eps)
        half = c.head_width // 2
        angles = np.arange(c.max_seq_len)[:, None] * c.rope_base ** (-np.arange(half) / half)
        self.register_buffer("cos", torch.from_numpy(np.cos(angles).astype(np.float32)), persistent=False)
        self.register_buffer("sin", torch.from_numpy(np.sin(angles).astype(np.float32)), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, tokens = self.embed_tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:tokens], self.sin[:tokens])
        return self.norm(x)


class Transformer(nn.Module):
    """Mean cross-entropy, nats/token, of ids and targets, both (batch, tokens); the head is the token embedding."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.model = Trunk(c)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(self.model(ids), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class PyTorch:
    """Model and optimizer, from exactly these weights: the interface that the benchmark drives."""

    name = "torch"

    def __init__(self, config: TransformerConfig, weights: Weights, *, compiled: bool = False) -> None:
        self.bf16 = config.precision == "bfloat16"
        self.model = Transformer(config)
        self.model.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()}, strict=True)
        self.loss: Any = torch.compile(self.model) if compiled else self.model
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)

    def step(self, ids: np.ndarray) -> float:
        """One training step; the loss before it, nats/token."""
        both = torch.from_numpy(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.loss(both[:, :-1], both[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def main() -> None:
    p = argparse.ArgumentParser(prog="python -m benchmarks.peers.torch_transformer", description="PyTorch alone.")
    p.add_argument("--model", choices=MODELS, default="100m")
    p.add_argument("--shape", type=parse_shape, default=(1, 512), help="sequences x tokens; default 1x512")
    p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    p.add_argument("--compile", action="store_true", help="through torch.compile")
    p.add_argument("--steps", type=int, default=7, help="timed ones; default %(default)s")
    p.add_argument("--threads", type=int, default=2, help="CPU threads; default %(default)s")
    given = p.parse_args()
    torch.set_num_threads(given.threads)
    config = replace(MODELS[given.model], precision="bfloat16" if given.bf16 else "float32")
    side = PyTorch(config, initial_weights(config, seed=SEED), compiled=given.compile)
    ids, seconds = random_ids(config, given.shape), []
    losses = [side.step(ids) for _ in range(2)]
    for _ in range(given.steps):
        start = time.perf_counter()
        losses.append(side.step(ids))
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    print(json.dumps({"seconds": middle, "tokens_per_second": ids[:, 1:].size / middle, "losses": losses}))


if __name__ == "__main__":
    main()
