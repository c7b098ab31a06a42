"""load_into: everything is compared first, then copied through the device's kernels into the same tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pellucid.base import dtypes
from pellucid.base.errors import CheckpointError
from pellucid.checkpoint import load_into, read_tensors, write_tensors
from pellucid.device import reference
from pellucid.tape import Tensor

from .helpers import Far, bits, message, samples, tensor

BUILD = "hint: build the model from the configuration saved with these weights"


def zeros_like(tensors: dict[str, Tensor], device: Far | None = None) -> dict[str, Tensor]:
    return {k: tensor(np.zeros(t.shape), t.dtype, device or reference) for k, t in tensors.items()}


def test_values_come_back_on_any_device(tmp_path: Path) -> None:
    """The state of an optimizer that was moved first and loaded then is what was saved, never zeros."""
    tensors = samples()
    write_tensors(tmp_path / "a", tensors)
    for device in (None, Far()):
        targets = zeros_like(tensors, device)
        arrays = {k: t.array for k, t in targets.items()}
        load_into(targets, read_tensors(tmp_path / "a"))
        assert {k: bits(t.device.download(t.array)) for k, t in targets.items()} == {
            k: bits(t.numpy()) for k, t in tensors.items()
        }
        assert all(targets[k].array is arrays[k] for k in arrays)


def test_views_and_trained_tensors_are_loaded_in_place() -> None:
    base = tensor(np.zeros((2, 3), np.float32))
    target = Tensor(base.array.transpose(), True)
    load_into({"x": target}, {"x": np.arange(6, dtype=np.float32).reshape(3, 2)})
    assert base.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert target.requires_grad


def test_cast_converts_floats_only() -> None:
    target = {"x": tensor(np.zeros(2, np.float32))}
    load_into(target, {"x": np.array([1.5, -2.0]).astype(dtypes.bfloat16.numpy)}, cast=True)
    assert target["x"].tolist() == [1.5, -2.0]
    text = message(lambda: load_into(target, {"x": np.array([1, 2])}, cast=True), CheckpointError)
    assert text == "load_into: tensor 'x' has another element type; got int64, expected float32"


def test_nothing_is_half_loaded(tmp_path: Path) -> None:
    """Each message, read whole; after each of them the targets hold what they held before."""
    targets = {"a": tensor([7.0, 7.0]), "b": tensor(np.full((2, 2), 7.0)), "c": tensor([True])}
    good = {"a": tensor([1.0, 2.0]), "b": tensor(np.ones((2, 2))), "c": tensor([False])}
    path = tmp_path / "w"

    def text(changes: dict[str, Tensor | None]) -> str:
        write_tensors(path, {k: v for k, v in {**good, **changes}.items() if v is not None})
        found = message(lambda: load_into(targets, read_tensors(path)), CheckpointError, tmp_path)
        assert targets["a"].tolist() == [7.0, 7.0]
        assert targets["b"].tolist() == [[7.0, 7.0], [7.0, 7.0]]
        assert targets["c"].tolist() == [True]
        return found

    assert (
        text({"b": tensor(np.ones((2, 3)))})
        == f"~/w: tensor 'b' has another shape; got (2, 3), expected (2, 2). {BUILD}"
    )
    assert text({"b": tensor(np.ones((2, 2), np.float32))}) == (
        "~/w: tensor 'b' has another element type; got float32, expected float64. hint: pass cast=True to convert it"
    )
    assert (
        text({"c": None}) == f"~/w: the tensors do not match by name: missing 'c'; got 2 tensors, expected 3. {BUILD}"
    )
    more: dict[str, Tensor | None] = {f"x{i}": good["a"] for i in range(7)}
    assert text({**more, "c": None}) == (
        "~/w: the tensors do not match by name: missing 'c'; unexpected 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more; "
        f"got 9 tensors, expected 3. {BUILD}"
    )
    # The damage of the last tensor shows before the first is copied.
    header = (
        b'{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"b":{"dtype":"F64","shape":[2,2],"data_offsets":[16,48]},'
        b'"c":{"dtype":"BOOL","shape":[1],"data_offsets":[48,49]}}'
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(48) + b"\5")
    damaged = message(lambda: load_into(targets, read_tensors(path)), CheckpointError, tmp_path)
    assert damaged == "~/w: tensor 'c' is damaged; got bool 5, expected 0 or 1"
    assert targets["a"].tolist() == [7.0, 7.0]


def test_arrays_of_a_type_without_a_place() -> None:
    target = {"x": tensor([1.0])}
    text = message(lambda: load_into(target, {"x": np.array([1j])}, where="model.bin"), CheckpointError)
    assert text == "model.bin: tensor 'x' has an unknown element type; got complex128"
