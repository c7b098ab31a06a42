"""What the tests of `pellucid sft` and `pellucid dpo` share: a small base, examples, pairs, and the command run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.config import to_dict
from pellucid.checkpoint import save_checkpoint
from pellucid.cli.app import main
from pellucid.models import TransformerConfig, TransformerLM
from pellucid.text import END_OF_TEXT, ByteTokenizer

ASKED = [{"question": f"{i} + {i}?", "answer": f"It is {2 * i}."} for i in range(40)]
PAIRS = [{"prompt": f"{i} + {i}?", "chosen": f"It is {2 * i}.", "rejected": "Who knows?"} for i in range(20)]
QUICK = ["--template", "transcript", "--precision", "float32", "--learning-rate", "1e-3", "--warmup", "1"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A checkpoint of an untrained model."""
    tokenizer = ByteTokenizer(special=[END_OF_TEXT])
    config = TransformerConfig(tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2, max_seq_len=96)
    model = TransformerLM(config)
    return save_checkpoint(
        tmp_path / "base",
        tensors=dict(model.named_parameters()),
        config={"architecture": "TransformerLM", "model": to_dict(config)},
        tokenizer=tokenizer,
        state={},
    )


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def result(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 2
    return capsys.readouterr().err.splitlines()[-1]
