"""Attention and rotary positions of the CPU backend: every path, strides, masks, edges, threads, memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.base import dtypes, rng
from pellucid.base.dtypes import DType
from pellucid.device import Array, cpu, pool, reference
from pellucid.kernels import spec
from pellucid.kernels.cpu import isa

from .parity import bits, guarded, mismatch, numbers

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """Lengths of a call: batch, queries, keys, heads, key/value heads, features of a head."""

    batch: int
    tq: int
    tk: int
    heads: int
    kv_heads: int
    d: int
    causal: bool = True
    dropout: float = 0.0

    @property
    def keyword(self) -> dict[str, Any]:
        random = {"dropout": self.dropout, "seed": 0x0123456789ABCDEF, "counter": 12}
        return {"causal": self.causal, "scale": self.d**-0.5, **random}

    def arrays(self, *, seed: int = 0) -> list[Host]:
        """q, k, v and the gradient of the result."""
        random = np.random.default_rng(seed)
        q, k = (self.batch, self.tq, self.heads, self.d), (self.batch, self.tk, self.kv_heads, self.d)
        return [random.normal(size=s) for s in (q, k, k, q)]


SHAPES = [
    Shape(2, 64, 64, 4, 4, 32),  # whole blocks
    Shape(1, 63, 63, 3, 1, 20),  # odd everything
    Shape(2, 33, 100, 6, 2, 80),  # a cache before the queries
    Shape(1, 100, 300, 2, 1, 8, causal=False),
    Shape(1, 65, 130, 2, 2, 128),
    Shape(1, 40, 40, 1, 1, 256),
    Shape(3, 2, 2, 2, 2, 1),
    Shape(1, 7, 3, 2, 1, 5, causal=False),
    Shape(1, 200, 200, 1, 1, 64),  # one head: shares
    Shape(2, 70, 90, 4, 2, 24, dropout=0.3),
    Shape(1, 31, 129, 2, 2, 16, causal=False, dropout=0.9),
]
DECODING = [
    Shape(2, 1, 100, 6, 2, 64),
    Shape(1, 1, 1, 3, 3, 32),
    Shape(1, 1, 1300, 9, 3, 64),  # chunks
    Shape(2, 1, 1025, 2, 2, 20, causal=False),
    Shape(1, 1, 77, 5, 1, 8),
    Shape(1, 1, 600, 4, 2, 36, dropout=0.25),
]
EMPTY = [
    Shape(0, 5, 7, 2, 2, 8),
    Shape(2, 0, 0, 2, 1, 8),
    Shape(2, 0, 5, 2, 1, 8),
    Shape(1, 3, 0, 2, 2, 8, causal=False),
    Shape(1, 1, 0, 2, 2, 8, causal=False),
]


def up(x: Host, dtype: DType) -> Array:
    return cpu.upload(x.astype(dtype.numpy), dtype)


def true(x: Array) -> Array:
    """The very numbers, for the definition in float64."""
    return reference.upload(numbers(x), dtypes.float64)


def agree(got: tuple[Array, ...], want: tuple[Array, ...], where: object, kind: str = "accumulate") -> None:
    for name, g, w in zip(("o", "lse") if len(got) == 2 else ("dq", "dk", "dv"), got, want, strict=True):
        wrong = mismatch(numbers(g), numbers(w), spec.tolerance(kind, g.dtype), f"{name} {where}")
        assert not wrong, wrong
        assert g.is_contiguous


def check(
    q: Array, k: Array, v: Array, do: Array, keyword: dict[str, Any], where: object, kind: str = "accumulate"
) -> None:
    """Both passes against the definition. The backward pass of both gets the same o and lse. On a path without
    products of bfloat16 pairs operands stay as they are, whatever is asked for, and the results are as good."""
    defined = keyword
    if kind == "mixed" and not isa.current().pairs:
        defined, kind = keyword | {"operand_dtype": None}, "accumulate"
    with np.errstate(all="ignore"):
        o, lse = cpu.kernels.attention(q, k, v, **keyword)
        agree((o, lse), reference.kernels.attention(true(q), true(k), true(v), **defined), where, kind)
        got = cpu.kernels.attention_backward(do, q, k, v, o, lse, **keyword)
        wide = [true(x) for x in (do, q, k, v, o, lse)]
        agree(got, reference.kernels.attention_backward(*wide, **defined), where, kind)
    assert [(g.shape, g.dtype) for g in got] == [(x.shape, x.dtype) for x in (q, k, v)]
    assert lse.dtype is (dtypes.float64 if q.dtype is dtypes.float64 else dtypes.float32)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES + DECODING + EMPTY, ids=str)
def test_agrees_with_the_definition(shape: Shape, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    with guarded(monkeypatch):
        q, k, v, do = (up(x, dtype) for x in shape.arrays())
        check(q, k, v, do, shape.keyword, shape)


def views(shape: Shape, dtype: DType) -> Iterator[tuple[str, list[Array]]]:
    """The same numbers laid out in other ways."""
    q, k, v, do = shape.arrays()
    plain = [up(x, dtype) for x in (q, k, v, do)]
    if shape.tq == shape.tk and shape.heads == shape.kv_heads:
        fused = up(np.stack([q, k, v], axis=2), dtype)
        yield "fused projection", [*(fused.select(2, i) for i in range(3)), plain[3]]
    cache = [np.concatenate([np.full_like(x[:, :1], np.nan), x, np.full_like(x, np.nan)], axis=1) for x in (k, v)]
    held = [up(x, dtype).slice(1, 1, 1 + shape.tk) for x in cache]
    yield "slices of a cache", [plain[0], *held, plain[3]]
    heads_first = [up(x.transpose(0, 2, 1, 3), dtype).transpose(1, 2) for x in (q, k, v, do)]
    yield "heads first", heads_first
    yield "features first", [up(x.transpose(3, 2, 1, 0), dtype).permute((3, 2, 1, 0)) for x in (q, k, v, do)]
    backward = [up(x[:, ::-1, :, ::-1], dtype) for x in (q, k, v, do)]
    turned = [x.slice(1, x.shape[1] - 1, -1, -1).slice(3, shape.d - 1, -1, -1) for x in backward]
    yield "backwards", turned


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[2], DECODING[0], DECODING[4]], ids=str)
def test_any_strides(shape: Shape, dtype: DType) -> None:
    for name, arrays in views(shape, dtype):
        check(*arrays, shape.keyword, name)
    q, k, v, do = (up(x, dtype) for x in shape.arrays())
    same = k.slice(1, 0, 1).expand(k.shape)
    check(q, same, v, do, shape.keyword, "one key for all")
    check(q, k, v, do.slice(0, 0, 1).slice(1, 0, 1).expand(do.shape), shape.keyword, "one gradient for all")


@pytest.mark.parametrize("shape", [Shape(1, 40, 72, 2, 1, 24, causal=False), Shape(1, 1, 72, 2, 1, 24)], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_numbers_at_the_edges(shape: Shape, value: float, which: int) -> None:
    given = shape.arrays()
    given[which][0, min(5, given[which].shape[1] - 1), 0, 3] = value
    q, k, v, _ = (up(x, dtypes.float32) for x in given)
    with np.errstate(all="ignore"):
        got = cpu.kernels.attention(q, k, v, **shape.keyword)
        same = [reference.upload(numbers(x).astype(np.float32), dtypes.float32) for x in (q, k, v)]
        want = reference.kernels.attention(*same, **shape.keyword)
    agree(got, want, (value, which))


def test_a_key_that_is_not_a_number_reaches_no_earlier_block_of_queries() -> None:
    shape = Shape(1, 256, 256, 1, 1, 16)
    given = shape.arrays()
    given[1][0, 200], given[2][0, 200] = np.nan, np.nan
    o, lse = cpu.kernels.attention(*(up(x, dtypes.float32) for x in given[:3]), **shape.keyword)
    assert np.isfinite(numbers(o)[:, :160]).all()
    assert np.isfinite(numbers(lse)[..., :200]).all()
    assert np.isnan(numbers(o)[:, 200:]).all()


def test_large_scores_do_not_overflow() -> None:
    q = up(np.full((1, 3, 1, 4), 1e4), dtypes.float32)
    o, lse = cpu.kernels.attention(q, q, q, **Shape(1, 3, 3, 1, 1, 4).keyword)
    assert numbers(o) == pytest.approx(1e4)
    assert numbers(lse)[0, 0] == pytest.approx(2e8 + np.log([1, 2, 3]))


@pytest.mark.parametrize("tq", [1, 7, 96])
@pytest.mark.parametrize("counter", [0, 4, 2**34 - 8])
def test_the_mask_of_dropout_is_that_of_the_generator(tq: int, counter: int) -> None:
    b, h, tk, p, seed = 2, 3, 45, 0.4, 2**64 - 3
    q = up(np.zeros((b, tq, h, tk)), dtypes.float32)
    v = up(np.broadcast_to(np.eye(tk)[:, None], (b, tk, h, tk)), dtypes.float32)
    keyword = {"causal": False, "scale": 1.0, "dropout": p, "seed": seed, "counter": counter}
    o, _ = cpu.kernels.attention(q, v, v, **keyword)
    words = rng.philox(seed, counter, b * h * tq * tk).reshape(b, h, tq, tk)
    keep = rng.uniform_from_words(words) >= np.float32(p)
    got = numbers(o).transpose(0, 2, 1, 3)
    assert ((got != 0) == keep).all()
    assert got[keep] == pytest.approx(1 / (1 - p) / tk, rel=1e-6)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[8], SHAPES[9], DECODING[2]], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda d: d.name)
def test_the_same_bits_on_any_number_of_threads(shape: Shape, dtype: DType) -> None:
    before = pool.threads()
    q, k, v, do = (up(x, dtype) for x in shape.arrays())
    found = []
    try:
        for count in (1, 2, 2, 3):
            pool.set_threads(count)
            o, lse = cpu.kernels.attention(q, k, v, **shape.keyword)
            gradients = cpu.kernels.attention_backward(do, q, k, v, o, lse, **shape.keyword)
            found.append(bits([o, lse, *gradients]))
    finally:
        pool.set_threads(before)
    assert found.count(found[0]) == len(found)


@pytest.mark.parametrize("parts", [(64, 65), (1, 128), (37, 38, 100)])
def test_prefill_in_parts_gives_what_one_call_gives(parts: tuple[int, ...]) -> None:
    shape = Shape(1, 130, 130, 4, 2, 32)
    q, k, v, _ = (up(x, dtypes.float32) for x in shape.arrays())
    whole, _ = cpu.kernels.attention(q, k, v, **shape.keyword)
    start = 0
    for stop in (*parts, 130):
        o, _ = cpu.kernels.attention(q.slice(1, start, stop), k.slice(1, 0, stop), v.slice(1, 0, stop), **shape.keyword)
        assert numbers(o) == pytest.approx(numbers(whole)[:, start:stop], abs=1e-5)
        start = stop


@pytest.mark.parametrize("heads", [1, 4])
def test_no_score_matrix_is_kept(heads: int) -> None:
    shape = Shape(1, 4096, 4096, heads, heads, 16)
    q, k, v, do = (up(x, dtypes.float32) for x in shape.arrays())
    before = cpu.bytes_in_use
    cpu.peak_bytes = before
    o, lse = cpu.kernels.attention(q, k, v, **shape.keyword)
    assert cpu.peak_bytes - before < 2 * (q.nbytes + lse.nbytes)
    cpu.kernels.attention_backward(do, q, k, v, o, lse, **shape.keyword)
    assert cpu.peak_bytes - before < 40 * q.nbytes < heads * 4096 * 4096


def test_other_instruction_paths() -> None:
    program = (
        f"import {__name__} as t; [t.check(*map(t.f32, s.arrays()), s.keyword, s) for s in t.SHAPES[:3] + t.DECODING]"
    )
    for path in isa.available():
        if path.vector == isa.current().vector:
            continue
        environment = {**os.environ, "PELLUCID_ISA": path.name, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{path.name}: {done.stderr}"


def f32(x: Host) -> Array:
    return up(x, dtypes.float32)


# --- rotary positions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(2, 17, 3, 64), (1, 1, 2, 6), (1, 5, 1, 2), (0, 3, 2, 4), (1, 0, 2, 4)], ids=str)
def test_rope(shape: tuple[int, ...], interleaved: bool, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    angles = random.uniform(0, 2 * math.pi, (32, shape[-1] // 2))
    for tables in {dtypes.float32, dtype}:
        with guarded(monkeypatch):
            x, cos, sin = up(random.normal(size=shape), dtype), up(np.cos(angles), tables), up(np.sin(angles), tables)
            for inverse in (False, True):
                keyword = {"offset": 9, "interleaved": interleaved, "inverse": inverse}
                got = cpu.kernels.rope(x, cos, sin, **keyword)
                want = reference.kernels.rope(true(x), true(cos), true(sin), **keyword)
                wrong = mismatch(numbers(got), numbers(want), spec.tolerance("rounding", dtype), str(shape))
                assert not wrong, wrong
                assert got.is_contiguous


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_reads_views(interleaved: bool) -> None:
    random = np.random.default_rng(0)
    numbers_of = random.normal(size=(2, 5, 3, 4, 8))
    angles = random.uniform(0, 6, (4, 20))
    keyword = {"offset": 2, "interleaved": interleaved, "inverse": False}
    fused = up(numbers_of, dtypes.float32)
    plain = [up(np.cos(angles).T, dtypes.float32), up(np.sin(angles).T, dtypes.float32)]
    turned = [up(np.cos(angles), dtypes.float32).transpose(), up(np.sin(angles), dtypes.float32).transpose()]
    for view, host in (
        (fused.select(2, 1), numbers_of[:, :, 1]),
        (fused.select(3, 2), numbers_of[:, :, :, 2]),
        (fused.select(2, 0).transpose(1, 2).slice(1, 0, 4), numbers_of[:, :, 0].transpose(0, 2, 1, 3)),
        (fused.select(2, 0).slice(3, 7, -1, -1), numbers_of[:, :, 0, :, ::-1]),
    ):
        want = numbers(cpu.kernels.rope(up(host, dtypes.float32), *plain, **keyword))
        assert numbers(cpu.kernels.rope(view, *turned, **keyword)).tolist() == want.tolist()


def test_the_inverse_rotation_undoes_the_rotation() -> None:
    random = np.random.default_rng(0)
    angles = random.uniform(0, 6, (7, 16))
    x = up(random.normal(size=(2, 7, 3, 32)), dtypes.float64)
    tables = up(np.cos(angles), dtypes.float64), up(np.sin(angles), dtypes.float64)
    y = cpu.kernels.rope(x, *tables, offset=0, interleaved=False, inverse=False)
    back = cpu.kernels.rope(y, *tables, offset=0, interleaved=False, inverse=True)
    assert numbers(back) == pytest.approx(numbers(x), abs=1e-14)
