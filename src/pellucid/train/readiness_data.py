"""What the readiness check asks of data, and the plans it looks at: of a token file, of examples, of pairs of answers.

Text repeats itself in runs of tokens. Examples share the words of their chat template, so they are compared whole, and
of held-out ones the runs of what the assistant says.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import PellucidError
from ..data import Examples, PackedRows, TokenBatch, TokenFile, copies, overlap, repeated
from ..models import TransformerLM
from ..tape import no_grad
from ..text import CharTokenizer, NormalizedTokenizer, PipelineTokenizer, Tokenizer
from .batches import TokenWindows
from .config import TrainConfig
from .doubts import OVERLAP
from .memory import MemoryNeed, memory_need, tuning_need
from .preferences import PairBatch, Pairs, PreferenceLoss, log_probs
from .readiness import Finding, Plan

_UNKNOWN = 0.01  # share of unknown tokens from which on the tokenizer looks wrong
_UNUSED = 0.5  # share of the vocabulary that doesn't occur
_REPEATED = 0.3  # share of the training text that stood in it before
_BATCH = (2, 64)  # sequences and tokens to learn by heart
_LOOKED = 64  # examples of which the shortest is learned by heart
_ANSWERS = 0.3  # share of what held-out answers say that stands in trained ones


def token_plan(
    build: Callable[[], TransformerLM],
    train: TrainConfig,
    tokens: TokenFile,
    held_out: TokenFile | None,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    fresh: bool = True,
) -> Plan:
    """The plan of a run on a token file. fresh: whether its weights are random."""

    def data(model: TransformerLM) -> list[Finding]:
        size = model.config.vocab_size
        return [
            check_vocabulary(tokens, held_out, tokenizer, size, fresh=fresh),
            check_repetition(tokens, held_out, tokenizer),
        ]

    def small(model: TransformerLM) -> TokenBatch:
        rows, width = _BATCH
        return TokenBatch(tokens.batch(0, rows, min(width, train.seq_len) + 1).ids)

    evaluations = 0.0, 0.0
    if held_out is not None:
        step = train.step_sequences * train.seq_len
        most = len(held_out) if train.eval_batches is None else train.eval_batches * train.sequences * train.seq_len
        evaluations = min(len(held_out), most) / step, len(held_out) / step
    return Plan(
        build,
        train,
        data,
        lambda model: TokenWindows(tokens, train).batch(0),
        small,
        lambda model: memory_need(model.config, train),
        folder,
        guess=log(tokenizer.vocab_size),
        evaluations=evaluations,
        fresh=fresh,
    )


def rows_plan(
    build: Callable[[], TransformerLM],
    train: TrainConfig,
    rows: PackedRows,
    held_out: PackedRows | None,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    base: str,
    less: str,
) -> Plan:
    """The plan of supervised fine-tuning. base: what the weights are held in; less: see `Plan`."""
    held = 0.0 if held_out is None else held_out.count(None) / train.sequences
    others = None if held_out is None else held_out.examples
    return Plan(
        build,
        train,
        lambda model: check_examples(rows.examples, others, tokenizer, model.config.vocab_size),
        lambda model: rows.batch(0),
        lambda model: TokenBatch.packed([[rows.examples[_shortest(rows.examples)]]]),
        lambda model: _need(model, train, base=base),
        folder,
        guess=log(tokenizer.vocab_size),
        evaluations=(held, held),
        fresh=False,
        less=less,
    )


def pairs_plan(
    build: Callable[[], TransformerLM],
    train: TrainConfig,
    pairs: Pairs,
    held_out: Pairs | None,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    base: str,
    less: str,
    objective: PreferenceLoss,
) -> Plan:
    """The plan of preference tuning. The reference of `pairs` is not looked at: there is none yet."""
    held = 0.0 if held_out is None else len(held_out) / train.sequences
    others = None if held_out is None else held_out.examples
    return Plan(
        build,
        train,
        lambda model: check_examples(pairs.examples, others, tokenizer, model.config.vocab_size),
        lambda model: _referred(model, pairs.batch(0)),
        lambda model: _referred(model, next(pairs.subset(np.array([_shortest(pairs.examples) // 2])).batches(1))),
        lambda model: _need(model, train, base=base, answers=2),
        folder,
        guess=log(2),
        unit="nats/pair",
        evaluations=(held, held),
        before=len(pairs) / train.sequences + held,
        objective=objective,
        fresh=False,
        less=less,
    )


def _referred(model: TransformerLM, batch: PairBatch) -> PairBatch:
    """The batch with what this model says as its reference."""
    model.eval()
    with no_grad():
        rows = np.array([x.item() for x in log_probs(model, batch.tokens)])
    return PairBatch(batch.tokens, rows[: len(batch)] - rows[len(batch) :])


def _shortest(examples: Examples) -> int:
    """The shortest of the first examples."""
    return int(examples.lengths(np.arange(min(_LOOKED, len(examples)))).argmin())


def _need(model: TransformerLM, train: TrainConfig, *, base: str, answers: int = 1) -> MemoryNeed:
    adapter = None if model.adapters is None else sum(p.nbytes for _, p in model.named_trained())
    return tuning_need(model.config, train, answers=answers, adapter=adapter, base=base)


# --- findings ---------------------------------------------------------------------------------------------------------


def check_vocabulary(
    tokens: TokenFile, held_out: TokenFile | None, tokenizer: Tokenizer, size: int, *, fresh: bool
) -> Finding:
    """Ids in range; how many are unknown; how much of the vocabulary occurs."""
    try:
        for part in (tokens, held_out):
            if part is not None:
                part.check_vocabulary(size)
    except PellucidError as error:
        return Finding("vocabulary", "error", str(error), {}, error.hint)
    counts = np.zeros(size, np.int64)
    for begin in range(0, len(tokens), 1 << 20):
        counts += np.bincount(tokens.ids[begin : begin + (1 << 20)], minlength=size)
    return _vocabulary(counts, unknown_id(tokenizer), fresh=fresh)


def _vocabulary(counts: np.ndarray, unknown: int | None, *, fresh: bool) -> Finding:
    """counts: how often each id occurs."""
    name, size, used = "vocabulary", len(counts), int(np.count_nonzero(counts))
    share = 0.0 if unknown is None else float(counts[unknown] / counts.sum())
    facts = {"ids": size, "used": used, "unknown_share": share}
    value = f"{used:,} of {size:,} ids occur" + (f", {share:.2%} of the text unknown" if unknown is not None else "")
    if share > _UNKNOWN:
        return Finding(name, "warning", value, facts, "use a tokenizer of this text, or one with bytes to fall back on")
    if fresh and used < size * (1 - _UNUSED):
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


def check_repetition(tokens: TokenFile, held_out: TokenFile | None, tokenizer: Tokenizer) -> Finding:
    """How much of the training text repeats itself, and how much of the held-out text stands in it."""
    length = _run(tokenizer)
    again = repeated(tokens.ids, length)
    facts: dict[str, Any] = {"repeated_share": again, "run": length}
    value = f"{again:.1%} of the training text stood in it before"
    shared = None if held_out is None else overlap(tokens.ids, held_out.ids, length)
    if shared is not None:
        value += f"; {shared:.1%} of the held-out text stands in it"
        facts["overlap"] = shared
        if shared >= OVERLAP:
            cure = "the held-out loss will look too good: remove duplicates from the corpus, or hold out other text"
            return Finding("repetition", "warning", value, facts, cure)
    if again > _REPEATED:
        return Finding("repetition", "warning", value, facts, "remove duplicates, or train for fewer steps")
    return Finding("repetition", "ok", value, facts)


def _run(tokenizer: Tokenizer) -> int:
    # About a sentence: characters and bytes are a fifth of a token of a trained vocabulary.
    return 64 if tokenizer.vocab_size <= 1024 else 16


def check_examples(training: Examples, held_out: Examples | None, tokenizer: Tokenizer, size: int) -> list[Finding]:
    """The vocabulary of examples, and how many of them are copies of others."""
    counts = np.zeros(size, np.int64)
    for part in (training, held_out):
        for ids, _, _ in () if part is None else part.blocks():
            if (largest := int(ids.max())) >= size:
                value = f"an id outside the vocabulary: {largest}, expected 0 to {size - 1}"
                cure = "the examples were made with another tokenizer: start a new run"
                return [Finding("vocabulary", "error", value, {}, cure)]
            counts += np.bincount(ids, minlength=size)
    length = _run(tokenizer)
    found = copies(training, held_out, length)
    facts = {"repeated_share": found.again, "copied": found.held_out, "overlap": found.answers, "run": length}
    value, cure = f"{found.again:.1%} of the examples are copies of others", None
    if found.held_out is not None:
        value += f"; {found.held_out:.1%} of those held out stand among them"
    if found.answers is not None:
        value += f", {found.answers:.1%} of what they answer"
    if (found.held_out or 0) >= OVERLAP or (found.answers or 0) >= _ANSWERS:
        cure = "the held-out loss will look too good: remove duplicates from the dataset"
    elif found.again > _REPEATED:
        cure = "remove duplicates, or train for fewer epochs"
    repetition = Finding("repetition", "warning" if cure else "ok", value, facts, cure)
    return [_vocabulary(counts, unknown_id(tokenizer), fresh=False), repetition]
