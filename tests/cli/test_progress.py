"""The progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pellucid.cli import progress
from pellucid.cli.output import Output, duration, size
from pellucid.train import Evaluated, Sampled, Saved, Stepped


def stepped(step: int, share: float | None = 0.42) -> Stepped:
    return Stepped(step, 100, 2.5, 1.0, 1e-3, 64, 0.1, 12345.6, share, 75.0)


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    made = progress.Progress()
    made._console = Console(file=out, force_terminal=terminal, width=100, highlight=False, soft_wrap=True)
    with made as show:
        for step in (1, 2):
            show(stepped(step))
        show(Evaluated(2, 2.25, 9.4877, 4096, False))
        show(Sampled(2, "a [b]\nc"))
        show(Saved(2, Path("runs/a")))
        show(Saved(2, Path("runs/a")))
        show(stepped(100, None))
        show(Evaluated(100, 2.0, 7.389, 10_000, True))
    return out.getvalue()


def test_plain_lines() -> None:
    assert shown(terminal=False).splitlines() == [
        "step 1/100  loss 2.5000  0.1 s, kernels included",
        "step 2: held-out loss 2.2500 nats/token, perplexity 9.49 (4,096 held-out tokens)",
        "step 2, a sample:",
        "  | a [b]",
        "  | c",
        "step 2: saved runs/a",
        "step 100/100  loss 2.5000  12,346 tokens/s  1:15 left",
        "step 100: held-out loss 2.0000 nats/token, perplexity 7.39 (all held-out text)",
    ]


def test_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LIVE", 0.0)
    found = shown(terminal=True)
    assert "\x1b[2K" in found  # a line is erased and drawn again
    assert "step 2/100  loss 2.5000  12,346 tokens/s  42% of peak  1:15 left" in found
    assert "step 2: held-out loss 2.2500" in found


def test_units() -> None:
    assert [duration(s) for s in (0.04, 9.96, 47.2, 185, 7389)] == ["0.0 s", "10.0 s", "47 s", "3:05", "2:03:09"]
    assert [size(n) for n in (0, 999, 1000, 25_300_000_000)] == ["0 bytes", "999 bytes", "1.0 kB", "25.3 GB"]


def test_json_has_no_word_for_numbers_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    Output(True).result({"loss": float("nan"), "all": [1.5, float("inf")], "inner": {"a": float("-inf"), "b": True}})
    written = capsys.readouterr().out
    assert json.loads(written) == {"loss": None, "all": [1.5, None], "inner": {"a": None, "b": True}}
    assert "NaN" not in written
