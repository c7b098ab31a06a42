"""The checkpoints of a run: `<run>/checkpoints/step-00001234/`, one folder a step, found and tidied by number.

An unfinished folder (a copy that was cut off) is passed over when the newest is looked for. A damaged one is not: it
is returned, and loading it says what is wrong, because going back to an older step is the user's decision.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from ..base.errors import ConfigError
from ..base.files import StrPath
from .checkpoint import is_complete
from .storage import name_of_previous, remove, sweep, unreadable, unwritable

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step-(\d{8,18})")


def checkpoint_path(run_folder: StrPath, step: int) -> Path:
    """Where a run keeps the checkpoint of a step. Raises ConfigError for a negative step."""
    if step < 0:
        raise ConfigError("checkpoint_path", "negative step", got=step)
    return Path(run_folder) / CHECKPOINTS / f"step-{step:08d}"


def latest_checkpoint(run_folder: StrPath) -> Path | None:
    """The complete checkpoint of the highest step, or None where there is none.

    Raises:
        CheckpointError: the folder can't be read.
    """
    for step in reversed(_steps(run_folder)):
        path = checkpoint_path(run_folder, step)
        if is_complete(path):
            return path
    return None


def prune_checkpoints(run_folder: StrPath, *, keep: int, always: Collection[int] = ()) -> list[Path]:
    """Removes all complete checkpoints but the newest `keep` and those of the steps in `always`; returns what it
    removed, oldest first. Unfinished folders are left alone, and so is everything with another name.

    Raises:
        ConfigError: `keep` is not positive.
        CheckpointError: a folder can't be removed.
    """
    if keep < 1:
        raise ConfigError("prune_checkpoints", "at least one checkpoint must be kept", got=f"keep={keep}")
    complete = [step for step in _steps(run_folder) if is_complete(checkpoint_path(run_folder, step))]
    gone = [checkpoint_path(run_folder, step) for step in complete[:-keep] if step not in always]
    for path in gone:
        try:
            remove(path)
        except OSError as error:
            raise unwritable(path, error, needed=0) from error
    sweep(Path(run_folder) / CHECKPOINTS)
    return gone


def _steps(run_folder: StrPath) -> list[int]:
    """Steps of the folders that have the name of a checkpoint, ascending."""
    folder = Path(run_folder) / CHECKPOINTS
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        if Path(run_folder).is_file():
            return []
        raise unreadable(folder, error) from error
    found = (_NAME.fullmatch(name_of_previous(name) or name) for name in names)
    # A number has one spelling here: `step-000000007` is not ours.
    return sorted({int(m[1]) for m in found if m and m[0] == f"step-{int(m[1]):08d}"})
