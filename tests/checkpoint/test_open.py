"""open_model: what a path holds decides how it is read; what a checkpoint says beside its weights comes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base.config import to_dict
from pellucid.base.errors import CheckpointError, ConfigError, DataError
from pellucid.checkpoint import (
    FORMATS,
    adapter_tensors,
    checkpoint_path,
    is_published,
    load_streamed,
    lora_details,
    open_model,
    open_source,
    save_checkpoint,
    write_hub,
)
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.nn import LoraConfig, add_lora
from pellucid.tape import Tensor
from pellucid.text import END_OF_TEXT, ByteTokenizer

from .helpers import message

CONFIG = TransformerConfig(257, d_model=16, n_layers=1, n_heads=2, max_seq_len=8)


def saved(path: Path, **beside: Any) -> Path:
    model = TransformerLM(CONFIG)
    return save_checkpoint(
        path,
        tensors=dict(model.named_parameters()),
        config={"architecture": "TransformerLM", "model": to_dict(CONFIG), **beside},
        state={"step": 3},
        tokenizer=ByteTokenizer(special=[END_OF_TEXT]),
    )


def test_a_checkpoint_and_the_newest_of_a_run(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(checkpoint_path(tmp_path / "run", step))
    opened = open_model(tmp_path / "run")
    assert opened.path == checkpoint_path(tmp_path / "run", 2)
    assert opened.source.format == "pellucid"
    assert opened.source.checkpoint is not None
    assert opened.eos_ids == (256,)  # the token between documents
    assert opened.chat_template is None
    assert opened.prompt_ids("ab").tolist() == [97, 98]
    assert not is_published(tmp_path / "run")
    given = saved(tmp_path / "chat", chat_template="{{ messages }}", special_tokens={"bos_token": "x"}, eos_ids=[1, 2])
    opened = open_model(given)
    assert (opened.chat_template, opened.special_tokens, opened.eos_ids) == (
        "{{ messages }}",
        {"bos_token": "x"},
        (1, 2),
    )


def test_formats_are_told_apart_by_content(tmp_path: Path) -> None:
    home = write_hub(tmp_path / "hub", TransformerLM(CONFIG))
    ours = saved(tmp_path / "ours")
    assert [kind.name for kind in FORMATS if kind.holds(home)] == ["huggingface"]
    assert [kind.name for kind in FORMATS if kind.holds(ours)] == ["pellucid"]
    assert is_published(home)
    for nothing in (tmp_path / "nowhere", tmp_path):
        assert not any(kind.holds(nothing) for kind in FORMATS)
        with pytest.raises(CheckpointError):
            open_source(nothing)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"chat_template": 3}, "chat_template is not what is saved there; got 3"),
        ({"special_tokens": ["<s>"]}, "special_tokens is not what is saved there; got ['<s>']"),
        ({"begin_ids": [-1]}, "begin_ids is not what is saved there; got [-1]"),
        ({"begin_ids": [257]}, "begin_ids is not what is saved there; got [257]"),
        ({"eos_ids": ["</s>"]}, "eos_ids is not what is saved there; got ['</s>']"),
    ],
)
def test_settings_that_were_not_saved_so(beside: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a", **beside)
    assert message(lambda: open_source(path), CheckpointError, tmp_path) == f"~/a/config.json: {expected}"


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    assert message(lambda: open_source("a\0b"), CheckpointError) == "'a\\x00b': not a path"
    long = tmp_path / ("a" * 300)
    for read in (open_source, is_published):
        assert message(lambda read=read: read(long), CheckpointError, tmp_path) == (
            f"~/{'a' * 300}: cannot be read: file name too long"
        )


def test_more_layers_than_tensors_are_refused_before_any_is_built(tmp_path: Path) -> None:
    model = TransformerLM(CONFIG)
    many = to_dict(CONFIG) | {"n_layers": 2**31}
    path = save_checkpoint(
        tmp_path / "many",
        tensors=dict(model.named_parameters()),
        config={"architecture": "TransformerLM", "model": many},
        state={},
    )
    count = len(dict(model.named_parameters()))
    expected = (
        f"more layers than tensors; got 2147483648, expected at most {count}, the tensors of the file. hint: build the "
        "model from the configuration saved with these weights"
    )
    where = message(lambda: open_model(path), CheckpointError, tmp_path)
    assert where == f"~/many/model.safetensors: {expected}"


def adapted(path: Path, base: Path) -> Path:
    """A checkpoint of an adapter that names a base."""
    model = TransformerLM(CONFIG)
    add_lora(model, LoraConfig(2), base=str(base))
    return save_checkpoint(
        path,
        tensors=adapter_tensors(model),
        config={"architecture": "LoRA", **lora_details(model), "model": to_dict(CONFIG)},
        state={},
    )


def test_adapters_in_a_circle(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    adapted(one, two)
    adapted(two, one)
    hint = ". hint: restore the path of the base in the file"
    assert message(lambda: open_model(one), CheckpointError, tmp_path) == (
        f"~/one/config.json: an adapter of itself{hint}"
    )
    for i in range(17):
        adapted(tmp_path / f"chain{i}", tmp_path / f"chain{i + 1}")
    assert message(lambda: open_model(tmp_path / "chain0"), CheckpointError, tmp_path) == (
        f"~/chain16/config.json: more than 16 adapters on one another{hint}"
    )


def test_a_context_that_cannot_be_shortened(tmp_path: Path) -> None:
    model = TransformerLM(TransformerConfig.gpt2(20, d_model=16, n_layers=1, n_heads=2, max_seq_len=8))
    write_hub(tmp_path / "hub", model)
    assert message(lambda: open_model(tmp_path / "hub", max_seq_len=4), ConfigError) == (
        "max_seq_len: a context that can't be shortened; got 4 positions, expected 8, its table of positions"
    )
    assert message(lambda: open_model(tmp_path / "hub", max_seq_len=0), ConfigError) == (
        "max_seq_len: must be at least 1; got 0"
    )
    opened = open_model(tmp_path / "hub")
    found = message(lambda: opened.prompt_ids("a"), DataError, tmp_path)
    assert found == "~/hub: the model has no tokenizer. hint: give it ids"


def test_a_tensor_is_read_when_its_turn_comes() -> None:
    model = TransformerLM(CONFIG)
    targets = dict(model.named_parameters())
    alive: list[str] = []

    class Source:
        path = "source"

        def __iter__(self) -> Any:
            return iter(targets)

        def __len__(self) -> int:
            return len(targets)

        def shape(self, name: str) -> tuple[int, ...]:
            return targets[name].shape

        def dtype(self, name: str) -> Any:
            return targets[name].dtype

        def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
            alive.append(name)
            done = alive[:-1]
            assert all((targets[n].detach().numpy() == 7).all() for n in done)  # copied before the next one is read
            return np.full(targets[name].shape, 7, np.float32)

    load_streamed(targets, Source())
    assert alive == list(targets)
    missing = dict(targets) | {"more": Tensor(targets["model.norm.weight"].array)}
    found = message(lambda: load_streamed(missing, Source()), CheckpointError)
    assert found.startswith("source: the tensors do not match by name: missing 'more'; got 11 tensors, expected 12.")


def test_the_configuration_on_disk_is_json(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", eos_ids=[5])
    assert json.loads((path / "config.json").read_text())["eos_ids"] == [5]
