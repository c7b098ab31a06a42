"""GPT-2's alphabet: the 256 characters that stand for bytes in the files of byte-level vocabularies.

A byte that is a visible character of Latin-1 is written as that character; the other 68, white space and controls
among them, as U+0100 and following, in their order.
"""

from __future__ import annotations

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in set(_VISIBLE)]

CHARACTERS = {byte: chr(byte) for byte in _VISIBLE} | {byte: chr(0x100 + i) for i, byte in enumerate(_HIDDEN)}
"""The character of each byte."""

BYTES = {character: byte for byte, character in CHARACTERS.items()}
"""The byte of each character."""

ORDER = tuple(sorted(CHARACTERS, key=CHARACTERS.__getitem__))
"""The bytes by their characters: the order in which published vocabularies number them."""

_TO_TEXT = {byte: ord(character) for byte, character in CHARACTERS.items()}


def spelled(raw: bytes) -> str:
    """Bytes in the alphabet."""
    return raw.decode("latin-1").translate(_TO_TEXT)


def unspelled(text: str) -> bytes | None:
    """The bytes of a spelling; None for text with a character outside the alphabet."""
    try:
        return bytes(map(BYTES.__getitem__, text))
    except KeyError:
        return None
