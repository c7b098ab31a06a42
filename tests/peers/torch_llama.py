"""A Llama in plain PyTorch, written from its description (Touvron et al. 2023), with Hugging Face's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pellucid.models import TransformerConfig


def rotate(x: Tensor, base: float, interleaved: bool) -> Tensor:
    """Rotary positions of x: (batch, heads, time, size), by multiplication of complex pairs (Su et al. 2021)."""
    half, dtype = x.shape[-1] // 2, x.dtype
    x = x if dtype is torch.float64 else x.float()
    angles = torch.outer(torch.arange(x.shape[-2]).double(), base ** (-torch.arange(half).double() / half))
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex(x, x).dtype)
    real, imaginary = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    y = torch.complex(real, imaginary) * turns
    found = torch.stack((y.real, y.imag), -1).flatten(-2) if interleaved else torch.cat((y.real, y.imag), -1)
    return found.to(dtype)


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Attention(nn.Module):
    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.c = c
        q, kv = c.n_heads * c.head_width, c.kv_heads * c.head_width
        self.q_proj = nn.Linear(c.d_model, q, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(c.d_model, kv, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(q, c.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c, time = self.c, x.shape[1]
        q, k, v = (
            p(x).unflatten(-1, (-1, c.head_width)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotate(t, c.rope_base, c.rope_interleaved) for t in (q, k))
        k, v = (t.repeat_interleave(c.n_heads // c.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * c.head_width**-0.5
        scores = scores.masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """Every expert computes every token, and a gate of 0 undoes what was not asked for. `penalty` is the last call's:
    load balance (Fedus et al. 2021, eq. 4) and router z-loss (Zoph et al. 2022, eq. 5), weighted."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.c, self.penalty = c, torch.zeros(())
        self.gate = nn.Linear(c.d_model, c.experts or 0, bias=False)
        self.experts = nn.ModuleList([FeedForward(c.d_model, c.expert_hidden) for _ in range(c.experts or 0)])
        self.shared_experts = FeedForward(c.d_model, c.expert_hidden) if c.shared_expert else None

    def forward(self, x: Tensor) -> Tensor:
        c, logits = self.c, self.gate(x).flatten(0, 1)
        p = logits.softmax(-1)
        kept = torch.zeros_like(p).scatter(1, p.topk(c.experts_of_token).indices, 1.0)
        gates = (p * kept / (p * kept).sum(-1, keepdim=True)).unflatten(0, x.shape[:2])
        balance = logits.shape[1] * (kept.mean(0) / c.experts_of_token * p.mean(0)).sum()
        self.penalty = c.aux_weight * balance + c.z_weight * logits.logsumexp(-1).square().mean()
        y = sum(gates[..., e : e + 1] * expert(x) for e, expert in enumerate(self.experts))
        return y if self.shared_experts is None else y + self.shared_experts(x)


class Block(nn.Module):
    def __init__(self, c: TransformerConfig, number: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (Norm(c.d_model, c.norm_eps) for _ in range(2))
        self.self_attn = Attention(c)
        self.mlp = Experts(c) if number in c.expert_layers else FeedForward(c.d_model, c.hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.layers = nn.ModuleList([Block(c, i) for i in range(c.n_layers)])
        self.norm = Norm(c.d_model, c.norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    """ids (batch, time) -> logits (batch, time, vocabulary)."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.model = Trunk(c)
        self.lm_head = None if c.tie_embeddings else nn.Linear(c.d_model, c.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(self.model(ids), head.weight)

    def penalty(self) -> Tensor:
        """What the routers of the last call add to the loss."""
        return sum((m.penalty for m in self.modules() if isinstance(m, Experts)), torch.zeros(()))
