"""Writes `src/pellucid/text/unicode_runs.py`: the kind of every Unicode character, as runs.

    python -m tests.repo.unicode_runs --write

Which characters are letters decides where a tokenizer cuts, so the table must be of the Unicode version that the
published tokenizers are used with (16.0), not of whichever the running Python has. The package `regex` carries that
version up to 2025.7.34, which this has to be run with; tests/peers compares the table with `tokenizers` and `tiktoken`
themselves. Without `--write`, the module is printed.
"""

from __future__ import annotations

from . import runs

TARGET = runs.TEXT / "unicode_runs.py"
KINDS = {
    "u": r"[\p{Lu}\p{Lt}]",
    "l": r"\p{Ll}",
    "o": r"[\p{Lm}\p{Lo}]",
    "m": r"\p{M}",
    "n": r"\p{N}",
    "p": r"\p{P}",
    "s": r"\s",
}
HEAD = '''"""The kind of every Unicode 16.0 character, as runs. Written by `python -m tests.repo.unicode_runs --write`.

`RUNS` is a row of letters, each followed by the length of its run where that isn't 1, from U+0000 up to the last
character that is something: u upper or title case (Lu, Lt), l lower case (Ll), o another letter (Lm, Lo), m mark (M),
n number (N), p punctuation (P), s white space (White_Space), - anything else.
"""

RUNS = (
'''


def kinds() -> str:
    """The letter of every character."""
    return runs.kinds(KINDS)


if __name__ == "__main__":
    runs.main(TARGET, runs.module(HEAD, kinds()))
