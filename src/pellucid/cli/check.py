"""`pellucid train --check`, and what a long run begins with: the findings of the readiness check as a table."""

from __future__ import annotations

from typing import Any

from ..base.errors import ConfigError
from ..models import TransformerConfig
from ..train import TrainConfig
from ..train.readiness import Finding, Plan, inspect
from .output import note

LONG = 600.0
"""Seconds that a run has to take, at the speed of this machine, to be checked first."""


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
