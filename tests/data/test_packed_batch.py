"""Batches with several documents in a row."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.data import TokenBatch

ALL = [True] * 9
DOCUMENTS = [([1, 2, 3], [False, False, True]), ([4, 5], [True, True]), ([6, 7, 8, 9], [False, True, False, True])]


def test_a_packed_batch_says_where_its_documents_begin() -> None:
    batch = TokenBatch.packed([DOCUMENTS[:2], DOCUMENTS[2:]])
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]
    assert batch.starts is not None
    assert batch.positions is not None
    assert batch.starts.tolist() == [[0, 0, 0, 3], [0, 0, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert batch.starts.dtype == batch.positions.dtype == np.int32
    # 3 after 2, 5 after 4; not 4 after 3, which is the beginning of another document.
    assert (batch.weights > 0).tolist() == [[False, True, False, True], [True, False, True, False]]
    assert batch.n_targets == 4
    assert batch.weights.sum() == 1


def test_padding_is_a_document_of_its_own_that_never_counts() -> None:
    batch = TokenBatch.packed([DOCUMENTS[1:2], DOCUMENTS])
    assert batch.starts is not None
    assert batch.starts[0].tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    assert batch.with_loss_mask(np.ones(batch.ids.shape, bool)).weights[0].nonzero()[0].tolist() == [0]


def test_parts_keep_their_documents() -> None:
    batch = TokenBatch.packed([DOCUMENTS[:1], DOCUMENTS[1:]])
    first, second = batch.split(2)
    assert first.ids.tolist() == [[1, 2, 3]]
    assert second.starts is not None
    assert second.starts.tolist() == [[0, 0, 2, 2, 2]]
    assert first.n_targets + second.n_targets == batch.n_targets


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "TokenBatch.packed: no documents; expected at least one in each row"),
        ([[]], "TokenBatch.packed: no documents; expected at least one in each row"),
        ([[([1, 2], [True])]], "TokenBatch.packed: row 0: wrong number of flags; got 1, expected 2"),
        ([[([1], [True])]], "TokenBatch.packed: row 0: too short to predict anything; got 1 ids, expected at least 2"),
        (
            [[([1, 2], [True, False])]],
            "TokenBatch: the loss mask leaves no token to predict. hint: flag at least one token that is neither the "
            "first of its sequence nor padding",
        ),
    ],
)
def test_refusals(rows: list[list[tuple[list[int], list[bool]]]], message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        TokenBatch.packed(rows)
