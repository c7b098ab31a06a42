"""Checkpoints: a folder with everything a run needs to go on, or a model needs to be used.

    model.safetensors      weights
    optimizer.safetensors  the optimizer's tensors (optional)
    average.safetensors    a running mean of the weights (optional)
    config.json            what was built: architecture and its configuration
    tokenizer.json         the vocabulary the ids mean (optional)
    state.json             the caller's state (step, generators, schedule, ...), and size and digest of the files above

The folder is written under a temporary name, `state.json` last, and renamed: a kill at any moment leaves the old
checkpoint or the new one, each complete. Every byte is covered by a digest, and `state.json` by its own, so a damaged
file or one from another checkpoint is refused before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ..base.errors import CheckpointError, ConfigError, DataError
from ..base.files import StrPath, canonical_json
from ..tape import Tensor
from ..text import Tokenizer, load_tokenizer
from .int8 import INT8, PRECISION, STORED, Int8File, int8_tensors
from .storage import (
    current,
    decode_json,
    encode_json,
    read_small,
    sha256,
    unreadable,
    write_bytes,
    write_folder,
)
from .tensor_file import Plan, TensorFile, read_tensors

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
AVERAGE = "average.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
STATE = "state.json"
_FORMAT = "pellucid checkpoint"
_VERSION = 1
_REQUIRED = (MODEL, CONFIG)
_LISTED = (MODEL, OPTIMIZER, AVERAGE, CONFIG, TOKENIZER)
_AGAIN = "copy or save it again, or use an earlier checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was checked as a whole; tensors are mapped, not yet in memory.

    path: the folder asked for. tensors: the weights. optimizer: its tensors, or None. config, state: as they were
    saved. tokenizer: or None. precision: of the weights on disk, "float32" or "int8". average: the running mean of the
    weights, or None.
    """

    path: Path
    tensors: TensorFile
    optimizer: TensorFile | None
    config: dict[str, Any]
    tokenizer: Tokenizer | None
    state: dict[str, Any]
    precision: str = "float32"
    average: TensorFile | None = None


def save_checkpoint(
    folder: StrPath,
    *,
    tensors: Mapping[str, Tensor],
    config: dict[str, Any],
    state: dict[str, Any],
    optimizer_tensors: Mapping[str, Tensor] | None = None,
    average_tensors: Mapping[str, Tensor] | None = None,
    tokenizer: Tokenizer | None = None,
    precision: Literal["float32", "int8"] = "float32",
) -> Path:
    """Writes a checkpoint, in place of the one at `folder` if there is one. Folders above it are made.

    precision: "int8" stores matrices in one byte a weight, at most half a step of 1/127 of the row's largest from the
    truth (see `int8`): for shipping a model, not for going on with its training. "float32" stores tensors as they are.

    Raises:
        ConfigError: an unknown precision, or "int8" with an optimizer.
        CheckpointError: the disk is full or refuses, the folder holds something else, or `config` or `state` is not
            JSON. What was there before is unchanged.
    """
    shown = os.fspath(folder)
    if precision not in ("float32", INT8):
        raise ConfigError("save_checkpoint", "unknown precision", got=precision, expected="'float32' or 'int8'")
    # Hugging Face readers want to be told that matrices are laid out as PyTorch has them.
    metadata = {"format": "pt"}
    if precision == INT8:
        if optimizer_tensors is not None:
            hint = "save float32 to resume from, or leave the optimizer out"
            raise ConfigError(
                "save_checkpoint", "int8 is for shipping a model, an optimizer for training it", hint=hint
            )
        tensors, metadata = int8_tensors(tensors, where=shown), {**metadata, PRECISION: STORED}
    documents = {CONFIG: encode_json(config, where=f"{shown}: config")}
    if tokenizer is not None:
        documents[TOKENIZER] = encode_json(tokenizer.to_json(), where=f"{shown}: tokenizer")
    plans = {MODEL: Plan(tensors, metadata, where=shown)}
    if optimizer_tensors is not None:
        plans[OPTIMIZER] = Plan(optimizer_tensors, {}, where=shown)
    if average_tensors is not None:
        plans[AVERAGE] = Plan(average_tensors, {"format": "pt"}, where=shown)
    sizes = {name: len(raw) for name, raw in documents.items()} | {name: plan.nbytes for name, plan in plans.items()}
    # Digests have one length, so zeros in their place give the size and show early whether `state` can be stored.
    needed = sum(sizes.values()) + len(_state_json(shown, state, sizes, dict.fromkeys(sizes, "0" * 64)))
    digests = {name: sha256(raw) for name, raw in documents.items()}

    def write_plan(file: BinaryIO, name: str) -> None:
        digests[name] = plans[name].write(file)

    files: dict[str, Callable[[BinaryIO], object]] = {name: partial(write_plan, name=name) for name in plans}
    files |= {name: write_bytes(raw) for name, raw in documents.items()}
    files[STATE] = lambda file: file.write(_state_json(shown, state, sizes, digests))
    return write_folder(folder, files, needed=needed, belongs={*_LISTED, STATE}.__contains__, whose="a checkpoint's")


