"""A Hugging Face folder as a ModelSource: `config.json`, safetensors, the tokenizer and the chat template.

What the configuration asks for is compared with the headers of the files, by name, shape and element type, before a
model is built; impossible numbers in a file cost no memory. Weights are float32, float16 or bfloat16 there, float32
here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...base import dtypes
from ...base.dtypes import DType
from ...base.errors import CheckpointError, DataError
from ...text import Tokenizer, load_tokenizer, read_gpt2
from ...text.template_files import named_default, token_text
from ..source import ModelSource
from ..storage import decode_json, read_small
from ..tensor_format import shown
from .hub_config import config_of
from .hub_names import HEAD, Part, parts, stored_shapes
from .hub_shards import INDEX, MODEL, Shards, read_shards

Host = np.ndarray[Any, Any]

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"
_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
# Buffers that old versions of the `transformers` library saved beside the weights; they follow from the configuration.
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_LARGEST_TEMPLATE = 1 << 24  # characters
_NAMED = 5  # tensors that a message lists


def holds_hub(path: Path) -> bool:
    """Whether a path is a folder with a `config.json` that names a family of models, or lies beside safetensors."""
    if not (path / CONFIG).is_file():
        return False
    if (path / MODEL).exists() or (path / INDEX).exists():
        return True
    return b'"model_type"' in read_small(path / CONFIG)


def read_hub(path: Path) -> ModelSource:
    """The model in a Hugging Face folder.

    Raises:
        CheckpointError: a file that is missing or damaged, a configuration that asks for what this library doesn't
            have, or tensors that are not those it asks for.
        DataError: its tokenizer is damaged, or has a part that this library can't do exactly.
    """
    content = _json(path, CONFIG)
    shards = read_shards(path)
    config, family, ignored = config_of(content, os.fspath(path / CONFIG), tensors=len(shards))
    weights = HubWeights(shards, *_compared(shards, parts(config, family), tied=config.tie_embeddings))
    tokenizer = _tokenizer(path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        got, expected = f"{tokenizer.vocab_size} tokens", f"at most {config.vocab_size}, the rows of the embeddings"
        raise CheckpointError(
            os.fspath(path), "the tokenizer has more tokens than the model", got=got, expected=expected
        )
    about = _json(path, TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).exists() else {}
    special = {name: token_text(value) for name, value in about.items() if name.endswith("_token")}
    tokens = {name: text for name, text in special.items() if text is not None}
    return ModelSource(
        path,
        "huggingface",
        config,
        weights,
        tokenizer=tokenizer,
        chat_template=_template(path, about),
        special_tokens=tokens,
        eos_ids=_eos_ids(path, content, tokenizer, tokens, config.vocab_size),
        ignored=tuple(f"{CONFIG}: {name}" for name in ignored),
    )


class HubWeights:
    """The tensors of a folder under our names and in our layout, each read when it is asked for."""

    def __init__(self, shards: Shards, found: list[Part], prefix: str) -> None:
        self._shards, self._parts, self._prefix = shards, {part.name: part for part in found}, prefix

    @property
    def path(self) -> str:
        return self._shards.path

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def dtype(self, name: str) -> DType:
        return self._shards.dtype(_renamed(self._parts[name].stored, self._prefix))

    def __getitem__(self, name: str, /) -> Host:
        part = self._parts[name]
        whole = self._shards[_renamed(part.stored, self._prefix)][..., part.begin : part.end]
        return np.ascontiguousarray(whole.T) if part.transposed else np.ascontiguousarray(whole)


def _renamed(stored: str, prefix: str) -> str:
    """The name of a tensor in files that leave out the first part of all names but the head's."""
    return stored.removeprefix(prefix) if stored != HEAD else stored


