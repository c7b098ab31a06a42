"""Optimizers: what they share, SGD and AdamW; one kernel call for all parameters alike, state in named tensors.

A step reads the learning rate anew, so a schedule is one assignment (`optimizer.learning_rate = schedule.rate(step)`)
and betas, eps and decay stay as they are. Clipping is two steps that never wait for the device: the global norm of the
gradients, and a scale the update kernel multiplies each gradient with. Weight decay applies to parameters whose
`decay` is set: by default matrices and tables, not norms and biases. A `Group` changes rate or decay by name.
Parameters that require no gradient are frozen: they have no state and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import CheckpointError, ConfigError
from ..device import Array
from ..ops import zeros
from ..tape import Parameter, Tensor, constant


def clip_scale(parameters: Iterable[Parameter], max_norm: float | None) -> tuple[Tensor, Tensor]:
    """(norm, scale): norm = (sum of every squared gradient element)**0.5; scale = max_norm / norm where norm is larger,
    else exactly 1. Both stay on the device, shape (). Raises ConfigError if max_norm is not positive or nothing has a
    gradient."""
    if max_norm is not None and not max_norm > 0:
        raise ConfigError("clip", "the largest norm must be positive", got=max_norm, hint="None switches clipping off")
    gradients: list[Array] = []
    for p in parameters:
        if p.grad is not None:
            gradients.append(p.grad.array)
    if not gradients:
        raise _without_gradients()
    kernels = gradients[0].device.kernels
    norm = kernels.global_norm(gradients)
    scale = kernels.clip_scale(norm, max_norm=float("inf") if max_norm is None else max_norm)
    return Tensor(norm), Tensor(scale)


def _without_gradients() -> ConfigError:
    return ConfigError("step", "no parameter has a gradient", hint="call backward() first")


@dataclass(frozen=True)
class Group:
    """Parameters whose name matches a shell pattern ("*.bias", "model.embed_*"), trained differently.

    weight_decay: in place of the optimizer's, None keeps it; learning_rate_scale: multiplies the learning rate.
    """

    pattern: str
    weight_decay: float | None = None
    learning_rate_scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Group:
        """The group that a text like "model.embed_*:rate=0.1,decay=0" describes. Raises ConfigError for another."""
        pattern, _, options = text.rpartition(":")
        found: dict[str, float] = {}
        for part in options.split(","):
            name, _, value = part.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if not pattern or name not in ("rate", "decay") or name in found or not 0 <= number < float("inf"):
                expected = "PATTERN:rate=FACTOR,decay=NUMBER, one of the two or both, from 0 on"
                raise ConfigError("groups", "not a group of parameters", got=repr(text), expected=expected)
            found[name] = number
        return cls(pattern, found.get("decay"), found.get("rate", 1.0))


def matching(pattern: str, names: Iterable[str], *, where: str, what: str) -> list[str]:
    """The names a shell pattern matches. Raises ConfigError, in the name of `where`, if there are none."""
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        hint = 'names are like "model.layers.0.self_attn.q_proj.weight"'
        raise ConfigError(where, f"{what} matches no parameter", got=repr(pattern), hint=hint)
    return found


@dataclass(slots=True)
class _Alike:
    """Parameters that one kernel call updates: the name of the first, the dtype of their gradients, whether they decay,
    their weights, and the Arrays of each slot of their state."""

    name: str
    grad_dtype: DType
    decays: bool
    parameters: list[Parameter]
    weights: list[Array]
    state: list[list[Array]]


class Optimizer:
    """What all share: parameters by name, the step count, clipping, state for checkpoints."""

    slots: tuple[str, ...] = ()

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        learning_rate: float,
        weight_decay: float,
        groups: Sequence[Group] = (),
    ) -> None:
        given = dict(named_parameters)
        self.parameters = {name: p for name, p in given.items() if p.requires_grad}
        where = type(self).__name__
        if not self.parameters:
            raise ConfigError(where, "nothing to optimise", got="every parameter frozen" if given else None)
        for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ConfigError(where, f"{name} is negative", got=value)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.steps = 0
        self.state: dict[str, Tensor] = {}
        self.groups: dict[str, Group] = {}
        for group in groups:
            for name in matching(group.pattern, given, where=where, what="a group"):
                self.groups.setdefault(name, group)  # the first match counts
        self.kept_rows: dict[str, int] = {}
        self._alike: list[_Alike] = []  # as they were at the last step: sorting them takes longer than updating a few
        self._idle: list[Parameter] = []
        self._keys = {
            name: tuple(f"{name}.{slot}" for slot in self.slots_of(name, p)) for name, p in self.parameters.items()
        }
        # one slot after the other: a kernel walks over the same slot of all parameters
        for slot in range(max(map(len, self._keys.values()))):
            for name, p in self.parameters.items():
                for key in self._keys[name][slot : slot + 1]:
                    self.state[key] = zeros(p.shape, dtype=p.dtype, device=p.device)

    def slots_of(self, name: str, parameter: Parameter) -> tuple[str, ...]:
        """Names of the state tensors one parameter has."""
        return self.slots

    def keep_rows(self, name: str, count: int) -> None:
        """From now on leaves the first `count` rows of a table as they are, bit for bit: `prepare` clears their
        gradient, and nothing of the table decays."""
        rows = self.parameters[name].shape[0]
        if not 0 <= count < rows:
            raise ConfigError("keep_rows", f"not rows of {name}", got=count, expected=f"0 to {rows - 1}")
        self.kept_rows[name] = count
        self._alike = []

    def prepare(self) -> None:
        """Clears the gradients of rows that stay; call it between backward and clipping."""
        for name, count in self.kept_rows.items():
            grad = self.parameters[name].grad
            if grad is not None and count:
                grad.device.kernels.fill_(grad.array.slice(0, 0, count), value=0.0)

    def rate_and_decay(self, name: str, parameter: Parameter) -> tuple[float, float]:
        """The learning rate and weight decay of one parameter at this step."""
        decay = self.weight_decay if parameter.decay and name not in self.kept_rows else 0.0
        group = self.groups.get(name)
        if group is None:
            return self.learning_rate, decay
        rate = self.learning_rate * group.learning_rate_scale
        if group.weight_decay is None or name in self.kept_rows:
            return rate, decay
        return rate, group.weight_decay

    def step(self, *, max_norm: float | None = None) -> Tensor | None:
        """One update from the gradients, which are clipped to `max_norm` first. Returns the norm before clipping, shape
        (), still on the device; None where `max_norm` is None and nothing is clipped. Parameters without a gradient
        stay as they are."""
        if self.kept_rows:
            self.prepare()
        if max_norm is None:
            device = next((p.device for p in self.parameters.values() if p.grad is not None), None)
            if device is None:
                raise _without_gradients()
            self.apply(Tensor(constant(device, 1.0, dtypes.float32)))
            return None
        norm, scale = clip_scale(self.parameters.values(), max_norm)
        self.apply(scale)
        return norm

    def apply(self, scale: Tensor) -> None:
        """One update with every gradient multiplied by `scale`, shape ()."""
        self.steps += 1
        gradients = self._gradients()
        if gradients is None:
            self._alike, self._idle = self._sorted()
            gradients = self._gradients() or []
        for alike, grads in zip(self._alike, gradients, strict=True):
            rate, decay = self.rate_and_decay(alike.name, alike.parameters[0])
            self.update(alike.weights, grads, *alike.state, scale=scale.array, rate=rate, decay=decay)

    def _gradients(self) -> list[list[Array]] | None:
        """The gradients for each of `_alike`; None where parameters are no longer alike as they were."""
        found: list[list[Array]] = []
        for alike in self._alike:
            grads: list[Array] = []
            dtype, decays = alike.grad_dtype, alike.decays
            for p, weight in zip(alike.parameters, alike.weights, strict=True):
                grad = p.grad
                if grad is None or p.array is not weight or p.decay is not decays:
                    return None
                array = grad.array
                if array.dtype is not dtype:
                    return None
                grads.append(array)
            found.append(grads)
        if not found or any(p.grad is not None for p in self._idle):
            return None
        return found

    def _sorted(self) -> tuple[list[_Alike], list[Parameter]]:
        """The parameters with a gradient, together those of one rate, decay, dtypes and slots; and those without."""
        together: dict[tuple[Any, ...], _Alike] = {}
        idle: list[Parameter] = []
        for name, p in self.parameters.items():
            if p.grad is None:
                idle.append(p)
                continue
            keys, dtype = self._keys[name], p.grad.array.dtype
            kind = (id(self.groups.get(name)), name in self.kept_rows, p.decay, p.array.dtype, dtype, len(keys))
            alike = together.get(kind)
            if alike is None:
                alike = together[kind] = _Alike(name, dtype, p.decay, [], [], [[] for _ in keys])
            alike.parameters.append(p)
            alike.weights.append(p.array)
            for slot, key in zip(alike.state, keys, strict=True):
                slot.append(self.state[key].array)
        return list(together.values()), idle

    def update(
        self, weights: list[Array], grads: list[Array], *state: list[Array], scale: Array, rate: float, decay: float
    ) -> None:
        """Applies the rule in place to parameters with this learning rate and decay: the Arrays of the weights, of one
        dtype, of the gradients, of one dtype, and of each slot of the state."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Drops every gradient."""
        for p in self.parameters.values():
            p.grad = None

    def settings(self) -> dict[str, Any]:
        """The numbers a checkpoint keeps beside the state tensors."""
        return {
            "kind": type(self).__name__,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
        }

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Takes the numbers of `settings()` back. Raises CheckpointError for those of another kind of optimizer."""
        mine = self.settings()
        if settings.get("kind") != mine["kind"] or set(settings) != set(mine):
            raise CheckpointError(
                "optimizer", "state of another optimizer", got=settings.get("kind"), expected=mine["kind"]
            )
        for name, value in settings.items():
            if name != "kind":
                setattr(self, name, value)
        self._alike = []


class SGD(Optimizer):
    """Stochastic gradient descent with momentum   (Sutskever et al. 2013).

    g = grad + weight_decay w;  u = momentum u + g;  w -= lr u, or lr (g + momentum u) with `nesterov`.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        learning_rate: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Sequence[Group] = (),
    ) -> None:
        if not 0 <= momentum < 1:
            raise ConfigError("SGD", "momentum out of range", got=momentum, expected="0 <= momentum < 1")
        if nesterov and momentum == 0:
            raise ConfigError("SGD", "Nesterov's method needs momentum", got="momentum 0")
        self.slots = ("velocity",) if momentum > 0 else ()
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(named_parameters, learning_rate=learning_rate, weight_decay=weight_decay, groups=groups)

    def update(
        self, weights: list[Array], grads: list[Array], *state: list[Array], scale: Array, rate: float, decay: float
    ) -> None:
        scale.device.kernels.sgd_(
            weights,
            grads,
            state[0] if state else None,
            scale,
            lr=rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=decay,
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"momentum": self.momentum, "nesterov": self.nesterov}


class AdamW(Optimizer):
    """Adam with decoupled weight decay   (Loshchilov & Hutter 2017); see the kernel `adamw_` for the equations."""

    slots = ("first", "second")

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        learning_rate: float = 3e-4,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        groups: Sequence[Group] = (),
    ) -> None:
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and eps > 0):
            raise ConfigError(
                "AdamW",
                "constants out of range",
                got=f"beta1 {beta1}, beta2 {beta2}, eps {eps}",
                expected="0 <= beta < 1, eps > 0",
            )
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        super().__init__(named_parameters, learning_rate=learning_rate, weight_decay=weight_decay, groups=groups)

    def update(
        self, weights: list[Array], grads: list[Array], *state: list[Array], scale: Array, rate: float, decay: float
    ) -> None:
        first, second = state
        scale.buffer.device.kernels.adamw_(
            weights,
            grads,
            first,
            second,
            scale,
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=decay,
            step=self.steps,
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps}
