"""The error tree, and every message of the base layer read whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pellucid.base import dtypes, errors, rng, settings, shapes
from pellucid.base.errors import PellucidError

TREE = """\
PellucidError(Exception)
  CheckpointError(ValueError)
  ConfigError(ValueError)
  DTypeError(TypeError)
  DataError(ValueError)
  DeviceError(RuntimeError)
  GradientError(RuntimeError)
  KernelError(RuntimeError)
  NonFiniteError(ArithmeticError)
  ShapeError(ValueError)
"""

MESSAGES: list[tuple[Callable[[], object], type[PellucidError], str]] = [
    (
        lambda: dtypes.dtype("float31"),
        errors.DTypeError,
        "dtype: unknown element type; got 'float31', expected one of bool, uint8, int8, int16, int32, int64, float16, "
        "bfloat16, float32, float64",
    ),
    (
        lambda: shapes.broadcast((2, 3), (4, 3), where="add"),
        errors.ShapeError,
        "add: shapes do not broadcast; got (2, 3) and (4, 3)",
    ),
    (
        lambda: shapes.axis(2, 2, where="mean"),
        errors.ShapeError,
        "mean: axis out of range; got 2, expected -2 to 1",
    ),
    (
        lambda: shapes.axes((0, -2), 2, where="sum"),
        errors.ShapeError,
        "sum: the same axis twice; got (0, -2)",
    ),
    (
        lambda: shapes.resolve((4, -1), 6),
        errors.ShapeError,
        "reshape: the new shape does not hold the same number of elements; got (4, -1), expected 6 elements",
    ),
    (
        lambda: rng.Generator(-1),
        errors.ConfigError,
        "Generator: seed out of range; got -1, expected 0 to 2**64 - 1",
    ),
    (
        lambda: settings.read({"PELLUCID_THREADS": "many"}),
        errors.ConfigError,
        "PELLUCID_THREADS: not a thread count; got 'many', expected 1 to 1024",
    ),
    (
        lambda: settings.read({"PELLUCID_POISON": "yes"}),
        errors.ConfigError,
        "PELLUCID_POISON: not a switch; got 'yes', expected 0 or 1",
    ),
    (
        lambda: settings.read({"PELLUCID_ISA": "sse"}),
        errors.ConfigError,
        "PELLUCID_ISA: unknown instruction path; got 'sse', expected one of amx, avx512bf16, avx512fma, avx512, "
        "avx2, neon, portable",
    ),
]


def test_tree() -> None:
    lines = ["PellucidError(Exception)"]
    for error in sorted(PellucidError.__subclasses__(), key=lambda c: c.__name__):
        ours, builtin = error.__bases__
        assert ours is PellucidError
        assert error.__subclasses__() == []
        lines.append(f"  {error.__name__}({builtin.__name__})")
    assert "\n".join(lines) + "\n" == TREE


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES, ids=lambda value: str(value)[:40])
def test_message(call: Callable[[], object], error: type[PellucidError], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "where: what"),
        ({"got": 0}, "where: what; got 0"),
        ({"expected": "more"}, "where: what; expected more"),
        ({"hint": "do it"}, "where: what. hint: do it"),
        ({"got": 1, "expected": 2, "hint": "do it"}, "where: what; got 1, expected 2. hint: do it"),
    ],
)
def test_form(facts: dict[str, object], message: str) -> None:
    error = PellucidError("where", "what", **facts)  # type: ignore[arg-type]
    assert str(error) == message
    assert (error.where, error.what) == ("where", "what")
    assert {name: getattr(error, name) for name in facts} == facts


def test_a_long_value_is_cut() -> None:
    found = str(errors.DataError("f.json", "no", got="x" * 3000, expected="y"))
    assert found == f"f.json: no; got {'x' * 500}... (3,000 characters), expected y"
