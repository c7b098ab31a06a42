"""Run folders: what `pellucid train` makes and resumes, and what the other commands find their files in.

config.json is written last of everything a run is prepared with, so a folder that has one can be resumed, and one
that has none was never begun.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Literal

from ..base.config import from_dict, to_dict
from ..base.errors import ConfigError, DataError
from ..base.files import read_json, reading, reason, write_json
from ..checkpoint import latest_checkpoint, lock_folder
from ..checkpoint.checkpoint import STATE
from ..data import TokenFile
from ..models import TransformerConfig
from ..text import Tokenizer, load_tokenizer
from ..train import TrainConfig

CONFIG, TOKENIZER, TOKENS, METRICS, CURVE = "config.json", "tokenizer.json", "tokens.bin", "metrics.jsonl", "loss.png"
HOME = Path("runs")


@dataclass(frozen=True)
class RunConfig:
    """config.json: all that defines a run. corpus: where the text came from; held_out: share of the tokens; tokenizer:
    its fingerprint; sample_tokens: length of the texts written during the run; tokens: SHA-256 of tokens.bin;
    init_from: the model it began with, whose weights are those of step 0."""

    format: Literal["pellucid run"]
    version: Literal[1]
    corpus: str
    held_out: float
    tokenizer: str
    sample_tokens: int
    model: TransformerConfig
    train: TrainConfig
    tokens: str | None = None
    init_from: str | None = None


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    folder: Path
    config: RunConfig
    tokenizer: Tokenizer

    def tokens(self) -> tuple[TokenFile, TokenFile | None]:
        """The part to train on and the held-out part. Raises DataError if the file is missing, damaged or too short."""
        whole = TokenFile.open(self.folder / TOKENS, seed=self.config.train.seed)
        whole.check_tokenizer(self.tokenizer)
        return split(whole, self.config.held_out, self.config.train.seq_len, name=self.config.corpus)

    def verify(self) -> None:
        """Reads all of the token file. Raises DataError unless it is the one the run began with."""
        found, expected = digest(self.folder / TOKENS), self.config.tokens
        if expected is not None and found != expected:
            hint = "the file was damaged or replaced; restore it from a copy, or start a new run"
            what = "not the tokens of this run: the checksum differs"
            raise DataError(str(self.folder / TOKENS), what, got=found[:12], expected=expected[:12], hint=hint)

    @property
    def curve(self) -> Path:
        return self.folder / CURVE

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS


def check_share(held_out: float) -> None:
    """Raises ConfigError unless `held_out` is a share of the tokens that leaves some."""
    if not 0 <= held_out < 1:
        raise ConfigError("--held-out", "not a share", got=held_out, expected="0 <= share < 1")


def split(tokens: TokenFile, held_out: float, seq_len: int, *, name: str) -> tuple[TokenFile, TokenFile | None]:
    """The tokens to train on and those held out. Raises DataError, naming the cure, where either is too short.

    name: what the messages call the tokens.
    """
    at = int(len(tokens) * (1 - held_out))
    if at < seq_len + 1:
        longest = at - 1
        cure = f"--context {longest} or less, or " if longest >= 1 else ""
        raise DataError(
            name,
            "too short for a window",
            got=f"{at:,} tokens to train on ({len(tokens):,} in all, {held_out:g} held out)",
            expected=f"at least {seq_len + 1:,}",
            hint=f"use {cure}more text",
        )
    if held_out == 0:
        return tokens, None
    if len(tokens) - at < 2:
        raise DataError(
            name,
            "too short to hold anything out",
            got=f"{len(tokens) - at} of {len(tokens):,} tokens",
            expected="at least 2",
            hint="hold out more (--held-out) or nothing (--held-out 0), or use more text",
        )
    return tokens.part(0, at), tokens.part(at)


def digest(path: Path) -> str:
    """SHA-256 of a file. Raises DataError where it can't be read."""
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def save_config(folder: Path, config: RunConfig) -> None:
    """Writes config.json: from here on the folder is a run."""
    write_json(folder / CONFIG, to_dict(config))


def open_run(path: Path) -> Run:
    """A run folder. Raises ConfigError where there is none, DataError where a file of it is damaged."""
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing there"
        raise ConfigError(str(path), "no such run", got=got, expected="a folder that pellucid train has made")
    if not (path / CONFIG).is_file():
        what = f"not a run that can be resumed: no {CONFIG}"
        raise ConfigError(str(path), what, hint="a run stopped while it was prepared has to be started again")
    if (path / STATE).is_file():
        hint = "training goes on from the folder of a run, with its optimizer and its tokens"
        raise ConfigError(str(path), "a checkpoint alone, not a run", hint=hint)
    values = read_json(path / CONFIG, "the configuration of a run")
    if (kind := values.get("format")) in ("pellucid sft", "pellucid dpo"):
        hint = f"{kind} --resume {path}"
        raise ConfigError(str(path), "a run of another kind", got=repr(kind), expected="'pellucid run'", hint=hint)
    config = from_dict(RunConfig, values, where=str(path / CONFIG))
    tokenizer = load_tokenizer(path / TOKENIZER)
    if tokenizer.fingerprint() != config.tokenizer:
        got, expected = tokenizer.fingerprint()[:12], config.tokenizer[:12]
        raise DataError(str(path / TOKENIZER), "not the tokenizer of this run", got=got, expected=expected)
    return Run(path, config, tokenizer)


def run_of(path: Path) -> Run | None:
    """The run that `path` is, or that the checkpoint `path` belongs to; None where there is none."""
    for folder in (path, *Path(path).resolve().parents[:2]):
        if (folder / CONFIG).is_file() and (folder / TOKENS).is_file() and (folder / TOKENIZER).is_file():
            return open_run(folder)
    return None


@contextmanager
def new_folder(out: Path | None, name: str) -> Iterator[Path]:
    """A locked folder for a new run: `out`, or `runs/NAME` with the first number that is free. If the block raises
    before the run has begun, a folder that was made here goes again.

    Raises ConfigError if `out` holds a run, or the folder can't be made or locked.
    """
    folder, made = _made(name) if out is None else (out, not out.exists())
    with lock_folder(folder):
        if (folder / CONFIG).exists() or latest_checkpoint(folder) is not None:
            hint = f"continue it with --resume {folder}, or choose another folder"
            raise ConfigError(str(folder), "the output folder holds a run already", hint=hint)
        if taken := [n for n in (TOKENIZER, TOKENS, METRICS, CURVE) if (folder / n).exists()]:
            hint = "choose another folder, or move them away"
            raise ConfigError(str(folder), "the output folder holds other files", got=", ".join(taken), hint=hint)
        try:
            yield folder
        except BaseException:
            if made and not (folder / CONFIG).exists():
                rmtree(folder, ignore_errors=True)
            raise


def _made(name: str) -> tuple[Path, bool]:
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    for number in range(1, 10_000):
        folder = HOME / (plain if number == 1 else f"{plain}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            hint = "choose a folder with --out"
            raise ConfigError(str(folder), f"cannot be made: {reason(error)}", hint=hint) from error
        return folder, True
    raise ConfigError(str(HOME / plain), "ten thousand runs of this name", hint="choose a folder with --out")
