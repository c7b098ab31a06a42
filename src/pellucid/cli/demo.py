"""`pellucid demo`: a language model of Python source, trained on the standard library of the Python that runs it.

No data, no download, and a time limit: the speed of this machine is measured on a few steps, and the number of steps
follows from it, with the learning-rate schedule fitted to that number. It is measured again and again on the way, and
the plan follows, so that a machine that gets busy makes a lesser model and not a longer wait. The result is an ordinary
run folder.

What is learned is chosen for the time there is, which two cores need for two or three million bytes: code alone, in
one layout, indented with tabs (as many steps then cost 3 % fewer bits for each byte of code than with four spaces), in
small batches (half of them again gains nothing), at the best of three learning rates (twice of it costs 2 %, four times
more than a tenth).
"""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
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
from ..data import TokenFile
from ..models import TransformerConfig, TransformerLM
from ..text import END_OF_TEXT, ByteTokenizer
from ..train import Event, Stepped, TrainConfig, Trainer
from .app import run_command
from .corpus import write_texts
from .output import Output, duration, note
from .parse import Flag, parse, told
from .runs import TOKENIZER, TOKENS, Run, RunConfig, digest, new_folder, save_config, split
from .session import best_precision, report, train_run
from .signals import Stopper

HELP = """Trains a language model of a few million parameters on the source of Python's own standard library, which is
on every machine, and lets it write some Python. Takes about four minutes on any machine: the number of steps follows
from its speed. Leaves an ordinary run folder to generate from.

Examples:
  pellucid demo
  pellucid demo --minutes 20                 the same with more patience, and a better model"""

