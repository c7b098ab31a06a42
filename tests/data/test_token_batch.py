"""Token batches: padding, weights, loss masks, supervised pairs, micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.base.rng import Generator
from pellucid.data import TokenBatch

ROWS = [[5, 6, 7, 8], [9, 0], [1, 2, 3]]


def random_rows(seed: int) -> list[np.ndarray]:
    stream = Generator(seed)
    lengths = 2 + stream.integers(30, 1 + seed % 7)
    return [stream.integers(1000, n) for n in lengths.tolist()]


def test_padding_and_derived_arrays() -> None:
    batch = TokenBatch(ROWS)
    assert batch.ids.tolist() == [[5, 6, 7, 8], [9, 0, 0, 0], [1, 2, 3, 0]]
    assert batch.lengths.tolist() == [4, 2, 3]
    assert batch.inputs.tolist() == [[5, 6, 7], [9, 0, 0], [1, 2, 3]]
    assert batch.targets.tolist() == [[6, 7, 8], [0, 0, 0], [2, 3, 0]]
    assert (batch.weights * 6).round(5).tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]  # the real id 0 counts
    assert batch.n_targets == 6
    assert batch.n_tokens == 9
    assert len(batch) == 3
    assert [a.dtype for a in (batch.ids, batch.inputs, batch.targets, batch.lengths)] == [np.int64] * 4
    assert batch.weights.dtype == np.float32
    assert all(a.flags.c_contiguous for a in (batch.ids, batch.inputs, batch.targets, batch.weights))
    assert repr(batch) == "TokenBatch(sequences=3, seq_len=4, n_targets=6)"


def test_an_array_is_the_same_as_its_rows_and_is_copied() -> None:
    array = Generator(0).integers(50, 24).reshape(4, 6)
    batch = TokenBatch(array)
    listed = TokenBatch(array.tolist())
    assert np.array_equal(batch.ids, listed.ids)
    assert np.array_equal(batch.weights, listed.weights)
    array[0, 0] = 49_000
    assert batch.ids[0, 0] < 50
    assert np.array_equal(TokenBatch(array.astype(np.uint32)).ids, array)


@pytest.mark.parametrize("seed", range(20))
def test_weights_are_the_mean_over_predicted_positions(seed: int) -> None:
    rows = random_rows(seed)
    batch = TokenBatch(rows)
    loss = Generator(seed + 100).uniform(batch.weights.shape).astype(np.float64)
    listed = [loss[b, t] for b, row in enumerate(rows) for t in range(len(row) - 1)]
    assert batch.n_targets == len(listed)
    assert abs(batch.weights.sum(dtype=np.float64) - 1) < 1e-6
    assert abs((loss * batch.weights).sum() - np.mean(listed)) < 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_mask_of_all_true_changes_nothing(seed: int) -> None:
    batch = TokenBatch(random_rows(seed))
    masked = batch.with_loss_mask(np.ones(batch.ids.size, dtype=bool))
    for name in ("ids", "lengths", "inputs", "targets", "weights"):
        assert np.array_equal(getattr(masked, name), getattr(batch, name))
    assert masked.n_targets == batch.n_targets


@pytest.mark.parametrize("seed", range(20))
def test_mask_flags_targets_and_never_revives_padding(seed: int) -> None:
    batch = TokenBatch(random_rows(seed))
    flags = Generator(seed).uniform(batch.ids.size) < 0.5
    flags[1] = True  # something has to be left
    masked = batch.with_loss_mask(flags)
    shaped = flags.reshape(batch.ids.shape)
    for b, length in enumerate(batch.lengths):
        for t in range(batch.ids.shape[1] - 1):
            assert (masked.weights[b, t] > 0) == (shaped[b, t + 1] and t + 1 < length)
    assert masked.n_targets == np.count_nonzero(masked.weights)
    assert np.allclose(masked.weights[masked.weights > 0], 1 / masked.n_targets)
    again = TokenBatch([*map(list, random_rows(seed))], loss_mask=shaped)
    assert np.array_equal(again.weights, masked.weights)
    assert np.array_equal(batch.with_loss_mask(flags.tolist()).weights, masked.weights)
    assert np.array_equal(batch.with_loss_mask(flags.astype(np.int64)).weights, masked.weights)
    # A mask replaces the one before.
    assert np.array_equal(masked.with_loss_mask([1] * flags.size).weights, batch.weights)


def test_supervised_counts_response_tokens_only() -> None:
    batch = TokenBatch.supervised([([1, 2, 3], [4, 5]), ([], [6, 7]), ([8], [9]), (np.array([1, 2]), np.array([3]))])
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 9, 0, 0, 0], [1, 2, 3, 0, 0]]
    assert (batch.weights > 0).tolist() == [
        [False, False, True, True],
        [True, False, False, False],
        [True, False, False, False],
        [False, True, False, False],
    ]
    assert batch.n_targets == 5


@pytest.mark.parametrize("seed", range(20))
def test_micro_batches_weighted_by_targets_are_the_whole(seed: int) -> None:
    batch = TokenBatch(random_rows(seed))
    flags = Generator(seed).uniform(batch.ids.shape) < 0.3
    flags[0, 1] = True
    for whole in (batch, batch.with_loss_mask(flags)):
        loss = Generator(seed + 50).uniform(whole.weights.shape).astype(np.float64)
        for n in range(1, len(whole) + 1):
            parts, row, total = whole.split(n), 0, 0.0
            assert sum(part.n_targets for part in parts) == whole.n_targets
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            for part in parts:
                width = part.ids.shape[1]
                assert width == part.lengths.max()
                assert np.array_equal(part.ids, whole.ids[row : row + len(part), :width])
                mean = (part.weights * loss[row : row + len(part), : width - 1]).sum()
                total += mean * part.n_targets / whole.n_targets
                row += len(part)
            assert row == len(whole)
            assert abs(total - (whole.weights * loss).sum()) < 1e-6


def test_a_micro_batch_may_have_nothing_that_counts() -> None:
    flags = np.zeros((3, 4), dtype=bool)
    flags[0, 2] = True
    parts = TokenBatch(ROWS, loss_mask=flags).split(3)
    assert [part.n_targets for part in parts] == [1, 0, 0]
    assert [part.weights.sum() for part in parts] == [1, 0, 0]
    assert parts[1].ids.shape == (1, 2)


NOTHING = (
    "TokenBatch: the loss mask leaves no token to predict. hint: flag at least one token that is neither the first of "
    "its sequence nor padding"
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenBatch([]), "TokenBatch: no sequences; expected at least 1"),
        (lambda: TokenBatch(np.empty((0, 5), dtype=int)), "TokenBatch: no sequences; expected at least 1"),
        (
            lambda: TokenBatch([[1, 2], [3]]),
            "TokenBatch: sequence 1: too short to predict anything; got 1 ids, expected at least 2",
        ),
        (
            lambda: TokenBatch([[]]),
            "TokenBatch: sequence 0: too short to predict anything; got 0 ids, expected at least 2",
        ),
        (
            lambda: TokenBatch(np.ones((3, 1), dtype=int)),
            "TokenBatch: too short to predict anything; got 1 ids, expected at least 2",
        ),
        (
            lambda: TokenBatch([[1, 2], [1, 2, -3]]),
            "TokenBatch: sequence 1: id out of range at position 2; got -3, expected 0 to 2147483647",
        ),
        (
            lambda: TokenBatch(np.array([[1, 2], [1, 2**31]])),
            "TokenBatch: id out of range at position 1, 1; got 2147483648, expected 0 to 2147483647",
        ),
        (
            lambda: TokenBatch([[1.0, 2.0]]),
            "TokenBatch: sequence 0: ids are not integers; got float64, expected an integer type",
        ),
        (
            lambda: TokenBatch([[True, False]]),
            "TokenBatch: sequence 0: ids are not integers; got bool, expected an integer type",
        ),
        (
            lambda: TokenBatch([[[1, 2]]]),
            "TokenBatch: sequence 0: not a list of ids; got shape (1, 2), expected one dimension",
        ),
        (
            lambda: TokenBatch([1, 2, 3]),
            "TokenBatch: sequence 0: not a list of ids; got shape (), expected one dimension",
        ),
        (
            lambda: TokenBatch(ROWS, loss_mask=[True] * 11),
            "TokenBatch: loss mask: wrong number of flags; got 11 with shape (11,), expected 12 (batch 3 * seq_len 4)",
        ),
        (
            lambda: TokenBatch(ROWS).with_loss_mask(np.ones((4, 3), dtype=bool)),
            "TokenBatch: loss mask: wrong number of flags; got 12 with shape (4, 3), expected 12 (batch 3 * seq_len 4)",
        ),
        (
            lambda: TokenBatch(ROWS).with_loss_mask(np.ones(12)),
            "TokenBatch: loss mask: flags are not booleans; got float64, expected true and false, or 1 and 0",
        ),
        (
            lambda: TokenBatch(ROWS).with_loss_mask([2] * 12),
            "TokenBatch: loss mask: flags are not booleans; got int64, expected true and false, or 1 and 0",
        ),
        (lambda: TokenBatch(ROWS).with_loss_mask([False] * 12), NOTHING),
        # True for first tokens and for padding only.
        (lambda: TokenBatch(ROWS).with_loss_mask([1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1]), NOTHING),
        (
            lambda: TokenBatch.supervised([([1], [2]), ([1, 2], [])]),
            "TokenBatch.supervised: pair 1: the response is empty. hint: end it with the end-of-text id",
        ),
        (lambda: TokenBatch.supervised([]), "TokenBatch: no sequences; expected at least 1"),
        (
            lambda: TokenBatch.supervised([([], [2])]),
            "TokenBatch: sequence 0: too short to predict anything; got 1 ids, expected at least 2",
        ),
        (
            lambda: TokenBatch(ROWS).split(4),
            "TokenBatch.split: can't be split so; got n=4, expected 1 to 3 (sequences)",
        ),
        (
            lambda: TokenBatch(ROWS).split(0),
            "TokenBatch.split: can't be split so; got n=0, expected 1 to 3 (sequences)",
        ),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(DataError) as refused:
        make()
    assert str(refused.value) == message
