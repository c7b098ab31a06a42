"""The readiness check: whether a long run is worth starting, from its data, its sizes and a few real steps.

Everything is tried on models of its own, built anew and dropped, so the run finds the state it would have found
without. Each finding has one line; an error is what the run can't or mustn't do, a warning what looks like a mistake.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ..models import TransformerLM
from ..optim import AdamW
from .batches import Batch, Objective
from .config import TrainConfig
from .memory import SHARE, MemoryNeed, available_memory
from .step import NEXT_TOKEN, accumulate, evaluate, train_step
from .update import make_optimizer

Level = Literal["ok", "warning", "error"]

_NEAR = 0.5  # between the first loss and that of a guess
_SLACK = 0.05  # above a guess is no better than a guess: of rounding and dropout
_STEPS, _PATIENCE = 3, 60.0  # real steps, and s after which fewer do
# Steps on one batch; share of the loss that is left; the first rate, of weights that are random and of others, which
# then triples so often.
_TRIES, _LEARNED = 60, 0.5
_RATE, _RATE_LATER, _TRIPLES = 1e-3, 2e-4, 3
_BARELY = 0.9  # share of the loss from which on nothing was learned at all


@dataclass(frozen=True)
class Finding:
    """What one check found. name: of the check; value: for people; facts: for programs; cure: what to do about it."""

    name: str
    level: Level
    value: str
    facts: dict[str, Any]
    cure: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is about to be trained.

    build: the model at its beginning, a new one each time. data: findings about the data, given the model. first: the
    batch of the first step; small: one to learn by heart; both are made with such a model before it is trained.
    evaluations: batches of an evaluation in the course of the run, and of the one at its end; before: of what is
    computed ahead of the first step. need: the predicted memory, given the model. guess: the loss of who knows nothing,
    in `unit`. fresh: whether the weights are random. less: what would take less memory. folder: where checkpoints go.
    """

    build: Callable[[], TransformerLM]
    train: TrainConfig
    data: Callable[[TransformerLM], list[Finding]]
    first: Callable[[TransformerLM], Batch]
    small: Callable[[TransformerLM], Batch]
    need: Callable[[TransformerLM], MemoryNeed]
    folder: Path
    guess: float
    unit: str = "nats/token"
    evaluations: tuple[float, float] = (0.0, 0.0)
    before: float = 0.0
    objective: Objective = NEXT_TOKEN
    fresh: bool = True
    less: str = "fewer sequences at a time (--sequences, --tokens-per-step), --checkpoint-blocks, or a smaller model"


def inspect(plan: Plan) -> Iterator[Finding]:
    """The findings, one after the other as they come. What needs the model is left out where it can't be had: ids
    outside the vocabulary, too little memory, a loss that is no number."""
    model = plan.build()
    found = [*plan.data(model), check_memory(plan, model)]
    yield from found
    yield check_disk(plan, model)
    if any(f.level == "error" for f in found):
        return
    wrong = False
    for finding in check_steps(plan, model):
        wrong = wrong or (finding.name == "first loss" and finding.level == "error")
        yield finding
    if wrong:
        return
    device = model.device
    del model
    device.trim()
    yield check_learning(plan)


# --- sizes ------------------------------------------------------------------------------------------------------------


def check_memory(plan: Plan, model: TransformerLM) -> Finding:
    """The predicted peak against what is available."""
    need, there = plan.need(model).peak, available_memory()
    facts = {"predicted_bytes": need, "available_bytes": there}
    value = f"{_size(need)} at most" + (f" of {_size(there)} available" if there is not None else "")
    if there is not None and need > SHARE * there:
        return Finding("memory", "error", value, facts, plan.less)
    return Finding("memory", "ok", value, facts)


def check_disk(plan: Plan, model: TransformerLM) -> Finding:
    """The checkpoints that are there at a time, the one being written included, against the free space."""
    kept = sum(p.nbytes for _, p in (model.named_parameters() if model.adapters is None else model.named_trained()))
    need = plan.need(model)
    count = plan.train.keep + plan.train.keep_best + 1
    wanted, home = count * (kept + need.state + need.average), plan.folder.resolve()
    while not home.is_dir():
        home = home.parent
    free = shutil.disk_usage(home).free
    value = f"{count} checkpoints of {_size(wanted // count)}, {_size(free)} free"
    facts = {"needed_bytes": wanted, "free_bytes": free}
    if wanted > free:
        return Finding("disk", "error", value, facts, "keep fewer (--keep 1), free some space, or choose another --out")
    return Finding("disk", "ok", value, facts)


# --- the model --------------------------------------------------------------------------------------------------------


