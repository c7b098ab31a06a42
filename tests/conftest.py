"""What all tests share: the environment they run in, and the folder of real data.

The environment is set before the library first reads it, so that in every test, and in every process a test starts,
fresh memory reads as NaN, compiled kernels lie beside the checkout instead of in the user's cache, and plots need no
screen. A variable that is already set stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

os.environ.setdefault("PELLUCID_POISON", "1")
os.environ.setdefault("PELLUCID_CACHE", str(REPOSITORY / ".make" / "kernels"))
os.environ.setdefault("MPLBACKEND", "Agg")

from pellucid.base import settings  # noqa: E402 - the switches above come first


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def corpus_folder() -> Path:
    """The folder of real data: PELLUCID_DATA, else ../shared/data beside the checkout. Skips where there is none."""
    named = os.environ.get("PELLUCID_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            pytest.fail(f"PELLUCID_DATA names no folder: {named}")
        pytest.skip("no real data: set PELLUCID_DATA, or put the files into ../shared/data beside the checkout")
    return folder


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets environment switches for one test: `switches(threads=2, isa=None)`, None unsets. They are read anew."""

    def set_switches(**values: object) -> None:
        for name, value in values.items():
            variable = f"PELLUCID_{name.upper()}"
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, str(value))
        monkeypatch.setattr(settings, "_current", None)

    return set_switches
