"""Questions with choices: both layouts, and every line that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.base.errors import DataError
from pellucid.data import Question, read_questions

PLAIN = {"question": "The sea is", "choices": ["wet", "dry"], "answer": 0}
LISTED = {
    "id": "1",
    "question": {"stem": "The sea is", "choices": [{"text": "dry", "label": "A"}, {"text": "wet", "label": "B"}]},
    "answerKey": "B",
}


def test_both_layouts(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    lines = [PLAIN, LISTED, PLAIN | {"answer": "dry", "why": "?"}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert read_questions(path) == [
        Question("The sea is", ("wet", "dry"), 0),
        Question("The sea is", ("dry", "wet"), 1),
        Question("The sea is", ("wet", "dry"), 1),
    ]


def test_real_questions(corpus_folder: Path) -> None:
    found = read_questions(corpus_folder / "evaluation" / "openbookqa.jsonl")
    assert len(found) == 500
    assert all(len(q.choices) == 4 for q in found)
    assert found[2] == Question("Predators eat", ("lions", "humans", "bunnies", "grass"), 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("\xff", None),
        ([], "not a question; got list, expected an object"),
        ({}, "no choices; got NoneType, expected a list of texts"),
        (PLAIN | {"question": " "}, "nothing is asked; got ' ', expected a text under question"),
        (PLAIN | {"choices": ["wet"]}, "needs choices to choose from; got ['wet'], expected two or more texts"),
        (PLAIN | {"choices": ["wet", ""]}, "needs choices to choose from; got ['wet', ''], expected two or more texts"),
        (PLAIN | {"answer": 2}, "the answer is none of the choices; got 2, expected 0 to 1"),
        (
            PLAIN | {"answer": "A"},
            "answer does not name one of the choices; got 'A', expected the number or the text of a choice",
        ),
        (LISTED | {"answerKey": "C"}, "answerKey does not name one of the choices; got 'C', expected a label"),
        ({"question": {"stem": "a", "choices": "b"}}, "question.choices is no list of objects"),
    ],
)
def test_what_is_no_question(line: object, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    raw = line.encode("latin-1") if isinstance(line, str) else json.dumps(line).encode()
    path.write_bytes(json.dumps(PLAIN).encode() + b"\n" + raw)
    with pytest.raises(DataError) as error:
        read_questions(path)
    if message is None:
        assert str(error.value).startswith(f"{path}: line 2: not JSON ('utf-8' codec can't decode byte 0xff")
    else:
        assert str(error.value) == f"{path}: line 2: {message}"


def test_a_file_without_questions(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n")
    with pytest.raises(DataError) as error:
        read_questions(path)
    assert str(error.value) == (
        f"{path}: no questions in it; expected an object a line with question, choices and answer"
    )
