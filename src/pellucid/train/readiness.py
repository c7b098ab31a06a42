"""The readiness check: whether a long run is worth starting, from its data, its sizes and a few real steps.

Everything is tried on models of its own, built anew and dropped, so the run finds the state it would have found
without. Each finding has one line; an error is what the run can't or mustn't do, a warning what looks like a mistake.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isfinite, log
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ..base.errors import PellucidError
from ..data import TokenBatch, TokenFile, overlap, repeated
from ..models import TransformerLM
from ..optim import AdamW
from ..text import CharTokenizer, NormalizedTokenizer, PipelineTokenizer, Tokenizer
from .config import TrainConfig
from .doubts import OVERLAP
from .memory import SHARE, available_memory, memory_need
from .step import accumulate, train_step
from .trainer import Trainer

Level = Literal["ok", "warning", "error"]

_UNKNOWN = 0.01  # share of unknown tokens from which on the tokenizer looks wrong
_UNUSED = 0.5  # share of the vocabulary that doesn't occur
_REPEATED = 0.3  # share of the training text that stood in it before
_NEAR = 0.5  # nats/token between the first loss and that of a guess
_STEPS, _PATIENCE = 3, 60.0  # real steps, and s after which fewer do
_BATCH, _TRIES, _LEARNED = (2, 64), 60, 0.5  # sequences and tokens over-fitted; steps; share of the loss that is left


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
    """What is about to be trained. build: the model at its beginning, a new one each time; fresh: whether its weights
    are random; folder: where checkpoints go."""

    build: Callable[[], TransformerLM]
    train: TrainConfig
    tokens: TokenFile
    held_out: TokenFile | None
    tokenizer: Tokenizer
    folder: Path
    fresh: bool = True


def inspect(plan: Plan) -> Iterator[Finding]:
    """The findings, one after the other as they come. What needs the model is left out where it can't be had: ids
    outside the vocabulary, too little memory, a loss that is no number."""
    model = plan.build()
    first = [check_vocabulary(plan, model), check_repetition(plan)]
    memory = check_memory(plan, model)
    yield from [*first, memory, check_disk(plan, model)]
    if "error" in (first[0].level, memory.level):
        return
    found = list(check_steps(plan, model))
    yield from found
    del model
    if found[0].level != "error":
        yield check_learning(plan)


# --- the data ---------------------------------------------------------------------------------------------------------


def check_vocabulary(plan: Plan, model: TransformerLM) -> Finding:
    """Ids in range; how many are unknown; how much of the vocabulary occurs."""
    name, size, unknown = "vocabulary", model.config.vocab_size, unknown_id(plan.tokenizer)
    try:
        for part in (plan.tokens, plan.held_out):
            if part is not None:
                part.check_vocabulary(size)
    except PellucidError as error:
        return Finding(name, "error", str(error), {}, error.hint)
    counts = np.zeros(size, np.int64)
    for begin in range(0, len(plan.tokens), 1 << 20):
        counts += np.bincount(plan.tokens.ids[begin : begin + (1 << 20)], minlength=size)
    share = 0.0 if unknown is None else float(counts[unknown] / counts.sum())
    used = int(np.count_nonzero(counts))
    facts = {"ids": size, "used": used, "unknown_share": share}
    value = f"{used:,} of {size:,} ids occur" + (f", {share:.2%} of the text unknown" if unknown is not None else "")
    if share > _UNKNOWN:
        return Finding(name, "warning", value, facts, "use a tokenizer of this text, or one with bytes to fall back on")
    if plan.fresh and used < size * (1 - _UNUSED):
        return Finding(name, "warning", value, facts, "train a smaller vocabulary, or use more text")
    return Finding(name, "ok", value, facts)


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of whatever the vocabulary can't express, where it has one."""
    if isinstance(tokenizer, NormalizedTokenizer):
        return unknown_id(tokenizer.inner)
    if isinstance(tokenizer, CharTokenizer):
        return tokenizer.unknown
    if isinstance(tokenizer, PipelineTokenizer):
        found = getattr(tokenizer.parts.model, "unknown", None)
        return found if isinstance(found, int) else None
    return None


def check_repetition(plan: Plan) -> Finding:
    """How much of the training text repeats itself, and how much of the held-out text stands in it."""
    # About a sentence: characters and bytes are a fifth of a token of a trained vocabulary.
    length = 64 if plan.tokenizer.vocab_size <= 1024 else 16
    again = repeated(plan.tokens.ids, length)
    facts: dict[str, Any] = {"repeated_share": again, "run": length}
    value = f"{again:.1%} of the training text stood in it before"
    shared = None if plan.held_out is None else overlap(plan.tokens.ids, plan.held_out.ids, length)
    if shared is not None:
        value += f"; {shared:.1%} of the held-out text stands in it"
        facts["overlap"] = shared
        if shared >= OVERLAP:
            cure = "the held-out loss will look too good: remove duplicates from the corpus, or hold out other text"
            return Finding("repetition", "warning", value, facts, cure)
    if again > _REPEATED:
        return Finding("repetition", "warning", value, facts, "remove duplicates, or train for fewer steps")
    return Finding("repetition", "ok", value, facts)


