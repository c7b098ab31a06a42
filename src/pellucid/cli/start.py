"""`--init-from`: a new run that begins with the weights, the tokenizer and the shape of a model that exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..base.errors import ConfigError
from ..checkpoint import open_model
from ..models import TransformerConfig, TransformerLM, grow_vocabulary
from ..text import Tokenizer, with_special
from .options import TrainOptions


class Start:
    """An opened model to begin from. context: its longest text; first_new: id of the first token that was added."""

    def __init__(self, options: TrainOptions, path: Path, *, device: str = "cpu") -> None:
        opened = open_model(path, device=device)
        if opened.tokenizer is None:
            raise ConfigError("--init-from", f"the model has no tokenizer ({opened.path})", hint="train a new model")
        self.path, self._model = opened.path, opened.model
        self.tokenizer: Tokenizer = opened.tokenizer
        self.context = opened.model.config.max_seq_len
        self.first_new = opened.tokenizer.vocab_size
        if options.add_tokens:
            self.tokenizer = with_special(opened.tokenizer, options.add_tokens)
        elif options.new_rows_only:
            raise ConfigError("--new-rows-only", "no tokens are added", hint="add some with --add-tokens")

    def config(self, options: TrainOptions, *, precision: str) -> TransformerConfig:
        """The model of the new run: the shape of the old one, trained as the options say."""
        found = self._model.config
        return replace(
            found,
            # Published tables are often longer than their vocabulary.
            vocab_size=max(found.vocab_size, self.tokenizer.vocab_size),
            dropout=options.dropout,
            precision=options.precision or precision,  # type: ignore[arg-type]
            checkpoint_blocks=options.checkpoint_blocks,
            seed=options.seed,
        )

    def model(self, config: TransformerConfig) -> TransformerLM:
        """A new model of that configuration with the old weights."""
        return grow_vocabulary(self._model, config.vocab_size, config)
