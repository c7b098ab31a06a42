"""Every environment switch Pellucid reads, typed, in one place. Nothing else in the package reads `os.environ`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """Switches of one process, read once at the first use.

    threads: PELLUCID_THREADS, CPU threads of the worker pool (default: the cores this process may use).
    isa: PELLUCID_ISA, forces a CPU instruction path ("amx", "avx512bf16", "avx512fma", "avx512", "avx2", "neon",
        "portable"); None picks the best.
    poison: PELLUCID_POISON=1 fills every fresh buffer with NaN bytes, so that reading unwritten memory shows.
    replay: PELLUCID_REPLAY=0 runs the Python of every training step, also where its launches could be replayed.
    cache: PELLUCID_CACHE, folder for compiled kernels (default ~/.cache/pellucid).
    """

    threads: int
    isa: str | None
    poison: bool
    replay: bool
    cache: Path


def available_cores() -> int:
    """CPU cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read(environ: dict[str, str] | None = None) -> Settings:
    """Settings from the environment. Raises ConfigError for a value that can't be used."""
    env = dict(os.environ) if environ is None else environ
    threads = available_cores()
    if text := env.get("PELLUCID_THREADS"):
        if not text.isdecimal() or not text.isascii() or not 1 <= int(text) <= 1024:
            raise ConfigError("PELLUCID_THREADS", "not a thread count", got=repr(text), expected="1 to 1024")
        threads = int(text)
    poison, replay = (_switch(env, f"PELLUCID_{name}", default) for name, default in (("POISON", "0"), ("REPLAY", "1")))
    isas = ("amx", "avx512bf16", "avx512fma", "avx512", "avx2", "neon", "portable")
    isa = env.get("PELLUCID_ISA") or None
    if isa is not None and isa not in isas:
        raise ConfigError(
            "PELLUCID_ISA", "unknown instruction path", got=repr(isa), expected=f"one of {', '.join(isas)}"
        )
    home = env.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(env.get("PELLUCID_CACHE") or Path(home) / "pellucid")
    try:
        cache = cache.expanduser()
    except RuntimeError:
        hint = "set PELLUCID_CACHE to a folder"
        raise ConfigError("PELLUCID_CACHE", "no such home folder", got=repr(str(cache)), hint=hint) from None
    return Settings(threads=threads, isa=isa, poison=poison, replay=replay, cache=cache)


def _switch(env: dict[str, str], name: str, default: str) -> bool:
    text = env.get(name, default)
    if text not in ("0", "1"):
        raise ConfigError(name, "not a switch", got=repr(text), expected="0 or 1")
    return text == "1"


_current: Settings | None = None


def settings() -> Settings:
    """The settings of this process."""
    global _current
    if _current is None:
        _current = read()
    return _current
