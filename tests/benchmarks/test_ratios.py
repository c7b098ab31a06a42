"""Recorded ratios: what is compared, what counts as worse, and files that are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import ratios
from benchmarks.options import Refused
from benchmarks.report import row

ABOUT = {"machine": "one", "commit": "abc"}


def rows(ours: float, theirs: float):
    return [
        row("train", "step", "pellucid", [ours], unit="ms", shape="1x512", dtype="bfloat16"),
        row("train", "step", "torch", [theirs], unit="ms", shape="1x512", dtype="float32"),
        row("gemm", "square", "pellucid", [ours], unit="GFLOP/s", shape="8x8x8", dtype="float32"),
        row("gemm", "square", "torch", [theirs], unit="GFLOP/s", shape="8x8x8", dtype="float32"),
        row("gemm", "alone", "pellucid", [ours], unit="GFLOP/s", shape="8x8x8", dtype="float32"),
    ]


def test_times_and_rates_give_how_many_times_faster_we_are():
    assert ratios.ratios(rows(2.0, 6.0)) == {
        "train, step, 1x512, bfloat16, over torch": 3.0,
        "gemm, square, 8x8x8, float32, over torch": pytest.approx(1 / 3),
    }


def test_what_fell_behind_is_named(tmp_path):
    file = tmp_path / "recorded.json"
    ratios.record(file, rows(2.0, 6.0), ABOUT)
    assert ratios.worse(file, rows(2.2, 6.0), ABOUT) == []
    assert ratios.worse(file, rows(4.0, 6.0), ABOUT) == [
        "train, step, 1x512, bfloat16, over torch: 1.50, recorded 3.00"
    ]


def test_recording_keeps_the_other_cases(tmp_path):
    file = tmp_path / "recorded.json"
    ratios.record(file, rows(2.0, 6.0)[:2], ABOUT)
    ratios.record(file, rows(2.0, 6.0)[2:], ABOUT)
    assert len(json.loads(file.read_text())["ratios"]) == 2


def test_another_machine_is_refused(tmp_path):
    file = tmp_path / "recorded.json"
    ratios.record(file, rows(2.0, 6.0), ABOUT)
    with pytest.raises(Refused, match="another machine"):
        ratios.worse(file, rows(2.0, 6.0), ABOUT | {"machine": "two"})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"machine": "one", "ratios": 3}', '{"machine": "one", "ratios": {"a": "b"}}']
)
def test_a_file_that_is_none_is_refused(tmp_path, text):
    file = tmp_path / "recorded.json"
    file.write_text(text)
    with pytest.raises(Refused, match="not a file of recorded ratios"):
        ratios.worse(file, rows(2.0, 6.0), ABOUT)


def test_nothing_to_compare_is_refused(tmp_path):
    file = tmp_path / "recorded.json"
    ratios.record(file, rows(2.0, 6.0), ABOUT)
    with pytest.raises(Refused, match="no ratio of this run"):
        ratios.worse(file, rows(2.0, 6.0)[4:], ABOUT)
