"""A model back from a run: the way from training to everything that uses its result."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import CheckpointError
from ..checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, load_into, model_from
from ..models import TransformerLM


def load_model(folder: str | Path, *, device: str = "cpu", average: bool = False) -> tuple[TransformerLM, Checkpoint]:
    """A model from a checkpoint folder, or from the newest checkpoint of a run folder.

    average: with the running mean of the weights in place of the weights. Raises CheckpointError if there is none, or
    if it is damaged or of another architecture.
    """
    path = Path(folder)
    newest = latest_checkpoint(path)
    checkpoint = load_checkpoint(path if newest is None else newest)
    model = model_from(checkpoint, device=device)
    if average:
        if checkpoint.average is None:
            hint = "train with ema (--ema 0.999)"
            raise CheckpointError(str(checkpoint.path), "no running mean of the weights was kept", hint=hint)
        load_into(dict(model.named_parameters()), checkpoint.average)
    return model, checkpoint
