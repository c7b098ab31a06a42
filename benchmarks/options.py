"""What a benchmark run was asked for, and how a case says no."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .report import REPOSITORY


class Refused(Exception):
    """A case cannot or must not be run: one line for the user."""


@dataclass(frozen=True)
class Options:
    """peer: the library to run beside ours, None for none. data: the folder of real data, None for where it usually is.
    threads: CPU threads of each side. iterations, block: training steps in all and in a turn, None for the recipe's.
    quick: fewer repetitions. pause: seconds between turns, in which the other side's threads go to sleep. precision: of
    our side's matrix products in nanogpt.
    """

    peer: str | None = None
    data: Path | None = None
    threads: int = 2
    iterations: int | None = None
    block: int = 100
    quick: bool = False
    pause: float = 0.05
    precision: Literal["float32", "bfloat16"] = "float32"

    def corpus(self, name: Path) -> Path:
        """A file of the folder of real data. Raises Refused where it isn't there."""
        named = self.data or (Path(found) if (found := os.environ.get("PELLUCID_DATA")) else None)
        path = (named or REPOSITORY.parent / "shared" / "data") / name
        if not path.is_file():
            raise Refused(f"no corpus at {path}: name the folder of real data with --data or PELLUCID_DATA")
        return path
