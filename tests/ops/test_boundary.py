"""Operations and everything above them compute through kernels and never touch memory: read from the source.

The few functions where numbers come to the host on purpose are named here, with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from repo.source import Module, modules

_ABOVE = ("ops", "nn", "optim", "models")
_CALLS = ("numpy", "view", "host", "download", "item", "tolist", "adopt", "synchronize")
_READS = ("address", "memory")

#: (module, function): what it may call.
_BOUNDARIES = {
    ("pellucid.models.placed", "checked_ids"): {"download"},  # ids are checked against the vocabulary
    ("pellucid.models.routing", "of"): {"download"},  # loads and losses for the metrics, where somebody asks
    ("pellucid.nn.held", "_is_true"): {"item"},  # weights are looked at once, before they are held
    ("pellucid.ops.create", "tensor"): {"download"},  # a copy of a tensor from any device
    ("pellucid.ops.create", "from_numpy"): {"adopt"},  # shares memory by intent
    ("pellucid.ops.common", "scalar"): {"item"},  # of a NumPy number, never of a tensor
}


def _touches(module: Module) -> Iterator[tuple[str, str, int]]:
    """(function, what, line) of every call or attribute that reaches for memory."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str, int]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            if isinstance(child, ast.Call):
                called = child.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name in _CALLS:
                    yield inside, name, child.lineno
            if isinstance(child, ast.Attribute) and child.attr in _READS:
                yield inside, child.attr, child.lineno
            if isinstance(child, ast.ImportFrom) and any(a.name == "view" for a in child.names):
                yield inside, "view", child.lineno
            yield from walk(child, inside)

    yield from walk(module.tree, "")


def _found() -> dict[tuple[str, str], set[str]]:
    """What each function above the kernels touches."""
    found: dict[tuple[str, str], set[str]] = {}
    for module in modules().values():
        if module.layer in _ABOVE:
            for function, what, _ in _touches(module):
                found.setdefault((module.name, function), set()).add(what)
    return found


def test_no_memory_is_touched_above_the_kernels() -> None:
    assert _found() == _BOUNDARIES


def test_the_check_sees_what_it_should() -> None:
    """On the layers below, which do touch memory, it finds them."""
    below = {what for m in modules().values() if m.layer in ("tape", "device", "kernels") for _, what, _ in _touches(m)}
    assert below >= {"view", "host", "download", "item", "address", "memory", "synchronize"}
