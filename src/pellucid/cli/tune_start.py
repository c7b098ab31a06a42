"""How a run of `pellucid sft` or `pellucid dpo` begins: from its options to all that is settled before data is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..base.errors import CheckpointError, ConfigError, DataError
from ..checkpoint import open_source
from ..checkpoint.source import ModelSource
from ..text import ChatML
from ..text.chat_sources import NAMED
from ..text.jinja import JinjaTemplate
from ..train import Encoding, TrainConfig
from ..train.memory import SHARE, available_memory, tuning_need
from .check import refuse_both
from .runs import check_share
from .tune_options import TuneOptions, less_memory, lora_config, train_config
from .tuning import Layout, SpecialToken, TuneConfig


class TuneStart:
    """Dataset, model, tokenizer and template of a new run; `making` turns conversations into examples.

    answers: rows for each of --sequences. Raises ConfigError, DataError or CheckpointError for what can be refused
    before the dataset is read.
    """

    def __init__(self, options: TuneOptions, *, precision: Literal["float32", "bfloat16"], answers: int = 1) -> None:
        for name, value in (("--dataset", options.dataset), ("--init-from", options.init_from)):
            if value is None:
                hint = "--dataset FILE --init-from MODEL, or --resume RUN"
                raise ConfigError(name, "is needed", hint=hint)
        assert options.dataset is not None
        assert options.init_from is not None
        refuse_both(options)
        check_share(options.held_out)
        if options.epochs < 1:
            raise ConfigError("--epochs", "must be at least 1", got=options.epochs)
        if not options.dataset.is_file():
            raise DataError(str(options.dataset), "no such file", hint="a .jsonl file, one example a line")
        self.options, self.dataset = options, options.dataset
        self.source = open_source(options.init_from)
        if self.source.tokenizer is None:
            raise CheckpointError(str(options.init_from), "the model has no tokenizer", hint="tuning needs text")
        self.tokenizer = self.source.tokenizer
        how = {"precision": options.precision or precision, "checkpoint_blocks": options.checkpoint_blocks}
        self.model = replace(self.source.config, **how)
        self.lora = lora_config(options, self.model)
        train = train_config(options, self.model.max_seq_len, 1)
        self._check_memory(train, answers)
        window = train.seq_len + 1
        self.template = template(options.template, self.source)
        self.making = Encoding(self.template, self.tokenizer, longest=window, too_long=options.too_long)

    @property
    def name(self) -> str:
        """What the run is called if nobody says."""
        return self.dataset.resolve().stem.split(".")[0] or "dataset"

    def config(
        self,
        kind: Literal["pellucid sft", "pellucid dpo"],
        *,
        steps: int,
        packing: bool = False,
        beta: float | None = None,
        smoothing: float | None = None,
    ) -> TuneConfig:
        """What config.json says, once the dataset has been read. steps: those of all epochs."""
        eot = [] if self.tokenizer.eot is None else [self.tokenizer.eot]
        return TuneConfig(
            format=kind,
            version=1,
            dataset=str(self.dataset.resolve()),
            init_from=str(self.source.path.resolve()),
            layouts=tuple(Layout(*one) for one in self.making.layouts.items()),
            skipped=self.making.skipped,
            cut=self.making.cut,
            held_out=self.options.held_out,
            template=self.template.source,
            special_tokens=tuple(SpecialToken(name, str(text)) for name, text in self.template.variables.items()),
            eos_ids=tuple(dict.fromkeys([*self.source.eos_ids, *eot])),
            begin_ids=self.source.begin_ids,
            tokenizer=self.tokenizer.fingerprint(),
            model=self.model,
            train=train_config(self.options, self.model.max_seq_len, steps),
            lora=self.lora,
            weights=self.options.weights,
            packing=packing,
            beta=beta,
            smoothing=smoothing,
        )

    def _check_memory(self, train: TrainConfig, answers: int) -> None:
        """Raises ConfigError for a run that this machine has no memory for: before the work, and in place of an end by
        the system in the middle of it. An adapter's own memory is not counted."""
        adapter = None if self.lora is None else 0
        need = tuning_need(self.model, train, answers=answers, adapter=adapter, base=self.options.weights)
        there = available_memory()
        if there is not None and need.peak > SHARE * there:
            raise ConfigError(
                "memory",
                "the run would not fit",
                got=f"{need.peak / 1e9:.1f} GB for {answers * train.part_sequences} x {train.seq_len} tokens at a time",
                expected=f"at most {SHARE * there / 1e9:.1f} GB, {SHARE:.0%} of what is free",
                hint=less_memory(self.lora is not None),
            )


def template(wanted: str, source: ModelSource) -> JinjaTemplate:
    """The chat template asked for. It calls the special tokens as the model says, else its end of text, and those of a
    tokenizer_config.json that the model doesn't name.

    Raises ConfigError for a model without a template of its own, DataError for a file that is none.
    """
    tokens, tokenizer = dict(source.special_tokens), source.tokenizer
    if tokenizer is not None and "eos_token" not in tokens:
        names = {number: name for name, number in tokenizer.special.items()}
        if tokenizer.eot in names:
            tokens["eos_token"] = names[tokenizer.eot]
    if wanted in NAMED:
        found = JinjaTemplate(NAMED[wanted], variables=tokens)
        if wanted == "chatml":
            found.marks = ChatML.marks  # a template in Jinja doesn't say which special tokens it can't do without
        return found
    if wanted == "auto":
        if source.chat_template is None:
            hint = "--template transcript teaches one to a model that was trained on text alone"
            raise ConfigError(str(source.path), "the model has no chat template", hint=hint)
        return JinjaTemplate(source.chat_template, variables=tokens)
    if not Path(wanted or "?").is_file():
        expected = f"auto, {', '.join(NAMED)} or a file"
        raise DataError("--template", "no such template", got=repr(wanted), expected=expected)
    return JinjaTemplate.load(wanted, variables=tokens)
