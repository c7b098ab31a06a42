"""Instruction files: lines of JSON in one of a few layouts -> conversations, told apart by the names of their fields.

Between the files that others publish and a chat template: whatever the layout, an example is a list of messages, each
with a role and a content. A file is read a line at a time; a JSON file that is one list is read whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import DataError
from ..base.files import StrPath
from .sources import check_whole, read_objects
from .streams import inner_name, opened

Message = dict[str, Any]
Record = Mapping[str, Any]

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Dialogue:
    """messages: in order. where: file and line it came from. layout: the name of the layout it was in."""

    messages: list[Message]
    where: str
    layout: str


@dataclass(frozen=True)
class Preference:
    """What was asked, an answer that was preferred, and one that was not."""

    messages: list[Message]
    chosen: str
    rejected: str
    where: str
    layout: str


def conversations(path: StrPath) -> Iterator[Dialogue]:
    """The conversations of a JSONL file, or of a JSON file that is a list; see `LAYOUTS`.

    Raises:
        DataError: naming file and line, for what can't be read, a record of no known layout, a field that is not what
            it should be, and an answer that is empty.
    """
    for where, record in records(path):
        name, build = _layout(record, where, LAYOUTS)
        for messages in build(record, where):
            for message in messages:
                if message["role"] == "assistant" and not message["content"].strip():
                    hint = "nothing could be learned from it: leave the line out"
                    raise DataError(where, "the response is empty", hint=hint)
            if not any(m["role"] == "assistant" for m in messages):
                raise DataError(where, "nobody answers", expected="at least one message of the assistant")
            yield Dialogue(messages, where, name)


def preferences(path: StrPath) -> Iterator[Preference]:
    """The preference pairs of such a file: `chosen` and `rejected` beside a `prompt` or `conversations`.

    Raises:
        DataError: as `conversations`, and for two answers that are the same.
    """
    for where, record in records(path):
        name, build = _layout(record, where, PAIR_LAYOUTS)
        messages = build(record, where)[0]
        chosen, rejected = (_answer(record, key, where) for key in ("chosen", "rejected"))
        if chosen == rejected:
            raise DataError(where, "both answers are the same", hint="leave the line out")
        yield Preference(messages, chosen, rejected, where, name)


def records(path: StrPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, or of a JSON file that is one list, and where each stands."""
    shown = str(path)
    if not inner_name(Path(path)).endswith(".json"):
        yield from read_objects(path)
        return
    with opened(Path(path)) as (stream, _):
        raw = stream.read()
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(shown, f"not JSON: {error}") from None
    if not isinstance(found, list) or not found:
        raise DataError(shown, "not a list of examples", got=type(found).__name__, hint="or write JSONL, one a line")
    for i, record in enumerate(found):
        if not isinstance(record, dict):
            raise DataError(f"{shown}[{i}]", "not a JSON object", got=type(record).__name__)
        check_whole(record, f"{shown}[{i}]")
        yield f"{shown}[{i}]", record


# --- layouts ----------------------------------------------------------------------------------------------------------


def _text(record: Record, key: str, where: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise DataError(where, f"field {key!r} is not text", got=type(value).__name__, expected="a string")
    return value


def _system(record: Record, where: str) -> list[Message]:
    """The system's message where the record has one beside the conversation."""
    if record.get("history"):
        hint = "write the whole conversation as messages"
        raise DataError(where, "field 'history' would be lost in this layout", hint=hint)
    text = _text(record, "system", where) if record.get("system") is not None else ""
    return [{"role": "system", "content": text}] if text else []


def _pair(asked: str, answered: str) -> Callable[[Record, str], list[list[Message]]]:
    def build(record: Record, where: str) -> list[list[Message]]:
        both = [user(_text(record, asked, where)), assistant(_text(record, answered, where))]
        return [[*_system(record, where), *both]]

    return build


def _messages(record: Record, where: str) -> list[list[Message]]:
    return [[*_system(record, where), *_turns(record, "messages", "role", "content", where)]]


def _conversations(record: Record, where: str) -> list[list[Message]]:
    return [[*_system(record, where), *_turns(record, "conversations", "from", "value", where)]]


def _turns(record: Record, key: str, role: str, content: str, where: str) -> list[Message]:
    turns, found = record[key], []
    if not isinstance(turns, list) or not turns:
        raise DataError(where, f"field {key!r} is no list of messages", got=type(turns).__name__)
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict) or turn.get(role) not in _ROLES or not isinstance(turn.get(content), str):
            got = repr(turn)[:60]
            expected = f"{role} (one of {', '.join(_ROLES)}) and {content} (text)"
            raise DataError(where, f"message {i} of {key!r} is none", got=got, expected=expected)
        found.append({"role": _ROLES[turn[role]], "content": turn[content]})
    return found


