"""Plans: how strided operands are merged into as few axes as their steps allow. And what a kernel leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.base import dtypes
from pellucid.base.errors import ShapeError
from pellucid.device import cpu
from pellucid.kernels.cpu.elementwise import merged, plan, plan_of


def test_contiguous_operands_merge_to_one_axis() -> None:
    assert merged((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == [(24, (1, 1))]


def test_a_broadcast_row_stays_an_axis_of_its_own() -> None:
    assert merged((2, 3, 4), [(12, 4, 1), (0, 0, 1)]) == [(6, (4, 0)), (4, (1, 1))]


def test_a_number_merges_everywhere() -> None:
    assert merged((2, 3, 4), [(12, 4, 1), (0, 0, 0)]) == [(24, (1, 0))]


def test_axes_of_length_one_do_not_count() -> None:
    assert merged((1, 5, 1), [(99, 1, 7)]) == [(5, (1,))]
    assert merged((), [()]) == [(1, (1,))]


def test_plans_are_remembered() -> None:
    assert plan((2, 3), (3, 1), (3,), (1,)) is plan((2, 3), (3, 1), (3,), (1,))
    x = cpu.empty((4, 5), dtypes.float32)
    assert plan_of(x) is plan_of(cpu.empty((4, 5), dtypes.float32))


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    a, b = cpu.empty((3,), dtypes.float32), cpu.empty((4,), dtypes.float32)
    with pytest.raises(ShapeError):
        cpu.kernels.add(a, b)


def test_a_kernel_reads_views_and_leaves_their_neighbours_alone() -> None:
    whole = cpu.upload(np.arange(60.0).reshape(5, 12), dtypes.float32)
    inside = whole.slice(0, 1, 4).slice(1, 2, 10, 3)
    cpu.kernels.fill_(inside, value=-1)
    want = np.arange(60.0).reshape(5, 12)
    want[1:4, 2:10:3] = -1
    assert cpu.download(whole).tolist() == want.tolist()


def test_assigning_to_a_view_with_negative_steps() -> None:
    whole = cpu.upload(np.zeros(6), dtypes.float32)
    cpu.kernels.assign_(whole.slice(0, 5, -1, -1), cpu.upload(np.arange(6), dtypes.int64))
    assert cpu.download(whole).tolist() == [5, 4, 3, 2, 1, 0]
