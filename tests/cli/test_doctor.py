"""`pellucid doctor`: facts, the self-check, and its exit status when a kernel is wrong."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from pellucid.cli import doctor, main
from pellucid.device import device


def test_doctor(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    out, _ = capfd.readouterr()
    found = json.loads(out)
    assert found["ok"]
    assert set(found["checks"].values()) == {"ok"}
    assert found["python"].startswith("3.")
    assert found["numpy"] == np.__version__
    assert found["cores"].endswith(f"of {os.cpu_count()}")
    assert found["matrix_product_float32"] > 1e9
    assert found["memory"]
    assert "compiled kernels" in found["kernel_cache"]
    assert found["gpu"] == "none found" or "does not use it yet" in found["device"]


def test_doctor_for_people(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure", lambda: {"matrix_product_float32": 2e11, "memory_bandwidth": 3e10})
    assert main(["doctor"]) == 0
    out, err = capfd.readouterr()
    assert err == "checking the kernels\n"
    assert "instruction path " in out
    assert "attention                as defined\n" in out
    assert "matrix product float32   200.0 GFLOP/s\n" in out
    assert "memory bandwidth         30.0 GB/s\n" in out
    assert out.splitlines()[-1].startswith("everything computes as defined (")


def test_a_wrong_kernel_is_found(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = device("cpu").kernels
    monkeypatch.setattr(kernels, "exp", kernels.sin)
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert not found["ok"]
    assert found["checks"]["exponential"].startswith("off by ")
    assert found["checks"]["attention"] == "ok"


def test_a_kernel_that_gives_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = device("cpu").kernels
    monkeypatch.setattr(kernels, "exp", lambda x: kernels.log(kernels.neg(kernels.mul(x, x))))
    assert str(doctor.self_check()["exponential"]).startswith("off by nan")
