"""Frozen dataclasses as configuration: to plain values and back, refusing what they do not know."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON-able values, nested ones too."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def from_dict(cls: type[T], values: Mapping[str, Any], *, where: str | None = None) -> T:
    """A dataclass from plain values. Raises ConfigError for an unknown key, a missing one, or one of the wrong type."""
    where = where or cls.__name__
    if not isinstance(values, Mapping):
        raise ConfigError(where, "not a table of keys and values", got=type(values).__name__)
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(fields)}"
            raise ConfigError(where, "unknown key", got=repr(key), hint=hint)
    found: dict[str, Any] = {}
    for name, f in fields.items():
        if name in values:
            found[name] = _typed(values[name], hints[name], f"{where}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(where, "a key is missing", expected=repr(name))
    return cls(**found)


def _typed(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        options = [a for a in arguments if a is not type(None)]
        for option in options:
            if _fits(value, option):
                return _typed(value, option, where)
        return _typed(value, options[0], where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(
                where, "not one of the choices", got=repr(value), expected=", ".join(map(repr, arguments))
            )
        return value
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=where)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(where, "wrong type", got=repr(value), expected="a list")
        inner = arguments[0]
        return tuple(_typed(v, inner, where) for v in value)
    if not _fits(value, hint):
        raise ConfigError(where, "wrong type", got=repr(value), expected=getattr(hint, "__name__", str(hint)))
    return float(value) if hint is float else hint(value) if hint not in (bool, int, str) else value


def _fits(value: Any, hint: Any) -> bool:
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if typing.get_origin(hint) is not None or dataclasses.is_dataclass(hint):
        return True
    return isinstance(value, (hint, str)) if isinstance(hint, type) else True
