"""Packages that only some corpora need: loaded with the first file of their kind, named with the cure where missing.

`pip install 'pellucid[corpus]'` brings them all.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..base.errors import DataError


def optional(module: str, *, package: str, path: str) -> Any:
    """A module of an optional package. Raises DataError, in the name of the file that needs it, if that is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        hint = f"pip install {package}, or pip install 'pellucid[corpus]' for every format"
        raise DataError(path, f"needs the package {package}, which is not installed", hint=hint) from error
