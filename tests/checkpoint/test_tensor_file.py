"""Tensor files: values and bytes come back, the format's own library agrees, saving needs no second copy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from pellucid.base import dtypes
from pellucid.base.errors import CheckpointError
from pellucid.checkpoint import TensorFile, read_tensors, write_tensors
from pellucid.device import Array, reference
from pellucid.tape import Tensor

from .helpers import Far, bits, message, samples, tensor

# The other library knows bfloat16 only beside PyTorch, and reads the rest as NumPy.
FOREIGN = [d for d in dtypes.ALL if d is not dtypes.bfloat16]


def test_every_type_comes_back(tmp_path: Path) -> None:
    tensors = samples()
    digest = write_tensors(tmp_path / "a.safetensors", tensors, metadata={"note": "π"})
    found = read_tensors(tmp_path / "a.safetensors")
    assert set(found) == set(tensors)
    assert len(found) == len(tensors)
    assert found.metadata == {"note": "π"}
    assert found.sha256 == digest
    assert found.nbytes == (tmp_path / "a.safetensors").stat().st_size
    for name, t in tensors.items():
        assert bits(found[name]) == bits(t.numpy())
        assert (found.dtype(name), found.shape(name)) == (t.dtype, t.shape)
        assert found[name].flags.aligned
        assert not found[name].flags.writeable
    assert (
        repr(found)
        == f"TensorFile({str(tmp_path / 'a.safetensors')!r}, {len(tensors)} tensors, {found.nbytes:,} bytes)"
    )


def test_views_outlive_the_file_object(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": tensor(np.arange(5))})
    view = read_tensors(tmp_path / "a")["x"]
    assert view.tolist() == [0, 1, 2, 3, 4]


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    first, second = samples(), dict(reversed(list(samples().items())))
    write_tensors(tmp_path / "a", first)
    write_tensors(tmp_path / "b", second)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_tensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {})
    assert list(read_tensors(tmp_path / "a")) == []


def test_the_other_library_reads_ours(tmp_path: Path) -> None:
    tensors = {k: t for k, t in samples().items() if t.dtype in FOREIGN}
    write_tensors(tmp_path / "a", tensors, metadata={"format": "np"})
    theirs = safetensors.numpy.load_file(tmp_path / "a")
    assert {k: bits(v) for k, v in theirs.items()} == {k: bits(t.numpy()) for k, t in tensors.items()}
    with safetensors.safe_open(tmp_path / "a", framework="np") as file:
        assert file.metadata()["format"] == "np"


def test_the_other_library_finds_our_bfloat16(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": tensor([[1.0, -2.5]], dtypes.bfloat16)})
    ((name, found),) = safetensors.deserialize((tmp_path / "a").read_bytes())
    assert (name, found["dtype"], found["shape"]) == ("x", "BF16", [1, 2])
    assert bytes(found["data"]) == bytes.fromhex("803f20c0")


def test_the_other_library_writes_the_same_bytes(tmp_path: Path) -> None:
    tensors = {k: t for k, t in samples().items() if t.dtype in FOREIGN}
    digest = write_tensors(tmp_path / "a", tensors)
    theirs = safetensors.numpy.save({k: t.numpy() for k, t in tensors.items()}, {"pellucid.sha256": digest})
    assert (tmp_path / "a").read_bytes() == theirs


def test_we_read_theirs(tmp_path: Path) -> None:
    values = {k: t.numpy() for k, t in samples().items() if t.dtype in FOREIGN}
    safetensors.numpy.save_file(values, tmp_path / "a", {"x": "y"})
    found = read_tensors(tmp_path / "a")
    assert {k: bits(v) for k, v in found.items()} == {k: bits(v) for k, v in values.items()}
    assert found.metadata == {"x": "y"}
    assert found.sha256 is None


@pytest.mark.parametrize(("dtype", "name"), [(dtypes.float32, "F32"), (dtypes.bfloat16, "BF16")])
def test_unaligned_data_of_others(tmp_path: Path, dtype: dtypes.DType, name: str) -> None:
    values = np.array([1.5, -2.0, 3.0]).astype(dtype.numpy)
    n = values.nbytes + 1
    header = (
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"%s","shape":[3],"data_offsets":[1,%d]}}'
    )
    header = header % (name.encode(), n)
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + b"\7" + values.tobytes())
    found = read_tensors(tmp_path / "a")["x"]
    assert bits(found) == bits(values)
    assert bits(reference.download(reference.upload(found, dtype))) == bits(values)


def test_views_are_written_in_row_major_order(tmp_path: Path) -> None:
    base = tensor(np.arange(700 * 1001, dtype=np.float32).reshape(700, 1001))
    narrow = tensor(np.arange(12).reshape(3, 4), dtypes.bfloat16)
    tensors = {
        "turned": Tensor(base.array.transpose()),
        "stretched": Tensor(tensor([[1], [2]]).array.expand((2, 3))),
        "backwards": Tensor(Array(narrow.array.buffer, (3,), dtypes.bfloat16, (-4,), 8)),
    }
    write_tensors(tmp_path / "a", tensors)
    found = read_tensors(tmp_path / "a")
    assert {k: bits(found[k]) for k in found} == {k: bits(t.numpy()) for k, t in tensors.items()}
    assert np.array_equal(found["turned"], base.numpy().T)


def test_a_trained_tensor_is_written_as_it_is(tmp_path: Path) -> None:
    trained = Tensor(tensor([1.0, 2.0]).array, True)
    write_tensors(tmp_path / "a", {"x": trained})
    assert read_tensors(tmp_path / "a")["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("turned", [False, True])
def test_saving_copies_no_tensor(tmp_path: Path, turned: bool) -> None:
    big = tensor(np.zeros((2048, 2048), np.float32))  # 16 MiB
    big = Tensor(big.array.transpose()) if turned else big
    write_tensors(tmp_path / "a", {"x": tensor([1.0])})  # everything is loaded now
    reference.peak_bytes = before = reference.bytes_in_use
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "a", {"x": big})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reference.peak_bytes == before
    assert peak < 4 << 20


def test_another_device_holds_one_download_at_a_time(tmp_path: Path) -> None:
    far = Far()
    tensors = {f"x{i}": tensor(np.full((64, 64), i, np.float32), device=far) for i in range(5)}
    write_tensors(tmp_path / "a", tensors)
    assert (far.downloads, far.most, far.alive) == (5, 1, 0)
    found = read_tensors(tmp_path / "a")
    assert [found[f"x{i}"][0, 0] for i in range(5)] == [0, 1, 2, 3, 4]


def test_an_error_of_the_device_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far()
    broken = {"x": tensor([2.0], device=far)}
    write_tensors(tmp_path / "a", {"x": tensor([1.0])})
    monkeypatch.setattr(far, "download", lambda array: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_tensors(tmp_path / "a", broken)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert read_tensors(tmp_path / "a")["x"].tolist() == [1.0]


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".a.0123456789ab.pellucid-tmp").write_bytes(b"half")
    (tmp_path / ".a.tmp").write_bytes(b"somebody else's")
    write_tensors(tmp_path / "a", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.tmp", "a"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "there" / "b")
    write_tensors(tmp_path / "a", {"x": tensor([1.0])})
    assert (tmp_path / "a").is_symlink()
    assert isinstance(read_tensors(tmp_path / "there" / "b"), TensorFile)


def test_messages_of_writing(tmp_path: Path) -> None:
    one = {"x": tensor([1.0])}

    def text(path: str, tensors: dict[str, Tensor], **options: dict[str, str]) -> str:
        return message(lambda: write_tensors(tmp_path / path, tensors, **options), CheckpointError, tmp_path)

    (tmp_path / "folder").mkdir()
    assert text("none/a", one) == "~/none/a: cannot be written: no such file or directory"
    assert text("folder", one) == "~/folder: cannot be written: is a directory"
    assert text("a", {"__metadata__": one["x"]}) == "~/a: a tensor has a name the format reserves; got '__metadata__'"
    assert text("a", {"\ud800": one["x"]}) == "~/a: a name or metadata entry is no text; got '\\ud800'"
    reserved = "~/a: a metadata entry has a name that is reserved; got 'pellucid.sha256'"
    assert text("a", one, metadata={"pellucid.sha256": ""}) == reserved
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]


def test_names_that_are_not_there(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {f"layer{i}": tensor([1.0]) for i in range(7)})
    found = read_tensors(tmp_path / "a")
    assert message(lambda: found.shape("head"), CheckpointError, tmp_path) == (
        "~/a: no such tensor; got 'head', "
        "expected one of 'layer0', 'layer1', 'layer2', 'layer3', 'layer4', ... (7 in all)"
    )
    assert "head" not in found
    with pytest.raises(KeyError):
        found["head"]
