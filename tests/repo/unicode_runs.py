"""Writes `src/pellucid/text/unicode_runs.py`: the kind of every Unicode character, as runs.

    python -m tests.repo.unicode_runs --write

Which characters are letters decides where a tokenizer cuts, so the table must be of the Unicode version that the
published tokenizers are used with (16.0), not of whichever the running Python has. The package `regex` carries that
version up to 2025.7.34, which this has to be run with; tests/peers compares the table with `tokenizers` and `tiktoken`
themselves. Without `--write`, the module is printed.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import regex

TARGET = Path(__file__).resolve().parents[2] / "src" / "pellucid" / "text" / "unicode_runs.py"
KINDS = {
    "u": r"[\p{Lu}\p{Lt}]",
    "l": r"\p{Ll}",
    "o": r"[\p{Lm}\p{Lo}]",
    "m": r"\p{M}",
    "n": r"\p{N}",
    "p": r"\p{P}",
    "s": r"\s",
}
WIDTH = 110
HEAD = '''"""The kind of every Unicode 16.0 character, as runs. Written by `python -m tests.repo.unicode_runs --write`.

`RUNS` is a row of letters, each followed by the length of its run where that isn't 1, from U+0000 up to the last
character that is something: u upper or title case (Lu, Lt), l lower case (Ll), o another letter (Lm, Lo), m mark (M),
n number (N), p punctuation (P), s white space (White_Space), - anything else.
"""

RUNS = (
'''


def kinds() -> str:
    """The letter of every character, as the `regex` that is installed sees it."""
    kinds = ["-"] * 0x110000
    for letter, pattern in KINDS.items():
        matches = regex.compile(pattern).match
        for code in range(0x110000):
            if not 0xD800 <= code < 0xE000 and matches(chr(code)):
                assert kinds[code] == "-", hex(code)
                kinds[code] = letter
    return "".join(kinds)


def module() -> str:
    """The text of the module."""
    runs = [(letter, len(list(same))) for letter, same in groupby(kinds().rstrip("-"))]
    text = "".join(letter + (str(n) if n > 1 else "") for letter, n in runs)
    lines = [text[i : i + WIDTH] for i in range(0, len(text), WIDTH)]
    return HEAD + "".join(f'    "{line}"\n' for line in lines) + ")\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        TARGET.write_text(module(), encoding="utf-8")
        print(f"wrote {TARGET}")
    else:
        print(module(), end="")
