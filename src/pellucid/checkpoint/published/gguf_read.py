"""A GGUF file as a ModelSource: its configuration, its weights by our names, its tokenizer and its chat template.

Names and shapes are compared with what the configuration asks for before a model is built, so that impossible numbers
in a file cost no memory. A tensor is decoded when it is asked for, and its rows are put in our order while they are
still the small ones of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...base.errors import CheckpointError, DataError
from ...base.files import open_regular
from ...base.gguf import MAGIC
from ...text.gguf import tokenizer_of
from ..source import ModelSource
from ..tensor_format import shown
from .gguf_blocks import decoded
from .gguf_config import architecture_of, config_of
from .gguf_file import GGUFFile, read_gguf
from .gguf_names import Row, halves_of_pairs, rows_of, stored_shapes
from .gguf_rope import ROPE_FACTORS

Host = np.ndarray[Any, Any]

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
# Ids that end an answer: of a text, of a turn, of a message.
_ENDS = ("eos", "eot", "eom")
_CALLED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# What puts its begin-of-text before a text unless the file says otherwise: a kind of vocabulary, and ways to cut words.
_BEGIN_KIND, _BEGIN_CUTS = "llama", ("llama-bpe", "tekken")
_WITHOUT_TOKENIZER = ("none", "no_vocab")


def holds_gguf(path: Path) -> bool:
    """Whether a path is a file that begins as GGUF does."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf_source(path: Path) -> ModelSource:
    """The model in a GGUF file.

    Raises:
        CheckpointError: a file that can't be read, asks for what this library doesn't have, or whose tensors are not
            those its keys ask for.
        DataError: its tokenizer is damaged, or of a kind this library doesn't have.
    """
    file = read_gguf(path)
    shapes = {name: file.shape(name) for name in file}
    config, ignored = config_of(file)
    rows = rows_of(config, architecture_of(file.metadata, file.path))
    shapes.pop(ROPE_FACTORS, None)  # which the configuration has taken, or refused
    _compare(shapes, stored_shapes(rows), file.path)
    kind = file.metadata.get(f"{_KEY}model")
    tokenizer = None if kind is None or kind in _WITHOUT_TOKENIZER else tokenizer_of(file.metadata, file.path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        got, expected = f"{tokenizer.vocab_size} tokens", f"at most {config.vocab_size}, the rows of the embeddings"
        raise CheckpointError(file.path, "the tokenizer has more tokens than the model", got=got, expected=expected)
    template = file.metadata.get(_TEMPLATE)
    if template is not None and not isinstance(template, str):
        raise CheckpointError(file.path, f"{_TEMPLATE} is no text", got=type(template).__name__)
    ids = _special_ids(file, config.vocab_size)
    usual = kind == _BEGIN_KIND or file.metadata.get(f"{_KEY}pre") in _BEGIN_CUTS
    starts = "bos" in ids and file.metadata.get(f"{_KEY}add_bos_token", usual) is True
    tokens = file.metadata.get(f"{_KEY}tokens", [])
    return ModelSource(
        path,
        "gguf",
        config,
        GGUFWeights(file, rows),
        tokenizer=tokenizer,
        chat_template=template,
        special_tokens={_CALLED[name]: tokens[i] for name, i in ids.items() if name in _CALLED and i < len(tokens)},
        eos_ids=tuple(dict.fromkeys(ids[name] for name in _ENDS if name in ids)),
        stored=", ".join(sorted({file.format(row.stored).name for row in rows})) + " (read as float32)",
        begin_ids=(ids["bos"],) if starts else (),
        ignored=ignored,
    )


class GGUFWeights:
    """The tensors of a GGUF file under our names and in our layout, decoded to float32 when they are asked for."""

    def __init__(self, file: GGUFFile, rows: list[Row]) -> None:
        self._file, self._rows = file, {row.name: row for row in rows}

    @property
    def path(self) -> str:
        return self._file.path

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def shape(self, name: str) -> tuple[int, ...]:
        return self._rows[name].shape

    def dtype(self, name: str) -> DType:
        return dtypes.float32

    def __getitem__(self, name: str, /) -> Host:
        row = self._rows[name]
        raw = self._file.raw(row.stored)
        lines = raw.reshape(self._file.shape(row.stored)[0], -1)
        if row.start is not None:
            lines = lines[row.start : row.start + row.shape[0]]
        if row.paired is not None:
            lines = halves_of_pairs(lines, row.paired)
        return decoded(self._file.format(row.stored), np.ascontiguousarray(lines).reshape(-1), row.shape)


def _compare(found: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]], where: str) -> None:
    """Refuses tensors that are missing, of another shape, or that nothing here would use."""
    for name, shape in wanted.items():
        if name not in found:
            got = f"{len(found)} tensors"
            raise CheckpointError(where, f"tensor {shown(name)} is missing", got=got, expected=f"shape {shape}")
        if found[name] != shape:
            hint = "the keys of the file do not fit its tensors"
            raise CheckpointError(
                where, f"tensor {shown(name)} has another shape", got=found[name], expected=shape, hint=hint
            )
    if more := [name for name in found if name not in wanted]:
        got = ", ".join(map(shown, more[:5])) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
        raise CheckpointError(where, "tensors that no part of the model would use", got=got)


def _special_ids(file: GGUFFile, vocab_size: int) -> dict[str, int]:
    """Ids of the special tokens that the file names, by its names for them."""
    found: dict[str, int] = {}
    for name in (*_CALLED, *_ENDS):
        key = f"{_KEY}{name}_token_id"
        value = file.metadata.get(key)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab_size:
            raise DataError(file.path, f"{key} is no token", got=repr(value), expected=f"0 to {vocab_size - 1}")
        found[name] = value
    return found
