"""Int8 checkpoints: a byte a weight, at most half a step off, strict in reading, and never resumed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.config import to_dict
from pellucid.base.errors import CheckpointError, ConfigError
from pellucid.base.files import canonical_json
from pellucid.checkpoint import load_checkpoint, load_into, read_tensors, save_checkpoint, write_tensors
from pellucid.checkpoint.checkpoint import MODEL
from pellucid.checkpoint.storage import sha256
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.tape import Tensor

from .helpers import tensor

CONFIG = TransformerConfig.gpt2(40, d_model=32, n_layers=1, n_heads=2, max_seq_len=16)


def saved(folder: Path, model: TransformerLM, **more: Any) -> Path:
    document = {"architecture": "TransformerLM", "model": to_dict(model.config)}
    return save_checkpoint(folder, tensors=dict(model.named_parameters()), config=document, state={}, **more)


def test_loads_as_float32_half_a_step_off_and_a_quarter_of_the_size(tmp_path: Path) -> None:
    model = TransformerLM(CONFIG)
    full, small = (load_checkpoint(saved(tmp_path / p, model, precision=p)) for p in ("float32", "int8"))
    assert (full.precision, small.precision) == ("float32", "int8")
    assert small.tensors.nbytes < 0.4 * full.tensors.nbytes
    assert sorted(small.tensors) == sorted(full.tensors)
    assert len(small.tensors) == len(full.tensors)
    for name in full.tensors:
        want, got = full.tensors[name], small.tensors[name]
        assert (got.dtype, got.shape) == (want.dtype, small.tensors.shape(name)) == (np.float32, want.shape)
        assert small.tensors.dtype(name) is dtypes.float32
        if want.ndim == 2:
            step = np.abs(want).max(axis=1, keepdims=True) / 127
            assert (np.abs(got - want) <= 0.5001 * step).all()
            assert not np.array_equal(got, want)
        else:
            assert np.array_equal(got, want)
    load_into(dict(TransformerLM(CONFIG).named_parameters()), small.tensors)


def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path: Path) -> None:
    model, again = TransformerLM(CONFIG), TransformerLM(CONFIG)
    first = saved(tmp_path / "a", model, precision="int8")
    load_into(dict(again.named_parameters()), load_checkpoint(first).tensors)
    saved(tmp_path / "b", again, precision="int8")
    one, two = (read_tensors(tmp_path / p / MODEL) for p in "ab")
    for name in one:
        if one.dtype(name) is dtypes.int8:
            assert np.array_equal(one[name], two[name])
        else:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-6)


def test_what_can_not_be_saved_so(tmp_path: Path) -> None:
    model = TransformerLM(CONFIG)
    with pytest.raises(ConfigError) as caught:
        saved(tmp_path / "c", model, precision="int8", optimizer_tensors={})
    assert str(caught.value) == (
        "save_checkpoint: int8 is for shipping a model, an optimizer for training it. "
        "hint: save float32 to resume from, or leave the optimizer out"
    )
    with pytest.raises(ConfigError) as caught:
        saved(tmp_path / "c", model, precision="q4")
    assert str(caught.value) == "save_checkpoint: unknown precision; got q4, expected 'float32' or 'int8'"
    bad = tensor(np.full((2, 3), np.inf, np.float32))
    with pytest.raises(CheckpointError, match=r"tensor 'w' has numbers that are not finite"):
        save_checkpoint(tmp_path / "c", tensors={"w": bad}, config={}, state={}, precision="int8")
    with pytest.raises(CheckpointError, match=r"tensor 'w.scale' has the name of a scale"):
        save_checkpoint(tmp_path / "c", tensors={"w.scale": bad}, config={}, state={}, precision="int8")
    assert not (tmp_path / "c").exists()


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    model = TransformerLM(CONFIG)
    saved(tmp_path / "c", model)
    weight = model.parameters()[0]
    weight.device.kernels.fill_(weight.array, value=float("nan"))
    with pytest.raises(CheckpointError):
        saved(tmp_path / "c", model, precision="int8")
    assert load_checkpoint(tmp_path / "c").precision == "float32"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def int8(*shape: int) -> Tensor:
    return tensor(np.ones(shape, np.int8))


DAMAGED = {
    "no scale": ({"w": int8(2, 3)}, "damaged int8 file: tensor 'w' does not have both its values and its scale"),
    "no values": (
        {"w.scale": tensor(np.ones(2, np.float32))},
        "damaged int8 file: tensor 'w' does not have both its values and its scale",
    ),
    "another shape": (
        {"w": int8(2, 3), "w.scale": tensor(np.ones(3, np.float32))},
        "damaged int8 file: tensor 'w' does not fit its scale; got (2, 3) and float32 (3,), expected (N, K) and "
        "float32 (N,)",
    ),
    "another type": (
        {"w": int8(2, 3), "w.scale": tensor(np.ones(2, np.float64))},
        "damaged int8 file: tensor 'w' does not fit its scale; got (2, 3) and float64 (2,), expected (N, K) and "
        "float32 (N,)",
    ),
    "negative": (
        {"w": int8(2, 3), "w.scale": tensor(np.array([1, -1], np.float32))},
        "damaged int8 file: tensor 'w.scale' is no scale; expected 0 or more",
    ),
}


def rewritten(tmp_path: Path, tensors: dict[str, Tensor], precision: str) -> None:
    """A checkpoint in `c` whose tensor file holds these tensors and says this precision."""
    source = save_checkpoint(tmp_path / "s", tensors={"x": tensor(np.ones(1, np.float32))}, config={}, state={})
    write_tensors(source / MODEL, tensors, metadata={"format": "pt", "pellucid.precision": precision})
    state = load_state(source)
    state["files"][MODEL] = {
        "bytes": (source / MODEL).stat().st_size,
        "sha256": read_tensors(source / MODEL).sha256,
    }
    store_state(source, state)


def load_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def store_state(folder: Path, state: dict[str, Any]) -> None:
    state.pop("sha256")
    (folder / "state.json").write_text(json.dumps(state | {"sha256": sha256(canonical_json(state))}))


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    tensors, message = DAMAGED[name]
    rewritten(tmp_path, tensors, "q8")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "s")
    assert str(caught.value) == f"{tmp_path}/s/{MODEL}: {message}"


def test_another_precision_is_refused(tmp_path: Path) -> None:
    rewritten(tmp_path, {"w": int8(2, 3)}, "q3")
    with pytest.raises(CheckpointError, match="an unknown precision; got q3, expected q8"):
        load_checkpoint(tmp_path / "s")
