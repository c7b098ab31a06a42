"""Instruction files of every layout, and what is wrong with those that are none."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pellucid.base.errors import DataError
from pellucid.data import conversations, preferences


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


ASKED = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
LAYOUTS: dict[str, dict[str, Any]] = {
    "messages": {"messages": ASKED, "id": 3},
    "conversations": {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
    "prompt / response": {"prompt": "2 + 2?", "response": "4"},
    "prompt / completion": {"prompt": "2 + 2?", "completion": "4"},
    "instruction / instances": {"instruction": "2 + 2?", "instances": [{"input": "", "output": "4"}]},
    "instruction / input / output": {"instruction": "2 + 2?", "input": "", "output": "4"},
    "question / answer": {"question": "2 + 2?", "answer": "4"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_told_by_its_fields(layout: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", LAYOUTS[layout])
    (found,) = conversations(path)
    assert found.messages == ASKED
    assert (found.layout, found.where) == (layout, f"{path}:1")


def test_an_input_follows_its_instruction(tmp_path: Path) -> None:
    record = {"instruction": "Add.", "instances": [{"input": "1 1", "output": "2"}, {"input": "", "output": "?"}]}
    path = lines(tmp_path / "a.jsonl", record, {"instruction": "Add.", "input": "2 2", "output": "4"})
    assert [c.messages[0]["content"] for c in conversations(path)] == ["Add.\n\n1 1", "Add.", "Add.\n\n2 2"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_system_message_stands_first(layout: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", LAYOUTS[layout] | {"system": "Be brief."}, LAYOUTS[layout] | {"system": None})
    first, second = conversations(path)
    assert first.messages == [{"role": "system", "content": "Be brief."}, *ASKED]
    assert second.messages == ASKED
    pair = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "system": "Be brief."}
    (found,) = preferences(lines(tmp_path / "b.jsonl", pair))
    assert found.messages == first.messages[:2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_beside_a_conversation_is_passed_over(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for more, message in (
        ({"system": ["Be brief."]}, "field 'system' is not text; got list, expected a string"),
        (
            {"history": [["1 + 1?", "2"]]},
            "field 'history' would be lost in this layout. hint: write the whole conversation as messages",
        ),
    ):
        lines(path, LAYOUTS[layout] | more)
        with pytest.raises(DataError) as caught:
            list(conversations(path))
        assert str(caught.value) == f"{path}:1: {message}"


def test_an_input_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"instruction": "Add.", "input": 0, "output": "0"})
    with pytest.raises(DataError) as caught:
        list(conversations(path))
    assert str(caught.value) == f"{path}:1: field 'input' is not text; got int, expected a string"


def test_half_a_surrogate_pair_in_a_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"prompt": "a", "response": "\ud800"}]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(conversations(path))
    expected = "holds half a surrogate pair. hint: repair the escape in the line"
    assert str(caught.value) == f"{path}[0]: {expected}"


def test_compressed_files_and_lists(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(json.dumps(LAYOUTS["messages"]) + "\n\n")
    (tmp_path / "a.json").write_text(json.dumps([LAYOUTS["messages"]] * 2), encoding="utf-8")
    assert len(list(conversations(tmp_path / "a.jsonl.gz"))) == 1
    assert [c.where for c in conversations(tmp_path / "a.json")] == [f"{tmp_path}/a.json[0]", f"{tmp_path}/a.json[1]"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"prompt": "a", "response": " \n"},
            "the response is empty. hint: nothing could be learned from it: leave the line out",
        ),
        (
            {"text": "a"},
            "fields of no layout that is known; got text, expected messages; or conversations; or prompt, response; or "
            "prompt, completion; or instruction, instances; or instruction, output; or question, answer",
        ),
        ({"prompt": 1, "response": "b"}, "field 'prompt' is not text; got int, expected a string"),
        ({"messages": []}, "field 'messages' is no list of messages; got list"),
        ({"messages": ASKED[:1]}, "nobody answers; expected at least one message of the assistant"),
        (
            {"messages": [{"role": "tool", "content": ""}]},
            "message 0 of 'messages' is none; got {'role': 'tool', 'content': ''}, expected role (one of human, user, "
            "gpt, assistant, system) and content (text)",
        ),
        ({"instruction": "a", "instances": "b"}, "field 'instances' is no list of examples; got str"),
        ({"instruction": "a", "instances": [{"input": ""}]}, "an instance without text in 'output'; got input"),
        ([1], "not a JSON object; got list, expected {...}"),
        ({"prompt": "\ud800", "response": "b"}, "holds half a surrogate pair. hint: repair the escape in the line"),
    ],
)  # fmt: skip
def test_refusals_name_the_line(record: Any, message: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", LAYOUTS["messages"], record)
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}:2: {message}')}$"):
        list(conversations(path))


def test_files_that_hold_no_examples(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n \n")
    (tmp_path / "b.json").write_text('{"a": 1}')
    for name, message in (
        ("a.jsonl", "no examples: the file is empty or every line is blank"),
        ("b.json", "not a list of examples; got dict. hint: or write JSONL, one a line"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(f'{tmp_path / name}: {message}')}$"):
            list(conversations(tmp_path / name))


def test_pairs_of_answers(tmp_path: Path) -> None:
    turn = [{"from": "human", "value": "2 + 2?"}]
    path = lines(
        tmp_path / "a.jsonl",
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        {"conversations": turn, "chosen": {"from": "gpt", "value": "4"}, "rejected": {"role": "x", "content": "5"}},
    )
    found = list(preferences(path))
    assert [(p.messages, p.chosen, p.rejected) for p in found] == [(ASKED[:1], "4", "5")] * 2
    assert [p.layout for p in found] == ["prompt / chosen / rejected", "conversations / chosen / rejected"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": "4"}, "both answers are the same. hint: leave the line out"),
        ({"chosen": ""}, "the answer in 'chosen' is empty. hint: leave the line out"),
        ({"chosen": 4}, "field 'chosen' is no answer; got int, expected text, or a message"),
    ],
)
def test_pairs_that_are_none(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"} | change)
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}:1: {message}')}$"):
        list(preferences(path))


@pytest.mark.parametrize(
    ("name", "count", "layout"),
    [
        ("gsm8k_test.jsonl", 1319, "question / answer"),
        ("seed_tasks.jsonl", 175, "instruction / instances"),
    ],
)
def test_published_files(name: str, count: int, layout: str, corpus_folder: Path) -> None:
    found = list(conversations(corpus_folder / "instructions" / name))
    assert {c.layout for c in found} == {layout}
    assert len({c.where for c in found}) == count


def test_published_pairs(corpus_folder: Path) -> None:
    assert len(list(preferences(corpus_folder / "instructions" / "dpo_en_demo.json"))) == 300
