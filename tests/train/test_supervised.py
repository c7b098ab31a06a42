"""From conversations to examples: only the assistant's tokens count, and nothing too long slips in."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.data import Dialogue, Preference, TokenBatch
from pellucid.text import ByteTokenizer, CharTokenizer, ChatML, Transcript
from pellucid.text.chat_sources import CHATML, TRANSCRIPT
from pellucid.text.jinja import JinjaTemplate
from pellucid.train import Encoding

EOT = "<|endoftext|>"
TOKENIZER = ByteTokenizer(special=[EOT])
ASKED = [{"role": "user", "content": "2 + 2?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "4"}]


def encoding(longest: int = 100, **options: Any) -> Encoding:
    return Encoding(JinjaTemplate(TRANSCRIPT, variables={"eos_token": EOT}), TOKENIZER, longest=longest, **options)


def text(ids: np.ndarray) -> str:
    return TOKENIZER.decode(ids.tolist())


def test_only_the_answer_counts_and_nothing_stands_behind_it() -> None:
    ids, counts = encoding().encode(ANSWERED, "a:1") or pytest.fail("left out")
    assert text(ids[~counts]) == "User: 2 + 2?\nAssistant:"
    assert text(ids[counts]).startswith(" 4")
    assert TOKENIZER.eot in ids[counts]
    assert counts[-1]


def test_a_vocabulary_of_characters_that_lacks_some() -> None:
    few = CharTokenizer("User: Assistant\n2+4?")
    with pytest.raises(DataError) as caught:
        Encoding(JinjaTemplate(TRANSCRIPT), few, longest=100).encode(
            [*ASKED, {"role": "assistant", "content": "5"}], "a:1"
        )
    assert str(caught.value) == (
        "a:1: CharTokenizer.encode: character 24 (line 2) is not in the vocabulary; got '5' (U+0035), expected one of "
        "its 16 characters. hint: begin with a model that can read any text, trained with --train-tokenizer for one"
    )


def test_every_answer_of_a_conversation_counts() -> None:
    again = [*ANSWERED, {"role": "user", "content": "and 3 + 3?"}, {"role": "assistant", "content": "6"}]
    ids, counts = encoding().encode(again, "a:1") or pytest.fail("left out")
    assert " 4" in text(ids[counts])
    assert " 6" in text(ids[counts])
    assert "3 + 3" not in text(ids[counts])


@pytest.mark.parametrize("flags", ["all", "answers"])
def test_a_mask_of_all_true_is_no_mask(flags: str) -> None:
    ids, counts = encoding().encode(ANSWERED, "a:1") or pytest.fail("left out")
    mask = np.ones_like(counts) if flags == "all" else counts
    packed, plain = TokenBatch.packed([[(ids, mask)]]), TokenBatch([ids])
    assert (packed.weights.tobytes() == plain.weights.tobytes()) == (flags == "all")


def test_what_is_too_long() -> None:
    long = [*ASKED, {"role": "assistant", "content": "4" * 100}]
    longer = [{"role": "user", "content": "2" * 200}, ANSWERED[1]]
    found = [Dialogue(m, f"a:{i}", "messages") for i, m in enumerate((ANSWERED, long, longer), 1)]
    with pytest.raises(DataError) as caught:
        list(encoding(60).examples(found))
    assert str(caught.value) == (
        "a:2: longer than the window; got 126 tokens, expected at most 60. "
        "hint: a longer window (--seq-len), or leave such examples out or cut them (--too-long skip, cut)"
    )
    skip, cut = encoding(60, too_long="skip"), encoding(60, too_long="cut")
    assert len(list(skip.examples(found))) == 1
    assert (skip.skipped, skip.cut) == (2, 0)
    ids, counts = list(cut.examples(found))[1]
    assert (cut.skipped, cut.cut, len(ids)) == (1, 1, 60)  # of the longer one nothing of the answer would be left
    assert counts[-1]
    assert skip.layouts == {"messages": 3}


def test_templates_that_do_not_fit_name_the_line() -> None:
    nobody = Encoding(JinjaTemplate("{{ messages[0]['content'] }}"), TOKENIZER, longest=9)
    with pytest.raises(DataError, match=r"^a:1: "):
        nobody.encode(ANSWERED, "a:1")
    with pytest.raises(DataError, match=r"^a:7: chat template: .*user or assistant, after at most one system"):
        encoding().encode([*ASKED, {"role": "tool", "content": "x"}, ANSWERED[1]], "a:7")
    marks = Encoding(ChatML(), TOKENIZER, longest=99)
    with pytest.raises(DataError, match=r"^a:1: ChatML: the vocabulary lacks special tokens of this template"):
        marks.encode(ANSWERED, "a:1")


def test_only_the_last_answer_of_a_pair_counts_and_both_or_neither_are_kept() -> None:
    begun = [*ANSWERED, {"role": "user", "content": "sure?"}]
    pairs = [Preference(begun, "yes", "no", "a:1", "p"), Preference(begun, "y" * 99, "no", "a:2", "p")]
    both = encoding(90, too_long="skip")
    found = list(both.pairs(pairs))
    assert [text(ids[counts]).split(EOT)[0].strip() for ids, counts in found] == ["yes", "no"]
    assert both.skipped == 1


def test_templates_by_name_are_the_same_in_jinja() -> None:
    system = [{"role": "system", "content": "Be brief."}, *ANSWERED]
    for source, template in ((CHATML, ChatML()), (TRANSCRIPT, Transcript())):
        for messages in (ANSWERED, system):
            want = template.render(messages)
            assert JinjaTemplate(source).render(messages) == want
        want = template.render(ASKED, add_generation_prompt=True)
        assert JinjaTemplate(source).render(ASKED, add_generation_prompt=True) == want


def test_a_message_cannot_write_the_end_of_an_answer() -> None:
    given = [ASKED[0] | {"content": f"say {EOT}"}, ANSWERED[1]]
    ids, _ = encoding().encode(given, "a:1") or pytest.fail("left out")
    assert (ids == TOKENIZER.eot).sum() == 1
    assert re.search(r"say", text(ids))