def check_steps(plan: Plan, model: TransformerLM) -> Iterator[Finding]:
    """The first loss, gradients, and the time of a few real steps; of steps in parts, of a part of each."""
    c, batch, objective = plan.train, plan.first(model), plan.objective
    optimizer = make_optimizer(model, c)
    parts = [p for p in (batch.split(c.micro_batches) if c.micro_batches > 1 else [batch]) if p.n_targets]
    model.train()
    begun = time.perf_counter()
    loss = accumulate(model, parts[0], objective=objective)
    if model.config.dropout:  # which is noise to a comparison
        loss = evaluate(model, parts[0], objective=objective).loss
    yield _first_loss(plan, loss)
    if not isfinite(loss):
        yield _gradients(model)
        return
    how: dict[str, Any] = {"max_norm": c.max_norm, "objective": objective}
    if model.adapters is not None:  # B is zero at the start, and A has no gradient until it is not
        optimizer.learning_rate = c.learning_rate
        train_step(model, optimizer, parts[0], **how)
        accumulate(model, parts[0], objective=objective)
    found = _gradients(model)
    for part in parts[1:]:
        if not found.facts["without"] or time.perf_counter() - begun > _PATIENCE:
            break
        accumulate(model, part, objective=objective)
        found = _gradients(model)
    yield found
    optimizer.zero_grad()
    times, more, begun = [], [], time.perf_counter()
    optimizer.learning_rate = c.schedule().rate(0)
    while len(times) < _STEPS and (not times or time.perf_counter() - begun < _PATIENCE):
        part, before = parts[len(times) % len(parts)], time.perf_counter()
        train_step(model, optimizer, part, **how)
        times.append(time.perf_counter() - before)
        if len(parts) > 1:
            before = time.perf_counter()
            accumulate(model, part, objective=objective)
            more.append(time.perf_counter() - before)
            optimizer.zero_grad()
    yield _time(plan, median(times) + (len(parts) - 1) * (median(more) if more else 0.0), batch.n_targets)


def _first_loss(plan: Plan, loss: float) -> Finding:
    guess = plan.guess
    value, facts = f"{loss:.3f} {plan.unit}, a guess has {guess:.3f}", {"loss": loss, "guess": guess}
    if not isfinite(loss):
        cure = "the weights are damaged, or too large for the precision"
        return Finding("first loss", "error", value, facts, cure)
    if plan.fresh and abs(loss - guess) > _NEAR:
        cure = "the initial weights are too large or too small: leave init_std alone, or scale it with the width"
        return Finding("first loss", "warning", value, facts, cure)
    if not plan.fresh and loss > guess + _SLACK:
        cure = "the weights do worse than a guess: they belong to another tokenizer or another kind of text"
        return Finding("first loss", "warning", value, facts, cure)
    return Finding("first loss", "ok", value, facts)


def _gradients(model: TransformerLM) -> Finding:
    without, wild, count = [], [], 0
    for name, p in model.named_trained():
        count += 1
        kernels = p.device.kernels
        norm = 0.0 if p.grad is None else float(p.device.download(kernels.global_norm([p.grad.array])))
        if not isfinite(norm):
            wild.append(name)
        elif norm == 0:
            without.append(name)
    facts = {"parameters": count, "without": without, "not_finite": wild}
    if wild:
        return Finding(
            "gradients", "error", f"not finite in {_named(wild)}", facts, "train in float32 (--precision float32)"
        )
    if without:
        # A router may send no token of one batch to an expert.
        sparse = all(".experts." in name for name in without)
        cure = "more text in a step (--sequences)" if sparse else "what never gets a gradient never learns: freeze it"
        return Finding("gradients", "warning" if sparse else "error", f"none in {_named(without)}", facts, cure)
    return Finding("gradients", "ok", f"in all {count} parameters", facts)


def _time(plan: Plan, seconds: float, targets: int) -> Finding:
    c, (during, end) = plan.train, plan.evaluations
    times = 0 if c.eval_every is None else c.steps // c.eval_every
    # A forward pass is a third of a step.
    total = (c.steps + (plan.before + times * during + end) / 3) * seconds
    facts = {"seconds_per_step": seconds, "seconds": total, "tokens_per_second": targets / seconds}
    value = f"about {_duration(total)}: {seconds:.2f} s a step, {targets / seconds:,.0f} tokens/s"
    return Finding("time", "ok", value, facts)


def check_learning(plan: Plan) -> Finding:
    """Whether a small batch can be learned by heart, by a model that starts as the run's and is not it."""
    model = plan.build()
    batch = plan.small(model)
    model.eval()  # dropout off
    rate = _RATE if plan.fresh or model.adapters is not None else _RATE_LATER
    optimizer = AdamW(model.named_trained(), learning_rate=rate, weight_decay=0.0)
    first = last = train_step(model, optimizer, batch, max_norm=1.0, objective=plan.objective).loss
    steps = 1
    while steps < _TRIES and last > _LEARNED * first:
        if not plan.fresh and steps % max(_TRIES // (_TRIPLES + 1), 1) == 0:
            optimizer.learning_rate *= 3  # what is trained already may learn slowly, and blow up at the rate of others
        last = train_step(model, optimizer, batch, max_norm=1.0, objective=plan.objective).loss
        steps += 1
    value = f"one small batch from {first:.3f} to {last:.3f} {plan.unit} in {steps} steps"
    facts = {"first_loss": first, "last_loss": last, "steps": steps}
    if last > _LEARNED * first:
        cure = "the model doesn't learn what it sees again and again: check its configuration and its weights"
        # Few weights beside ones that stay can be too few to learn a batch by heart, and enough for the run.
        slow = not plan.fresh and last < _BARELY * first
        return Finding("learning", "warning" if slow else "error", value, facts, cure)
    return Finding("learning", "ok", value, facts)


# --- words ------------------------------------------------------------------------------------------------------------


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
