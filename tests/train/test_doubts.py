"""Doubts: the rules that call a score memorised."""

from __future__ import annotations

from pellucid.train import ChoiceResult, doubts


def test_scores_too_good_to_be_true() -> None:
    # 99% right, and a loss of 0.05 nats for a token of four bytes: 0.018 bits/byte.
    known = ChoiceResult(questions=100, correct=99, correct_per_byte=99, chance=0.25, cut=0)
    assert doubts(bits_per_byte=0.018, overlap=0.31, choices=known, asked=0.5) == [
        "31% of the evaluation text is in the training text: the score says what was learned by heart",
        "0.018 bits per byte is less than any model needs for text it has not seen (0.2): the text looks memorised",
        "50% of the questions are in the training text: their answers were learned by heart",
        "99% of 100 questions answered rightly: they were seen in training, or are too easy to tell models apart",
    ]
    honest = ChoiceResult(questions=500, correct=180, correct_per_byte=190, chance=0.25, cut=0)
    few = ChoiceResult(questions=19, correct=19, correct_per_byte=19, chance=0.25, cut=0)
    assert doubts(bits_per_byte=0.21, overlap=0.04, choices=honest, asked=0.04) == []
    assert doubts(choices=few) == []
