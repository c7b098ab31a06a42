"""`--check` of `pellucid train`, `sft` and `dpo`, and what a long run begins with: the findings as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ..base.errors import ConfigError
from ..models import TransformerConfig
from ..train import TrainConfig
from ..train.readiness import Finding, Plan, inspect
from .output import Output, note
from .runs import HOME, new_folder
from .session import peak_of

LONG = 600.0
"""Seconds that a run has to take, at the speed of this machine, to be checked first."""


class Checking(Protocol):
    """Options that say whether a run is looked at first, and where it goes."""

    @property
    def out(self) -> Path | None: ...
    @property
    def check(self) -> bool: ...
    @property
    def no_check(self) -> bool: ...


def refuse_both(options: Checking) -> None:
    """Raises ConfigError for --check with --no-check."""
    if options.check and options.no_check:
        raise ConfigError("--check", "cannot be combined with --no-check", hint="leave one of them out")


@contextmanager
def run_folder(options: Checking, name: str) -> Iterator[Path]:
    """The folder of the run; with --check one that goes again, on the disk the run would be on."""
    if not options.check:
        with new_folder(options.out, name) as folder:
            yield folder
        return
    home = (options.out or HOME).resolve()
    while not home.is_dir():
        home = home.parent
    with TemporaryDirectory(prefix=".pellucid-check-", dir=home) as folder:
        yield Path(folder)


def only_checked(
    options: Checking, out: Output, model: TransformerConfig, train: TrainConfig, plan: Callable[[], Plan]
) -> bool:
    """Looks at the run where that is asked for or it is long, and says whether it was all that was asked for (--check),
    with the findings as the result. Raises ConfigError where one is an error."""
    if options.no_check or not (options.check or is_long(model, train, peak_of(model))):
        return False
    found = check_run(plan())
    if options.check:
        out.result({"check": check_json(found)})
    return options.check


def is_long(model: TransformerConfig, train: TrainConfig, peak: float) -> bool:
    """Whether a run takes longer than LONG even at `peak` FLOP/s, which none reaches."""
    tokens = train.steps * train.step_sequences * train.seq_len
    return tokens * model.flops_per_token(train.seq_len) / peak > LONG


def check_run(plan: Plan) -> list[Finding]:
    """Runs the check, telling each finding on stderr, with its cure where there is something to cure.

    Raises ConfigError where one is an error.
    """
    note("checking whether the run is worth starting")
    found = []
    for finding in inspect(plan):
        found.append(finding)
        mark = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}[finding.level]
        note(f"  {finding.name:<11} {mark:<8} {finding.value}" + (f" -- {finding.cure}" if finding.cure else ""))
    if wrong := [f for f in found if f.level == "error"]:
        what = f"not worth starting: {', '.join(f.name for f in wrong)}"
        hint = wrong[0].cure if len(wrong) == 1 else "see the lines above"
        raise ConfigError("check", what, got=wrong[0].value, hint=f"{hint}; --no-check starts it all the same")
    return found


def check_json(found: list[Finding]) -> dict[str, Any]:
    """The findings for programs, by name."""
    return {f.name.replace(" ", "_"): {"level": f.level, "value": f.value, "cure": f.cure, **f.facts} for f in found}
