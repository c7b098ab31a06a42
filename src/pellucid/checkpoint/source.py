"""What a path that holds a model gives before the model is built: configuration, weights, tokenizer, chat template.

Every format ends here: our own checkpoints, and those of others. A reader turns names and layouts into ours and hands
over weights as a mapping that reads a tensor when it is asked for, so that a model is built one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..base.errors import CheckpointError, ConfigError, DataError
from ..device import Device
from ..models import TransformerConfig, TransformerLM
from ..text import PipelineTokenizer, Tokenizer
from .checkpoint import Checkpoint
from .load import Overlaid, Streamed, load_streamed


@dataclass(frozen=True)
class ModelSource:
    """A model in a file or folder, checked and not yet in memory.

    path: the file or folder the weights are in. format: which kind of it ("pellucid", "huggingface", "gguf").
    config: of the model. weights: by our names, in our layout.
    tokenizer: or None. chat_template: Jinja, or None. special_tokens: what that template calls `bos_token`, `eos_token`
    and so on. eos_ids: ids that end an answer; none where nobody says.
    stored: what the weights are in the file, where that is no dtype. begin_ids: that a text begins with (None: those
    the tokenizer names).
    ignored: settings of the source that change nothing here, named. checkpoint: where the source is one of ours.
    """

    path: Path
    format: str
    config: TransformerConfig
    weights: Streamed
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    stored: str | None = None
    begin_ids: tuple[int, ...] | None = None
    ignored: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None

    def shortened(self, max_seq_len: int) -> ModelSource:
        """The same model for at most so many positions. Raises ConfigError for none, and for a model with a table of
        positions, which is as long as it is."""
        config = self.config
        if max_seq_len < 1:
            raise ConfigError("max_seq_len", "must be at least 1", got=max_seq_len)
        if max_seq_len >= config.max_seq_len:
            return self
        if config.positions != "rope":
            got, expected = f"{max_seq_len} positions", f"{config.max_seq_len}, its table of positions"
            raise ConfigError("max_seq_len", "a context that can't be shortened", got=got, expected=expected)
        return replace(self, config=replace(config, max_seq_len=max_seq_len))

    def averaged(self) -> ModelSource:
        """The same model with the running mean of its weights in place of them. Raises CheckpointError where none was
        kept."""
        if self.checkpoint is None or self.checkpoint.average is None:
            hint = "train with ema (--ema 0.999)"
            raise CheckpointError(str(self.path), "no running mean of the weights was kept", hint=hint)
        # What was frozen has no mean: it never moved.
        return replace(self, weights=Overlaid(self.checkpoint.average, self.weights))

    def build(self, *, device: str | Device = "cpu") -> TransformerLM:
        """The model with its weights, converted to float32 where they are of another float type.

        Raises CheckpointError for weights that don't fit the configuration, by name and shape, before any is read.
        """
        check_layers(self.config, len(self.weights), self.weights.path)
        model = TransformerLM(self.config, device=device, draw=False)
        load_streamed(dict(model.named_parameters()), self.weights)
        return model


def check_layers(config: TransformerConfig, tensors: int, where: str) -> None:
    """Raises CheckpointError for more layers than tensors: building so many could take all the memory there is."""
    if config.n_layers > tensors:
        hint = "build the model from the configuration saved with these weights"
        expected = f"at most {tensors}, the tensors of the file"
        raise CheckpointError(where, "more layers than tensors", got=config.n_layers, expected=expected, hint=hint)


@dataclass(frozen=True)
class OpenedModel:
    """A model ready for use, and what it came with."""

    model: TransformerLM
    source: ModelSource

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.source.tokenizer

    @property
    def chat_template(self) -> str | None:
        return self.source.chat_template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return self.source.special_tokens

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.source.eos_ids

    @property
    def path(self) -> Path:
        return self.source.path

    def prompt_ids(self, text: str) -> np.ndarray:
        """Ids of a text as the model expects it to begin: behind those its tokenizer file wants before a text (a
        begin-of-text, as a rule). Raises DataError for text the vocabulary can't express, and
        without a tokenizer."""
        tokenizer = self.source.tokenizer
        if tokenizer is None:
            raise DataError(str(self.path), "the model has no tokenizer", hint="give it ids")
        before = self.source.begin_ids
        if before is None:
            before = tokenizer.frame[0] if isinstance(tokenizer, PipelineTokenizer) else ()
        return np.concatenate([np.array(before, np.uint32), tokenizer.encode(text)])


@dataclass(frozen=True)
class Format:
    """A kind of path that holds a model. holds: whether a path is of this kind, told from its content, cheaply.
    read: the source in it; raises CheckpointError, DataError or ConfigError for what can't be used."""

    name: str
    what: str
    holds: Callable[[Path], bool]
    read: Callable[[Path], ModelSource]
