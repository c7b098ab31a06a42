"""One training step, and the loss on text the model is not trained on: the two functions everything else repeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from ..base.errors import DataError, NonFiniteError
from ..data import TokenFile
from ..models import RoutingReport, TransformerLM
from ..optim import Optimizer, clip_scale
from ..tape import Tensor, no_grad
from .batches import Batch, NextToken, Objective, windows

NEXT_TOKEN = NextToken()


@dataclass(frozen=True)
class StepResult:
    """loss: nats/token before the update, cross-entropy alone; norm: of the whole gradient before clipping; n_targets:
    predicted tokens; routing: what the routers did, None without mixtures of experts."""

    loss: float
    norm: float
    n_targets: int
    routing: RoutingReport | None = None

    @property
    def perplexity(self) -> float:
        """e**loss"""
        return exp(self.loss) if self.loss < 700 else float("inf")


@dataclass(frozen=True)
class Evaluation:
    """loss: nats/token, the mean over every one of `n_targets` predicted tokens."""

    loss: float
    n_targets: int

    @property
    def perplexity(self) -> float:
        """e**loss"""
        return exp(self.loss) if self.loss < 700 else float("inf")


def accumulate(
    model: TransformerLM, batch: Batch, *, micro_batches: int = 1, objective: Objective = NEXT_TOKEN
) -> float:
    """Adds the gradient of the batch's loss to the parameters' and returns the loss, in nats/token.

    The batch is computed in `micro_batches` parts, each weighted by its share of the predicted tokens (of what the
    objective counts), so loss and
    gradient are those of the whole batch, however the tokens fall. The penalty of routers is of each part, weighted in
    the same way: balance over a part is not quite that over the whole. The loss returned is without it.
    """
    return _accumulate(model, batch, micro_batches, objective)[0]


def _accumulate(
    model: TransformerLM, batch: Batch, micro_batches: int, objective: Objective
) -> tuple[float, RoutingReport | None]:
    total, reports, shares, whole = 0.0, [], [], objective.weight(batch)
    for part in batch.split(micro_batches) if micro_batches > 1 else [batch]:
        if part.n_targets == 0:
            continue
        share = objective.weight(part) / whole
        loss = objective.loss(model, part, share)
        loss.backward()
        total += loss.item()
        if (report := model.routing_report()) is not None:
            total -= report.penalty
            reports.append(report)
            shares.append(share)
    return total, RoutingReport.together(reports, shares) if reports else None


def train_step(
    model: TransformerLM,
    optimizer: Optimizer,
    batch: Batch,
    *,
    max_norm: float | None = None,
    micro_batches: int = 1,
    objective: Objective = NEXT_TOKEN,
) -> StepResult:
    """Forward, backward, clip, update.

    Raises NonFiniteError, before anything was updated, when loss or gradient is not a finite number.
    """
    optimizer.zero_grad()
    loss, routing = _accumulate(model, batch, micro_batches, objective)
    optimizer.prepare()
    norm, scale = clip_scale(optimizer.parameters.values(), max_norm)
    return finish(optimizer, StepResult(loss, norm.item(), batch.n_targets, routing), scale)


def finish(optimizer: Optimizer, result: StepResult, scale: Tensor) -> StepResult:
    """The update of a step, with every gradient multiplied by `scale`; the gradients are dropped.

    Raises NonFiniteError, with nothing updated, when loss or gradient is not a finite number.
    """
    if not (abs(result.loss) < float("inf") and result.norm < float("inf")):
        raise NonFiniteError(
            f"step {optimizer.steps}",
            "loss or gradient is not a finite number; the weights are as they were",
            got=f"loss {result.loss}, gradient norm {result.norm}",
            hint="lower the learning rate or clip harder; pellucid.trace(stop_at_nonfinite=True) names the operation",
        )
    optimizer.apply(scale)
    optimizer.zero_grad()
    return result


def evaluate(model: TransformerLM, batch: Batch, *, objective: Objective = NEXT_TOKEN) -> Evaluation:
    """The loss of a batch without dropout, gradients or update."""
    training = model.training
    model.eval()
    try:
        with no_grad():
            loss = objective.loss(model, batch, 1.0).item()
    finally:
        model.train(training)
    return Evaluation(loss, batch.n_targets)


def evaluate_batches(
    model: TransformerLM, batches: Iterable[Batch], *, objective: Objective = NEXT_TOKEN
) -> Evaluation:
    """The mean over all batches, each weighing as much as what counts in it. Raises DataError where there are none."""
    total, weight, count = 0.0, 0.0, 0
    for batch in batches:
        found, of_batch = evaluate(model, batch, objective=objective), objective.weight(batch)
        total += found.loss * of_batch
        weight += of_batch
        count += found.n_targets
    if not weight:
        raise DataError("evaluate_batches", "nothing to evaluate", expected="at least one batch")
    return Evaluation(total / weight, count)


def evaluate_file(
    model: TransformerLM, tokens: TokenFile, *, sequences: int, seq_len: int, max_batches: int | None = None
) -> Evaluation:
    """The loss over a token file in consecutive windows, each token weighing the same, whatever batch it fell into.

    seq_len: tokens predicted in a window. max_batches: take so many at most, spread evenly over the file, whose
    beginning may be unlike the rest (None: the whole file).
    """
    return evaluate_batches(model, windows(tokens, sequences, seq_len, max_batches))
