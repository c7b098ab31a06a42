"""Peer: the decoder-only transformer of case train in plain JAX, one jitted step, float32 or bfloat16 operands.

The same model as `torch_transformer`, as functions of a dictionary of weights under published names. With bfloat16,
what enters a product is rounded to it and sums are float32, as mixed precision means here; weights and moments stay
float32. XLA decides the number of threads: it takes every core the process may run on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pellucid.models import TransformerConfig

from ..train import BETAS, CLIP, DECAY, EPS, RATE, Weights

Tree = dict[str, Any]


def product(x: Any, w: Any, operands: Any) -> Any:
    """x w^T"""
    return jnp.einsum("...k,nk->...n", x.astype(operands), w.astype(operands), preferred_element_type=jnp.float32)


def norm(x: Any, w: Any, eps: float) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Pairs of the first and second half of a head, turned. x: (batch, tokens, heads, head)."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def loss_of(weights: Tree, ids: Any, *, c: TransformerConfig, operands: Any) -> Any:
    """Mean cross-entropy, nats/token, of ids: (batch, tokens + 1)."""
    inputs, targets = ids[:, :-1], ids[:, 1:]
    rows, tokens = inputs.shape
    half = c.head_width // 2
    angles = np.arange(tokens)[:, None] * c.rope_base ** (-np.arange(half) / half)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[:, None] for f in (np.cos, np.sin))
    x = weights["model.embed_tokens.weight"][inputs]
    for i in range(c.n_layers):
        at = f"model.layers.{i}"
        h = norm(x, weights[f"{at}.input_layernorm.weight"], c.norm_eps)
        q, k, v = (
            product(h, weights[f"{at}.self_attn.{name}_proj.weight"], operands).reshape(rows, tokens, -1, c.head_width)
            for name in "qkv"
        )
        q, k, v = (y.astype(operands) for y in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        o = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, tokens, -1)
        x = x + product(o, weights[f"{at}.self_attn.o_proj.weight"], operands)
        h = norm(x, weights[f"{at}.post_attention_layernorm.weight"], c.norm_eps)
        gate, up = (product(h, weights[f"{at}.mlp.{name}_proj.weight"], operands) for name in ("gate", "up"))
        x = x + product(jax.nn.silu(gate) * up, weights[f"{at}.mlp.down_proj.weight"], operands)
    x = norm(x, weights["model.norm.weight"], c.norm_eps)
    logits = product(x, weights["model.embed_tokens.weight"], operands)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def update(weights: Tree, first: Tree, second: Tree, count: Any, ids: Any, *, loss: Any) -> tuple[Any, ...]:
    """One step of AdamW on gradients clipped to a global norm."""
    value, gradients = jax.value_and_grad(loss)(weights, ids)
    total = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    scale = jnp.minimum(1.0, CLIP / total)
    count = count + 1
    for name, gradient in gradients.items():
        g = gradient * scale
        first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * g
        second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * g * g
        m, v = first[name] / (1 - BETAS[0] ** count), second[name] / (1 - BETAS[1] ** count)
        decay = DECAY if gradient.ndim > 1 else 0.0
        weights[name] = weights[name] - RATE * (decay * weights[name] + m / (jnp.sqrt(v) + EPS))
    return weights, first, second, count, value


class Jax:
    """Model and optimizer, from exactly these weights: the interface that the benchmark drives."""

    name = "jax"

    def __init__(self, config: TransformerConfig, weights: Weights) -> None:
        operands = jnp.bfloat16 if config.precision == "bfloat16" else jnp.float32
        self.weights = {n: jnp.asarray(w) for n, w in weights.items()}
        self.first = {n: jnp.zeros_like(w) for n, w in self.weights.items()}
        self.second = {n: jnp.zeros_like(w) for n, w in self.weights.items()}
        self.count = jnp.asarray(0.0, jnp.float32)
        loss = partial(loss_of, c=config, operands=operands)
        self.run = jax.jit(partial(update, loss=loss), donate_argnums=(0, 1, 2, 3))

    def step(self, ids: np.ndarray) -> float:
        """One training step; the loss before it, nats/token."""
        found = self.run(self.weights, self.first, self.second, self.count, jnp.asarray(ids))
        self.weights, self.first, self.second, self.count, loss = found
        return float(loss)
