"""LoRA: a model adapted by small changes of its projections, while its own weights stay as they are   (Hu et al. 2021).

Every adapted projection gets a `LowRank` pair, y = x W^T + alpha / rank (x A^T) B^T, and everything else is frozen: no
gradient, no moments, not a bit moved. One base can carry several adapters, of which one at most is active; what a layer
runs is its attribute `adapter`. The base may be held in int8 or bfloat16 (Dettmers et al. 2023): adapters are trained
through it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..base.errors import ConfigError
from ..base.rng import Generator
from ..tape import Parameter
from .held import HeldMatrix
from .layers import Linear
from .low_rank import LowRank
from .module import Module

#: The projections of attention and feed-forward layers, by the last part of their names.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc_in", "fc_out")


@dataclass(frozen=True)
class LoraConfig:
    """rank: of each change. alpha: the change is alpha / rank times B A; None for alpha = rank. targets: which
    projections, of `PROJECTIONS`; None for all there are, experts and shared experts included, routers never. seed: of
    the first A; says nothing about an adapter that was trained.

    Raises ConfigError for numbers and names that make no adapter.
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        where = "LoraConfig"
        if self.rank < 1:
            raise ConfigError(where, "rank must be at least 1", got=self.rank, hint="usual ranks are 4 to 64")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise ConfigError(where, "alpha must be positive", got=self.alpha, hint="None is the rank")
        if self.targets is not None:
            names = tuple(dict.fromkeys(self.targets))
            unknown = [name for name in names if name not in PROJECTIONS]
            if unknown or not names:
                got = repr(unknown[0]) if unknown else "none"
                raise ConfigError(where, "not a projection to adapt", got=got, expected=f"of {', '.join(PROJECTIONS)}")
            object.__setattr__(self, "targets", names)
        if not 0 <= self.seed < 2**64:
            raise ConfigError(where, "seed out of range", got=self.seed, expected="0 to 2**64 - 1")

    @property
    def scale(self) -> float:
        """What B A is multiplied by: alpha / rank."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


@dataclass
class Adapters:
    """The adapters of a model, in its attribute `adapters`: configurations and pairs by name, the pairs by the name of
    their layer; which one is active; the parameters that were trained before the first came; the name of the base."""

    configs: dict[str, LoraConfig] = field(default_factory=dict)
    pairs: dict[str, dict[str, LowRank]] = field(default_factory=dict)
    active: str | None = None
    trained: list[Parameter] = field(default_factory=list)
    base: str | None = None
    fingerprint: str | None = None  # of the base, once somebody asked

    def named(self, where: str, name: str | None = None) -> str:
        """A name that there is, the active one for None. Raises ConfigError."""
        if name is None and self.active is None:
            raise ConfigError(where, "no adapter is active", expected=_listed(self), hint="set_adapter switches one on")
        if name is not None and name not in self.pairs:
            raise ConfigError(where, "no adapter of that name", got=repr(name), expected=_listed(self))
        return name or self.active or ""


def add_lora(model: Module, config: LoraConfig, *, name: str = "default", base: str | None = None) -> None:
    """Attaches a new adapter, which is the active one from then on, and freezes everything else.

    base: the path the model was opened from; checkpoints and saved adapters name it. The adapter starts at zero: the
    model predicts exactly what it did. Raises ConfigError for a name that is taken and for a model without such
    projections; the model stays as it was.
    """
    where = "add_lora"
    if not name or "." in name:
        raise ConfigError(where, "not a name for an adapter", got=repr(name), expected="some characters without a dot")
    if model.adapters is not None and name in model.adapters.pairs:
        hint = "unload_lora removes it; another name= keeps both"
        raise ConfigError(where, "an adapter of that name is attached", got=repr(name), hint=hint)
    layers = adaptable(model, config.targets)
    generator = Generator(config.seed)
    pairs = {}
    for path, layer in layers.items():
        outputs, inputs = layer.weight.shape
        how = {"scale": config.scale, "generator": generator, "device": layer.weight.device}
        pairs[path] = LowRank(inputs, outputs, config.rank, **how)
    if model.adapters is None:
        model.adapters = Adapters(trained=[p for _, p in model.named_trained()])
        model.freeze()
    found = tuple(t for t in PROJECTIONS if any(_last(path) == t for path in layers))
    model.adapters.base = base or model.adapters.base
    model.adapters.configs[name] = replace(config, targets=found)
    model.adapters.pairs[name] = pairs
    set_adapter(model, name)


def adaptable(model: Module, targets: tuple[str, ...] | None = None) -> dict[str, Linear]:
    """The layers by name that an adapter of these targets changes. Raises ConfigError where there are none for one."""
    every = {path: layer for path, layer in _linears(model) if _last(path) in PROJECTIONS}
    present = [t for t in PROJECTIONS if any(_last(path) == t for path in every)]
    if not present:
        raise ConfigError("add_lora", "nothing to adapt: the model has no projection", expected=", ".join(PROJECTIONS))
    for target in targets or ():
        if target not in present:
            expected = f"of {', '.join(present)}"
            raise ConfigError("add_lora", "the model has no such projection", got=repr(target), expected=expected)
    return {path: layer for path, layer in every.items() if targets is None or _last(path) in targets}


def set_adapter(model: Module, name: str | None) -> None:
    """Makes one adapter of the model the active one; None switches all off, which leaves the base. Raises ConfigError
    for a name there is not."""
    adapters = _adapters("set_adapter", model)
    if name is not None:
        adapters.named("set_adapter", name)
    pairs = {} if name is None else adapters.pairs[name]
    for path, layer in _linears(model):
        layer.adapter = pairs.get(path)
    adapters.active = name


def merge_lora(model: Module) -> None:
    """Adds the active adapter's changes to the weights, W + alpha / rank B A, and lets go of it; what was trained
    before the adapter came is trained again. Predictions are the same to rounding, at the cost of the base alone.

    Raises ConfigError where no adapter is active, others are attached too (they are changes of the base that was), or
    the weights are held; the model stays as it was.
    """
    adapters = _adapters("merge_lora", model)
    name = adapters.named("merge_lora")
    if others := sorted(set(adapters.pairs) - {name}):
        hint = "unload_lora removes them; load them into the base they were trained on"
        what = "other adapters are attached, which are changes of the base as it is"
        raise ConfigError("merge_lora", what, got=", ".join(map(repr, others)), hint=hint)
    layers = dict(_linears(model))
    for path in adapters.pairs[name]:
        if isinstance(weight := layers[path].weight, HeldMatrix):
            what = f"the weights are held in {weight.dtype.name}, and a merged one would be rounded to it"
            hint = "save the adapter, load it into the float32 base and merge there"
            raise ConfigError("merge_lora", what, hint=hint)
    for path, pair in adapters.pairs[name].items():
        weight = layers[path].weight.array  # type: ignore[union-attr]
        kernels = weight.device.kernels
        change = pair.change().detach().array
        kernels.assign_(weight, kernels.matmul(change, pair.A.array, weight, operand_dtype=None, result_dtype=None))
    _let_go(model, adapters)


def unload_lora(model: Module, name: str | None = None) -> None:
    """Removes one adapter, or all for None; the base is as it was. Without any, what was trained before is trained
    again. Raises ConfigError for a name there is not."""
    adapters = _adapters("unload_lora", model)
    if name is not None:
        del adapters.configs[name := adapters.named("unload_lora", name)], adapters.pairs[name]
        if adapters.active == name:
            set_adapter(model, None)
    if name is None or not adapters.pairs:
        _let_go(model, adapters)


def refuse_adapters(where: str, model: Module) -> None:
    """For what can't hold adapters beside the weights (an export, say). Raises ConfigError where there are some."""
    if model.adapters is not None:
        hint = "merge_lora folds an adapter in, unload_lora removes it, save_lora writes it alone"
        raise ConfigError(where, "adapters are attached to the model", got=_listed(model.adapters), hint=hint)


def _let_go(model: Module, adapters: Adapters) -> None:
    set_adapter(model, None)
    model.adapters = None
    for p in adapters.trained:
        p.requires_grad = True


def _adapters(where: str, model: Module) -> Adapters:
    if model.adapters is None:
        raise ConfigError(where, "the model has no adapter", hint="add_lora attaches one")
    return model.adapters


def _listed(adapters: Adapters) -> str:
    return ", ".join(map(repr, adapters.pairs))


def _linears(module: Module, prefix: str = "") -> Iterator[tuple[str, Linear]]:
    """Every linear map of a model by its name."""
    for name, child in module.children():
        if isinstance(child, Linear):
            yield prefix + name, child
        else:
            yield from _linears(child, f"{prefix}{name}.")


def _last(path: str) -> str:
    return path.rpartition(".")[2]
