"""One way in for every model: a run, a checkpoint, or a model published by others, told apart by what the path holds.

`FORMATS` is the list of kinds that can be read. A new one is a function from a path to a `ModelSource`, and a row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..base.config import from_dict
from ..base.errors import CheckpointError
from ..base.files import StrPath
from ..device import Device
from ..models import TransformerConfig, TransformerLM
from ..nn import LoraConfig, add_lora, merge_lora
from .adapters import LORA, adapter_tensors, base_path, base_weights, check_base
from .checkpoint import Checkpoint, load_checkpoint
from .load import load_into
from .published.gguf_read import holds_gguf, read_gguf_source
from .published.hub_read import holds_hub, read_hub
from .runs import latest_checkpoint
from .source import Format, ModelSource, OpenedModel
from .storage import current, unreadable

OURS = "pellucid"
#: Settings that a checkpoint's config.json may hold beside the model's.
CHAT_TEMPLATE, SPECIAL_TOKENS, BEGIN_IDS, EOS_IDS = "chat_template", "special_tokens", "begin_ids", "eos_ids"

# Adapters on one another: an adapter of a run that trained one, and so on.
_DEEPEST = 16


def open_model(
    path: StrPath, *, max_seq_len: int | None = None, average: bool = False, device: str | Device = "cpu"
) -> OpenedModel:
    """The model at a path, with its tokenizer, chat template and the ids that end an answer.

    path: a run folder (its newest checkpoint), a checkpoint folder, or any of `FORMATS`. max_seq_len: positions the
    model is to have at most: caches and rotary tables of a long context take memory (None: all it was made for).
    average: with the running mean of the weights that a run kept (`ema`) in place of the weights.

    Raises:
        CheckpointError, DataError, ConfigError: nothing there, of no known kind, damaged, without a running mean where
            that is wanted, or a model that asks for what this library doesn't have.
    """
    source = open_source(path)
    if average:
        source = source.averaged()
    if max_seq_len is not None:
        source = source.shortened(max_seq_len)
    return OpenedModel(source.build(device=device), source)


def open_source(path: StrPath) -> ModelSource:
    """What `open_model` would build the model from. Raises what `open_model` raises."""
    home = current(_findable(path))
    for kind in FORMATS:
        if kind.holds(home):
            return kind.read(home)
    return _read_ours(home)  # which says what is missing


def _findable(path: StrPath) -> Path:
    """The path, which may lead nowhere. Raises CheckpointError for one that the system can't even look for."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise CheckpointError(ascii(os.fspath(path))[:80], "not a path") from error
    return Path(path)


def is_published(path: StrPath) -> bool:
    """Whether a path holds a model in a format other than ours."""
    home = _findable(path)
    return any(kind.holds(home) for kind in FORMATS if kind.name != OURS)


def checkpoint_config(checkpoint: Checkpoint) -> TransformerConfig:
    """The model configuration a checkpoint holds. Raises CheckpointError for another architecture."""
    found = checkpoint.config.get("architecture")
    if found != "TransformerLM":
        raise CheckpointError(str(checkpoint.path), "unknown architecture", got=repr(found), expected="'TransformerLM'")
    return from_dict(TransformerConfig, checkpoint.config.get("model", {}), where=f"{checkpoint.path}/config.json")


# --- our own ----------------------------------------------------------------------------------------------------------


def _holds_ours(path: Path) -> bool:
    return latest_checkpoint(path) is not None or (current(path) / "state.json").is_file()


def _read_ours(path: Path, *, above: tuple[Path, ...] = ()) -> ModelSource:
    """above: the adapters that this is the base of."""
    newest = latest_checkpoint(path)
    found = load_checkpoint(path if newest is None else newest)
    base = None
    if found.config.get("architecture") == "LoRA":
        where, here = f"{found.path}/config.json", found.path.resolve()
        if here in above or len(above) == _DEEPEST:
            what = "an adapter of itself" if here in above else f"more than {_DEEPEST} adapters on one another"
            raise CheckpointError(where, what, hint="restore the path of the base in the file")
        home = _findable(base_path(found.config, where=where))
        base = _read_ours(home, above=(*above, here)) if _holds_ours(home) else open_source(home)
        config = base.config
    else:
        config = checkpoint_config(found)
    names = CHAT_TEMPLATE, SPECIAL_TOKENS, BEGIN_IDS, EOS_IDS
    template, tokens, begin, ends = (found.config.get(key) for key in names)
    where = f"{found.path}/config.json"
    for key, value, right in (
        (CHAT_TEMPLATE, template, isinstance(template, str)),
        (SPECIAL_TOKENS, tokens, isinstance(tokens, dict) and all(isinstance(v, str) for v in tokens.values())),
        (BEGIN_IDS, begin, _are_ids(begin, config.vocab_size)),
        (EOS_IDS, ends, isinstance(ends, list) and all(type(i) is int for i in ends)),
    ):
        if value is not None and not right:
            raise CheckpointError(where, f"{key} is not what is saved there", got=repr(value)[:80])
    if ends is None:
        eot = None if found.tokenizer is None else found.tokenizer.eot
        ends = [] if eot is None else [eot]
    weights, kind = (found.tensors, ModelSource) if base is None else (base.weights, partial(AdaptedSource, base=base))
    return kind(
        found.path,
        OURS,
        config,
        weights,
        tokenizer=found.tokenizer,
        chat_template=template,
        special_tokens=tokens or {},
        begin_ids=None if begin is None else tuple(begin),
        eos_ids=tuple(ends),
        checkpoint=found,
    )


def _are_ids(value: object, vocab_size: int) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < vocab_size for i in value)


@dataclass(frozen=True)
class AdaptedSource(ModelSource):
    """A checkpoint of an adapter, opened as the model it makes of its base: with the changes merged in."""

    base: ModelSource | None = None

    def averaged(self) -> ModelSource:
        """With the mean of the adapter's weights, on the same base."""
        found = super().averaged()
        assert found.checkpoint is not None
        assert found.checkpoint.average is not None
        kept = replace(found.checkpoint, tensors=found.checkpoint.average)
        return replace(found, weights=self.weights, checkpoint=kept)

    def build(self, *, device: str | Device = "cpu") -> TransformerLM:
        """The base with the adapter merged into it. Raises CheckpointError where it is another base, too."""
        model = self.adapted(device=device)
        model.restore_weights()  # as they were held when the adapter was trained beside them
        merge_lora(model)
        return model

    def adapted(self, *, device: str | Device = "cpu") -> TransformerLM:
        """The base with the adapter beside its weights. Raises what `build` raises."""
        assert self.base is not None
        assert self.checkpoint is not None
        model = replace(self.base, config=self.config).build(device=device)
        where = f"{self.path}/config.json"
        held = self.checkpoint.config
        name = base_path(held, where=where)
        if (rounded := base_weights(held, where=where)) is not None:
            model.hold_weights(rounded)
        add_lora(model, from_dict(LoraConfig, held[LORA], where=f"{where}.{LORA}"), base=name)
        check_base(model, held, where=where)
        load_into(adapter_tensors(model), self.checkpoint.tensors)
        return model


#: The kinds of paths that hold a model, in the order in which a path is tried.
FORMATS: tuple[Format, ...] = (
    Format(OURS, "a run or checkpoint folder", _holds_ours, _read_ours),
    Format("gguf", "a GGUF file", holds_gguf, read_gguf_source),
    Format("huggingface", "a Hugging Face folder", holds_hub, read_hub),
)
