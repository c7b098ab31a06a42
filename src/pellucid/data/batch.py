"""A batch of token sequences, and which of their tokens count in the loss.

Between the token file and the model. Sequences are padded on the right with 0; a sequence of L ids holds L-1
predictions, from `inputs` (all but the last) to `targets` (all but the first). What counts is said once, by
`weights`: 1/n_targets at each position that is predicted, not padding and not masked, 0 elsewhere. The loss of a
batch is sum(weights * nll): the mean over predicted positions, whatever the lengths, in nats/token.

Right padding needs no attention mask in a causal model: no position that counts can see it.

A packed batch has several documents in a row. `starts` then says where the document of each position begins, which is
all that attention sees, and `positions` counts from there; the first token of a document is nobody's target, so loss
and gradients are those of the same documents a row each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..base.errors import DataError

Ids = Sequence[int] | np.ndarray
LARGEST_ID = 2**31 - 1
"""Kernels index rows of the embedding with 32 signed bits."""


class TokenBatch:
    """Token sequences as one rectangle. Arrays are read-only by agreement: nothing in the library writes into them.

    Args:
        sequences: id sequences of at least two ids each, or a two-dimensional array of them.
        loss_mask: B * L flags, flat or shaped (B, L), L being the padded length; see `with_loss_mask`.

    Attributes:
        ids: (B, L) int64.
        lengths: (B,) int64, ids of each sequence without padding.
        inputs, targets: (B, L-1) int64, contiguous.
        weights: (B, L-1) float32, with sum 1.
        starts, positions: (B, L-1) int32, of a packed batch; None where each row is one document.
        n_targets: number of positions that count.

    Raises:
        DataError: no sequence, a sequence under two ids, an id out of range, or a mask that leaves nothing.
    """

    __slots__ = ("begins", "ids", "inputs", "lengths", "n_targets", "positions", "starts", "targets", "weights")

    ids: np.ndarray
    lengths: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    begins: np.ndarray | None  # (B, L) int32: where the document of each token begins; padding is one of its own
    starts: np.ndarray | None
    positions: np.ndarray | None
    n_targets: int

    def __init__(self, sequences: Sequence[Ids] | np.ndarray, *, loss_mask: Sequence[bool] | np.ndarray | None = None):
        if len(sequences) == 0:
            raise DataError("TokenBatch", "no sequences", expected="at least 1")
        if isinstance(sequences, np.ndarray) and sequences.ndim == 2:
            ids = _checked(sequences, "TokenBatch", dimensions=2)
            lengths = np.full(ids.shape[0], ids.shape[1], dtype=np.int64)
        else:
            rows = [
                _checked(np.asarray(row), f"TokenBatch: sequence {i}", dimensions=1) for i, row in enumerate(sequences)
            ]
            lengths = np.array([row.size for row in rows], dtype=np.int64)
            ids = np.zeros((len(rows), lengths.max()), dtype=np.int64)
            for i, row in enumerate(rows):
                ids[i, : row.size] = row
        self._fill(ids, lengths, None if loss_mask is None else _flags(loss_mask, ids.shape))

    @classmethod
    def supervised(cls, pairs: Iterable[tuple[Ids, Ids]]) -> TokenBatch:
        """A batch of (prompt ids, response ids) where only response tokens count in the loss.

        Raises:
            DataError: no pair, an empty response, or a pair of fewer than two ids.
        """
        rows, begins = [], []
        for i, (prompt, response) in enumerate(pairs):
            if len(response) == 0:
                raise DataError(
                    f"TokenBatch.supervised: pair {i}", "the response is empty", hint="end it with the end-of-text id"
                )
            # An empty list is an array of floats to NumPy.
            rows.append(np.concatenate([np.asarray(p) for p in (prompt, response) if len(p)]))
            begins.append(len(prompt))
        batch = cls(rows)
        return batch.with_loss_mask(np.arange(batch.ids.shape[1]) >= np.array(begins)[:, None])

    @classmethod
    def packed(cls, rows: Sequence[Sequence[tuple[Ids, Sequence[bool] | np.ndarray]]]) -> TokenBatch:
        """A batch of rows of several documents, each a pair of ids and flags: which of its tokens count as targets.

        The first token of a document never counts: nothing before it belongs to it.

        Raises:
            DataError: a row without documents, a document of fewer than two ids or with another number of flags, or
                nothing left to predict.
        """
        lengths = np.array([sum(len(ids) for ids, _ in row) for row in rows], dtype=np.int64)
        if not len(rows) or not lengths.all():
            raise DataError("TokenBatch.packed", "no documents", expected="at least one in each row")
        width = int(lengths.max())
        ids, flags = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.bool_)
        begins = np.repeat(lengths[:, None], width, axis=1).astype(np.int32)
        for r, row in enumerate(rows):
            at = 0
            for document, counted in row:
                where = f"TokenBatch.packed: row {r}"
                found, end = _checked(np.asarray(document), where, dimensions=1), at + len(document)
                if len(counted) != len(found):
                    raise DataError(where, "wrong number of flags", got=len(counted), expected=len(found))
                ids[r, at:end], flags[r, at:end], begins[r, at:end] = found, counted, at
                at = end
        return cls._of(ids, lengths, flags, begins)

    def with_loss_mask(self, flags: Sequence[bool] | np.ndarray) -> TokenBatch:
        """The same sequences, counting only target tokens whose flag is true. Replaces an earlier mask.

        The flag at (b, t) speaks of the *token* ids[b, t], as the target of the position before it. The flag of a
        first token has no effect (nothing predicts it), nor has the flag of padding: it never counts.

        Args:
            flags: B * L of them, flat or shaped (B, L).

        Raises:
            DataError: another number of flags, flags that are not booleans (or 0 and 1), or nothing left to predict.
        """
        return TokenBatch._of(self.ids, self.lengths, _flags(flags, self.ids.shape), self.begins)

    def split(self, n: int) -> list[TokenBatch]:
        """`n` micro-batches of consecutive sequences, as even as they go, for gradient accumulation.

        The mean over the whole batch is the sum over micro-batches of loss * n_targets / (n_targets of the whole):
        weight each loss and its gradient so, not by 1/n, which is a mean of means and differs as soon as counts do.
        Padding that no sequence of a micro-batch needs is cut off. With a mask, a micro-batch may have nothing that
        counts: its weights are all 0, and so is its share.

        Raises:
            DataError: `n` under 1 or over the number of sequences.
        """
        rows = len(self)
        if not 1 <= n <= rows:
            raise DataError("TokenBatch.split", "can't be split so", got=f"n={n}", expected=f"1 to {rows} (sequences)")
        parts = []
        for i in range(n):
            at = slice(i * rows // n, (i + 1) * rows // n)
            width = int(self.lengths[at].max())
            mask = np.zeros((at.stop - at.start, width), dtype=np.bool_)
            mask[:, 1:] = self.weights[at, : width - 1] > 0
            begins = None if self.begins is None else self.begins[at, :width]
            parts.append(TokenBatch._of(self.ids[at, :width], self.lengths[at], mask, begins, may_be_empty=True))
        return parts

    @classmethod
    def _of(
        cls,
        ids: np.ndarray,
        lengths: np.ndarray,
        mask: np.ndarray | None,
        begins: np.ndarray | None,
        *,
        may_be_empty: bool = False,
    ) -> TokenBatch:
        batch = cls.__new__(cls)
        batch._fill(ids, lengths, mask, begins, may_be_empty=may_be_empty)
        return batch

    def _fill(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        mask: np.ndarray | None,
        begins: np.ndarray | None = None,
        *,
        may_be_empty: bool = False,
    ) -> None:
        counts = np.arange(1, ids.shape[1]) < lengths[:, None]
        if mask is not None:
            counts &= mask[:, 1:]
        self.begins = begins
        self.starts = self.positions = None
        if begins is not None:
            at = np.arange(ids.shape[1], dtype=np.int32)
            counts &= begins[:, 1:] < at[1:]
            self.starts = np.ascontiguousarray(begins[:, :-1])
            self.positions = at[:-1] - self.starts
        self.n_targets = int(np.count_nonzero(counts))
        if not self.n_targets and not may_be_empty:
            raise DataError(
                "TokenBatch",
                "the loss mask leaves no token to predict",
                hint="flag at least one token that is neither the first of its sequence nor padding",
            )
        self.ids, self.lengths = ids, lengths
        self.inputs = np.ascontiguousarray(ids[:, :-1])
        self.targets = np.ascontiguousarray(ids[:, 1:])
        self.weights = counts * np.float32(1.0 / max(self.n_targets, 1))

    @property
    def n_tokens(self) -> int:
        """Number of ids, padding left out."""
        return int(self.lengths.sum())

    def __len__(self) -> int:
        """Number of sequences."""
        return self.ids.shape[0]

    def __repr__(self) -> str:
        rows, width = self.ids.shape
        return f"TokenBatch(sequences={rows}, seq_len={width}, n_targets={self.n_targets})"


def _checked(ids: np.ndarray, where: str, *, dimensions: int) -> np.ndarray:
    """A copy of `ids` as int64, the last axis being time."""
    if ids.ndim != dimensions:
        raise DataError(where, "not a list of ids", got=f"shape {ids.shape}", expected="one dimension")
    if ids.shape[-1] < 2:
        raise DataError(where, "too short to predict anything", got=f"{ids.shape[-1]} ids", expected="at least 2")
    if ids.dtype.kind not in "iu":
        raise DataError(where, "ids are not integers", got=ids.dtype, expected="an integer type")
    if ids.min() < 0 or ids.max() > LARGEST_ID:
        bad = np.argwhere((ids < 0) | (ids > LARGEST_ID))[0]
        raise DataError(
            where,
            f"id out of range at position {', '.join(map(str, bad.tolist()))}",
            got=int(ids[tuple(bad)]),
            expected=f"0 to {LARGEST_ID}",
        )
    return ids.astype(np.int64)


def _flags(flags: Sequence[bool] | np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    where = "TokenBatch: loss mask"
    mask = np.asarray(flags)
    rows, width = shape
    if mask.shape not in ((rows * width,), shape):
        raise DataError(
            where,
            "wrong number of flags",
            got=f"{mask.size} with shape {mask.shape}",
            expected=f"{rows * width} (batch {rows} * seq_len {width})",
        )
    if mask.dtype.kind not in "biu" or (mask.dtype.kind != "b" and not np.isin(mask, (0, 1)).all()):
        raise DataError(where, "flags are not booleans", got=mask.dtype, expected="true and false, or 1 and 0")
    return mask.astype(np.bool_).reshape(shape)
