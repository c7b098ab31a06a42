"""The trainer of byte-level byte-pair vocabularies: from texts to distinct words with counts, from those to merges.

Counts are integers, and of pairs that are equally frequent the one with the smaller ids is merged first: the same
corpus gives the same vocabulary, bit for bit, on any number of threads and in any order of the texts. Ids are GPT-2's:
the 256 bytes in the order of its alphabet, the merges in their order, special tokens last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..base.errors import DataError
from .alphabet import ORDER
from .batch import utf8_batch
from .native import compiled, shared
from .patterns import Pattern
from .split import split
from .words import Counted, blocks, distinct

_BYTES = 256
_MOST_PLACES = 1 << 29  # bytes of distinct words, and one between any two: places are numbered in 32 bits


def distinct_words(texts: Iterable[str], pattern: Pattern, where: str, *, before: str = "") -> Counted:
    """The distinct words of the texts, `before` put before each. Memory for one block of text at a time.

    Raises DataError for half a surrogate pair.
    """

    def words() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for block in blocks(texts, where):
            try:
                encoded = utf8_batch([before + text if text else text for text in block] if before else block, where)
            except DataError:
                utf8_batch(block, where)  # names the place in the text as it came
                raise
            data, starts, _ = split(*encoded, pattern)
            yield data, starts

    return distinct(words())


def learn_merges(
    words: Counted, vocab_size: int, *, min_frequency: int, where: str
) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Tokens (the bytes first) and merges of a vocabulary of `vocab_size` tokens.

    Raises DataError for a size below 256, and for one that the words can't give; the message says which they can.
    """
    if vocab_size < _BYTES:
        raise DataError(where, "a vocabulary smaller than the alphabet", got=vocab_size, expected=f"at least {_BYTES}")
    if not len(words.data):
        raise DataError(where, "no text", hint="give at least one character")
    # Every token takes a merge, and every merge a symbol: a corpus can't give more.
    size = min(vocab_size, _BYTES + len(words.data))
    tokens = [bytes([byte]) for byte in ORDER]
    merges, result = np.empty((size + 1, 3), np.int32), np.zeros(2, np.int64)
    if (row := len(words.data) + len(words.counts)) > _MOST_PLACES:
        raise DataError(where, "too many distinct words", got=f"{row} bytes", expected=f"at most {_MOST_PLACES}")
    alphabet = np.empty(_BYTES, np.int32)
    alphabet[list(ORDER)] = np.arange(_BYTES)
    table = np.full(1 << (2 * size).bit_length(), -1, np.int32)
    begins = np.zeros(size + 1, np.int64)
    arrays = (*words, alphabet, table, begins, merges, result)
    compiled("bpe_train").learn(1, 1, *map(shared, arrays), size, min_frequency)
    made, found = result.tolist()
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