HELD_OUT = 0.015
SAMPLE_TOKENS = 600
SAMPLE_START = "class "
# Tests, tables of characters, and what is not the standard library's own.
_SKIPPED = {
    *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo"),
    *("encodings", "pydoc_data"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_A_MINUTE = 700_000  # bytes of code for a minute of training, which reads about so many on two cores
_LARGEST = 200_000  # bytes of one file: longer ones are tables
_LONGEST = 400  # characters of a line: longer ones are tables, too
_TRIAL = (5, 3.0)  # the speed is measured on this many steps at least, for this many s, after the step that compiles
_STEPS = (40, 20_000)
_EVALUATIONS = 5  # with the last one
_RESERVE = 8.0  # s for the last evaluation, the curve, the sample, and what is compiled only then
_LOOK = 10.0  # s between two looks at the clock
_SLACK = 0.15  # share of the steps left by which the plan may be off


@dataclass(frozen=True)
class DemoCommand:
    """Options of `pellucid demo`."""

    minutes: float = 3.5
    """Time for everything, compilation included."""
    out: Annotated[Path | None, tyro.conf.DisallowNone, told("runs/demo, numbered if taken", "PATH")] = None
    """Run folder."""
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
        tokens = write_texts(folder / TOKENS, sources(home, int(_A_MINUTE * options.minutes)), tokenizer)
        model = TransformerConfig(tokenizer.vocab_size, precision=best_precision())  # type: ignore[arg-type]
        train = TrainConfig(sequences=8, seq_len=model.max_seq_len, learning_rate=1e-3)
        _, held_out = split(tokens, HELD_OUT, train.seq_len, name=str(home))
        assert held_out is not None
        note("measuring the speed of this machine (the first time, kernels are compiled for it now)")
        seconds = seconds_per_step(model, train, tokens)
        deadline = start + 60 * options.minutes - _RESERVE
        steps = steps_in(deadline - time.perf_counter(), seconds, train, len(held_out))
        note(f"{seconds:.2f} s a step: {steps:,} steps fit into the {duration(60 * options.minutes)} this demo takes")
        train = adapted(train, steps)
        config = RunConfig(
            "pellucid run",
            1,
            str(home),
            HELD_OUT,
            tokenizer.fingerprint(),
            SAMPLE_TOKENS,
            model,
            train,
            digest(folder / TOKENS),
        )
        save_config(folder, config)
        made = Run(folder, config, tokenizer)
        status = report(made, train_run(made, stopper, plan=Pace(deadline), start=SAMPLE_START), out, stopper)
        if status == 0:
            out.text(_next(folder, time.perf_counter() - start))
        return status


def sources(home: Path, most: int) -> Iterator[str]:
    """The code of the source files below `home`, in an order that mixes packages and is the same everywhere, by the
    hash of their path, until `most` bytes have come. Raises DataError if there are none."""
    found = [
        file
        for file in home.rglob("*.py")
        if not _SKIPPED.intersection(file.relative_to(home).parts) and 0 < file.stat().st_size <= _LARGEST
    ]
    found.sort(key=lambda file: hashlib.sha256(file.relative_to(home).as_posix().encode()).digest())
    total = 0
    for file in found:
        if total >= most:
            break
        code = code_of(file.read_bytes())
        if code and max(map(len, code.splitlines())) <= _LONGEST:
            total += len(code)
            yield code
    if not total:
        hint = "install Python's own .py files, or train on other text: pellucid train --corpus FILE"
        raise DataError(str(home), "no code of the standard library here", hint=hint)


def code_of(source: bytes) -> str:
    """The code of a Python file as Python itself writes it, indented with tabs: no comments, no docstrings, one layout.
    Prose would take most of what a small model can learn in the time, and four spaces are four times a tab. Empty for
    what this Python can't read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _docstring(node):
            rest = node.body[1:]
            node.body = rest if rest or isinstance(node, ast.Module) else [ast.Pass()]
    code = ast.unparse(tree)
    tabbed = re.sub(r"^(?: {4})+", lambda found: "\t" * (len(found[0]) // 4), code, flags=re.MULTILINE)
    return f"{tabbed}\n" if tabbed else ""


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


class Pace:
    """Holds a run to its time: compares, now and then, the steps planned with those that fit at the speed of the last
    seconds; evaluations and checkpoints go on taking the share of the time they have taken.

    deadline: of `time.perf_counter`, when the last step should be done.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline, self._begun = deadline, time.perf_counter()
        self._trained = 0.0  # s in steps, from the beginning
        self._recent: list[float] = []  # s of each step since the last look

    def __call__(self, event: Stepped) -> int | None:
        """After a step: how many the run should have in all, where the plan is off; else None."""
        self._trained += event.seconds
        self._recent.append(event.seconds)
        if sum(self._recent) < _LOOK:
            return None
        now, speed = time.perf_counter(), len(self._recent) / sum(self._recent)
        left = (self._deadline - now) * min(self._trained / (now - self._begun), 1.0)
        self._recent.clear()
        steps = event.step + min(max(int(left * speed), 0), _STEPS[1])
        if abs(steps - event.steps) <= _SLACK * (event.steps - event.step):
            return None
        change = "slower" if steps < event.steps else "faster"
        note(f"{change} than planned: {steps:,} steps fit in, not {event.steps:,}")
        return steps


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
    evaluation = _EVALUATIONS * held_out / (train.sequences * train.seq_len) * per_step / 3
    return min(max(int((seconds - evaluation) / per_step), _STEPS[0]), _STEPS[1])


def adapted(train: TrainConfig, steps: int) -> TrainConfig:
    """The training fitted to a number of steps: warm-up and evaluations at the same shares of the run."""
    every = max(-(-steps // _EVALUATIONS), 10)
    return replace(
        train, steps=steps, warmup=max(steps // 10, 1), eval_every=every, save_every=every, eval_batches=None
    )


def _next(folder: Path, seconds: float) -> str:
    activate = ""
    if shutil.which("pellucid") is None:
        home = Path(sys.prefix)
        shown = home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home
        activate = f"\n  . {shown / 'bin' / 'activate'}                      puts pellucid on the path"
    return f"""
That was everything in {duration(seconds)}. What to try next:{activate}
  pellucid generate {folder} "class Tensor:" --tokens 500
  pellucid eval {folder}
  pellucid demo --minutes 20                  the same model with more patience
  pellucid train --corpus YOUR_TEXT.txt       a model of your own text
  pellucid train --help                       every option; stop with Ctrl-C, continue with --resume"""


if __name__ == "__main__":
    sys.exit(run_command("demo", sys.argv[1:]))
