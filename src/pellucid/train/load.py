"""A model back from a run: the way from training to everything that uses its result."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, model_from
from ..models import TransformerLM


def load_model(folder: str | Path, *, device: str = "cpu") -> tuple[TransformerLM, Checkpoint]:
    """A model from a checkpoint folder, or from the newest checkpoint of a run folder.

    Raises CheckpointError if there is none, or if it is damaged or of another architecture.
    """
    path = Path(folder)
    newest = latest_checkpoint(path)
    checkpoint = load_checkpoint(path if newest is None else newest)
    return model_from(checkpoint, device=device), checkpoint
