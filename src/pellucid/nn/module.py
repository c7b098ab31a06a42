"""Module: a tree of layers and parameters with names, nothing more.

A module finds its parameters by looking at its own attributes in the order they were assigned, so a layer is a plain
class: assign `Parameter` tensors and other modules to `self`, write `__call__`. Names are the attribute paths joined
by dots, which is how weights are named on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..tape import Parameter
from .held import HeldMatrix, refuse


class Module:
    """Base of all layers and models."""

    training: bool = True

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

    def zero_grad(self) -> None:
        """Drops every gradient."""
        for p in self.parameters():
            p.grad = None

    def train(self, mode: bool = True) -> Module:
        """Switches dropout and the like on (or off, see `eval`) here and below.

        Raises ConfigError for switching on where weights are held for inference.
        """
        if mode:
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
