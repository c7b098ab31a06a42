"""Packing: rows that are full, hold every document once, and are the same whenever a step asks for them."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pellucid.base.errors import DataError
from pellucid.cli.tuning import divided
from pellucid.data import Examples, PackedRows, TokenBatch, pack

LENGTHS = np.random.default_rng(0).integers(2, 60, 300)


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    random = np.random.default_rng(1)
    made = []
    for length in LENGTHS.tolist():
        flags = np.zeros(length, bool)
        flags[length // 2 :] = True
        made.append((random.integers(0, 2**20, length), flags))
    Examples.write(tmp_path / "examples.bin", made)
    return Examples.open(tmp_path / "examples.bin")


def test_examples_come_back_as_they_were_written(examples: Examples) -> None:
    random = np.random.default_rng(1)
    assert len(examples) == 300
    assert examples.lengths(np.arange(300)).tolist() == LENGTHS.tolist()
    for i, length in enumerate(LENGTHS.tolist()):
        ids, counts = examples[i]
        assert ids.tolist() == random.integers(0, 2**20, length).tolist()
        assert counts.tolist() == [j >= length // 2 for j in range(length)]
    assert examples.info.tokens == LENGTHS.sum()
    assert examples.subset(np.array([7, 3]))[1][0].tolist() == examples[3][0].tolist()


def test_a_damaged_file_is_refused(examples: Examples) -> None:
    raw = bytearray(examples.path.read_bytes())
    raw[100] ^= 1
    examples.path.write_bytes(raw)
    with pytest.raises(
        DataError, match=r"not the examples that were written; got .*, expected .*\. hint: the file was"
    ):
        Examples.open(examples.path)


def test_no_examples_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/a.bin: no examples; expected at least one$"):
        Examples.write(tmp_path / "a.bin", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", [1, 7, 1024])
def test_rows_hold_every_document_once_and_no_row_is_too_long(group: int) -> None:
    rows = pack(LENGTHS, 64, group=group)
    assert sorted(i for row in rows for i in row) == list(range(300))
    assert max(LENGTHS[row].sum() for row in rows) <= 64
    if group == 1024:
        assert len(rows) <= 1.05 * LENGTHS.sum() / 64


def test_best_fit_takes_the_row_with_the_least_room_that_is_enough() -> None:
    assert pack([4, 6, 3, 5, 2], 10) == [[1, 0], [3, 2, 4]]
    assert pack([10, 10], 10) == [[0], [1]]


def test_a_document_longer_than_a_row_is_refused() -> None:
    with pytest.raises(DataError, match=r"^pack: a document is longer than a row; got 11, expected at most 10$"):
        pack([3, 11], 10)


def source(examples: Examples, **options: int | bool) -> PackedRows:
    how = {"seq_len": 63, "sequences": 4, "seed": 5} | options
    return PackedRows(examples, **how)  # type: ignore[arg-type]


def seen(batch: TokenBatch) -> list[tuple[int, ...]]:
    """The documents of a batch."""
    assert batch.begins is not None
    found = []
    for ids, begins, length in zip(batch.ids, batch.begins, batch.lengths, strict=True):
        for begin in np.unique(begins[:length]):
            found.append(tuple(ids[:length][begins[:length] == begin].tolist()))
    return found


@pytest.mark.parametrize("packing", [True, False])
def test_an_epoch_reads_every_example_once_and_epochs_differ(examples: Examples, packing: bool) -> None:
    one = source(examples, sequences=1, packing=packing)
    first, second = one.count(0), one.count(1)
    assert one.steps(2) == first + second
    epochs = [
        [d for step in range(start, stop) for d in seen(one.batch(step))]
        for start, stop in ((0, first), (first, first + second))
    ]
    want = sorted(tuple(examples[i][0].tolist()) for i in range(300))
    assert sorted(epochs[0]) == sorted(epochs[1]) == want
    assert epochs[0] != epochs[1]
    assert (first == 300) is not packing


def test_a_step_is_the_same_whenever_it_is_asked_for(examples: Examples) -> None:
    straight = source(examples)
    batches = [straight.batch(step).ids.tobytes() for step in range(straight.steps(2))]
    resumed = source(examples)
    for step in (len(batches) - 1, 3, 40, 0):
        assert resumed.batch(step).ids.tobytes() == batches[step]
    assert straight.fingerprint() == resumed.fingerprint()
    others = [source(examples, seed=6), source(examples, seq_len=70), source(examples.subset(np.arange(200)))]
    assert len({straight.fingerprint(), *(o.fingerprint() for o in others)}) == 4


def test_held_out_rows_are_read_in_order_once(examples: Examples) -> None:
    rows = source(examples)
    documents = [d for batch in rows.batches(None) for d in seen(batch)]
    assert sorted(documents) == sorted(tuple(examples[i][0].tolist()) for i in range(300))
    assert [b.ids.tobytes() for b in rows.batches(None)] == [b.ids.tobytes() for b in rows.batches(None)]
    assert len(list(rows.batches(3))) == 3


def test_padding_stands_at_the_ends_of_rows_only(examples: Examples) -> None:
    batch = source(examples).batch(0)
    for row, length in enumerate(batch.lengths):
        assert (batch.weights[row, length - 1 :] == 0).all()
        assert batch.begins is not None
        assert (np.diff(batch.begins[row]) >= 0).all()
    assert re.match(r"TokenBatch\(sequences=4", repr(batch))


def test_rows_fit_the_fill_that_is_told(examples: Examples) -> None:
    rows = source(examples)
    assert rows.tokens() == LENGTHS.sum()
    assert sum(1 for _ in rows.rows(0)) == rows.count(0)
    assert sorted(i for row in rows.rows(None) for i in row) == list(range(300))


def test_memory_does_not_grow_with_the_examples(tmp_path: Path) -> None:
    ids, counts = np.arange(6), np.ones(6, bool)

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            Examples.write(tmp_path / "a.bin", ((ids, counts) for _ in range(count)))
            trained, held = divided(count, 0.05, 0)
            found = Examples.open(tmp_path / "a.bin")
            rows = source(found.subset(trained), seq_len=63)
            assert rows.steps(1) > 0
            assert next(source(found.subset(held)).batches(1)).n_targets > 0
            rows.batch(0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2000)
    few, many = peak(5_000), peak(25_000)
    assert many - few < 8 * 20_000
