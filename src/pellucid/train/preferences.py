"""Direct preference optimisation: training on pairs of answers, one preferred to the other (Rafailov et al. 2023).

loss = -ln sigmoid(beta ((ln p(chosen) - ln p(rejected)) - (the same under the model it began as))). What the reference
says never changes, so it is computed once, before the first step, and kept: no second model is in memory in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.errors import DataError
from ..base.files import reading, replacing
from ..base.rng import Generator
from ..data import Examples, Shuffled, TokenBatch
from ..models import TransformerLM
from ..ops import concatenate, preference_loss, tensor
from ..tape import Tensor, no_grad

_ORDER = int.from_bytes(b"pairs", "big")


@dataclass(frozen=True)
class PairBatch:
    """Pairs of answers. tokens: the chosen ones, then the rejected ones in the same order. reference: (pairs,), ln p
    chosen - ln p rejected of the model it all began with."""

    tokens: TokenBatch
    reference: np.ndarray

    @property
    def n_targets(self) -> int:
        return self.tokens.n_targets

    def __len__(self) -> int:
        return len(self.reference)

    def split(self, n: int, /) -> list[PairBatch]:
        """`n` parts of consecutive pairs, as even as they go. Raises DataError where there are not so many."""
        pairs = len(self)
        if not 1 <= n <= pairs:
            raise DataError("PairBatch.split", "can't be split so", got=f"n={n}", expected=f"1 to {pairs} (pairs)")
        parts = []
        for i in range(n):
            at = np.arange(i * pairs // n, (i + 1) * pairs // n)
            rows = np.concatenate([at, pairs + at])
            parts.append(PairBatch(_rows(self.tokens, rows), self.reference[at]))
        return parts


def _rows(batch: TokenBatch, rows: np.ndarray) -> TokenBatch:
    counts = np.pad(batch.weights[rows] > 0, ((0, 0), (1, 0)))
    return TokenBatch(
        [batch.ids[r, : batch.lengths[r]] for r in rows], loss_mask=counts[:, : int(batch.lengths[rows].max())]
    )


class Pairs:
    """Pairs of examples, the chosen one before the rejected one, `sequences` pairs a step, in an order of each epoch's
    own. reference: ln p of each example under the model it all began with; see `reference_log_probs`."""

    def __init__(self, examples: Examples, reference: np.ndarray, *, sequences: int, seed: int) -> None:
        if len(examples) % 2 or len(reference) != len(examples):
            got = f"{len(examples)} examples, {len(reference)} of the reference"
            raise DataError("Pairs", "not two answers for each question", got=got)
        self.examples, self.reference, self.sequences, self.seed = examples, reference, sequences, Generator(seed).seed

    def __len__(self) -> int:
        return len(self.examples) // 2

    def subset(self, pairs: np.ndarray) -> Pairs:
        """The pairs of these numbers."""
        both = np.stack([2 * pairs, 2 * pairs + 1], axis=1).reshape(-1)
        return Pairs(self.examples.subset(both), self.reference[both], sequences=self.sequences, seed=self.seed)

    def steps(self, epochs: int) -> int:
        """Steps that read every pair `epochs` times."""
        return -(-epochs * len(self) // self.sequences)

    def batch(self, step: int, /) -> PairBatch:
        chosen = []
        for number in range(step * self.sequences, (step + 1) * self.sequences):
            epoch, place = divmod(number, len(self))
            order = Shuffled(len(self), Generator(self.seed).split(_ORDER, epoch))
            chosen.append(int(order.at(np.array([place]))[0]))
        return self._batch(chosen)

    def batches(self, most: int | None, /) -> Iterator[PairBatch]:
        count = -(-len(self) // self.sequences)
        taken = count if most is None else min(most, count)
        for i in range(taken):
            first = i * count // taken * self.sequences
            yield self._batch(list(range(first, min(first + self.sequences, len(self)))))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.examples.fingerprint()} {self.sequences} {self.seed}".encode())
        digest.update(self.reference.tobytes())
        return digest.hexdigest()

    def _batch(self, pairs: list[int]) -> PairBatch:
        tokens = _examples(self.examples, [2 * i for i in pairs] + [2 * i + 1 for i in pairs])
        at = 2 * np.array(pairs)
        return PairBatch(tokens, self.reference[at] - self.reference[at + 1])


def _examples(examples: Examples, numbers: list[int]) -> TokenBatch:
    found = [examples[i] for i in numbers]
    width = max(len(ids) for ids, _ in found)
    return TokenBatch([ids for ids, _ in found], loss_mask=np.stack([np.pad(c, (0, width - len(c))) for _, c in found]))


class PreferenceLoss:
    """The objective. margin: beta times what ln p of the two answers have moved apart, nats, the mean over the pairs of
    the step, or of an evaluation; preferred: the share of pairs whose chosen answer has gained on the other."""

    def __init__(self, *, beta: float = 0.1, smoothing: float = 0.0) -> None:
        self.beta, self.smoothing = beta, smoothing
        self._margins: list[float] = []

    def loss(self, model: TransformerLM, part: PairBatch, share: float, /) -> Tensor:
        model.device.trim()  # pairs differ in length: free blocks of every size that was met would add up
        rows = log_probs(model, part.tokens)
        pairs = len(part)
        chosen, rejected = (concatenate([x.reshape(1) for x in some]) for some in (rows[:pairs], rows[pairs:]))
        reference = tensor(part.reference.astype(np.float32), device=model.device)
        self._margins += self._moved(chosen, rejected, part)
        loss = preference_loss(chosen, rejected, reference, beta=self.beta, smoothing=self.smoothing)
        return loss * share if share != 1 else loss

    def _moved(self, chosen: Tensor, rejected: Tensor, part: PairBatch) -> list[float]:
        ahead = chosen.detach().numpy().astype(np.float64) - rejected.detach().numpy()
        return (self.beta * (ahead - part.reference)).tolist()

    def weight(self, batch: PairBatch, /) -> float:
        return len(batch)

    def record(self) -> dict[str, float]:
        margins, self._margins = np.array(self._margins), []
        if not len(margins):
            return {}
        return {"margin": float(margins.mean()), "preferred": float((margins > 0).mean())}


def log_probs(model: TransformerLM, batch: TokenBatch) -> list[Tensor]:
    """ln p of what counts in each row."""
    return model.log_probs(batch.inputs, batch.targets, batch.weights > 0)


def reference_log_probs(
    model: TransformerLM,
    examples: Examples,
    path: Path,
    *,
    sequences: int,
    on_progress: Callable[[int, int], object] | None = None,
) -> np.ndarray:
    """ln p of every example under `model` as it is, (examples,) float64, kept at `path`, and read where it is there.

    Raises:
        DataError: a file there of another number of examples.
    """
    if path.exists():
        with reading(path) as file:
            found = np.frombuffer(file.read(), "<f8")
        if len(found) != len(examples):
            raise DataError(str(path), "not of these examples", got=f"{len(found)} numbers", expected=len(examples))
        return found
    training, values = model.training, []
    model.eval()
    try:
        with no_grad():
            for first in range(0, len(examples), sequences):
                some = list(range(first, min(first + sequences, len(examples))))
                values += [x.item() for x in log_probs(model, _examples(examples, some))]
                if on_progress is not None:
                    on_progress(len(values), len(examples))
    finally:
        model.train(training)
    found = np.array(values, "<f8")
    with replacing(path) as write:
        write(found.tobytes())
    return found
