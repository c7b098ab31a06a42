"""Words of texts, and the distinct words of a corpus: what the Unigram tokenizer and its trainer work on.

The rule (`compiled/words.py`) looks at ASCII white space alone, so no text has to be classified and nothing is lost:
the words of a text in a row are the text. It puts a space before a word into the word, so that the first word of a line
would look like no other; `marked_utf8` writes a space before every line that isn't empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base.errors import DataError
from .batch import utf8, utf8_batch
from .native import compiled, shared

_CHUNK = 1 << 16  # bytes of text one worker takes at a time
_COUNTED = 1 << 20  # bytes of words one worker counts in one table
_BLOCK = 1 << 23  # characters of text that are counted together
_NO_LIMIT = 1 << 62


def chunks_of(starts: np.ndarray, size: int) -> np.ndarray:
    """Cuts items that begin at the bytes `starts` (n + 1) into chunks of about `size` bytes: the first item of each,
    and n."""
    n = len(starts) - 1
    if starts[-1] <= size:
        return np.array([0, n])
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], size), side="right") - 1
    return np.unique(np.concatenate([[0], cuts, [n]]))


def joined(values: np.ndarray, places: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What chunks wrote, in a row: edges[c + 1] - edges[c] values of chunk c, from values[places[c]] on."""
    if len(places) == 1:
        return values[places[0] : places[0] + edges[-1]].copy()
    result = np.empty(int(edges[-1]), values.dtype)
    for begin, end, at in zip(edges[:-1].tolist(), edges[1:].tolist(), places.tolist(), strict=True):
        result[begin:end] = values[at : at + end - begin]
    return result


def marked(text: str) -> str:
    """The text with one space more at the beginning of every line that isn't empty."""
    if "\n" not in text:
        return " " + text if text else text
    found = text.replace("\n", "\n ")
    if "\n\n" in text:  # empty lines give theirs back, in two passes: neighbours share a line feed
        found = found.replace("\n \n", "\n\n").replace("\n \n", "\n\n")
    if text[-1] == "\n":
        found = found[:-1]
    return found if text[0] == "\n" else " " + found


def marked_utf8(texts: Sequence[str], where: str) -> tuple[np.ndarray, np.ndarray]:
    """`utf8_batch` of the `marked` texts. Raises DataError, in the name of `where`, for half a surrogate pair."""
    try:
        return utf8_batch(list(map(marked, texts)), where)
    except DataError:
        # Names the place in the text as it came.
        utf8(texts[0], where) if len(texts) == 1 else utf8_batch(texts, where)
        raise


def split_words(data: np.ndarray, texts: np.ndarray, *, longest: int = _NO_LIMIT) -> tuple[np.ndarray, np.ndarray]:
    """Where words begin (int64, words + 1), and the number of the first word of each text (int64, texts + 1).

    data: uint8, UTF-8; texts: int64 (n + 1), where each text begins. A word above `longest` bytes is cut.
    """
    firsts = np.zeros(len(texts), np.int64)
    if not len(data):
        return np.zeros(1, np.int64), firsts
    chunks = chunks_of(texts, _CHUNK)
    starts, words = np.empty(len(data), np.int64), np.empty(len(texts) - 1, np.int64)
    counts = np.empty(len(chunks) - 1, np.int64)
    arrays = [shared(a) for a in (chunks, data, texts)]
    compiled("words").split(len(counts), 1, *arrays, longest, shared(starts), shared(words), shared(counts))
    np.cumsum(words, out=firsts[1:])
    found = joined(starts, texts[chunks[:-1]], np.concatenate([[0], np.cumsum(counts)]))
    return np.append(found, len(data)), firsts


class Counted(NamedTuple):
    """Distinct words in the order they first occurred: word k is bytes starts[k] to starts[k+1]-1 of `data` and occurs
    counts[k] times."""

    data: np.ndarray
    starts: np.ndarray
    counts: np.ndarray


def count_words(texts: Iterable[str], where: str, *, longest: int) -> dict[bytes, int]:
    """How often each word of the marked `texts` occurs, in no order that means anything. Memory for one block of text
    at a time.

    Raises DataError, in the name of `where`, for half a surrogate pair.
    """

    def words() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for block in blocks(texts, where):
            data, edges = marked_utf8(block, where)
            yield data, split_words(data, edges, longest=longest)[0]

    found = distinct(words())
    raw, edges = found.data.tobytes(), found.starts.tolist()
    return {raw[begin:end]: n for (begin, end), n in zip(pairwise(edges), found.counts.tolist(), strict=True)}


def distinct(words: Iterable[tuple[np.ndarray, np.ndarray]]) -> Counted:
    """The distinct words of blocks, each (data, starts) as `split_words` and `split.split` give them.

    Words are counted in each chunk of a block, then across its chunks, then with those of the blocks before: most
    occurrences meet a table that fits into a cache, and all threads have work.
    """
    total = Counted(np.empty(0, np.uint8), np.zeros(1, np.int64), np.empty(0, np.int64))
    for data, starts in words:
        found = _counted(data, starts, np.ones(len(starts) - 1, np.int64), chunks_of(starts, _COUNTED))
        joint = Counted(
            *map(
                np.concatenate,
                (
                    (total.data, found.data),
                    (total.starts, found.starts[1:] + len(total.data)),
                    (total.counts, found.counts),
                ),
            )
        )
        total = _counted(*joint, np.array([0, len(joint.counts)]))
    return total


def _counted(data: np.ndarray, starts: np.ndarray, weights: np.ndarray, chunks: np.ndarray) -> Counted:
    """The distinct words of each chunk, with the sum of their weights."""
    n, m = len(weights), len(chunks) - 1
    if not n:
        return Counted(np.empty(0, np.uint8), np.zeros(1, np.int64), weights)
    firsts, counts, sizes = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(m, np.int64)
    compiled("words").count(m, 1, *map(shared, (chunks, data, starts, weights, firsts, counts, sizes)))
    edges = np.concatenate([[0], np.cumsum(sizes)])
    at = joined(firsts, chunks[:-1], edges)
    begins, lengths = starts[at], starts[at + 1] - starts[at]
    cuts = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(begins - cuts[:-1], lengths) + np.arange(cuts[-1])
    return Counted(data[places], cuts, joined(counts, chunks[:-1], edges))


def blocks(texts: Iterable[str], where: str) -> Iterator[list[str]]:
    """The texts in order, about 8 million characters at a time. Raises DataError, in the name of `where`, for what is
    no string."""
    block: list[str] = []
    size = 0
    for text in texts:
        if not isinstance(text, str):
            raise DataError(where, "not text", got=type(text).__name__, expected="strings, a document each")
        block.append(text)
        size += len(text)
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block
