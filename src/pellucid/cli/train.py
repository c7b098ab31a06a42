"""`pellucid train`: options -> corpus -> run folder -> training -> result."""

from __future__ import annotations

from pathlib import Path

from ..base.errors import ConfigError
from ..checkpoint import lock_folder
from .corpus import TRAINED_IDS, check_corpus, choose_tokenizer, new_tokenizer, write_tokens
from .options import ResumeCommand, TrainCommand, model_config, parse_train, train_config
from .output import Output, note
from .runs import TOKENIZER, TOKENS, Run, RunConfig, check_share, digest, new_folder, open_run, save_config, split
from .signals import Stopper


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = parse_train(arguments)
    with Stopper() as stopper:
        if isinstance(options, ResumeCommand):
            return _resume(options, stopper)
        return _begin(options, stopper)


def _begin(options: TrainCommand, stopper: Stopper) -> int:
    from .session import best_precision, report, train_run  # brings the kernels, which --help has no use for

    corpus = options.corpus
    if corpus is None:
        hint = "pellucid train --corpus FILE; pellucid demo needs none"
        raise ConfigError("--corpus", "nothing to train on: no corpus was given", hint=hint)
    # Everything that can be refused without reading the corpus is refused first.
    train = train_config(options)
    check_share(options.held_out)
    if options.sample_tokens < 1:
        raise ConfigError("--sample-tokens", "must be at least 1", got=options.sample_tokens)
    precision = best_precision()
    model_config(options, 1, precision=precision)
    vocab = options.tokenizer_vocab
    if vocab is not None and not options.train_tokenizer:
        raise ConfigError("--tokenizer-vocab", "no tokenizer is trained", hint="add --train-tokenizer")
    if vocab is not None and options.tokenizer in ("char", "byte"):
        raise ConfigError(
            "--tokenizer-vocab", f"a {options.tokenizer} tokenizer has the size it has", hint="leave it out"
        )
    if vocab is not None and vocab < 1:
        raise ConfigError("--tokenizer-vocab", "must be at least 1", got=vocab)
    check_corpus(corpus)
    note(f"reading {corpus}")
    if options.train_tokenizer:
        tokenizer = new_tokenizer(options.tokenizer, TRAINED_IDS if vocab is None else vocab, corpus)
        note(f"trained a {tokenizer.kind} tokenizer of {tokenizer.vocab_size:,} ids")
    else:
        tokenizer = choose_tokenizer(options.tokenizer, corpus)
    model = model_config(options, tokenizer.vocab_size, precision=precision)
    with new_folder(options.out, corpus.resolve().stem or "corpus") as folder:
        tokenizer.save(folder / TOKENIZER)
        split(write_tokens(folder / TOKENS, corpus, tokenizer), options.held_out, train.seq_len, name=str(corpus))
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
        )
        save_config(folder, config)
        made = Run(folder, config, tokenizer)
        return report(made, train_run(made, stopper), Output(options.json), stopper)


def _resume(options: ResumeCommand, stopper: Stopper) -> int:
    from .session import report, train_run

    folder: Path = options.resume
    found = open_run(folder)
    with lock_folder(folder):
        found.verify()
        return report(found, train_run(found, stopper), Output(options.json), stopper)
