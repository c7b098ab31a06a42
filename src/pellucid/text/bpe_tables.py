"""The tables of a byte-pair model, as the compiled encoder reads them: pairs of symbols, and whole words.

Both are open-addressed hash tables at most half full, in int64; `compiled/bpe.py` says what an entry holds. A merge
is given by what it joins: its result is the token with the bytes of both. So a result is always longer than its
parts, and no list of merges, however it was made, can run in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import DataError
from .native import compiled, shared

BYTES, FUSE_UNKNOWN, WHOLE = 1, 2, 4
"""Options of the encoder: bytes are symbols (else characters); neighbours that are unknown become one id; words are
looked up whole before they are merged."""

CHARACTER, LAST_CHARACTER = 0x7FFFFFF0, 0x7FFFFFF1
"""Left ids, in the table of pairs, of characters that are symbols, and of those that end a word."""

_MOST_WORK = 1 << 32  # bytes to copy for all ways to part all tokens; cl100k takes 5 million

MOST_TOKENS = 1 << 24
"""Ids a vocabulary may have."""


def merges_of(pairs: Sequence[tuple[bytes, bytes]], ids: dict[bytes, int], where: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 3) ids of left, right and result, and ranks, of merges given as bytes in the order of their ranks.

    Raises DataError for an empty part, one without an id, and a result without an id.
    """
    found: list[tuple[int, int, int]] = []
    for rank, (left, right) in enumerate(pairs):
        try:
            found.append((ids[left], ids[right], ids[left + right]))
        except KeyError as error:
            shown = f"{left!r} + {right!r}"
            raise DataError(
                where, f"merge {rank} of a token that is not in the vocabulary", got=f"{error.args[0]!r} in {shown}"
            ) from None
        if not left or not right:
            raise DataError(where, f"merge {rank} with an empty token", got=f"{left!r} + {right!r}")
    return np.array(found, np.int32).reshape(-1, 3), np.arange(len(pairs), dtype=np.int64)


def merges_by_parts(
    ids: dict[bytes, int], ranks: dict[bytes, int], where: str, *, characters: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Merges of a vocabulary that has none of its own (tiktoken, SentencePiece): any two tokens merge whose bytes
    together are a token, and their rank is that token's. `characters`: a token may only be parted between characters.

    Raises DataError for tokens so long that trying all their parts would take minutes.
    """
    if (work := sum(len(token) ** 2 for token in ids)) > _MOST_WORK:
        raise DataError(where, "tokens too long to be parted in every place", got=f"{work} steps")
    found: list[tuple[int, int, int]] = []
    order: list[int] = []
    get = ids.get
    for token, result in ids.items():
        for cut in range(1, len(token)):
            if characters and token[cut] & 0xC0 == 0x80:
                continue
            left = get(token[:cut])
            if left is not None and (right := get(token[cut:])) is not None:
                found.append((left, right, result))
                order.append(ranks[token])
    return np.array(found, np.int32).reshape(-1, 3), np.array(order, np.int64)


def pair_table(
    merges: np.ndarray, ranks: np.ndarray, characters: dict[int, dict[bytes, int]], where: str
) -> np.ndarray:
    """The table of merges (n, 3) with ranks (n), and of the characters that are symbols, by kind.

    Raises DataError for a pair that is merged twice.
    """
    keys = [merges[:, 0].astype(np.int64) << 32 | merges[:, 1]]
    values = [ranks << 32 | merges[:, 2].astype(np.int64)]
    for kind, symbols in characters.items():
        codes = np.array([int.from_bytes(character, "big") for character in symbols], np.int64)
        keys.append(kind << 32 | codes)
        values.append(np.array(list(symbols.values()), np.int64))
    key, value = np.concatenate(keys), np.concatenate(values)
    table = np.full(2 * slots(len(key)), -1, np.int64)
    twice = np.zeros(1, np.int64)
    if len(key):
        arrays = map(shared, (key, value, table))
        compiled("bpe").fill_pairs(1, 1, *arrays, shift_of(table, 2), shared(twice))
    if twice[0]:
        left, right = merges[int(twice[0]) - 1, :2].tolist()
        raise DataError(where, "the same merge twice", got=f"ids {left} and {right}")
    return table


def word_table(tokens: np.ndarray, blob: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The table of the tokens that are found as whole words; `tokens` are their ids (int32)."""
    table = np.zeros(slots(len(tokens)), np.int64)
    if len(tokens):
        arrays = shared(blob), shared(offsets)
        compiled("bpe").fill_words(1, 1, shared(tokens), shared(table), shift_of(table, 1), *arrays)
    return table


def slots(n: int) -> int:
    """Slots of a table for n entries."""
    return 1 << max(4, (2 * n - 1).bit_length())


def shift_of(table: np.ndarray, width: int) -> int:
    """How far a hash of 64 bits is shifted for the first slot of a table with entries of `width` numbers."""
    return 65 - (len(table) // width).bit_length()


def blob_of(tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of all tokens in a row (one more at the end, so that there is something to point at), and offsets."""
    offsets = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=offsets[1:])
    return np.frombuffer(b"".join(tokens) + b"\0", np.uint8), offsets