# --- sizes ------------------------------------------------------------------------------------------------------------


def check_memory(plan: Plan, model: TransformerLM) -> Finding:
    """The predicted peak against what is available."""
    need, there = memory_need(model.config, plan.train).peak, available_memory()
    facts = {"predicted_bytes": need, "available_bytes": there}
    value = f"{_size(need)} at most" + (f" of {_size(there)} available" if there is not None else "")
    if there is not None and need > SHARE * there:
        cure = "fewer sequences at a time (--sequences, --tokens-per-step), --checkpoint-blocks, or a smaller model"
        return Finding("memory", "error", value, facts, cure)
    return Finding("memory", "ok", value, facts)


def check_disk(plan: Plan, model: TransformerLM) -> Finding:
    """The checkpoints that are there at a time, the one being written included, against the free space."""
    need = memory_need(model.config, plan.train)
    count = plan.train.keep + plan.train.keep_best + 1
    wanted, home = count * (need.weights + need.state + need.average), plan.folder.resolve()
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
    """The first loss, gradients, and the time of a few real steps."""
    steps = replace(plan.train, patience=None, eval_every=None)
    trainer = Trainer(model, plan.tokens, steps)
    batch, optimizer = trainer.source.batch(0), trainer.optimizer
    model.train()
    loss = accumulate(model, batch, micro_batches=steps.micro_batches)
    yield _first_loss(loss, model.config.vocab_size, fresh=plan.fresh)
    yield _gradients(model)
    if not isfinite(loss):
        return
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < _STEPS and (not times or time.perf_counter() - begun < _PATIENCE):
        before = time.perf_counter()
        optimizer.learning_rate = steps.schedule().rate(0)
        train_step(model, optimizer, batch, max_norm=steps.max_norm, micro_batches=steps.micro_batches)
        times.append(time.perf_counter() - before)
    yield _time(plan, median(times), batch.n_targets)


def _first_loss(loss: float, vocab_size: int, *, fresh: bool) -> Finding:
    guess = log(vocab_size)
    value, facts = f"{loss:.3f} nats/token, a guess has {guess:.3f}", {"loss": loss, "guess": guess}
    if not isfinite(loss):
        cure = "the weights are damaged, or too large for the precision"
        return Finding("first loss", "error", value, facts, cure)
    if fresh and abs(loss - guess) > _NEAR:
        cure = "the initial weights are too large or too small: leave init_std alone, or scale it with the width"
        return Finding("first loss", "warning", value, facts, cure)
    if not fresh and loss > guess:
        cure = "the weights do worse than a guess: they belong to another tokenizer or another kind of text"
        return Finding("first loss", "warning", value, facts, cure)
    return Finding("first loss", "ok", value, facts)


def _gradients(model: TransformerLM) -> Finding:
    without, wild, count = [], [], 0
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
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
    c, held = plan.train, plan.held_out
    total = c.steps * seconds
    if held is not None:
        part = len(held) if c.eval_batches is None else min(len(held), c.eval_batches * c.sequences * c.seq_len)
        evaluations = 0 if c.eval_every is None else c.steps // c.eval_every
        # A forward pass is a third of a step.
        total += (evaluations * part + len(held)) * seconds / targets / 3
    facts = {"seconds_per_step": seconds, "seconds": total, "tokens_per_second": targets / seconds}
    value = f"about {_duration(total)}: {seconds:.2f} s a step, {targets / seconds:,.0f} tokens/s"
    return Finding("time", "ok", value, facts)


def check_learning(plan: Plan) -> Finding:
    """Whether a small batch can be learned by heart, by a model that starts as the run's and is not it."""
    model = plan.build()
    rows, width = _BATCH
    windows = plan.tokens.batch(0, rows, min(width, plan.train.seq_len) + 1)
    batch = TokenBatch(windows.ids)
    model.eval()  # dropout off
    optimizer = AdamW(model.named_parameters(), learning_rate=1e-3, weight_decay=0.0)
    first = last = train_step(model, optimizer, batch, max_norm=1.0).loss
    steps = 1
    while steps < _TRIES and last > _LEARNED * first:
        last = train_step(model, optimizer, batch, max_norm=1.0).loss
        steps += 1
    value = f"one small batch from {first:.3f} to {last:.3f} nats/token in {steps} steps"
    facts = {"first_loss": first, "last_loss": last, "steps": steps}
    if last > _LEARNED * first:
        cure = "the model doesn't learn what it sees again and again: check its configuration and its weights"
        return Finding("learning", "error", value, facts, cure)
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
