"""Module: a tree of layers and parameters with names, nothing more.

A module finds its parameters by looking at its own attributes in the order they were assigned, so a layer is a plain
class: assign `Parameter` tensors and other modules to `self`, write `__call__`. Names are the attribute paths joined
by dots, which is how weights are named on disk.

Every assignment leaves a new `Module.latest_change`: what was worked out from the attributes of modules, and is too
slow to look up each time, holds as long as that is the same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from ..tape import Parameter
from .held import HeldMatrix, refuse

if TYPE_CHECKING:
    from .lora import Adapters


class Module:
    """Base of all layers and models."""

    training: bool = True
    adapters: Adapters | None = None  # of the model as a whole, see `add_lora`
    latest_change: ClassVar[object] = object()  # of an attribute of any module

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        Module.latest_change = object()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        Module.latest_change = object()

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names; those in a list or tuple are numbered."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        yield f"{name}.{i}", item

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its dotted name; a parameter reached twice (tied) keeps its first name.

        Raises ConfigError where weights are held for inference: there are no parameters any more.
        """
        seen: set[int] = set()
        for name, parameter in self._walk(prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
            elif isinstance(value, HeldMatrix):
                refuse("parameters", value.dtype)
        for name, child in self.children():
            yield from child._walk(f"{prefix}{name}.")

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [p for _, p in self.named_parameters()]

    def named_trained(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """The parameters that are trained, once each: those not frozen. There may be some beside weights that are held
        (adapters)."""
        seen: set[int] = set()
        for name, value in vars(self).items():
            if isinstance(value, Parameter) and value.requires_grad and id(value) not in seen:
                seen.add(id(value))
                yield prefix + name, value
        for name, child in self.children():
            for full, parameter in child.named_trained(f"{prefix}{name}."):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield full, parameter

    def trainable_parameters(self) -> int:
        """How many numbers are trained: those of parameters that are not frozen."""
        return sum(p.size for _, p in self.named_trained())

    def freeze(self) -> None:
        """Parameters here and below are no longer trained: no gradient is made for them, an optimizer keeps no moments
        of them, and a step leaves them as they are, bit for bit. `requires_grad` of a parameter says which it is."""
        for p in self._every():
            p.requires_grad, p.grad = False, None

    def unfreeze(self) -> None:
        """Parameters here and below are trained again."""
        for p in self._every():
            p.requires_grad = True

    def _every(self) -> Iterator[Parameter]:
        """Every parameter, whether beside held weights or not; a tied one more than once."""
        for value in vars(self).values():
            if isinstance(value, Parameter):
                yield value
        for _, child in self.children():
            yield from child._every()

    def zero_grad(self) -> None:
        """Drops every gradient."""
        for p in self._every():
            p.grad = None

    def train(self, mode: bool = True) -> Module:
        """Switches dropout and the like on (or off, see `eval`) here and below.

        Raises ConfigError for switching on where weights are held for inference and nothing beside them is trained.
        """
        if mode and next(self.named_trained(), None) is None:
            self._refuse_if_held("train")
        self._switch(mode)
        return self

    def _switch(self, mode: bool) -> None:
        self.training = mode
        for _, child in self.children():
            child._switch(mode)

    def _refuse_if_held(self, where: str) -> None:
        for value in vars(self).values():
            if isinstance(value, HeldMatrix):
                refuse(where, value.dtype)
        for _, child in self.children():
            child._refuse_if_held(where)

    def eval(self) -> Module:
        """Switches dropout and the like off here and below."""
        return self.train(False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for name, value in vars(self).items():
            if isinstance(value, Parameter | HeldMatrix):
                lines.append(f"  {name}: {value.shape} {value.dtype.name}")
        for name, child in self.children():
            lines.append(f"  {name}: " + repr(child).replace("\n", "\n  "))
        return "\n".join([*lines, ")"]) if len(lines) > 1 else f"{type(self).__name__}()"
