"""An opened model as a checkpoint of ours, wherever it came from, with everything it was opened with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..base.config import to_dict
from ..base.errors import CheckpointError
from ..base.files import StrPath
from .checkpoint import save_checkpoint
from .open import BEGIN_IDS, CHAT_TEMPLATE, EOS_IDS, SPECIAL_TOKENS
from .published.hub_read import holds_hub
from .source import OpenedModel

# Of a run's state, what still means something without the run.
_KEPT = ("step", "held_out_loss")


def keep_model(folder: StrPath, opened: OpenedModel, *, precision: Literal["float32", "int8"] = "float32") -> Path:
    """Writes the model alone: weights, configuration, tokenizer, chat template and the ids that end an answer.

    Raises what `save_checkpoint` raises, and CheckpointError for a folder that holds a published model: its files have
    the names of a checkpoint's.
    """
    if holds_hub(Path(folder)):
        hint = "choose another name, or remove what is there"
        raise CheckpointError(str(folder), "cannot be replaced: holds a Hugging Face model", hint=hint)
    checkpoint = opened.source.checkpoint
    config: dict[str, Any] = {"architecture": "TransformerLM", "model": to_dict(opened.model.config)}
    if opened.chat_template is not None:
        config[CHAT_TEMPLATE] = opened.chat_template
    if opened.special_tokens:
        config[SPECIAL_TOKENS] = dict(opened.special_tokens)
    if opened.source.begin_ids is not None:
        config[BEGIN_IDS] = list(opened.source.begin_ids)
    if opened.eos_ids:
        config[EOS_IDS] = list(opened.eos_ids)
    state = {} if checkpoint is None else {name: checkpoint.state[name] for name in _KEPT if name in checkpoint.state}
    return save_checkpoint(
        folder,
        tensors=dict(opened.model.named_parameters()),
        config=config,
        state=state,
        tokenizer=opened.tokenizer,
        precision=precision,
    )
