"""Doubts about an evaluation: whether the text was in the training text, and whether a score is too good to be true.

A measure of what was learned by heart says nothing about new text. Two rules look for that. The first compares texts
(`data.overlap`, `data.asked`): from a share of `OVERLAP` on, the training text is said to hold the evaluation text. The
second one compares the score with what is possible: the best models known need more than half a bit for a byte of
English that is new to them, so less than `LEAST_BITS` is memory; and a suite of `ENOUGH` questions or more of which a
share of `TOO_GOOD` is answered rightly was seen before, or too easy to tell models apart.
"""

from __future__ import annotations

from .choices import ChoiceResult

OVERLAP = 0.05
LEAST_BITS = 0.2  # bits/byte
ENOUGH, TOO_GOOD = 20, 0.95


def doubts(
    *,
    bits_per_byte: float | None = None,
    overlap: float | None = None,
    choices: ChoiceResult | None = None,
    asked: float | None = None,
) -> list[str]:
    """What speaks against an evaluation, a sentence each. overlap, asked: what the functions of that name found."""
    found = []
    if overlap is not None and overlap >= OVERLAP:
        found.append(
            f"{overlap:.0%} of the evaluation text is in the training text: the score says what was learned by heart"
        )
    if bits_per_byte is not None and bits_per_byte < LEAST_BITS:
        found.append(
            f"{bits_per_byte:.3f} bits per byte is less than any model needs for text it has not seen "
            f"({LEAST_BITS}): the text looks memorised"
        )
    if asked is not None and asked >= OVERLAP:
        found.append(f"{asked:.0%} of the questions are in the training text: their answers were learned by heart")
    if choices is not None and choices.questions >= ENOUGH and choices.accuracy >= TOO_GOOD:
        found.append(
            f"{choices.accuracy:.0%} of {choices.questions:,} questions answered rightly: they were seen in training, "
            "or are too easy to tell models apart"
        )
    return found
