"""Command lines to frozen dataclasses: tyro does the work, this module turns its refusals into one plain line."""

from __future__ import annotations

import dataclasses
import difflib
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from ..base.errors import ConfigError

T = TypeVar("T")

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A switch that is off unless given."""


def told(default: str, metavar: str | None = None) -> Any:
    """How --help speaks of an option whose default is no constant."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


_EMPTY = "\ue000"  # stands for an argument that is empty
_FRAME = "╭╮╰╯│─ "


def parse(cls: type[T], arguments: Sequence[str], *, command: str, help: str, default: T | None = None) -> T:
    """The options in `arguments`. `help` opens the text of --help, `default` holds defaults other than the class's.

    Raises:
        ConfigError: an unknown option, or a value that can't be one.
        SystemExit: --help was asked for and has been printed.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    refusal = io.StringIO()
    try:
        with redirect_stderr(refusal):
            found = tyro.cli(
                cls,
                prog=f"pellucid {command}",
                description=help,
                args=_marked(arguments),
                **options,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise _error(refusal.getvalue(), cls, command) from None
    return _checked(found)


def pick(cls: type[T], arguments: Sequence[str], *, command: str) -> T:
    """The options `cls` knows, passing over all others and over --help."""
    refusal = io.StringIO()
    try:
        with redirect_stderr(refusal):
            found, _ = tyro.cli(
                cls, prog=f"pellucid {command}", args=_marked(arguments), return_unknown_args=True, add_help=False
            )
    except SystemExit:
        raise _error(refusal.getvalue(), cls, command) from None
    return _checked(found)


def _marked(arguments: Sequence[str]) -> list[str]:
    """The arguments with `_EMPTY` for empty ones: as a Path, nothing at all would be the folder we are in."""
    return [a + _EMPTY if not a or (a.startswith("--") and a.endswith("=")) else a for a in arguments]


def _checked(options: T) -> T:
    """The options with texts as they were given. Raises ConfigError for a path that is empty or no path."""
    given: dict[str, Any] = {}
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        value = getattr(options, field.name)
        several = value if isinstance(value, tuple) else (value,)
        if paths := [path for path in several if isinstance(path, Path)]:
            positional = tyro.conf.Positional in getattr(hints[field.name], "__metadata__", ())
            option = field.name if positional else f"--{field.name.replace('_', '-')}"
            if any(str(path) == _EMPTY for path in paths):
                raise ConfigError(option, "an empty path", hint="name a file or folder; . is the folder you are in")
            if nul := next((path for path in paths if "\0" in str(path)), None):
                raise ConfigError(option, "not a path: it holds a NUL", got=repr(str(nul)))
        elif value == _EMPTY:
            given[field.name] = ""
    return dataclasses.replace(options, **given)  # type: ignore[type-var]


def _error(box: str, cls: type[Any], command: str) -> ConfigError:
    """The refusal tyro printed in a frame, as an error."""
    box = box.replace(_EMPTY, "").replace(ascii(_EMPTY).strip("'"), "")
    lines = [line.strip(_FRAME) for line in box.splitlines()]
    ends = next((i for i, line in enumerate(box.splitlines()) if i and "──" in line), len(lines))
    text = " ".join(lines[1:ends]).strip()
    options = [f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(cls)]
    help = f"pellucid {command} --help explains every option"
    if found := re.match(r"Unrecognized options:\s*(.*)", text):
        given = (found[1] or "''").split(", ")
        option = next((g.split("=")[0] for g in given if g.startswith("-")), None)
        if option is None:
            return ConfigError(given[0], "unexpected argument", hint=help)
        close = difflib.get_close_matches(option, options, n=1)
        return ConfigError(option, "unknown option", hint=f"did you mean {close[0]}?" if close else help)
    if found := re.match(r"Error parsing (\S+): (.*)", text):
        return ConfigError(found[1], _plain(found[2]), hint=help)
    if found := re.match(r"invalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)", text):
        choices = sorted(set(found[3].strip(", ").split(", ")) - {"'None'"})
        return ConfigError(found[2], "not one of the choices", got=found[1], expected=", ".join(choices))
    if found := re.match(r"Missing value for argument '(\S+)'", text):
        return ConfigError(found[1], "no value given", hint=help)
    if text.startswith("Missing from"):
        return ConfigError(lines[2].split(" ")[0], "missing argument", hint=help)
    return ConfigError("options", text or "cannot be understood", hint=help)


def _plain(reason: str) -> str:
    if found := re.search(
        r"(?:invalid literal for int\(\) with base 10|could not convert string to float): (.*)", reason
    ):
        kind = "whole number" if "int()" in reason else "number"
        return f"not a {kind}: {found[1]}"
    if found := re.match(r"no type matching .* could be instantiated from \[(.*?)\]\.", reason):
        return f"not a list of what it takes: {found[1]}"
    return reason
