"""The memory of a training run, predicted from its configuration, and what this machine has left.

A step holds weights, the state of the optimizer and, from forward to backward, what the tape keeps. The most is held at
one of three moments: at the loss, when the tape is complete and the logits of a chunk are there; when the backward of
the last layer begins; at the end, when all gradients are there and the tape is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..base.dtypes import dtype
from ..models import TransformerConfig
from .config import TrainConfig

_CHUNK = 16 << 20  # logits that exist at a time, see the kernel `lm_head_loss`
#: Of the available memory that a run may take.
SHARE = 0.9
_SCRATCH = 4 << 20  # bytes: operands packed by the largest product
_STATES = {"adamw": 2, "sgd": 1, "lion": 1, "muon": 2}


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. weights; state: of the optimizer; average: the running mean; tape: what is kept for backward; peak: the
    most that is held at a time, within 10 % and 4 MiB of what is measured, dropout and mixtures of experts apart
    (those within 25 %)."""

    weights: int
    state: int
    average: int
    tape: int
    peak: int


def memory_need(model: TransformerConfig, train: TrainConfig) -> MemoryNeed:
    """What training takes. Muon's state is counted as AdamW's, and frozen weights as if they were trained."""
    weights = 4 * model.parameter_counts().total
    return _need(model, train, held=0, trained=weights, head=4 * model.vocab_size * model.d_model)


def tuning_need(
    model: TransformerConfig, train: TrainConfig, *, answers: int = 1, adapter: int | None = None, base: str = "float32"
) -> MemoryNeed:
    """What fine-tuning takes. answers: rows for each of `sequences`. adapter: bytes of the adapter that is trained in
    place of the weights (None: the weights are), which are frozen then, have neither gradients nor moments, and are
    held in `base`."""
    train = replace(train, sequences=answers * train.sequences)
    if adapter is None:
        return memory_need(model, train)
    held, head = dtype(base).itemsize * model.parameter_counts().total, 0
    if base != "float32":  # products with held weights take and give float32, and the loss takes the head in it
        model, head = replace(model, precision="float32"), 4 * model.vocab_size * model.d_model
    return _need(model, train, held=held, trained=adapter, head=head)


def _need(model: TransformerConfig, train: TrainConfig, *, held: int, trained: int, head: int) -> MemoryNeed:
    """held, trained: bytes of weights that stay and of those that don't. head: of the gradient of the vocabulary."""
    n = train.part_sequences * train.seq_len
    state = _STATES[train.optimizer] * trained if train.optimizer != "sgd" or train.momentum else 0
    average = 0 if train.ema is None else trained
    tape = tape_bytes(model, train.part_sequences, train.seq_len)
    logits = 4 * min(n * model.vocab_size, max(_CHUNK, 64 * model.vocab_size))
    # gradients on their way through a feed-forward layer
    block = 4 * n * (model.d_model + (2 if model.is_gated else 1) * model.hidden)
    if model.checkpoint_blocks:  # a layer runs again, keeps what it else would have kept, and gradients are there
        block += _block_tape(model, n) + trained
    earlier = trained if train.micro_batches > 1 else 0  # gradients of the parts before
    moments = (tape + logits + head + _SCRATCH + earlier, tape + block + earlier, trained + block)
    weights = held + trained
    return MemoryNeed(weights, state, average, tape, weights + state + average + max(moments))


def tape_bytes(model: TransformerConfig, batch: int, seq_len: int) -> int:
    """`TransformerConfig.tape_bytes` in the precision of the model: with bfloat16 operands, what only products read is
    kept in two bytes."""
    found = model.tape_bytes(batch, seq_len)
    if model.precision == "float32" or model.checkpoint_blocks:
        return found
    return found - 2 * batch * seq_len * model.n_layers * _narrow(model)


def _block_tape(model: TransformerConfig, n: int) -> int:
    d, q, kv = model.d_model, model.n_heads * model.head_width, model.kv_heads * model.head_width
    kept = 4 * (4 * d + 2 * q + 2 * kv + (3 if model.is_gated else 2) * model.hidden)
    return n * (kept - (2 * _narrow(model) if model.precision == "bfloat16" else 0))


def _narrow(model: TransformerConfig) -> int:
    """Numbers a token has in a layer that are bfloat16 where the operands of products are; on average over layers."""
    d, q, kv = model.d_model, model.n_heads * model.head_width, model.kv_heads * model.head_width
    dense = 1 - len(model.expert_layers) / model.n_layers
    return round(d + 2 * q + 2 * kv + dense * (d + (3 if model.is_gated else 2) * model.hidden))


def available_memory() -> int | None:
    """Bytes this process may still take: of the machine, and of the group of processes where it is limited. None where
    the system doesn't say."""
    found = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        found.append(max(int(limit) - int(used), 0))
    return min(found) if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
