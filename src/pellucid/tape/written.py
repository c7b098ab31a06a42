"""What every Op does alike, written out for each: `apply`, `save` and `release` as Python source.

The loops in `Op.apply` and `Op.save` say what these functions do. An operation on a few numbers costs mostly what is
done around it, and a loop over two inputs costs more than the two lines it stands for; so the names of an Op's inputs,
attributes and saved values become the arguments and lines of functions of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

_APPLY = """
def apply({signature}):
    {first}_array = {first}.array
    device = {first}_array.buffer.device
    wanted = always or {first}.requires_grad
    {others}
    op = cls()
    op.kernels = device.kernels
    op.recording = recording = wanted and (not pauses or state.recording)
    op.inputs = ({inputs},)
    if not traces or state.trace is None:
        out = op.forward({arrays}{passed})
    else:
        out = state.trace.forward(op, [{arrays}], {{{attributes}}})
    if not recording or not out.dtype.is_float:
        return new_tensor(out, False, None, None)
    op.inputs = ({links},)
    op.output_shape = out.shape
    op.sequence = next(sequence)
    return new_tensor(out, True, None, op)
"""
_OTHER = """
    if {x} is None:
        {x}_array = None
    else:
        {x}_array = {x}.array
        if {x}.requires_grad:
            wanted = True
        if {x}_array.buffer.device is not device:
            raise mixed(cls.__name__, device, {x}_array.buffer.device)
"""


def applying(cls: type[Any], forward: Callable[..., Any], scope: dict[str, Any]) -> Callable[..., Any] | None:
    """`apply` for an Op with this forward; None where its arguments are not all known by name.

    scope: what the function refers to: state, traces, pauses, sequence, mixed, new_tensor.
    """
    names: list[str] = []
    attributes: list[str] = []
    defaults: dict[str, Any] = {}
    for p in list(inspect.signature(forward).parameters.values())[1:]:
        if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            names.append(p.name)
        elif p.kind is inspect.Parameter.KEYWORD_ONLY:
            attributes.append(p.name)
        else:
            return None
        if p.default is not inspect.Parameter.empty:
            defaults[p.name] = p.default
    if not names:
        return None

    def declared(name: str) -> str:
        return f"{name}=default_{name}" if name in defaults else name

    def link(x: str) -> str:
        missing = "" if x == names[0] else f"{x} is None or "
        return f"{x} if {missing}{x}.op is None or not {x}.requires_grad else {x}.op"

    source = _APPLY.format(
        signature=", ".join([*map(declared, names), "*", "always=False", *map(declared, attributes)]),
        first=names[0],
        others="".join(_OTHER.format(x=x) for x in names[1:]).strip(),
        inputs=", ".join(names),
        arrays=", ".join(f"{x}_array" for x in names),
        passed="".join(f", {a}={a}" for a in attributes),
        attributes=", ".join(f"{a!r}: {a}" for a in attributes),
        links=", ".join(map(link, names)),
    )
    scope = scope | {f"default_{name}": value for name, value in defaults.items()} | {"cls": cls}
    return _define(source, "apply", cls, scope)


def saving(cls: type[Any], names: tuple[str, ...]) -> Callable[..., None]:
    """`save` for an Op that keeps these values."""
    keep = "".join(f"\n        self.{name} = {name}" for name in names) or "\n        pass"
    star = "".join(f", {name}" for name in ("*", *names)) if names else ""
    return _define(f"def save(self{star}):\n    if self.recording:{keep}\n", "save", cls, {})


def releasing(cls: type[Any], names: tuple[str, ...]) -> Callable[..., None]:
    """`release` for the same."""
    lines = "".join(f"    self.{name} = None\n" for name in names)
    return _define(f"def release(self):\n{lines}    self.inputs, self.released = (), True\n", "release", cls, {})


def _define(source: str, name: str, cls: type[Any], scope: dict[str, Any]) -> Callable[..., Any]:
    # As if it stood in a file of this folder: a trace looks for its caller outside.
    file = Path(__file__).with_name(f"<{name} of {cls.__name__}>")
    exec(compile(source, str(file), "exec"), scope)
    return scope[name]
