"""The byte-pair model: words to ids by merging pairs of symbols in the order of their ranks (Sennrich et al. 2016).

Where a model starts from is what tells the published ones apart: from bytes (GPT-2 and all after it), from bytes of
which the last carries a mark (CLIP), or from characters, with bytes for those that are no token (Llama 2, Mistral).

What a word that is a token becomes is known beforehand: the model encodes every token once, and those that come out
as themselves are looked up whole from then on. In natural text that is most words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import DataError
from .align import sizes_of_unknown
from .bpe_tables import (
    BYTES,
    CHARACTER,
    FUSE_UNKNOWN,
    LAST_CHARACTER,
    MOST_TOKENS,
    WHOLE,
    blob_of,
    merges_by_parts,
    merges_of,
    pair_table,
    shift_of,
    word_table,
)
from .native import compiled, shared
from .split import grain

_WHERE = "BPEModel"


class BPEModel:
    """A byte-pair model over tokens 0 to n-1.

    Args:
        tokens: bytes of each id, with the suffix where it has one; None for an id that text can't give by itself
            (a special token, a byte that others fall back to, a hole).
        merges: pairs of bytes in the order of their ranks; None where any two tokens merge that together are a token.
        ranks: without merges: the rank of each token (smaller first), by default its id.
        characters: words start as characters instead of bytes.
        suffix: what the last symbol of a word carries (`</w>`).
        byte_ids: ids of the 256 bytes that characters without a token fall back to.
        unknown: id of a character that has no other way; None: such text is refused.
        fuse_unknown: unknown characters in a row are one id.
        whole: a word that is a token is that token, whatever the merges would make of it.

    Raises:
        DataError: a token twice, a merge twice or of what is no token, options that don't go together.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        merges: Sequence[tuple[bytes, bytes]] | None,
        *,
        ranks: Sequence[int] | None = None,
        characters: bool = False,
        suffix: bytes = b"",
        byte_ids: Sequence[int] | None = None,
        unknown: int | None = None,
        fuse_unknown: bool = False,
        whole: bool = False,
    ) -> None:
        if not 0 < len(tokens) <= MOST_TOKENS:
            raise DataError(_WHERE, "not a size for a vocabulary", got=len(tokens), expected=f"1 to {MOST_TOKENS}")
        ids: dict[bytes, int] = {}
        for number, token in enumerate(tokens):
            if token is not None and ids.setdefault(token, number) != number:
                raise DataError(_WHERE, "the same token twice", got=f"{token!r}, ids {ids[token]} and {number}")
        for number in (*(byte_ids or ()), *(() if unknown is None else (unknown,))):
            if not 0 <= number < len(tokens):
                raise DataError(_WHERE, "an id outside the vocabulary", got=number, expected=f"below {len(tokens)}")
        if byte_ids is not None and (len(byte_ids) != 256 or not characters):
            raise DataError(_WHERE, "byte_ids are 256 ids, and for characters", got=len(byte_ids))
        if suffix and (whole or byte_ids):
            raise DataError(_WHERE, "a suffix goes neither with whole words nor with byte_ids")
        self.tokens, self.merges, self.ranks = list(tokens), None if merges is None else list(merges), ranks
        self.characters, self.suffix, self.byte_ids = characters, suffix, byte_ids
        self.unknown, self.fuse_unknown, self.whole = unknown, fuse_unknown, whole
        self._ids = ids
        self._build()

    @property
    def ids(self) -> dict[bytes, int]:
        """Ids of the tokens that text can give, by their bytes."""
        return self._ids

    def _build(self) -> None:
        ids, suffix = self._ids, self.suffix
        if self.merges is None:
            order = range(len(self.tokens)) if self.ranks is None else self.ranks
            ranks = {token: int(order[number]) for token, number in ids.items()}
            merges, rank = merges_by_parts(ids, ranks, _WHERE, characters=self.characters)
        else:
            merges, rank = merges_of(self.merges, ids, _WHERE)
        symbols: dict[int, dict[bytes, int]] = {}
        first = np.full(512, -1, np.int32)
        if self.characters:
            symbols[CHARACTER] = {token: number for token, number in ids.items() if _is_character(token)}
            if suffix:
                ended = {token.removesuffix(suffix): number for token, number in ids.items() if token.endswith(suffix)}
                symbols[LAST_CHARACTER] = {token: number for token, number in ended.items() if _is_character(token)}
            else:
                symbols[LAST_CHARACTER] = symbols[CHARACTER]
            if self.byte_ids is not None:
                first[:256] = self.byte_ids
        else:
            for byte in range(256):
                first[byte] = ids.get(bytes([byte]), -1)
                first[256 + byte] = ids.get(bytes([byte]) + suffix, -1)
        self._first = first
        self._pairs = pair_table(merges, rank, symbols, _WHERE)
        # Of the tokens that end a word, `blob` holds what they look like in a text.
        texts = [b"" if token is None else token.removesuffix(suffix) for token in self.tokens]
        self._blob, self._offsets = blob_of(texts)
        self._flags = (0 if self.characters else BYTES) | (FUSE_UNKNOWN if self.fuse_unknown else 0)
        self._words = word_table(np.empty(0, np.int32), self._blob, self._offsets)
        candidates = np.array([n for token, n in ids.items() if token != suffix and token.endswith(suffix)], np.int32)
        if not self.whole:
            candidates = self._merge_to_themselves(candidates)
        self._words = word_table(candidates, self._blob, self._offsets)
        self._flags |= WHOLE

    def _merge_to_themselves(self, tokens: np.ndarray) -> np.ndarray:
        """Those tokens that come out of the merges as one id, their own."""
        at = tokens.astype(np.int64)
        begin, size = self._offsets[at], self._offsets[at + 1] - self._offsets[at]
        starts = np.zeros(len(at) + 1, np.int64)
        np.cumsum(size, out=starts[1:])
        where = np.repeat(begin - starts[:-1], size) + np.arange(starts[-1])
        data = np.ascontiguousarray(self._blob[where])
        ids, counts = self._run(data, starts)
        found = np.zeros(len(at), np.bool_)
        single = np.flatnonzero(counts == 1)
        edges = np.zeros(len(at), np.int64)
        np.cumsum(np.maximum(counts[:-1], 0), out=edges[1:])
        found[single] = ids[edges[single]] == tokens[single]
        return tokens[found]

    def encode_words(self, data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids of words: data uint8, starts int64 (n + 1) -> ids uint32, id_starts int64 (n + 1).

        Raises DataError for a word with a byte or a character that has no token.
        """
        ids, counts = self._run(data, starts)
        if len(counts) and counts.min() < 0:
            word = int(np.argmax(counts < 0))
            shown = data[starts[word] : starts[word + 1]].tobytes()[:60].decode("utf-8", errors="replace")
            raise DataError(
                f"{_WHERE}.encode_words", "text that the vocabulary can't express", got=f"the word {shown!r}"
            )
        id_starts = np.zeros(len(starts), np.int64)
        np.cumsum(counts, out=id_starts[1:])
        return ids, id_starts

    def encode_ends(self, data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`encode_words`, and ends: int64, the byte of its word behind the last one of each id."""
        ids, id_starts = self.encode_words(data, starts)
        sizes = self.lengths()[ids]
        if self.unknown is not None:
            at = np.flatnonzero(ids == self.unknown)
            for k in np.unique(np.searchsorted(id_starts, at, side="right") - 1).tolist():
                word, first, last = data[starts[k] : starts[k + 1]].tobytes(), id_starts[k], id_starts[k + 1]
                self._measure_unknown(word, ids[first:last].tolist(), sizes[first:last])
        ends = np.cumsum(sizes)
        return ids, id_starts, ends - np.repeat(starts[:-1], np.diff(id_starts))

    def _measure_unknown(self, word: bytes, ids: list[int], sizes: np.ndarray) -> None:
        def known(begin: int, end: int) -> bool:
            return word[begin:end] + (self.suffix if end == len(word) else b"") in self._ids

        assert self.unknown is not None
        sizes_of_unknown(word, ids, sizes, self.unknown, known, fuse=self.fuse_unknown, characters=self.characters)

    def _run(self, data: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids in a row, and how many each word has, -1 for a word that can't be (and has none in the row)."""
        n = len(starts) - 1
        counts = np.zeros(n, np.int64)
        if n == 0 or len(data) == 0:
            return np.empty(0, np.uint32), counts
        kernels, chunk = compiled("bpe"), grain(n, len(data))
        out = np.empty(len(data), np.int32)
        kernels.encode(
            n,
            chunk,
            shared(data),
            shared(starts),
            shared(out),
            shared(counts),
            shared(self._pairs),
            shift_of(self._pairs, 2),
            shared(self._words),
            shift_of(self._words, 1),
            shared(self._blob),
            shared(self._offsets),
            shared(self._first),
            self._flags,
            -1 if self.unknown is None else self.unknown,
        )
        edges = np.zeros(n + 1, np.int64)
        np.cumsum(np.maximum(counts, 0), out=edges[1:])
        ids = np.empty(int(edges[-1]), np.int32)
        kernels.gather(n, chunk, shared(out), shared(starts), shared(edges), shared(ids))
        return ids.view(np.uint32), counts

    def lengths(self) -> np.ndarray:
        """Bytes of text each id stands for (int64), one for the bytes that characters fall back to."""
        sizes = np.diff(self._offsets)
        if self.byte_ids is not None:
            sizes[list(self.byte_ids)] = 1
        return sizes


def _is_character(token: bytes) -> bool:
    """Whether bytes are one character of UTF-8."""
    return len(token) > 0 and sum(byte & 0xC0 != 0x80 for byte in token) == 1 and len(token) <= 4
