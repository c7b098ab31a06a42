"""Operators and methods of Tensor: the table, the declarations for type checkers and the class say the same."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid import ops
from pellucid.base.errors import DTypeError, ShapeError
from pellucid.device import reference
from pellucid.ops.bind import METHODS
from pellucid.tape import Tensor
from pellucid.tape import tensor as tensor_module


def _declared() -> dict[str, ast.FunctionDef]:
    """The methods under TYPE_CHECKING in the class Tensor."""
    tree = ast.parse(Path(tensor_module.__file__).read_text(encoding="utf-8"))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Tensor").body
    blocks = [n for n in body if isinstance(n, ast.If) and isinstance(n.test, ast.Name)]
    return {f.name: f for block in blocks for f in block.body if isinstance(f, ast.FunctionDef)}


def test_table_and_declarations_agree() -> None:
    declared = _declared()
    assert sorted(METHODS) == sorted(declared)
    for name, function in METHODS.items():
        assert name in vars(Tensor)
        if name.startswith("__") or isinstance(function, property):
            continue
        wanted = list(inspect.signature(function).parameters.values())[1:]
        arguments = declared[name].args
        assert [p.name for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD] == [a.arg for a in arguments.args[1:]], (
            name
        )
        assert [p.name for p in wanted if p.kind is p.KEYWORD_ONLY] == [a.arg for a in arguments.kwonlyargs], name
        assert [p.kind is p.VAR_POSITIONAL for p in wanted].count(True) == (arguments.vararg is not None), name
        defaults = [p.default for p in wanted if p.default is not p.empty]
        found = [d for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None]
        assert defaults == [ast.literal_eval(d) for d in found], name


def test_functions_are_exported() -> None:
    public = {name: getattr(ops, name) for name in ops.__all__}
    for name, function in METHODS.items():
        if name in public:
            assert public[name] is function, name


_BINARY: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@pytest.mark.parametrize("operator", _BINARY)
def test_operators_with_tensors_numbers_and_arrays(operator: str) -> None:
    function, host = _BINARY[operator], np.array([1.0, 2.0, 3.0])
    x = ops.tensor(host, device=reference)
    for other in (2, 2.5, np.float64(2.0), np.array([3.0, 2.0, 1.0])):
        np.testing.assert_allclose(function(x, other).numpy(), function(host, other), rtol=1e-15)
        np.testing.assert_allclose(function(other, x).numpy(), function(other, host), rtol=1e-15)
    np.testing.assert_allclose(function(x, x).numpy(), function(host, host), rtol=1e-15)


def test_numbers_never_widen() -> None:
    x = ops.tensor([1.0], dtype="bfloat16", device=reference)
    assert (x * 2.5).dtype.name == "bfloat16"
    assert (ops.tensor([1], dtype="int8", device=reference) + 1).dtype.name == "int8"
    assert (ops.tensor([1], device=reference) + 0.5).dtype.name == "float32"


def test_iteration_and_length() -> None:
    x = ops.tensor([[1, 2], [3, 4]], device=reference)
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    with pytest.raises(ShapeError) as caught:
        list(ops.tensor(1, device=reference))
    assert str(caught.value) == "iteration: a tensor of shape () can't be iterated over"


def test_strangers_are_refused() -> None:
    x = ops.tensor([1.0], device=reference)
    with pytest.raises(DTypeError) as caught:
        x + "1"
    assert str(caught.value) == "add: not a tensor or a number; got str. hint: make it one with tensor()"
    assert hash(x) != hash(ops.tensor([1.0], device=reference))


def test_dlpack_methods() -> None:
    x = ops.tensor([1.0, 2.0], device="cpu")
    assert x.__dlpack_device__() == (1, 0)
    found = np.from_dlpack(x)
    found[0] = 5.0
    assert x.tolist() == [5.0, 2.0]
