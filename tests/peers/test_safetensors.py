"""Tensor files against the safetensors library with PyTorch: every dtype both ways, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import safetensors
import torch
from safetensors.torch import load_file, save_file

import pellucid as pl
from pellucid.base import dtypes
from pellucid.checkpoint import load_into, read_tensors, write_tensors


def hosts() -> dict[str, np.ndarray]:
    """Every dtype with its special values, odd shapes, an empty tensor and a single number."""
    values = np.random.default_rng(0).standard_normal((3, 7)) * 50
    found = {
        d.name: np.abs(values).astype(d.numpy) if d.name.startswith("u") else values.astype(d.numpy) for d in dtypes.ALL
    }
    for d in dtypes.FLOATS:
        found[f"{d.name} special"] = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 65504]).astype(d.numpy)
    return found | {"empty": np.zeros((0, 5), np.float32), "one": np.float32(1.5).reshape(())}


def bits(x: np.ndarray) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def test_pytorch_reads_ours(tmp_path: Path) -> None:
    ours = {name: pl.tensor(host, dtype=dtypes.dtype(host.dtype)) for name, host in hosts().items()}
    ours["transposed"] = ours["float32"].T
    write_tensors(tmp_path / "a.safetensors", ours, metadata={"who": "us"})
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == ours.keys()
    for name, x in ours.items():
        assert found[name].dtype is getattr(torch, x.dtype.name.removesuffix("_")), name
        assert tuple(found[name].shape) == x.shape, name
        assert bits(found[name].view(torch.uint8).numpy() if x.shape else found[name].numpy()) == bits(x.numpy()), name
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["who"] == "us"


def test_we_read_pytorch_s(tmp_path: Path) -> None:
    theirs = {}
    for name, host in hosts().items():
        dtype = getattr(torch, dtypes.dtype(host.dtype).name)
        raw = torch.tensor(np.frombuffer(bits(host), np.uint8).copy())
        theirs[name] = raw.view(dtype).reshape(host.shape) if host.size else torch.zeros(host.shape, dtype=dtype)
    save_file(theirs, tmp_path / "b.safetensors", metadata={"format": "pt"})
    found = read_tensors(tmp_path / "b.safetensors")
    assert found.sha256 is None
    assert found.metadata == {"format": "pt"}
    assert set(found) == set(theirs)
    for name, host in hosts().items():
        assert found.dtype(name) is dtypes.dtype(host.dtype), name
        assert found.shape(name) == host.shape, name
        assert bits(found[name]) == bits(host), name
    targets = {name: pl.tensor(np.ones_like(host)) for name, host in hosts().items()}
    load_into(targets, found)
    for name, host in hosts().items():
        assert bits(targets[name].numpy()) == bits(host), name
