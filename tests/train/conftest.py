"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pellucid.device import pool


@pytest.fixture
def thread_counts() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads of the worker pool for one test."""
    before = pool.threads()
    yield pool.set_threads
    pool.set_threads(before)
