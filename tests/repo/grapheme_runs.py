"""Writes `src/pellucid/text/grapheme_runs.py`: how every Unicode character joins its neighbours, as runs.

    python -m tests.repo.grapheme_runs --write

The properties are those of the package `regex` that is installed: 2025.11.3 has Unicode 17.0, which `tokenizers` 0.23
goes by, and later ones have 18.0. tests/peers compares what the table leads to with `tokenizers` itself. Without
`--write`, the module is printed.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import regex

TARGET = Path(__file__).resolve().parents[2] / "src" / "pellucid" / "text" / "grapheme_runs.py"
KINDS = {
    "c": r"[\p{GCB=Control}\r\n]",
    "k": r"\p{InCB=Linker}",
    "e": r"[\p{GCB=Extend}&&\p{InCB=Extend}]",
    "x": r"[\p{GCB=Extend}--\p{InCB=Extend}--\p{InCB=Linker}]",
    "z": r"\p{GCB=ZWJ}",
    "m": r"\p{GCB=SpacingMark}",
    "p": r"\p{GCB=Prepend}",
    "l": r"\p{GCB=L}",
    "v": r"\p{GCB=V}",
    "t": r"\p{GCB=T}",
    "s": r"[\p{GCB=LV}\p{GCB=LVT}]",
    "r": r"\p{GCB=Regional_Indicator}",
    "i": r"\p{InCB=Consonant}",
    "d": r"\p{Extended_Pictographic}",
}
WIDTH = 110
HEAD = '''"""How each character of Unicode 17.0 joins others. Written by `python -m tests.repo.grapheme_runs --write`.

`RUNS` is a row of letters, each followed by the length of its run where that isn't 1, from U+0000 up to the last
character that is something (Unicode Standard Annex 29, tables 2 and 1c): c Control, CR or LF; p Prepend; m SpacingMark;
z ZWJ; k, e, x Extend, of which k links Indic consonants, and e may stand between them; i such a consonant; l, v, t, s
Hangul (L, V, T, LV or LVT); r Regional_Indicator; d Extended_Pictographic; - anything else.
"""

RUNS = (
'''


def kinds() -> str:
    """The letter of every character."""
    kinds = ["-"] * 0x110000
    for letter, pattern in KINDS.items():
        matches = regex.compile(pattern, regex.V1).match
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
