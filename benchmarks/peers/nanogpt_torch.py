"""Peer: nanoGPT's CPU recipe on a character corpus, in plain PyTorch.

The model is the GPT-2 block without biases or dropout (Radford et al. 2019), trained as nanoGPT trains it on a CPU
(Karpathy 2022): float32, eager, scaled_dot_product_attention, fused AdamW. It is written for comparison, so every
source of randomness can be handed in: `build` takes initial weights as NumPy arrays and `run` takes the batches and the
learning rates, and another implementation given the same three must show the same losses.

As a program: `python -m benchmarks.peers.nanogpt_torch --data FILE --json` prints one line of JSON on stdout, progress
on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..recipe import Batch, Recipe, Weights, characters, initial_weights, random_batches, split, windows

# ---- the model -------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention, heads side by side in the width. x: (batch, tokens, width)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.heads = recipe.heads
        self.c_attn = nn.Linear(recipe.width, 3 * recipe.width, bias=False)
        self.c_proj = nn.Linear(recipe.width, recipe.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        q, k, v = (
            part.view(rows, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(rows, tokens, width))


class FeedForward(nn.Module):
    """W2 gelu(W1 x), four times as wide inside; gelu by the error function."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.c_fc = nn.Linear(recipe.width, 4 * recipe.width, bias=False)
        self.c_proj = nn.Linear(4 * recipe.width, recipe.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(recipe.width, eps=recipe.norm_eps, bias=False)
        self.attn = Attention(recipe)
        self.ln_2 = nn.LayerNorm(recipe.width, eps=recipe.norm_eps, bias=False)
        self.mlp = FeedForward(recipe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """ids (batch, tokens) -> logits (batch, tokens, vocabulary); the head is the token embedding."""

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, recipe.width)
        self.wpe = nn.Embedding(recipe.context, recipe.width)
        self.h = nn.ModuleList([Block(recipe) for _ in range(recipe.layers)])
        self.ln_f = nn.LayerNorm(recipe.width, eps=recipe.norm_eps, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def build(recipe: Recipe, weights: Weights) -> GPT:
    """The model with exactly these weights; they give the vocabulary's size. Raises RuntimeError on a mismatch."""
    model = GPT(recipe, len(weights["wte.weight"]))
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()}, strict=True)
    return model


def weights_of(model: GPT) -> Weights:
    """A copy of the model's weights."""
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


# ---- training --------------------------------------------------------------------------------------------------------


def loss_of(model: GPT, batch: Batch) -> Tensor:
    """Mean cross-entropy of a batch, nats/token."""
    inputs, targets = (torch.from_numpy(np.ascontiguousarray(part, dtype=np.int64)) for part in batch)
    logits = model(inputs)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def optimizer_of(model: GPT, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019); only matrices and embeddings decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak, betas=recipe.betas, eps=recipe.eps, fused=True)


def step(model: GPT, optimizer: torch.optim.AdamW, batch: Batch, *, rate: float, clip: float) -> float:
    """One training step; the loss before it, nats/token."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def run(model: GPT, batches: Iterable[Batch], recipe: Recipe, *, rates: Iterable[float] | None = None) -> list[float]:
    """Trains over the given batches; the loss of each before its step. Without `rates` the recipe's schedule holds."""
    optimizer = optimizer_of(model, recipe)
    pairs = ((recipe.rate(i), b) for i, b in enumerate(batches)) if rates is None else zip(rates, batches, strict=True)
    return [step(model, optimizer, batch, rate=rate, clip=recipe.clip) for rate, batch in pairs]


@torch.no_grad()
def estimate(model: GPT, batches: Iterator[Batch], recipe: Recipe) -> float:
    """Mean loss over `evaluate_batches` random batches, nats/token."""
    return statistics.fmean(loss_of(model, next(batches)).item() for _ in range(recipe.evaluate_batches))


@torch.no_grad()
def exact_loss(model: GPT, ids: np.ndarray, recipe: Recipe) -> float:
    """Mean loss over every token of `ids` but the first, each predicted once, in `windows`; nats/token."""
    total = sum(loss_of(model, batch).item() * batch[0].size for batch in windows(ids, recipe.context))
    return total / (len(ids) - 1)


class PyTorch:
    """Model and optimizer of the recipe, from exactly these weights: the interface that benchmarks and tests drive."""

    name = "torch"

    def __init__(self, recipe: Recipe, weights: Weights) -> None:
        self.recipe = recipe
        self.model = build(recipe, weights)
        self.optimizer = optimizer_of(self.model, recipe)

    def step(self, batch: Batch, *, rate: float) -> float:
        """One training step; the loss before it, nats/token."""
        return step(self.model, self.optimizer, batch, rate=rate, clip=self.recipe.clip)

    @torch.no_grad()
    def loss(self, batch: Batch) -> float:
        """Mean loss of a batch, nats/token; nothing is trained."""
        return loss_of(self.model, batch).item()


# ---- the program -----------------------------------------------------------------------------------------------------


def train(text: str, recipe: Recipe, *, seed: int) -> dict[str, object]:
    """The whole recipe on a text. Seconds count from the text in memory on, so importing PyTorch is not in them."""
    start = time.perf_counter()
    ids, vocabulary = characters(text)
    splits = dict(zip(("train", "val"), split(ids), strict=True))
    streams = {
        name: random_batches(part, recipe, np.random.default_rng([seed, number]))
        for number, (name, part) in enumerate(splits.items())
    }
    batches = random_batches(splits["train"], recipe, np.random.default_rng([seed, len(splits)]))
    model = build(recipe, initial_weights(recipe, len(vocabulary), seed=seed))
    optimizer = optimizer_of(model, recipe)
    durations: list[float] = []
    for iteration in range(recipe.iterations + 1):
        if iteration % recipe.evaluate_every == 0 or iteration == recipe.iterations:
            losses = {name: estimate(model, stream, recipe) for name, stream in streams.items()}
            print(f"iteration {iteration}: train {losses['train']:.4f}, val {losses['val']:.4f}", file=sys.stderr)
        if iteration < recipe.iterations:
            before = time.perf_counter()
            step(model, optimizer, next(batches), rate=recipe.rate(iteration), clip=recipe.clip)
            durations.append(time.perf_counter() - before)
    trained = time.perf_counter()
    final = exact_loss(model, splits["val"], recipe)
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "seconds_before_final_evaluation": round(trained - start, 3),
        "ms_per_iteration": round(1e3 * statistics.median(durations), 3) if durations else None,
        "val_loss": round(final, 6),
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(vocabulary),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seed": seed,
        "recipe": asdict(recipe),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.nanogpt_torch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, required=True, help="the corpus: one UTF-8 text file")
    parser.add_argument("--iterations", type=int, default=Recipe.iterations, help="training steps; default %(default)s")
    parser.add_argument("--threads", type=int, help="CPU threads; default: the cores this process may use")
    parser.add_argument("--seed", type=int, default=1337, help="weights and batches; default %(default)s")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON instead of a summary")
    options = parser.parse_args(argv)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(options.threads or cores)
    recipe = Recipe(iterations=options.iterations)
    result = train(options.data.read_text(encoding="utf-8"), recipe, seed=options.seed)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"validation loss {result['val_loss']} nats/token after {recipe.iterations} iterations, "
            f"{result['ms_per_iteration']} ms each, {result['seconds']} s in all, {result['threads']} threads"
        )


if __name__ == "__main__":
    main()
