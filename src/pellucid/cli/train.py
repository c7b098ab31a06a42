"""`pellucid train`: options -> corpus -> run folder -> training -> result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import ConfigError
from ..checkpoint import lock_folder
from ..models import TransformerConfig
from ..text import Tokenizer
from ..train import TrainConfig
from .corpus import TRAINED_IDS, check_corpus, choose_tokenizer, new_tokenizer, write_tokens
from .machine import use_machine
from .options import ResumeCommand, TrainCommand, model_config, parse_train, train_config
from .output import Output, note
from .runs import TOKENIZER, TOKENS, Run, RunConfig, check_share, digest, open_run, save_config, split
from .signals import Stopper

if TYPE_CHECKING:
    from ..train.readiness import Plan
    from .start import Start


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse_train(arguments)
    use_machine(options)
    with Stopper() as stopper:
        if isinstance(options, ResumeCommand):
            return _resume(options, stopper)
        return _begin(options, stopper)


def _begin(options: TrainCommand, stopper: Stopper) -> int:
    from .check import only_checked, refuse_both, run_folder  # bring the kernels, which --help has no use for
    from .session import best_precision, report, train_run

    corpus = options.corpus
    if corpus is None:
        hint = "pellucid train --corpus FILE; pellucid demo needs none"
        raise ConfigError("--corpus", "nothing to train on: no corpus was given", hint=hint)
    # Everything that can be refused without reading the corpus is refused first.
    refuse_both(options)
    _refuse(options)
    precision, start = best_precision(), None
    if options.init_from is not None:
        from .start import Start

        start = Start(options, options.init_from, device=options.device)
        options = replace(options, context=start.context)
        if options.new_rows_only:
            options = replace(options, train_rows_from=start.first_new)
    train = train_config(options)
    if start is None:
        model_config(options, 1, precision=precision)
    check_corpus(corpus)
    note(f"reading {corpus}")
    tokenizer = _tokenizer(options, corpus, start)
    model = start.config(options, precision=precision) if start else None
    model = model or model_config(options, tokenizer.vocab_size, precision=precision)
    _check_names(model, train)
    with run_folder(options, corpus.resolve().stem or "corpus") as folder:
        tokenizer.save(folder / TOKENIZER)
        whole = write_tokens(folder / TOKENS, corpus, tokenizer)
        tokens, _ = split(whole, options.held_out, train.seq_len, name=str(corpus))
        if options.epochs is not None:
            train = train.for_epochs(options.epochs, len(tokens))
        config = RunConfig(
            format="pellucid run",
            version=1,
            corpus=str(corpus.resolve()),
            held_out=options.held_out,
            tokenizer=tokenizer.fingerprint(),
            sample_tokens=options.sample_tokens,
            model=model,
            train=train,
            tokens=digest(folder / TOKENS),
            init_from=str(start.path.resolve()) if start else None,
        )
        made, out = Run(folder, config, tokenizer), Output(options.json)
        if only_checked(options, out, model, train, lambda: _plan(made, start, options.device)):
            return 0
        if start is not None:
            _save_start(made, start)
            start = None  # its weights are on the disk now
        save_config(folder, config)
        return report(made, train_run(made, stopper, device=options.device), out, stopper)


def _refuse(options: TrainCommand) -> None:
    """Raises ConfigError for options that contradict each other."""
    check_share(options.held_out)
    if options.sample_tokens < 1:
        raise ConfigError("--sample-tokens", "must be at least 1", got=options.sample_tokens)
    if options.patience is not None and options.held_out == 0:
        raise ConfigError("--patience", "nothing is held out to judge by", hint="hold text out with --held-out 0.1")
    if options.init_from is None and (options.add_tokens or options.new_rows_only):
        flag = "--add-tokens" if options.add_tokens else "--new-rows-only"
        raise ConfigError(flag, "is for a model that exists", hint="name it with --init-from")
    vocab = options.tokenizer_vocab
    if vocab is not None and not options.train_tokenizer:
        raise ConfigError("--tokenizer-vocab", "no tokenizer is trained", hint="add --train-tokenizer")
    if vocab is not None and options.tokenizer in ("char", "byte"):
        raise ConfigError(
            "--tokenizer-vocab", f"a {options.tokenizer} tokenizer has the size it has", hint="leave it out"
        )
    if vocab is not None and vocab < 1:
        raise ConfigError("--tokenizer-vocab", "must be at least 1", got=vocab)


def _check_names(model: TransformerConfig, train: TrainConfig) -> None:
    """Raises ConfigError where a pattern matches no parameter, or nothing is left to train: before a folder is made."""
    from ..models import TransformerLM
    from ..train import make_optimizer

    if train.freeze or train.groups or train.train_rows_from is not None:
        make_optimizer(TransformerLM(model), train)


def _tokenizer(options: TrainCommand, corpus: Path, start: Start | None) -> Tokenizer:
    if start is not None:
        return start.tokenizer
    if not options.train_tokenizer:
        return choose_tokenizer(options.tokenizer, corpus)
    vocab = options.tokenizer_vocab
    found = new_tokenizer(options.tokenizer, TRAINED_IDS if vocab is None else vocab, corpus)
    note(f"trained a {found.kind} tokenizer of {found.vocab_size:,} ids")
    return found


def _plan(run: Run, start: Start | None, device: str) -> Plan:
    from ..models import TransformerLM
    from ..train.readiness_data import token_plan

    model, train = run.config.model, run.config.train
    tokens, held_out = run.tokens()
    build = (lambda: TransformerLM(model, device=device)) if start is None else (lambda: start.model(model))
    return token_plan(build, train, tokens, held_out, run.tokenizer, run.folder, fresh=start is None)


def _save_start(run: Run, start: Start) -> None:
    """Step 0 of a run that begins with weights of its own: what it is resumed from wherever it is cut off."""
    from ..train import Trainer

    tokens, held_out = run.tokens()
    train, model = run.config.train, start.model(run.config.model)
    Trainer(model, tokens, train, held_out=held_out, folder=run.folder, tokenizer=run.tokenizer).save()


def _resume(options: ResumeCommand, stopper: Stopper) -> int:
    from .session import report, train_run

    folder: Path = options.resume
    found = open_run(folder)
    with lock_folder(folder):
        found.verify()
        return report(found, train_run(found, stopper, device=options.device), Output(options.json), stopper)