def _instruction(record: Record, where: str) -> list[list[Message]]:
    given = _text(record, "input", where) if record.get("input") is not None else ""
    both = [user(_asked(_text(record, "instruction", where), given)), assistant(_text(record, "output", where))]
    return [[*_system(record, where), *both]]


def _instances(record: Record, where: str) -> list[list[Message]]:
    instruction, instances = _text(record, "instruction", where), record["instances"]
    if not isinstance(instances, list) or not instances or not all(isinstance(i, dict) for i in instances):
        raise DataError(where, "field 'instances' is no list of examples", got=type(instances).__name__)
    found = []
    for instance in instances:
        for key in ("input", "output"):
            if not isinstance(instance.get(key), str):
                raise DataError(where, f"an instance without text in {key!r}", got=", ".join(instance) or "no fields")
        both = [user(_asked(instruction, instance["input"])), assistant(instance["output"])]
        found.append([*_system(record, where), *both])
    return found


def _asked(instruction: str, given: str) -> str:
    return f"{instruction}\n\n{given}" if given else instruction


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _answer(record: Record, key: str, where: str) -> str:
    """One of the two answers: text, or a message in one of the two ways to write one."""
    value = record[key]
    for name in ("value", "content"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    if not isinstance(value, str):
        raise DataError(where, f"field {key!r} is no answer", got=type(value).__name__, expected="text, or a message")
    if not value.strip():
        raise DataError(where, f"the answer in {key!r} is empty", hint="leave the line out")
    return value


def _prompt(record: Record, where: str) -> list[list[Message]]:
    return [[*_system(record, where), user(_text(record, "prompt", where))]]


Builder = Callable[[Record, str], list[list[Message]]]

#: Layouts of conversations: name, the fields that tell it, and how messages are made of a record.
LAYOUTS: tuple[tuple[str, tuple[str, ...], Builder], ...] = (
    ("messages", ("messages",), _messages),
    ("conversations", ("conversations",), _conversations),
    ("prompt / response", ("prompt", "response"), _pair("prompt", "response")),
    ("prompt / completion", ("prompt", "completion"), _pair("prompt", "completion")),
    ("instruction / instances", ("instruction", "instances"), _instances),
    ("instruction / input / output", ("instruction", "output"), _instruction),
    ("question / answer", ("question", "answer"), _pair("question", "answer")),
)

PAIR_LAYOUTS: tuple[tuple[str, tuple[str, ...], Builder], ...] = (
    ("conversations / chosen / rejected", ("conversations", "chosen", "rejected"), _conversations),
    ("prompt / chosen / rejected", ("prompt", "chosen", "rejected"), _prompt),
)


def _layout(
    record: Record, where: str, layouts: tuple[tuple[str, tuple[str, ...], Builder], ...]
) -> tuple[str, Builder]:
    for name, fields, build in layouts:
        if all(field in record for field in fields):
            return name, build
    expected = "; or ".join(", ".join(fields) for _, fields, _ in layouts)
    raise DataError(
        where, "fields of no layout that is known", got=", ".join(map(str, record)) or "none", expected=expected
    )
