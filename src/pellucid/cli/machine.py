"""The options that say what of this machine a command computes on, the same for every command that has them."""

from __future__ import annotations

from typing import Annotated, Protocol

import tyro

from ..base.errors import ConfigError, DeviceError

_THREADS = "Threads of the processor; the results are the same bits with any number of them."
_DEVICE = "Where it is computed: cpu, or reference (NumPy, the definition: exact and very slow)."

Threads = Annotated[
    int | None,
    tyro.conf.DisallowNone,
    tyro.conf.arg(help=_THREADS, help_behavior_hint="(default: PELLUCID_THREADS, or all cores)"),
]
DeviceName = Annotated[str, tyro.conf.arg(help=_DEVICE)]


class Machine(Protocol):
    """Options of a command that computes."""

    @property
    def threads(self) -> int | None: ...
    @property
    def device(self) -> str: ...


def use_machine(options: Machine) -> None:
    """Makes this process compute with so many threads. Raises ConfigError for a number that can't be, and for a device
    that is not there."""
    from ..device import device, pool  # brings the kernels, which --help has no use for

    try:
        device(options.device)
    except DeviceError as error:
        raise ConfigError("--device", error.what, got=error.got, expected=error.expected, hint=error.hint) from None
    if options.threads is None:
        return
    if not 1 <= options.threads <= 1024:
        raise ConfigError("--threads", "not a thread count", got=options.threads, expected="1 to 1024")
    pool.set_threads(options.threads)
