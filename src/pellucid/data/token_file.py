"""A corpus as a flat file of token ids: memory-mapped, read in windows, never loaded.

Between the tokenizer and training. The file is little-endian uint16 or uint32, as its side file says, and nothing else
(see `token_writer`); without a side file it is uint32. The operating system keeps the pages in use, and only the batch
is copied. Random windows are a pure function of seed and step: there is no cursor, so a run resumed at step 40,000 sees
what it would have seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from ..base.errors import DataError
from ..base.files import StrPath, reading
from ..base.rng import Generator
from ..text import Tokenizer
from .batch import Ids, TokenBatch
from .sources import read_jsonl
from .token_resume import write_resumable
from .token_writer import ITEM_BYTES, Encoded, TokenFileInfo, encoded, write_ids

_BLOCK = 1 << 20  # tokens
# Keeps the windows apart from whatever else a program draws from the same seed.
_WINDOWS = int.from_bytes(b"windows", "big")
_EPOCHS = int.from_bytes(b"epochs", "big")


class TokenFile:
    """A range of tokens in a file. `TokenFile.open` makes one, `part` and `split` make others over the same memory.

    Attributes:
        path: the file.
        ids: read-only view of the range, uint16 or uint32; indexing it reads the file.
        start: position of the range in the file, in tokens.
        seed: what `batch` draws its windows from.
        info: what the side file says, or None without one.
    """

    __slots__ = ("ids", "info", "path", "seed", "start")

    def __init__(self, path: str, ids: np.ndarray, *, seed: int, start: int, info: TokenFileInfo | None) -> None:
        self.path, self.ids, self.seed, self.start, self.info = path, ids, seed, start, info

    @classmethod
    def open(cls, path: StrPath, *, seed: int = 0, start: int = 0, stop: int | None = None) -> TokenFile:
        """Maps tokens `start` to `stop` (excluded; None means the end) of a file.

        Raises:
            DataError: missing, empty, not a whole number of ids, not what its side file says, or an empty range.
        """
        shown = os.fspath(path)
        info = TokenFileInfo.load(path)
        width = ITEM_BYTES["uint32" if info is None else info.dtype]
        with reading(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise DataError(shown, "the token file is empty", expected=f"at least 1 token of {width} bytes")
            if size % width:
                raise DataError(
                    shown,
                    f"not a token file: its length is not a multiple of {width}",
                    got=f"{size} bytes",
                    hint="write it with TokenFile.write; text needs a tokenizer first",
                )
            ids = np.memmap(file, dtype=f"<u{width}", mode="r").view(np.ndarray)
        if info is not None and info.count != len(ids):
            raise DataError(
                shown,
                "the file and its description do not belong together",
                got=f"{len(ids)} tokens",
                expected=f"{info.count} by {shown}.json",
                hint="the file was cut or replaced; write it again",
            )
        # A bad seed is refused here and not at the first batch.
        whole = cls(shown, ids, seed=Generator(seed).seed, start=0, info=info)
        return whole.part(start, stop)

    def part(self, start: int, stop: int | None = None) -> TokenFile:
        """Tokens `start` to `stop` (excluded; None means the end) of this range. Raises DataError if there are none."""
        end = len(self) if stop is None else stop
        if not 0 <= start < end <= len(self):
            got = f"start={start}, stop={stop}"
            raise DataError(self.path, "no such range of tokens", got=got, expected=f"0 <= start < stop <= {len(self)}")
        ids = self.ids[start:end]
        return TokenFile(self.path, ids, seed=self.seed, start=self.start + start, info=self.info)

    def split(self, fraction: float) -> tuple[TokenFile, TokenFile]:
        """The first `fraction` of the tokens and the rest, in order: 0.9 gives the usual 90 / 10."""
        at = int(len(self) * fraction)
        return self.part(0, at), self.part(at)

    def batch(self, step: int, sequences: int, seq_len: int) -> TokenBatch:
        """`sequences` windows of `seq_len` tokens at random offsets, uniform in 0 to len - seq_len, from (seed, step).

        A window of T+1 tokens gives T inputs and T targets. Larger batches of a step begin with the windows of
        smaller ones.

        Raises:
            DataError: seq_len under 2 or over the number of tokens, no sequences, a negative step, an id too large.
        """
        self._check("TokenFile.batch", "step", step, sequences, seq_len)
        stream = Generator(self.seed).split(_WINDOWS, step)
        return self._windows(stream.integers(len(self) - seq_len + 1, sequences).tolist(), seq_len)

    def shuffled(self, step: int, sequences: int, seq_len: int) -> TokenBatch:
        """`sequences` windows of `seq_len` tokens, of which an epoch reads every one once: window i begins at token
        i (seq_len - 1), so each token is predicted once. The order of epoch k follows from (seed, k) alone, and which
        windows a step gets from its number: a batch may end one epoch and begin the next.

        A tail shorter than a window is left out. Raises DataError as `batch`.
        """
        self._check("TokenFile.shuffled", "step", step, sequences, seq_len)
        windows, offsets = self.windows(seq_len), []
        for number in range(step * sequences, (step + 1) * sequences):
            epoch, place = divmod(number, windows)
            offsets.append(int(_order(self.seed, epoch, windows)[place]) * (seq_len - 1))
        return self._windows(offsets, seq_len)

    def windows(self, seq_len: int) -> int:
        """How many windows of `seq_len` tokens an epoch has (see `shuffled`)."""
        return max((len(self) - 1) // (seq_len - 1), 0)

    def chunk(self, index: int, sequences: int, seq_len: int) -> TokenBatch | None:
        """Batch number `index` of the consecutive windows 0, seq_len, 2 * seq_len, ...: every token once, in order.

        The last batch has fewer sequences where they don't fill it; a tail shorter than `seq_len` is left out. The
        first token of each window is read but not predicted. None after the last batch. Since the last batch may be
        shorter, a loss over the file is the mean of the batches' losses weighted by their `n_targets`.

        Raises:
            DataError: as for `batch`.
        """
        self._check("TokenFile.chunk", "index", index, sequences, seq_len)
        first, windows = index * sequences, len(self) // seq_len
        if first >= windows:
            return None
        last = min(first + sequences, windows)
        return self._windows(range(first * seq_len, last * seq_len, seq_len), seq_len)

    def check_vocabulary(self, vocab_size: int) -> int:
        """Reads the whole range and returns its largest id. Raises DataError for an id outside the vocabulary."""
        largest = 0
        for begin in range(0, len(self), _BLOCK):
            ids = self.ids[begin : begin + _BLOCK]
            largest = max(largest, int(ids.max()))
            if largest >= vocab_size:
                at = int((ids >= vocab_size).argmax())
                raise DataError(
                    self.path,
                    f"id outside the vocabulary at token {self.start + begin + at}",
                    got=int(ids[at]),
                    expected=f"0 to {vocab_size - 1}",
                    hint="the file was made with another tokenizer, is damaged, or lost its description",
                )
        return largest

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises DataError unless the ids can be `tokenizer`'s: by its fingerprint where the side file has it, else
        by its vocabulary size."""
        if self.info is None:
            self.check_vocabulary(tokenizer.vocab_size)
        elif self.info.tokenizer != tokenizer.fingerprint():
            raise DataError(
                self.path,
                "the ids were made with another tokenizer",
                got=f"{tokenizer.kind} {tokenizer.fingerprint()[:12]} ({tokenizer.vocab_size} ids)",
                expected=f"{self.info.tokenizer[:12]} ({self.info.vocab_size} ids)",
                hint="load the tokenizer the file was written with",
            )

    def verify(self) -> None:
        """Reads the whole file and compares its SHA-256. Raises DataError for a difference, or without a side file."""
        if self.info is None:
            raise DataError(self.path, "no description with a checksum", expected=f"{self.path}.json")
        digest = hashlib.sha256()
        with reading(self.path) as file:
            while raw := file.read(_BLOCK):
                digest.update(raw)
        if digest.hexdigest() != self.info.sha256:
            raise DataError(
                self.path,
                "damaged: the checksum differs",
                got=digest.hexdigest()[:12],
                expected=self.info.sha256[:12],
                hint="write the file again",
            )

    @staticmethod
    def write(path: StrPath, ids: Ids, *, tokenizer: Tokenizer | None = None) -> int:
        """Writes `ids` as a token file, atomically; returns their number. `tokenizer` adds the side file.

        Raises:
            DataError: no ids, an id that is no integer or out of range, or a file that can't be written.
        """
        return write_ids(path, [np.asarray(ids)] if len(ids) else [], tokenizer=tokenizer)

    @staticmethod
    def write_documents(
        path: StrPath,
        documents: Iterable[str],
        tokenizer: Tokenizer,
        *,
        eos: int | None = None,
        on_progress: Callable[[Encoded], object] | None = None,
        resume: bool = False,
    ) -> int:
        """Encodes documents into a token file in constant memory, with its side file; returns the number of tokens.

        Args:
            path: the file to write; it appears only when complete.
            documents: strings, as `pellucid.data.documents` gives them.
            tokenizer: makes the ids.
            eos: the id after each document (usually `tokenizer.eot`), or None for nothing between them.
            on_progress: called after each batch has been written.
            resume: a run that fails or is killed leaves `path`.part, from which the next one with `resume` goes on; the
                file comes out the same. Only for documents of files.

        Raises:
            DataError: text that can't be read or encoded (the document is named), or no tokens at all; with `resume`,
                a part of another corpus or tokenizer, or a damaged one.
        """
        if resume:
            return write_resumable(path, documents, tokenizer, eos, on_progress)
        return write_ids(path, encoded(documents, tokenizer, eos, on_progress), tokenizer=tokenizer)

    @staticmethod
    def write_jsonl(
        path: StrPath,
        source: StrPath,
        *,
        encode: Callable[[str], Ids],
        field: str = "text",
        eos: int | None = None,
    ) -> int:
        """Encodes a JSONL file with any function from text to ids, a line at a time; returns the number of tokens.

        With a `Tokenizer`, `write_documents(path, documents(source), tokenizer)` also records which one it was.

        Raises:
            DataError: a bad line, named by its number; ids out of range; no tokens at all.
        """
        end = [] if eos is None else [np.array([eos])]
        if os.path.realpath(path) == os.path.realpath(source):
            raise DataError(os.fspath(path), "the token file would replace its source", hint="give it another name")
        parts = (part for text in read_jsonl(source, field) for part in (_array(encode(text)), *end))
        return write_ids(path, parts)

    def _check(self, where: str, name: str, number: int, sequences: int, seq_len: int) -> None:
        if number < 0:
            raise DataError(where, f"negative {name}", got=number, expected="0 or more")
        if sequences < 1:
            raise DataError(where, "no sequences", got=sequences, expected="at least 1")
        if seq_len < 2:
            raise DataError(where, "a window too short to predict anything", got=seq_len, expected="at least 2 tokens")
        if seq_len > len(self):
            raise DataError(
                where,
                f"the window is longer than the tokens of {self.path}",
                got=f"seq_len={seq_len}",
                expected=f"at most {len(self)}",
                hint="use a shorter window or more text",
            )

    def _windows(self, offsets: Iterable[int], seq_len: int) -> TokenBatch:
        return TokenBatch(np.stack([self.ids[at : at + seq_len] for at in offsets]))

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def __repr__(self) -> str:
        return f"TokenFile({self.path!r}, tokens={len(self)}, start={self.start}, seed={self.seed})"


@lru_cache(4)
def _order(seed: int, epoch: int, windows: int) -> np.ndarray:
    """The order of the windows of an epoch."""
    return Generator(seed).split(_EPOCHS, epoch).permutation(windows)


def _array(ids: Ids) -> np.ndarray:
    # An empty list is an array of floats to NumPy.
    return np.asarray(ids) if len(ids) else np.empty(0, dtype=np.uint32)
