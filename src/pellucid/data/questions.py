"""Multiple-choice questions out of JSONL, one object a line, in either of two layouts.

    {"question": {"stem": "...", "choices": [{"text": "...", "label": "A"}, ...]}, "answerKey": "A"}
    {"question": "...", "choices": ["...", "..."], "answer": 0}

The first one is that of ARC and OpenBookQA; in the second one the answer is a number, counted from 0, or the text of
the right choice. Other keys are allowed and not looked at.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ..base.errors import DataError
from ..base.files import StrPath, reading

_LONGEST = 1 << 20  # bytes of a line


@dataclass(frozen=True)
class Question:
    """stem: what is asked. choices: the texts that could follow it. answer: the number of the right one."""

    stem: str
    choices: tuple[str, ...]
    answer: int


def read_questions(path: StrPath) -> list[Question]:
    """Every question in a file.

    Raises:
        DataError: a file that can't be read or has no question; a line that is none, with its number.
    """
    shown, found = os.fspath(path), []
    with reading(path) as file:
        number = 0
        while raw := file.readline(_LONGEST + 1):
            number += 1
            where = f"{shown}: line {number}"
            if len(raw) > _LONGEST:
                raise DataError(where, "too long for a question", expected=f"at most {_LONGEST:,} bytes")
            if not raw.strip():
                continue
            try:
                item = json.loads(raw.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise DataError(where, f"not JSON ({error})") from error
            found.append(_question(item, where))
    if not found:
        raise DataError(shown, "no questions in it", expected="an object a line with question, choices and answer")
    return found


def _question(item: Any, where: str) -> Question:
    if not isinstance(item, dict):
        raise DataError(where, "not a question", got=type(item).__name__, expected="an object")
    asked = item.get("question")
    if isinstance(asked, dict):
        stem, listed, labels = asked.get("stem"), asked.get("choices"), None
        if not isinstance(listed, list) or not all(isinstance(c, dict) for c in listed):
            raise DataError(where, "question.choices is no list of objects")
        choices, labels = [c.get("text") for c in listed], [c.get("label") for c in listed]
        answer = _place(item.get("answerKey"), labels, where, "answerKey", "a label")
    else:
        stem, choices = asked, item.get("choices")
        if not isinstance(choices, list):
            raise DataError(where, "no choices", got=type(choices).__name__, expected="a list of texts")
        given = item.get("answer")
        if isinstance(given, int) and not isinstance(given, bool):
            if not 0 <= given < len(choices):
                expected = f"0 to {len(choices) - 1}"
                raise DataError(where, "the answer is none of the choices", got=given, expected=expected)
            answer = given
        else:
            answer = _place(given, choices, where, "answer", "the number or the text of a choice")
    if not isinstance(stem, str) or not stem.strip():
        raise DataError(where, "nothing is asked", got=repr(stem), expected="a text under question")
    if len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise DataError(where, "needs choices to choose from", got=repr(choices)[:80], expected="two or more texts")
    return Question(stem, tuple(choices), answer)


def _place(wanted: Any, among: list[Any], where: str, key: str, expected: str) -> int:
    """Where the answer stands. Raises DataError unless it is there once."""
    if not isinstance(wanted, str) or among.count(wanted) != 1:
        raise DataError(where, f"{key} does not name one of the choices", got=repr(wanted), expected=expected)
    return among.index(wanted)
