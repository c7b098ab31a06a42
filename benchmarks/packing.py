"""Case packing: fine-tuning on short instructions, several a row, beside a row for each.

Both sides are ours, have the same weights, take rows of 512 tokens of the same examples (GSM8K and self-instruct's seed
tasks) and run in turns. Useful tokens are those of the examples, padding left out. "padded" fills each row up to 512
tokens, as loops with one fixed shape do; "longest" only up to the longest of its batch, as our own batches do. Before a
time is taken, the loss of a packed batch is compared with that of its examples a row each.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from statistics import median

import numpy as np

from pellucid.data import Examples, PackedRows, TokenBatch, conversations
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.optim import AdamW
from pellucid.text import END_OF_TEXT, BPETokenizer
from pellucid.text.chat_sources import TRANSCRIPT
from pellucid.text.jinja import JinjaTemplate
from pellucid.train import Encoding, NextToken, evaluate, train_step

from .nanogpt import say
from .options import Options, Refused
from .report import Row, row

CASE = "packing"
SEQ_LEN, ROWS = 512, 16
FILES = ("gsm8k_train.jsonl", "seed_tasks.jsonl")
VOCABULARY = 4096
MODEL = TransformerConfig(VOCABULARY, d_model=128, n_layers=6, n_heads=4, n_kv_heads=2, max_seq_len=SEQ_LEN)


def examples(options: Options, folder: Path) -> Examples:
    """The examples of both files, in ids of a vocabulary of their own."""
    paths = [options.corpus(Path("instructions") / name) for name in FILES]
    found = list(chain.from_iterable(map(conversations, paths)))[-4000:]
    texts = (m["content"] for c in found for m in c.messages)
    tokenizer = BPETokenizer.train(texts, VOCABULARY, special=[END_OF_TEXT])
    template = JinjaTemplate(TRANSCRIPT, variables={"eos_token": END_OF_TEXT})
    making = Encoding(template, tokenizer, longest=SEQ_LEN + 1, too_long="skip")
    Examples.write(folder / "examples.bin", making.examples(found))
    return Examples.open(folder / "examples.bin")


def padded(batch: TokenBatch) -> TokenBatch:
    """The same rows, all of 513 ids."""
    ids = np.pad(batch.ids, ((0, 0), (0, SEQ_LEN + 1 - batch.ids.shape[1])))
    flags = np.pad(batch.weights > 0, ((0, 0), (1, SEQ_LEN + 1 - batch.ids.shape[1])))
    return TokenBatch(ids, loss_mask=flags)


def plain(batch: TokenBatch) -> TokenBatch:
    """Rows of one document each without places."""
    flags = np.pad(batch.weights > 0, ((0, 0), (1, 0)))
    return TokenBatch([ids[:n] for ids, n in zip(batch.ids, batch.lengths, strict=True)], loss_mask=flags)


def check(model: TransformerLM, found: Examples, rows: PackedRows) -> None:
    """Refuses packed rows whose loss is not that of their examples alone."""
    packed = rows.batch(0)
    numbers = [i for row in islice(rows.rows(0), ROWS) for i in row]
    alone = PackedRows(found.subset(np.array(numbers)), seq_len=SEQ_LEN, sequences=len(numbers), seed=0, packing=False)
    a, b = evaluate(model, packed), evaluate(model, plain(alone.batch(0)))
    if a.n_targets != b.n_targets or not math.isclose(a.loss, b.loss, rel_tol=2e-3):
        raise Refused(f"{CASE}: a packed loss of {a.loss}, {b.loss} alone; wrong rows are not timed")


def run(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="pellucid-") as scratch:
        found = examples(options, Path(scratch))
        how = {"seq_len": SEQ_LEN, "sequences": ROWS, "seed": 0}
        packed = PackedRows(found, **how)  # type: ignore[arg-type]
        single = PackedRows(found, **how, packing=False)  # type: ignore[arg-type]
        tokens, rows = packed.tokens(), packed.count(0)
        mean, fill = tokens / len(found), tokens / rows / (SEQ_LEN + 1)
        say(f"{len(found):,} examples of {mean:.0f} tokens, {rows:,} packed rows, {fill:.0%} filled")
        model = TransformerLM(MODEL)
        check(model, found, packed)
        return _timed(model, packed, single, options)


def _timed(model: TransformerLM, packed: PackedRows, single: PackedRows, options: Options) -> list[Row]:
    optimizer = AdamW(model.named_parameters(), learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    batches = {
        "packed": (packed.batch(i) for i in _numbers()),
        "padded": (padded(single.batch(i)) for i in _numbers()),
        "longest": (plain(single.batch(i)) for i in _numbers()),
    }
    rates: dict[str, list[float]] = {name: [] for name in batches}
    for turn in range(1 + (options.iterations or (3 if options.quick else 9))):
        for name, source in batches.items():
            time.sleep(options.pause)
            start = time.perf_counter()
            batch = next(source)
            train_step(model, optimizer, batch, max_norm=1.0, objective=NextToken())
            seconds = time.perf_counter() - start
            if turn:  # the first one compiles
                rates[name].append(batch_tokens(batch) / seconds)
    return [
        row(
            CASE, "step", name, values, unit="tokens/s", shape=f"{ROWS}x{SEQ_LEN}", dtype=MODEL.precision,
            **({} if name == "packed" else {"packed over it": median(rates["packed"]) / median(values)}),
        )
        for name, values in rates.items()
    ]  # fmt: skip


def batch_tokens(batch: TokenBatch) -> int:
    """Tokens of the examples up to the last that counts; padding that was given as ids is none."""
    if batch.begins is not None:
        return batch.n_tokens
    counted = np.logical_or.accumulate(batch.weights[:, ::-1] != 0, axis=1)
    return int(counted.sum()) + len(batch)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
