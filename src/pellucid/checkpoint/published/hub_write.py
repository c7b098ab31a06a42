"""A model as a Hugging Face folder: what `transformers` and whatever reads its files can load.

    config.json              the family and its sizes
    model.safetensors        the weights, or several files and model.safetensors.index.json
    tokenizer.json           with tokenizer_config.json, which has the chat template too
    generation_config.json   the ids that end an answer

The folder is written under a temporary name and renamed, so it is there whole or not at all. A tensor is turned into
its layout when its turn to be written has come.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...base.errors import ConfigError, DataError
from ...base.files import StrPath
from ...models import TransformerLM
from ...tape import Tensor
from ...text import Tokenizer, hub_content
from ..storage import encode_json, write_bytes, write_folder
from ..tensor_file import Plan
from .hub_describe import WHERE, describe
from .hub_names import Part, parts, stored_shapes
from .hub_read import CONFIG, GENERATION, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from .hub_shards import INDEX, MODEL

Host = np.ndarray[Any, Any]

#: Element types the weights can be written in.
DTYPES = (dtypes.float32, dtypes.bfloat16, dtypes.float16)
_OURS = re.compile(
    "|".join(map(re.escape, (CONFIG, GENERATION, INDEX, MODEL, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG)))
    + r"|model-\d{5}-of-\d{5}\.safetensors"
)


def write_hub(
    folder: StrPath,
    model: TransformerLM,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    special_tokens: Mapping[str, str] | None = None,
    eos_ids: tuple[int, ...] = (),
    dtype: DType = dtypes.float32,
    shard_bytes: int | None = None,
) -> Path:
    """Writes a model as a Hugging Face folder, in place of one that is there.

    dtype: of the weights; narrower ones are rounded to nearest. shard_bytes: of a file of weights at most, as far as
    its tensors allow (None: one file).

    Raises:
        ConfigError: a model, a tokenizer or an element type that such a folder can't hold, by name.
        CheckpointError: it can't be written, or the folder holds something else. What was there before is unchanged.
    """
    shown = os.fspath(folder)
    if dtype not in DTYPES:
        expected = ", ".join(d.name for d in DTYPES)
        raise ConfigError(WHERE, "weights can't be written in this", got=dtype.name, expected=expected)
    if shard_bytes is not None and shard_bytes < 1:
        raise ConfigError(WHERE, "shard_bytes must be at least 1", got=shard_bytes)
    config = model.config
    family, content = describe(config, dtype=dtype.name, eos_ids=eos_ids)
    weights = dict(model.named_parameters())
    turned = _straight(config.head_width) if config.rope_interleaved and config.positions == "rope" else None
    found = list(parts(replace(config, rope_interleaved=False), family))
    if more := sorted(set(weights) - {part.name for part in found}):
        hint = "merge adapters into the weights first; keep anything else as a checkpoint of Pellucid"
        raise ConfigError(WHERE, f"no published layout holds parameter {more[0]!r}", got=f"{len(more)} more", hint=hint)
    assert {part.name: part.shape for part in found} == {name: w.shape for name, w in weights.items()}
    stored = _stored(found, weights, dtype, turned)
    documents = {
        CONFIG: content,
        **_tokenizer(tokenizer, chat_template, special_tokens or {}, config.max_seq_len),
        GENERATION: {"_from_model_config": True, "eos_token_id": content["eos_token_id"]},
    }
    files, index = _sharded(stored, shard_bytes)
    if index is not None:
        documents[INDEX] = index
    encoded = {name: encode_json(document, where=f"{shown}: {name}") for name, document in documents.items()}
    if chat_template is not None:
        encoded[TEMPLATE] = chat_template.encode("utf-8")
    # Readers of these files want to be told that matrices are laid out as PyTorch has them.
    plans = {name: Plan(tensors, {"format": "pt"}, where=shown) for name, tensors in files.items()}
    needed = sum(map(len, encoded.values())) + sum(plan.nbytes for plan in plans.values())
    written: dict[str, Callable[[BinaryIO], object]] = {name: plan.write for name, plan in plans.items()}
    written |= {name: write_bytes(raw) for name, raw in encoded.items()}
    return write_folder(folder, written, needed=needed, belongs=_OURS.fullmatch, whose="an export's")


@dataclass(frozen=True)
class _Later:
    """A tensor of a file, made when it is written: what a `Plan` needs of a Tensor. parts: with ours, in their order
    along the last axis."""

    dtype: DType
    shape: tuple[int, ...]
    parts: list[tuple[Part, Tensor]]
    turned: np.ndarray | None

    def detach(self) -> _Later:
        return self

    def numpy(self) -> Host:
        pieces = [self._piece(part, tensor) for part, tensor in self.parts]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)
        return np.ascontiguousarray(whole.astype(self.dtype.numpy))

    def _piece(self, part: Part, tensor: Tensor) -> Host:
        host = tensor.detach().numpy()
        if self.turned is not None and re.search(r"\.[qk]_(proj|norm)\.", part.name):
            host = host.reshape(-1, len(self.turned), *host.shape[1:])[:, self.turned].reshape(host.shape)
        return host.T if part.transposed else host


def _straight(head_dim: int) -> np.ndarray:
    """Where each feature of a head comes from, so that pairs (2i, 2i + 1) lie at (i, i + head_dim / 2)."""
    return np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])


def _stored(
    found: list[Part], weights: Mapping[str, Tensor], dtype: DType, turned: np.ndarray | None
) -> dict[str, _Later]:
    """The tensors of the files by name."""
    groups: dict[str, list[tuple[Part, Tensor]]] = {}
    for part in found:
        groups.setdefault(part.stored, []).append((part, weights[part.name]))
    shapes = stored_shapes(found)
    for members in groups.values():
        members.sort(key=lambda member: member[0].begin or 0)
    return {name: _Later(dtype, shapes[name], members, turned) for name, members in groups.items()}


def _sharded(stored: dict[str, _Later], limit: int | None) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    """Tensors by file, filled in order up to the limit, and the index; None for one file."""
    groups: list[dict[str, Any]] = [{}]
    room = limit
    total = 0
    for name, tensor in stored.items():
        size = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
        total += size
        if limit is not None and room is not None:
            if size > room and groups[-1]:
                groups.append({})
                room = limit
            room -= size
        groups[-1][name] = tensor
    if len(groups) == 1:
        return {MODEL: groups[0]}, None
    files = {f"model-{i + 1:05}-of-{len(groups):05}.safetensors": group for i, group in enumerate(groups)}
    table = {name: file for file, group in files.items() for name in group}
    return files, {"metadata": {"total_size": total}, "weight_map": dict(sorted(table.items()))}


def _tokenizer(
    tokenizer: Tokenizer | None, template: str | None, special: Mapping[str, str], context: int
) -> dict[str, dict[str, Any]]:
    """The files of a tokenizer. Raises ConfigError for what the format has no place for."""
    if tokenizer is None:
        return {}
    try:
        content = hub_content(tokenizer)
    except DataError as error:
        raise ConfigError(
            WHERE, f"the tokenizer: {error.what}", got=error.got, expected=error.expected, hint=error.hint
        ) from error
    about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    about |= {"model_max_length": context, **special}
    if "eos_token" not in special and tokenizer.eot is not None:
        about["eos_token"] = next(name for name, i in tokenizer.special.items() if i == tokenizer.eot)
    if template is not None:
        about["chat_template"] = template
    return {TOKENIZER: content, TOKENIZER_CONFIG: about}
