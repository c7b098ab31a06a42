"""`pellucid demo`: a language model of Python source, trained on the standard library of the Python that runs it.

No data, no download, and a time limit: the speed of this machine is measured on a few steps, and the number of steps
follows from it, with the learning-rate schedule fitted to that number. The result is an ordinary run folder.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import tyro

from ..base.errors import ConfigError, DataError
from ..data import TokenFile, documents
from ..models import TransformerConfig, TransformerLM
from ..text import END_OF_TEXT, ByteTokenizer
from ..train import Event, Stepped, TrainConfig, Trainer
from .app import run_command
from .corpus import write_texts
from .output import Output, duration, note
from .parse import Flag, parse
from .runs import TOKENIZER, TOKENS, Run, RunConfig, new_folder, save_config, split
from .session import best_precision, report, train_run
from .signals import Stopper

HELP = """Trains a language model of a few million parameters on the source of Python's own standard library, which is
on every machine, and lets it write some Python. Takes about four minutes: the number of steps follows from the speed
of this machine. Leaves an ordinary run folder to generate from.

Examples:
  pellucid demo
  pellucid demo --minutes 20                 the same with more patience, and a better model"""

HELD_OUT = 0.02
SAMPLE_TOKENS = 500
# Tests, tables of characters, and what is not the standard library's own.
_SKIPPED = {
    *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo"),
    *("encodings", "pydoc_data"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_MOST = 12_000_000  # bytes of source
_LARGEST = 200_000  # bytes of one file: longer ones are tables
_TRIAL = (5, 6.0)  # the speed is measured on this many steps at least, for this many s, after the step that compiles
_STEPS = (40, 20_000)
_EVALUATIONS, _BATCHES = 5, 8  # on the way, each over so many batches
_RESERVE = 15.0  # s for checkpoints, the curve, the sample, and what is compiled only after the trial


@dataclass(frozen=True)
class DemoCommand:
    """Options of `pellucid demo`."""

    minutes: float = 3.5
    """Time for everything, compilation included."""
    out: Annotated[Path | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="PATH")] = None
    """Run folder. Default: runs/demo, numbered if taken."""
    json: Flag = False
    """End with one line of JSON on stdout."""
    debug: Flag = False
    """Show a traceback with errors."""


def run(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    start = time.perf_counter()
    options = parse(DemoCommand, arguments, command="demo", help=HELP)
    if not 0 < options.minutes < float("inf"):
        raise ConfigError("--minutes", "not a time", got=options.minutes, expected="more than 0")
    out = Output(options.json)
    with Stopper() as stopper, new_folder(options.out, "demo") as folder:
        home = Path(sysconfig.get_paths()["stdlib"])
        note(f"reading the standard library of Python {sys.version.split()[0]} in {home}")
        tokenizer = ByteTokenizer(special=[END_OF_TEXT])
        tokenizer.save(folder / TOKENIZER)
        tokens = write_texts(folder / TOKENS, sources(home), tokenizer)
        model = TransformerConfig(tokenizer.vocab_size, precision=best_precision())  # type: ignore[arg-type]
        train = TrainConfig(sequences=8, seq_len=model.max_seq_len, learning_rate=2e-3)
        _, held_out = split(tokens, HELD_OUT, train.seq_len, name=str(home))
        assert held_out is not None
        note("measuring the speed of this machine (the first time, kernels are compiled for it now)")
        seconds = seconds_per_step(model, train, tokens)
        left = 60 * options.minutes - (time.perf_counter() - start) - _RESERVE
        steps = steps_in(left, seconds, train, len(held_out))
        note(f"{seconds:.2f} s a step: {steps:,} steps fit into the {duration(60 * options.minutes)} this demo takes")
        train = adapted(train, steps)
        config = RunConfig("pellucid run", 1, str(home), HELD_OUT, tokenizer.fingerprint(), SAMPLE_TOKENS, model, train)
        save_config(folder, config)
        made = Run(folder, config, tokenizer)
        status = report(made, train_run(made, stopper), out, stopper)
        if status == 0:
            out.text(_next(folder, time.perf_counter() - start))
        return status


def sources(home: Path) -> Iterator[str]:
    """The source files below `home`, in an order that mixes packages and is the same everywhere: by the hash of their
    path. Raises DataError if there are none."""
    found = [
        file
        for file in home.rglob("*.py")
        if not _SKIPPED.intersection(file.relative_to(home).parts) and 0 < file.stat().st_size <= _LARGEST
    ]
    found.sort(key=lambda file: hashlib.sha256(file.relative_to(home).as_posix().encode()).digest())
    total = 0
    for file in found:
        total += file.stat().st_size
        if total > _MOST:
            break
        yield from documents(file)
    if not total:
        hint = "install Python's own .py files, or train on other text: pellucid train --corpus FILE"
        raise DataError(str(home), "no source of the standard library here", hint=hint)


def seconds_per_step(model: TransformerConfig, train: TrainConfig, tokens: TokenFile) -> float:
    """Time of a training step, measured on a model that is thrown away."""
    times: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Stepped):
            times.append(event.seconds)
            if len(times) > _TRIAL[0] and sum(times[1:]) > _TRIAL[1]:
                trainer.stop()

    endless = replace(train, steps=10**6, eval_every=None, save_every=None)
    trainer = Trainer(TransformerLM(model), tokens, endless, on_event=on_event)
    trainer.run()
    return median(times[1:])


def steps_in(seconds: float, per_step: float, train: TrainConfig, held_out: int) -> int:
    """How many steps fit into `seconds` s, evaluations on `held_out` tokens included: a forward pass alone costs a
    third of a step."""
    whole = held_out / (train.sequences * train.seq_len)
    evaluation = (whole + _EVALUATIONS * _BATCHES) * per_step / 3
    return min(max(int((seconds - evaluation) / per_step), _STEPS[0]), _STEPS[1])


def adapted(train: TrainConfig, steps: int) -> TrainConfig:
    """The training fitted to a number of steps: warm-up and evaluations at the same shares of the run."""
    every = max(steps // _EVALUATIONS, 10)
    return replace(
        train, steps=steps, warmup=max(steps // 10, 1), eval_every=every, save_every=every, eval_batches=_BATCHES
    )


def _next(folder: Path, seconds: float) -> str:
    return f"""
That was everything in {duration(seconds)}. What to try next:
  pellucid generate {folder} "class Tensor:" --tokens 500
  pellucid eval {folder}
  pellucid demo --minutes 20                  the same model with more patience
  pellucid train --corpus YOUR_TEXT.txt       a model of your own text
  pellucid train --help                       every option; stop with Ctrl-C, continue with --resume"""


if __name__ == "__main__":
    sys.exit(run_command("demo", sys.argv[1:]))
