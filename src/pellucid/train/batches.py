"""Where the batches of a run come from: a token file in windows, packed documents, preference pairs, anything alike.

The trainer asks a source for the batch of a step by its number alone, so a resumed run needs no cursor: a source is a
pure function of the step. Its fingerprint is kept in each checkpoint, and a run resumes only on the data it began with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..data import TokenBatch, TokenFile
from ..models import TransformerLM
from ..tape import Tensor
from .config import TrainConfig

_SAMPLED = 4096  # tokens at both ends of a file without a checksum


class Batch(Protocol):
    """What a step computes with. len: rows, which `split` divides; n_targets: predicted tokens that count."""

    @property
    def n_targets(self) -> int: ...
    def __len__(self) -> int: ...
    def split(self, n: int, /) -> Sequence[Batch]: ...


@runtime_checkable
class BatchSource(Protocol):
    """batch: what step number `step`, counted from 0, computes with; the same whenever it is asked. fingerprint: tells
    this source, its data and the way it cuts them, from any other."""

    def batch(self, step: int, /) -> Any: ...
    def fingerprint(self) -> str: ...


@runtime_checkable
class HeldOutSource(Protocol):
    """batches: all of the held-out data in order, or `most` batches spread evenly over it; the same ones every time."""

    def batches(self, most: int | None, /) -> Iterator[Any]: ...


class Objective(Protocol):
    """What a step lowers. loss: of a part of a batch, times its share, shape (). weight: what the shares of parts are
    told by, and the mean over batches. record: numbers for the line of the step or evaluation just done, which are
    forgotten then."""

    def loss(self, model: TransformerLM, part: Any, share: float, /) -> Tensor: ...
    def weight(self, batch: Any, /) -> float: ...
    def record(self) -> dict[str, float]: ...


class NextToken:
    """Cross-entropy of the next token, nats/token: the mean over the targets that count."""

    def loss(self, model: TransformerLM, part: TokenBatch, share: float, /) -> Tensor:
        weights = part.weights * np.float32(share) if share != 1 else part.weights
        return model.loss(part.inputs, part.targets, weights, starts=part.starts, positions=part.positions)

    def weight(self, batch: TokenBatch, /) -> float:
        return batch.n_targets

    def record(self) -> dict[str, float]:
        return {}


class TokenWindows:
    """Windows of a token file, as `config` cuts them: to train on, and to be evaluated on."""

    def __init__(self, tokens: TokenFile, config: TrainConfig) -> None:
        self.tokens, self.config = tokens, config

    def batch(self, step: int, /) -> TokenBatch:
        c = self.config
        draw = self.tokens.shuffled if c.order == "shuffled" else self.tokens.batch
        return draw(step, c.step_sequences, c.seq_len + 1)

    def batches(self, most: int | None, /) -> Iterator[TokenBatch]:
        return windows(self.tokens, self.config.sequences, self.config.seq_len, most)

    def fingerprint(self) -> str:
        t = self.tokens
        digest = hashlib.sha256(f"windows of {len(t)} tokens from {t.start}, seed {t.seed}".encode())
        if t.info is None:
            for part in (t.ids[:_SAMPLED], t.ids[-_SAMPLED:]):
                digest.update(np.ascontiguousarray(part).tobytes())
        else:
            digest.update(t.info.sha256.encode())
        return digest.hexdigest()


def windows(tokens: TokenFile, sequences: int, seq_len: int, most: int | None) -> Iterator[TokenBatch]:
    """Consecutive windows of `seq_len` predicted tokens, or `most` batches spread evenly over the file, whose beginning
    may be unlike the rest."""
    window = min(seq_len + 1, len(tokens))  # text shorter than a window is one of its own
    batches = -(-(len(tokens) // window) // sequences)
    taken = batches if most is None else min(most, batches)
    for i in range(taken):
        batch = tokens.chunk(i * batches // taken, sequences, window)
        assert batch is not None
        yield batch
