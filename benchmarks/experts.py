"""Case experts: a training step of a mixture of experts beside that of a dense model of its active size.

Both are ours and run in turns. The mixture has 8 experts in 6 of its 8 layers, 2 of them and a shared one active: 55.2M
parameters, 35.7M for one token. The dense model has the 35.7M, with feed-forward layers of one width. The goal is 1.35
times the dense model's time at most: of the difference, AdamW over 20M more parameters is what nothing can take away.
Before a time is taken, the mixture's first losses are compared with those of the definition kernels.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import replace
from statistics import median

import numpy as np

from pellucid.data import TokenBatch
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.train import StepResult, train_step

from .nanogpt import say
from .options import Refused
from .report import Row, row
from .train import AGREEMENT, BETAS, CLIP, DECAY, EPS, RATE, Precision, TrainOptions, random_ids

CASE = "experts"
SHAPES = ((1, 512), (4, 512))
CHECKED = 2  # steps of the definition kernels, on a few tokens
EXPERTS = TransformerConfig(
    32000,
    d_model=512,
    n_layers=8,
    n_heads=8,
    n_kv_heads=2,
    d_ff=1408,
    max_seq_len=1024,
    experts=8,
    active_experts=2,
    moe_layers=tuple(range(2, 8)),
    moe_d_ff=352,
    shared_expert=True,
)


def dense_twin(config: TransformerConfig) -> TransformerConfig:
    """The dense model whose parameters are as many as the active ones, but for the routers."""
    sparse = len(config.expert_layers)
    active = (config.experts_of_token + config.shared_expert) * config.expert_hidden
    width = ((config.n_layers - sparse) * config.hidden + sparse * active) // config.n_layers
    return replace(
        config, d_ff=width, experts=None, active_experts=None, moe_layers=None, moe_d_ff=None, shared_expert=False
    )


class Side:
    """A model with its own initial weights, and its optimizer."""

    def __init__(self, config: TransformerConfig, *, device: str = "cpu") -> None:
        self.model = TransformerLM(config, device=device)
        parameters = self.model.named_parameters()
        self.optimizer = AdamW(
            parameters, learning_rate=RATE, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=DECAY
        )

    def step(self, ids: np.ndarray) -> StepResult:
        return train_step(self.model, self.optimizer, TokenBatch(ids), max_norm=CLIP)


def check(config: TransformerConfig) -> None:
    """Refuses a mixture whose first losses are not those of its definition."""
    ids = random_ids(config, (1, 32))
    losses = [
        [side.step(ids).loss for _ in range(CHECKED)] for side in (Side(config), Side(config, device="reference"))
    ]
    if not all(math.isclose(a, b, rel_tol=AGREEMENT[config.precision]) for a, b in zip(*losses, strict=True)):
        raise Refused(f"{CASE}: losses {losses[0]}, the definition has {losses[1]}; wrong kernels are not timed")


def run_one(config: TransformerConfig, shape: tuple[int, int], options: TrainOptions) -> list[Row]:
    ids, tokens = random_ids(config, shape), shape[0] * shape[1]
    say(f"{config.parameter_counts()}, {shape[0]}x{shape[1]}, {config.precision}")
    check(config)
    gc.collect()
    sides = {"experts": Side(config), "dense": Side(dense_twin(config))}
    for side in sides.values():
        side.step(ids)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.iterations or (3 if options.quick else 11)):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            time.sleep(options.pause)
            start = time.perf_counter()
            sides[name].step(ids)
            times[name].append(time.perf_counter() - start)
    found = []
    for name, seconds in times.items():
        label = f"{sides[name].model.config.parameter_counts().total / 1e6:.1f}M {shape[0]}x{shape[1]}"
        more = {"tokens/s": tokens / median(seconds)}
        if name == "experts":  # a step over the one beside it in time: the load of the machine cancels
            more["over dense"] = median(a / b for a, b in zip(seconds, times["dense"], strict=True))
        milli = [1e3 * s for s in seconds]
        found.append(row(CASE, "step", name, milli, unit="ms", shape=label, dtype=config.precision, **more))
    return found


def run(options: TrainOptions) -> list[Row]:
    found: list[Row] = []
    precisions: tuple[Precision, ...] = options.precisions
    for shape in [options.shape] if options.shape else SHAPES:
        for precision in precisions:
            found += run_one(replace(EXPERTS, precision=precision), shape, options)
            gc.collect()
    return found
