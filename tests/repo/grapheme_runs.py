"""Writes `src/pellucid/text/grapheme_runs.py`: how every Unicode character joins its neighbours, as runs.

    python -m tests.repo.grapheme_runs --write

The properties are those of the package `regex` that is installed: 2025.11.3 has Unicode 17.0, which `tokenizers` 0.23
goes by, and later ones have 18.0. tests/peers compares what the table leads to with `tokenizers` itself. Without
`--write`, the module is printed.
"""

from __future__ import annotations

import regex

from . import runs

TARGET = runs.TEXT / "grapheme_runs.py"
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
    return runs.kinds(KINDS, flags=regex.V1)


if __name__ == "__main__":
    runs.main(TARGET, runs.module(HEAD, kinds()))
