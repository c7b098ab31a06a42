"""Environment switches: defaults, every accepted form, and that they are read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.base.errors import ConfigError
from pellucid.base.settings import available_cores, read, settings


def test_defaults() -> None:
    defaults = read({})
    assert defaults.threads == available_cores() >= 1
    assert defaults.isa is None
    assert defaults.poison is False
    assert defaults.cache == Path("~/.cache/pellucid").expanduser()


def test_values() -> None:
    given = read({"PELLUCID_THREADS": "3", "PELLUCID_ISA": "portable", "PELLUCID_POISON": "1", "PELLUCID_CACHE": "/c"})
    assert (given.threads, given.isa, given.poison, given.cache) == (3, "portable", True, Path("/c"))


def test_empty_means_unset() -> None:
    assert read({"PELLUCID_THREADS": "", "PELLUCID_ISA": "", "PELLUCID_CACHE": ""}) == read({})


def test_cache_follows_the_desktop_standard() -> None:
    assert read({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/pellucid")


@pytest.mark.parametrize("threads", ["0", "-1", "1025", "2.0", "two", " 2", "²"])
def test_thread_counts_refused(threads: str) -> None:
    with pytest.raises(ConfigError):
        read({"PELLUCID_THREADS": threads})


@pytest.mark.parametrize("threads", ["1", "1024"])
def test_thread_counts_at_the_ends(threads: str) -> None:
    assert read({"PELLUCID_THREADS": threads}).threads == int(threads)


def test_a_home_that_does_not_exist() -> None:
    with pytest.raises(ConfigError) as error:
        read({"PELLUCID_CACHE": "~no-such-user/cache"})
    assert str(error.value) == (
        "PELLUCID_CACHE: no such home folder; got '~no-such-user/cache'. hint: set PELLUCID_CACHE to a folder"
    )


def test_read_once(switches: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    switches(threads=5)
    first = settings()
    assert first.threads == 5
    monkeypatch.setenv("PELLUCID_THREADS", "6")
    assert settings() is first
