"""`pellucid eval` of questions and of several models, and its doubts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.cli import main

from .conftest import Refused, text

QUESTIONS = [
    {"question": "the wind and a", "choices": ["sea of stone", "stone of the sea went over"], "answer": 0},
    {"question": "night over the", "choices": ["sea", "wind", "stone"], "answer": "wind"},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return path


def found(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    capfd.readouterr()
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    out, err = capfd.readouterr()
    return json.loads(out), err


def test_questions_alone(finished: Path, questions: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values, _ = found(capfd, finished, "--choices", questions)
    assert "loss" not in values
    assert (values["questions"], values["chance"], values["cut"]) == (2, pytest.approx(5 / 12), 1)
    assert values["accuracy"] in (0, 0.5, 1)
    assert values["stderr"] == pytest.approx((values["accuracy"] * (1 - values["accuracy"])) ** 0.5)
    assert found(capfd, finished, "--choices", questions, "--max-questions", 1)[0]["questions"] == 1


def test_models_side_by_side(
    finished: Path, questions: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("over a stone the night went and the sea of wind " * 20)
    early = finished / "checkpoints" / "step-00000010"
    arguments = [finished, early, "--text", other, "--choices", questions]
    values, _ = found(capfd, *arguments)
    last, first = values["models"]
    assert last["loss"] < first["loss"]
    alone, _ = found(capfd, early, "--text", other)
    assert alone["loss"] == first["loss"]
    assert alone["bits_per_byte"] == first["bits_per_byte"]
    assert main(["eval", *map(str, arguments)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "parameters", "loss", "perplexity", "bits/byte", "accuracy", "per", "byte"]
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:3] == [last["checkpoint"], f"{last['parameters']:,}", f"{last['loss']:.4f}"]


def test_text_that_was_trained_on(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seen.txt"
    path.write_text(text()[1000:3000])
    values, err = found(capfd, finished, "--text", path)
    assert values["overlap"] > 0.9
    doubt = "100% of the evaluation text is in the training text: the score says what was learned by heart"
    assert values["doubts"] == [doubt]
    assert err.splitlines()[-1] == f"warning: {finished}: {doubt}"
    asked = tmp_path / "q.jsonl"
    asked.write_text(json.dumps({"question": text()[500:600], "choices": ["a", "s"], "answer": 0}))
    values, _ = found(capfd, finished, "--choices", asked)
    assert values["asked"] == 1
    assert values["doubts"] == ["100% of the questions are in the training text: their answers were learned by heart"]
    path.write_text("the the the and and and sea sea sea wind wind wind of of of a a a over over stone")
    assert found(capfd, finished, "--text", path)[0]["doubts"] == []


def test_mistakes(finished: Path, questions: Path, refused: Refused, tmp_path: Path) -> None:
    assert refused("eval", finished, finished) == (
        "pellucid eval: --text: runs hold out different texts, which can't be compared. hint: name one for all of "
        "them: --text PATH or --choices JSONL"
    )
    assert refused("eval", finished, "--max-questions", 0) == (
        "pellucid eval: --max-questions: must be at least 1; got 0"
    )
    assert refused("eval", "--choices", questions).startswith("pellucid eval: models: missing argument")
    questions.write_text('{"question": "a"}')
    assert refused("eval", finished, "--choices", questions) == (
        f"pellucid eval: {questions}: line 1: no choices; got NoneType, expected a list of texts"
    )
    questions.write_text(json.dumps({"question": "a", "choices": ["s" * 40, "t"], "answer": 0}))
    assert refused("eval", finished, "--choices", questions) == (
        "pellucid eval: question 1: a choice is longer than the context; got 41 tokens, expected at most 32"
    )
    questions.write_text(json.dumps({"question": "a", "choices": ["s", "é"], "answer": 0}))
    assert refused("eval", finished, "--choices", questions) == (
        "pellucid eval: question 1: CharTokenizer.encode: character 2 (line 1) is not in the vocabulary; got 'é' "
        "(U+00E9), expected one of its 16 characters. hint: train the tokenizer on text that has it, or with "
        "unknown=True"
    )
