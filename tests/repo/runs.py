"""Tables of Unicode characters as runs: what `unicode_runs` and `grapheme_runs` write into the package."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import regex

TEXT = Path(__file__).resolve().parents[2] / "src" / "pellucid" / "text"
_WIDTH = 110


def kinds(patterns: dict[str, str], *, flags: int = 0) -> str:
    """The letter of every character, as the `regex` that is installed sees it; no two patterns match one."""
    kinds = ["-"] * 0x110000
    for letter, pattern in patterns.items():
        matches = regex.compile(pattern, flags).match
        for code in range(0x110000):
            if not 0xD800 <= code < 0xE000 and matches(chr(code)):
                assert kinds[code] == "-", hex(code)
                kinds[code] = letter
    return "".join(kinds)


def module(head: str, letters: str) -> str:
    """The text of a module: its head, then the runs of the letters."""
    runs = [(letter, len(list(same))) for letter, same in groupby(letters.rstrip("-"))]
    text = "".join(letter + (str(n) if n > 1 else "") for letter, n in runs)
    lines = [text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)]
    return head + "".join(f'    "{line}"\n' for line in lines) + ")\n"


def main(target: Path, text: str) -> None:
    """Writes the module where that is asked for (--write), else prints it."""
    if "--write" in sys.argv:
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}")
    else:
        print(text, end="")