def load_checkpoint(folder: StrPath) -> Checkpoint:
    """Reads a checkpoint after checking every byte of it.

    Raises:
        CheckpointError: missing, incomplete, damaged, foreign, or written by a newer version.
    """
    shown, home = os.fspath(folder), current(Path(folder))
    if not home.is_dir():
        got = "a file" if home.exists() else "nothing there"
        raise CheckpointError(shown, "no such checkpoint", got=got, expected="a checkpoint folder")
    if not (home / STATE).exists():
        hint = "give the folder that holds state.json; in a run it lies in checkpoints/"
        raise CheckpointError(shown, f"not a complete checkpoint: no {STATE}", hint=hint)
    files, state = _read_state(home)
    for name in files:
        _check_size(home / name, files[name]["bytes"])
    config = decode_json(_document(home / CONFIG, files), where=os.fspath(home / CONFIG))
    tokenizer = None
    if TOKENIZER in files:
        _document(home / TOKENIZER, files)
        try:
            tokenizer = load_tokenizer(home / TOKENIZER)
        except DataError as error:
            raise CheckpointError(error.where, error.what, got=error.got, expected=error.expected) from error
    model = read_tensors(home / MODEL, expected_sha256=files[MODEL]["sha256"])
    optimizer = None
    if OPTIMIZER in files:
        optimizer = read_tensors(home / OPTIMIZER, expected_sha256=files[OPTIMIZER]["sha256"])
    average = None
    if AVERAGE in files:
        average = read_tensors(home / AVERAGE, expected_sha256=files[AVERAGE]["sha256"])
    stored, precision = model.metadata.get(PRECISION), "float32"
    if stored == STORED:
        model, precision = Int8File(model), INT8
    elif stored is not None:
        hint = "use the version of Pellucid that saved it, or a newer one"
        raise CheckpointError(model.path, "an unknown precision", got=_short(stored), expected=STORED, hint=hint)
    return Checkpoint(Path(folder), model, optimizer, config, tokenizer, state, precision, average)


def is_complete(folder: Path) -> bool:
    """Whether all files listed in `state.json` are there. A `state.json` that can't be read, or a file of another size,
    counts as complete: that is damage, which `load_checkpoint` reports, and not an unfinished copy."""
    home = current(folder)
    if not (home / STATE).is_file():
        return False
    try:
        files, _ = _read_state(home)
    except CheckpointError:
        return True
    return all((home / name).exists() for name in files)


def _state_json(shown: str, state: dict[str, Any], sizes: dict[str, int], digests: dict[str, str]) -> bytes:
    files = {name: {"bytes": sizes[name], "sha256": digests[name]} for name in _LISTED if name in sizes}
    content = {"format": _FORMAT, "version": _VERSION, "files": files, "state": state}
    encode_json(content, where=f"{shown}: state")
    return encode_json(content | {"sha256": sha256(canonical_json(content))}, where=f"{shown}: state")


def _read_state(home: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(files, state) of a `state.json` whose digest and structure are right."""
    where = os.fspath(home / STATE)
    content = decode_json(read_small(where), where=where)
    if content.get("format") != _FORMAT:
        raise CheckpointError(
            where, "not the state of a checkpoint", got=_short(content.get("format")), expected=repr(_FORMAT)
        )
    if content.get("version") != _VERSION:
        hint = "use the version of Pellucid that saved it, or a newer one"
        got = _short(content.get("version"))
        raise CheckpointError(where, "a version this library does not read", got=got, expected=_VERSION, hint=hint)
    expected = content.pop("sha256", None)
    found = sha256(canonical_json(content))
    files, state = content.get("files"), content.get("state")
    if found != expected:
        what, got = "the file is damaged: its content does not match its checksum", f"sha256 {found[:16]}"
        raise CheckpointError(where, what, got=got, expected=_short(expected, 16), hint=_AGAIN)
    if not isinstance(files, dict) or not isinstance(state, dict) or not all(map(_is_fact, files.values())):
        raise CheckpointError(where, "damaged: files and state are not as they are saved", hint=_AGAIN)
    if not set(_REQUIRED) <= set(files) <= set(_LISTED):
        got, listed = _short(", ".join(sorted(files))), ", ".join(_LISTED)
        raise CheckpointError(where, "lists other files than a checkpoint has", got=got, expected=f"of {listed}")
    return files, state


def _is_fact(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def _short(value: Any, limit: int = 80) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit]


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    if size != expected:
        what = "the file is truncated" if size < expected else "the file is too long"
        got, wanted = f"{size:,} bytes", f"{expected:,}"
        raise CheckpointError(os.fspath(path), what, got=got, expected=wanted, hint=_AGAIN)


def _document(path: Path, files: dict[str, Any]) -> bytes:
    """The bytes of a JSON file whose digest is right."""
    raw, expected = read_small(path), files[path.name]["sha256"]
    found = sha256(raw)
    if found != expected:
        what, got = "the file was changed since it was saved", f"sha256 {found[:16]}"
        raise CheckpointError(os.fspath(path), what, got=got, expected=expected[:16], hint=_AGAIN)
    return raw
