"""A model as a GGUF file that llama.cpp runs: F32, BF16 or Q8_0, with its tokenizer and its chat template.

Everything is laid out before the first byte is written; then a tensor at a time is brought into the file's order,
encoded and written, so an export needs no room beside the model. The file takes its name when all of it is on the disk.
Norms, biases and the table of positions stay float32, as llama.cpp's own conversion has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from ...base.errors import CheckpointError
from ...base.files import StrPath
from ...base.gguf import TensorPlace
from ...base.gguf_write import aligned, head_bytes
from ...models import TransformerConfig
from ...tape import Tensor
from ...text import Tokenizer
from ...text.gguf import KEY
from ...text.gguf_write import gguf_vocabulary
from ..storage import replacing
from ..tensor_format import shown
from .gguf_blocks import BY_NAME, BlockFormat, encoded
from .gguf_config import architecture_for, keys_of
from .gguf_names import Row, pairs_of_halves, rows_of, stored_shapes

Host = np.ndarray[Any, Any]
Precision = Literal["float32", "bfloat16", "int8"]

# Name of the format, and llama.cpp's number for a file of it (llama.h, `llama_ftype`).
_FORMATS: dict[str, tuple[str, int]] = {"float32": ("F32", 0), "bfloat16": ("BF16", 32), "int8": ("Q8_0", 7)}
_ALWAYS_FLOAT32 = "position_embd.weight"
_CALLED = {"bos_token": "bos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class Companions:
    """What goes with the weights. chat_template: Jinja. special_tokens: names that template has for tokens, and the
    tokens. eos_ids: that end an answer; the file has room for three. name: of the model."""

    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] | None = None
    eos_ids: Sequence[int] = ()
    name: str | None = None


def write_gguf(
    path: StrPath,
    tensors: Mapping[str, Tensor],
    config: TransformerConfig,
    *,
    precision: Precision = "float32",
    companions: Companions | None = None,
) -> list[str]:
    """Writes a model, atomically; returns what of its companions the file can't say, a sentence each.

    Raises:
        CheckpointError: a configuration or a matrix that the format can't hold, numbers that are not finite, or a file
            that can't be written. What was there before is unchanged.
        DataError: a tokenizer that llama.cpp has no equal of.
    """
    where = os.fspath(path)
    architecture = architecture_for(config, where)
    form, number = BY_NAME[_FORMATS[precision][0]], _FORMATS[precision][1]
    rows = rows_of(config, architecture)
    keys = keys_of(config, architecture)
    keys |= {"general.type": "model", "general.file_type": number}
    if precision == "int8":
        keys["general.quantization_version"] = 2
    spoken, notes = _spoken(companions or Companions(), config, architecture)
    places = _places(rows, form, where)
    head = head_bytes(keys | spoken, places)
    last = places[-1]
    total = len(head) + aligned(last.offset + _format_of(last, form).nbytes(prod(last.shape)))
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.stored, []).append(row)
    with replacing(path, needed=total) as file:
        file.write(head)
        for place in places:
            raw = _stored(parts[place.name], tensors, _format_of(place, form), where)
            file.write(raw.data)
            file.write(bytes(aligned(len(raw)) - len(raw)))
    return notes


def _format_of(place: TensorPlace, form: BlockFormat) -> BlockFormat:
    return form if place.kind == form.number else BY_NAME["F32"]


def _places(rows: list[Row], form: BlockFormat, where: str) -> list[TensorPlace]:
    """Where each tensor goes. Raises CheckpointError for a matrix whose rows are no whole blocks."""
    found, at = [], 0
    for name, shape in stored_shapes(rows).items():
        plain = len(shape) < 2 or name == _ALWAYS_FLOAT32
        kind = BY_NAME["F32"] if plain else form
        if shape[-1] % kind.size:
            what, got = f"{kind.name} has no room for the rows of tensor {shown(name)}", f"{shape[-1]} elements"
            hint = "export it in float32 or bfloat16"
            raise CheckpointError(where, what, got=got, expected=f"a multiple of {kind.size}", hint=hint)
        found.append(TensorPlace(name, shape, kind.number, at))
        at = aligned(at + kind.nbytes(prod(shape)))
    return found


def _stored(rows: list[Row], tensors: Mapping[str, Tensor], form: BlockFormat, where: str) -> Host:
    """The bytes of one tensor of the file."""
    parts = []
    for row in rows:
        value = tensors[row.name].detach().numpy()
        assert value.shape == row.shape, (row, value.shape)
        if not np.isfinite(value).all():
            hint = "the training diverged; export an earlier state"
            raise CheckpointError(where, f"tensor {shown(row.name)} has numbers that are not finite", hint=hint)
        parts.append(value if row.paired is None else pairs_of_halves(value, row.paired))
    return encoded(form.name, parts[0] if len(parts) == 1 else np.concatenate(parts))


def _spoken(given: Companions, config: TransformerConfig, architecture: str) -> tuple[dict[str, Any], list[str]]:
    """Keys of the name, the tokenizer and the template."""
    found: dict[str, Any] = {} if given.name is None else {"general.name": given.name}
    if given.tokenizer is None:
        return found | {f"{KEY}model": "no_vocab", f"{architecture}.vocab_size": config.vocab_size}, []
    vocabulary, notes = gguf_vocabulary(given.tokenizer, config.vocab_size)
    found |= vocabulary
    names = given.tokenizer.special
    for called, token in (given.special_tokens or {}).items():
        if called in _CALLED and token in names:
            found.setdefault(f"{KEY}{_CALLED[called]}_token_id", names[token])
    ends = list(dict.fromkeys(given.eos_ids))
    for name, number in zip(("eos", "eot", "eom"), ends, strict=False):
        found[f"{KEY}{name}_token_id"] = number
    if len(ends) > 3:
        notes.append(f"ids that end an answer beyond the third are not in the file: {', '.join(map(str, ends[3:]))}")
    if given.chat_template is not None:
        found["tokenizer.chat_template"] = given.chat_template
    return found, notes
