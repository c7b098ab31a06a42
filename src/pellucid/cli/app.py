"""From a command line to a command, and from whatever went wrong to one line and an exit status.

A command is a module beside this one with a `run(arguments) -> int`, loaded when it is called for, so that `--help`
and a mistyped option cost no kernel. What a user can do wrong arrives here as a PellucidError or an OSError and
leaves as `pellucid COMMAND: what is wrong` on stderr with status 2; `--debug` lets the traceback through. Anything
else is a bug in Pellucid and keeps its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version

from ..base.errors import PellucidError

COMMANDS = {
    "train": "train a language model on your text",
    "sft": "teach a model to answer, from a file of instructions",
    "dpo": "teach a model which of two answers is better",
    "generate": "write text with a trained model",
    "chat": "talk with a model",
    "eval": "measure a model on text it was not trained on",
    "export": "write a model alone into a folder, in float32 or in a byte a weight",
    "merge": "fold an adapter into the model it was trained on",
    "tokenizer": "train and use tokenizers, look into them, compare them",
    "info": "say what a run, checkpoint, tensor, token or tokenizer file is",
    "doctor": "say what this machine offers, and check that it computes correctly",
    "demo": "train a small model on Python's own source in a few minutes",
}
MODULES = {"eval": "evaluate"}  # where the module has another name than the command

HELP = f"""usage: pellucid COMMAND [OPTIONS]

Trains language models from scratch on this machine, and uses them.

commands:
{chr(10).join(f"  {name:<9} {what}" for name, what in COMMANDS.items())}

start here:
  pellucid demo                         a first model, without any data of your own
  pellucid train --corpus book.txt      a model of your own text
  pellucid generate runs/book "It was"  and what it has to say

options:
  -h, --help  this text; `pellucid COMMAND --help` explains a command
  --version   version of Pellucid
  --json      (every command) the result as one line of JSON, the last one on stdout
  --debug     (every command) a traceback with every error

Results go to stdout, progress to stderr. Exit status: 0 done, 2 a mistake in what was asked for (one line says which),
130 or 143 ended by Ctrl-C or SIGTERM."""

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (that of the process by default); returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else "--help"
    if command in ("-h", "--help", "help"):
        return _guarded("pellucid", lambda: _print(HELP), debug=False)
    if command == "--version":
        return _guarded("pellucid", lambda: _print(f"pellucid {version('pellucid')}"), debug=False)
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, (*COMMANDS, "--version", "--help"), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        what = "unknown option" if command.startswith("-") else "unknown command"
        _complain("pellucid", f"{what} {command!r}. hint: {hint}")
        return USER_ERROR
    return run_command(command, given[1:])


def run_command(command: str, arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""

    def run() -> int:
        module = importlib.import_module(f"{__package__}.{MODULES.get(command, command)}")
        return module.run(arguments)

    return _guarded(f"pellucid {command}", run, debug="--debug" in arguments)


def _guarded(who: str, run: Callable[[], int], *, debug: bool) -> int:
    """The exit status of `run`; user errors become one line on stderr."""
    try:
        try:
            status = run()
        except SystemExit as stop:  # --help ends a command this way
            status = stop.code if isinstance(stop.code, int) else 0
        if sys.stdout is not None:  # closed before the program began
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain once more when it flushes at exit.
        with suppress(OSError):
            if sys.stdout is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as stop:
        if debug:
            raise
        _complain(who, str(stop) or "interrupted")
        return getattr(stop, "status", INTERRUPTED)
    except (PellucidError, OSError, MemoryError) as error:
        if debug:
            raise
        _complain(who, _message(error))
        return USER_ERROR


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, PellucidError):
        what = (error.strerror or type(error).__name__).lower()
        return f"{error.filename}: {what}" if error.filename else what
    if isinstance(error, MemoryError):
        return "out of memory. hint: use a smaller model, batch or context"
    return str(error)


def _complain(who: str, message: str) -> None:
    """One line on stderr, whatever the message holds."""
    with suppress(OSError):
        print(f"{who}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _print(text: str) -> int:
    print(text)
    return 0