def _compared(shards: Shards, wanted: Iterator[Part], *, tied: bool) -> tuple[list[Part], str]:
    """The parts, which the files hold as they should, and the prefix that the files leave out."""
    found: list[Part] = []
    missing: list[str] = []
    first = next(wanted)
    # A model saved without its head has no name in front: "wte.weight" instead of "transformer.wte.weight".
    whole = first.stored.split(".")[0] + "."
    prefix = "" if first.stored in shards or first.stored.removeprefix(whole) not in shards else whole
    for part in chain([first], wanted):
        found.append(part)
        if _renamed(part.stored, prefix) not in shards:
            missing.append(part.stored)
        if len(missing) == _NAMED:
            break  # the numbers of the configuration may be anything
    if missing:
        got = f"{len(shards)} tensors"
        names = ", ".join(map(shown, dict.fromkeys(missing)))
        hint = f"get {CONFIG} and the weights from the same place"
        raise CheckpointError(shards.path, f"tensors are missing: {names}", got=got, hint=hint)
    used = set()
    for stored, shape in stored_shapes(found).items():
        name = _renamed(stored, prefix)
        used.add(name)
        if shards.shape(name) != shape:
            hint = f"get {CONFIG} and the weights from the same place"
            what = f"tensor {shown(name)} has another shape than {CONFIG} asks for"
            raise CheckpointError(shards.file_of(name), what, got=shards.shape(name), expected=shape, hint=hint)
        if shards.dtype(name) not in _FLOATS:
            expected = ", ".join(d.name for d in _FLOATS)
            what = f"tensor {shown(name)} has another element type"
            raise CheckpointError(shards.file_of(name), what, got=shards.dtype(name).name, expected=expected)
    more = [n for n in shards if n not in used and not n.endswith(_BUFFERS) and not (tied and n == HEAD)]
    if more:
        got = ", ".join(map(shown, more[:_NAMED])) + (f" and {len(more) - _NAMED} more" if len(more) > _NAMED else "")
        raise CheckpointError(shards.path, "tensors that no part of the model would use", got=got)
    return found, prefix


def _json(folder: Path, name: str) -> dict[str, Any]:
    return decode_json(read_small(folder / name), where=os.fspath(folder / name))


def _tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer, from the file that says most about it; None where there is no such file."""
    if (folder / TOKENIZER).exists():
        return load_tokenizer(folder / TOKENIZER)
    if (folder / "tokenizer.model").exists():
        return load_tokenizer(folder / "tokenizer.model")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return read_gpt2(folder / "vocab.json", folder / "merges.txt")
    return None


def _template(folder: Path, about: dict[str, Any]) -> str | None:
    """The chat template: a file of its own, or an entry of the tokenizer's configuration."""
    path = folder / TEMPLATE
    if not path.exists():
        value = about.get("chat_template")
        found = named_default(value)
        if value is not None and found is None:
            where = os.fspath(folder / TOKENIZER_CONFIG)
            raise DataError(where, "chat_template holds no default template", got=type(value).__name__)
        return found
    try:
        text = read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(os.fspath(path), f"not UTF-8 text: bad byte at offset {error.start}") from error
    if len(text) > _LARGEST_TEMPLATE:
        raise DataError(os.fspath(path), "too long for a chat template", got=f"{len(text)} characters")
    return text


def _eos_ids(
    folder: Path, config: dict[str, Any], tokenizer: Tokenizer | None, tokens: dict[str, str], vocab_size: int
) -> tuple[int, ...]:
    """Ids that end an answer: those the generation settings name (else the configuration), and the tokenizer's."""
    where, value = folder / CONFIG, config.get("eos_token_id")
    if (folder / GENERATION).exists():
        named = _json(folder, GENERATION).get("eos_token_id")
        if named is not None:
            where, value = folder / GENERATION, named
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(os.fspath(where), "eos_token_id is no token", got=repr(value)[:80])
    if tokenizer is not None and tokens.get("eos_token") in tokenizer.special:
        ids = [*ids, tokenizer.special[tokens["eos_token"]]]
    return tuple(i for i in dict.fromkeys(ids) if i < vocab_size)  # no other can come
