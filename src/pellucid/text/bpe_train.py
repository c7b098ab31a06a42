"""The trainer of byte-level byte-pair vocabularies: from texts to distinct words with counts, from those to merges.

Counts are integers, the distinct words are sorted, and of pairs that are equally frequent the one with the smaller ids
is merged first: the same corpus gives the same vocabulary, bit for bit, on any number of threads and in any order of
the texts. Ids are GPT-2's: the 256 bytes in the order of its alphabet, the merges in their order, special tokens last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..base.errors import DataError
from .alphabet import ORDER
from .batch import utf8_batch
from .native import compiled, shared
from .patterns import Pattern
from .split import split
from .words import blocks, tally

_BYTES = 256
_MOST_BYTES = 1 << 29  # of distinct words: places in them are numbered in 32 bits


def distinct_words(texts: Iterable[str], pattern: Pattern, where: str) -> dict[bytes, int]:
    """How often each word occurs, in no order that means anything. Memory for one block of text at a time.

    Raises DataError for half a surrogate pair.
    """
    total: dict[bytes, int] = {}
    for block in blocks(texts):
        data, starts, _ = split(*utf8_batch(block, where), pattern)
        tally(total, data, starts)
    return total


def learn_merges(
    words: dict[bytes, int], vocab_size: int, *, min_frequency: int, where: str
) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Tokens (the bytes first) and merges of a vocabulary of `vocab_size` tokens.

    Raises DataError for a size below 256, and for one that the words can't give; the message says which they can.
    """
    if vocab_size < _BYTES:
        raise DataError(where, "a vocabulary smaller than the alphabet", got=vocab_size, expected=f"at least {_BYTES}")
    if not words:
        raise DataError(where, "no text", hint="give at least one character")
    tokens = [bytes([byte]) for byte in ORDER]
    # A word of one byte has nothing to merge.
    ordered = sorted(word for word in words if len(word) > 1)
    data = np.frombuffer(b"".join(ordered), np.uint8)
    merges, result = np.empty((vocab_size + 1, 3), np.int32), np.zeros(2, np.int64)
    if len(data) > _MOST_BYTES:
        raise DataError(where, "too many distinct words", got=f"{len(data)} bytes", expected=f"at most {_MOST_BYTES}")
    if len(data):
        starts = np.zeros(len(ordered) + 1, np.int64)
        np.cumsum([len(word) for word in ordered], out=starts[1:])
        counts = np.array([words[word] for word in ordered], np.int64)
        alphabet = np.empty(_BYTES, np.int32)
        alphabet[list(ORDER)] = np.arange(_BYTES)
        table = np.full(1 << (2 * vocab_size).bit_length(), -1, np.int32)
        begins, ends = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
        arrays = (data, starts, counts, alphabet, table, begins, ends, merges, result)
        compiled("bpe_train").learn(1, 1, *map(shared, arrays), vocab_size, min_frequency)
    made, found = result.tolist() if len(data) else (0, _BYTES)
    if found < vocab_size:
        hint = "ask for fewer, lower min_frequency, or give more text"
        what = "a vocabulary larger than the corpus can give"
        raise DataError(where, what, got=vocab_size, expected=f"at most {found}", hint=hint)
    pairs = []
    for left, right, token in merges[:made].tolist():
        pairs.append((tokens[left], tokens[right]))
        if token == len(tokens):
            tokens.append(tokens[left] + tokens[right])
    return tokens, pairs
