"""Losses: mean squared error, cross-entropy in nats, alone and fused with the language-model head, and preferences."""

from __future__ import annotations

from ..base import dtypes, shapes
from ..base.dtypes import DType
from ..base.errors import ConfigError, ShapeError
from ..device import Array
from ..tape import Op, Tensor, is_one
from .common import floats, pair, unbroadcast
from .create import zeros
from .index import _integers
from .reduce import log_softmax
from .shape import concatenate


class CrossEntropy(Op):
    """loss = sum_i weights[i] (lse[i] - logits[i, targets[i]])"""

    saves = ("logits", "targets", "weights", "lse")

    def forward(self, logits: Array, targets: Array, weights: Array) -> Array:
        loss, lse = self.kernels.cross_entropy(logits, targets, weights)
        self.save(logits=logits, targets=targets, weights=weights, lse=lse)
        return loss

    def backward(self, dy: Array) -> dict[str, Array | None]:
        return {"logits": self.kernels.cross_entropy_backward(dy, self.logits, self.targets, self.weights, self.lse)}


class MSELoss(Op):
    """y = mean((x - target)**2).   dx = dy 2 (x - target) / n, dtarget = -dx"""

    saves = ("difference",)

    def forward(self, x: Array, target: Array) -> Array:
        k, self.shapes = self.kernels, (x.shape, target.shape)
        if x.shape != target.shape:
            shape = shapes.broadcast(x.shape, target.shape)
            x, target = x.expand(shape), target.expand(shape)
        loss, difference = k.mse(x, target)
        self.save(difference=difference)
        return loss

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k, (x, target) = self.kernels, self.shapes
        each = k.mse_backward(dy, self.difference)
        return {
            "x": unbroadcast(k, each, x) if self.needs("x") else None,
            "target": unbroadcast(k, k.neg(each), target) if self.needs("target") else None,
        }


class LMHeadLoss(Op):
    """The cross-entropy of x weight^T, a chunk of rows at a time.

    The gradients are made with the loss, where the logits are, and only multiplied by dloss in backward; not even that
    where this is the loss `backward` starts from.
    """

    saves = ("dx", "dweight")

    def forward(self, x: Array, weight: Array, targets: Array, weights: Array, *, operand_dtype: DType | None) -> Array:
        loss, dx, dweight = self.kernels.lm_head_loss(
            x,
            weight,
            targets,
            weights,
            operand_dtype=operand_dtype,
            gradients=self.recording,
            for_weight=self.recording and self.needs("weight"),
        )
        self.save(dx=dx, dweight=dweight)
        return loss

    def backward(self, dy: Array) -> dict[str, Array | None]:
        k = self.kernels
        if is_one(dy):
            return {"x": self.dx, "weight": self.dweight}
        return {
            "x": k.mul(self.dx, dy) if self.needs("x") else None,
            "weight": k.mul(self.dweight, dy) if self.needs("weight") else None,
        }


def cross_entropy(logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """sum_i weights[i] * -ln softmax(logits[i])[targets[i]], nats, shape ().

    logits: (N, V), targets: (N,) integers in 0..V-1, weights: (N,), None for 1 / N each: the mean.
    """
    logits = floats("cross_entropy", logits)
    if logits.ndim != 2:
        raise ShapeError("cross_entropy", "logits have the wrong rank", got=logits.shape, expected="(rows, classes)")
    targets, weights = _rows("cross_entropy", logits, targets, weights)
    return CrossEntropy.apply(logits, targets, weights)


def lm_head_loss(
    x: Tensor, weight: Tensor, targets: Tensor, *, weights: Tensor | None = None, operand_dtype: DType | None = None
) -> Tensor:
    """`cross_entropy(x @ weight^T, targets)` without ever holding all logits.

    x: (N, D) hidden states, weight: (V, D) head; targets and weights as in `cross_entropy`, operand_dtype as in
    `matmul`.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError("lm_head_loss", "head does not fit the states", got=f"x {x.shape}, weight {weight.shape}")
    x, weight = pair("lm_head_loss", x, weight)
    targets, weights = _rows("lm_head_loss", x, targets, weights)
    return LMHeadLoss.apply(x, weight, targets, weights, operand_dtype=operand_dtype)


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """y = mean((x - target)**2), shape (); the two broadcast. Raises ShapeError where they do not, or are empty."""
    x, target = pair("mse_loss", x, target)
    if not x.array.dtype.is_float:  # and so neither is target's
        x, target = floats("mse_loss", x), floats("mse_loss", target)
    shape, other = x.array.shape, target.array.shape
    if 0 in (shape if shape == other else shapes.broadcast(shape, other, where="mse_loss")):
        raise ShapeError("mse_loss", "nothing to average", got=f"{x.shape} and {target.shape}")
    return MSELoss.apply(x, target)


def preference_loss(
    chosen: Tensor, rejected: Tensor, reference: Tensor, *, beta: float, smoothing: float = 0.0
) -> Tensor:
    """Direct preference optimisation: mean over pairs of -(1 - s) ln sigmoid(z) - s ln sigmoid(-z), nats, shape ();
    z = beta ((chosen - rejected) - reference)   (Rafailov et al. 2023; smoothing s: Mitchell 2023).

    chosen, rejected: (N,), ln p of the answers under the model, summed over their tokens. reference: (N,), what chosen
    - rejected is under the model it began as. beta: 0 or more, how dear it is to move away from that model.
    """
    if not chosen.shape == rejected.shape == reference.shape or chosen.ndim != 1 or chosen.shape[0] == 0:
        got = f"{chosen.shape}, {rejected.shape}, {reference.shape}"
        raise ShapeError(
            "preference_loss", "answers and reference do not fit", got=got, expected="(pairs,) three times"
        )
    if not beta >= 0 or not 0 <= smoothing < 0.5:
        got, expected = f"beta {beta}, smoothing {smoothing}", "beta >= 0 and 0 <= smoothing < 0.5"
        raise ConfigError("preference_loss", "a setting is out of range", got=got, expected=expected)
    z = (chosen - rejected - reference) * beta
    # ln sigmoid(z) and ln sigmoid(-z) are the log-softmax of (z, 0), which overflows nowhere.
    nothing = zeros((z.shape[0], 1), dtype=z.dtype, device=z.device)
    logs = log_softmax(concatenate([z.reshape(-1, 1), nothing], axis=1))
    kept = logs[:, 0] * (1 - smoothing)
    return -(kept + logs[:, 1] * smoothing).mean() if smoothing else -kept.mean()


def _rows(name: str, x: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    n = x.shape[0]
    if n == 0:
        raise ShapeError(name, "no rows", got=x.shape)
    if targets.shape != (n,):
        raise ShapeError(name, "targets do not fit the rows", got=targets.shape, expected=(n,))
    if weights is None:
        filled = x.device.empty((n,), dtypes.float32)
        x.device.kernels.fill_(filled, value=1.0 / n)
        weights = Tensor(filled)
    elif weights.shape != (n,):
        raise ShapeError(name, "weights do not fit the rows", got=weights.shape, expected=(n,))
    return _integers(name, targets), weights
