"""Every operation with arguments worth trying: one table for gradients, values, parity and the opaque device.

A case is a function of tensors, the arrays it is called with, and where NumPy has a word for it, the NumPy function.
Floats are differentiated; integers and bools are handed through; constants are made inside, on the device of the input.
Inputs come in three arrangements: plain; as views with gaps of NaN and transposed storage, whose gradient arrives
transposed; and stretched, where the gradient of every element of the result is one number repeated by stride 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid import ops
from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.base.rng import Generator
from pellucid.device import Array, Device
from pellucid.ops import low_rank
from pellucid.ops.held import held_linear
from pellucid.tape import Tensor

from . import experts_numpy

Host = np.ndarray[Any, Any]
ARRANGEMENTS = ("plain", "views", "stretched")


@dataclass(frozen=True)
class Case:
    """One call. smooth: whether finite differences make sense. exact: whether narrow dtypes make sense."""

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Host | None, ...]
    numpy: Callable[..., Any] | None = None
    smooth: bool = True

    def arguments(self, device: Device, dtype: DType, arrangement: str, *, grad: bool = True) -> list[Tensor | None]:
        """The inputs as fresh leaves."""
        return [None if x is None else _leaf(x, device, dtype, arrangement, grad) for x in self.inputs]

    def run(self, *arguments: Tensor | None, arrangement: str) -> Tensor:
        """The result, changed so that its gradient arrives in the arrangement."""
        y = self.function(*arguments)
        if arrangement == "views" and y.ndim > 1:
            return y.transpose(0, -1)
        return y.sum() if arrangement == "stretched" else y


def _leaf(x: Host, device: Device, dtype: DType, arrangement: str, grad: bool) -> Tensor:
    kind = dtype if x.dtype.kind == "f" else dtypes.dtype(x.dtype)
    array = _gapped(x, device, kind) if arrangement == "views" else device.upload(x, kind)
    return Tensor(array, grad and kind.is_float)


def _gapped(x: Host, device: Device, dtype: DType) -> Array:
    """`x` as every second element of transposed memory, the elements between unusable."""
    bad = np.nan if x.dtype.kind == "f" else True if x.dtype.kind == "b" else 99
    if x.ndim == 0:
        return device.upload(np.array([bad, x, bad], x.dtype), dtype).select(0, 1)
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1] + 1), bad, x.dtype)
    wide[..., 1::2] = x
    stored = device.upload(np.ascontiguousarray(wide.T), dtype)
    array = stored.permute(range(x.ndim - 1, -1, -1))
    return array.slice(x.ndim - 1, 1, wide.shape[-1], 2)


# --- numbers ----------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> Host:
    """Standard normal, the same for the same shape and seed."""
    label = zlib.crc32(repr((shape, seed)).encode())
    return Generator(label).normal(shape).astype(np.float64)


def positive(*shape: int, seed: int = 0) -> Host:
    """Between 0.3 and about 4."""
    return np.abs(normal(*shape, seed=seed)) + 0.3


def apart(*shape: int, seed: int = 0) -> Host:
    """Distinct numbers of both signs, none near zero or near another: away from every kink."""
    n = int(np.prod(shape))
    order = Generator(seed + n).permutation(n)
    return ((order - n // 2) * 0.25 + 0.1).reshape(shape)


def mask(*shape: int) -> Host:
    """Bools, about half of them true."""
    return normal(*shape, seed=9) > 0


def ids(*shape: int, below: int) -> Host:
    """int64 in 0..below-1, with repeats."""
    return Generator(below).integers(below, int(np.prod(shape))).reshape(shape)


def constant(like: Tensor, value: Any) -> Tensor:
    """Numbers that no gradient is asked for, beside `like`, at least float32."""
    wide = like.dtype if like.dtype.name == "float64" else dtypes.float32
    return ops.tensor(np.asarray(value), dtype=wide, device=like.device)


# --- the table --------------------------------------------------------------------------------------------------------


def _unary() -> list[Case]:
    smooth: dict[str, tuple[Callable[..., Tensor], Any]] = {
        "neg": (ops.neg, np.negative),
        "exp": (ops.exp, np.exp),
        "sin": (ops.sin, np.sin),
        "cos": (ops.cos, np.cos),
        "tanh": (ops.tanh, np.tanh),
        "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        "silu": (ops.silu, lambda x: x / (1 + np.exp(-x))),
        "gelu": (ops.gelu, None),
        "gelu tanh": (lambda x: ops.gelu(x, approximate=True), None),
        "clone": (Tensor.clone, np.array),
        "dropout": (lambda x: ops.dropout(x, p=0.4, generator=Generator(5)), None),
        "same twice": (lambda x: x * x + x, lambda x: x * x + x),
    }
    kinked: dict[str, tuple[Callable[..., Tensor], Any]] = {
        "abs": (ops.abs, np.abs),
        "relu": (ops.relu, lambda x: np.maximum(x, 0)),
        "clip": (lambda x: ops.clip(x, -0.5, 0.8), lambda x: np.clip(x, -0.5, 0.8)),
    }
    above: dict[str, tuple[Callable[..., Tensor], Any]] = {"log": (ops.log, np.log), "sqrt": (ops.sqrt, np.sqrt)}
    shapes = ((3, 5), (1,), (), (0, 3), (2, 1, 7))
    return [
        Case(f"{name} {shape}", function, (draw(*shape),), expected)
        for draw, group in ((normal, smooth), (apart, kinked), (positive, above))
        for name, (function, expected) in group.items()
        for shape in shapes
    ]


def _binary() -> list[Case]:
    pairs = (((3, 5), (3, 5)), ((3, 5), (5,)), ((2, 1, 4), (3, 1)), ((), (2, 3)), ((1,), (1,)), ((0, 3), (1, 3)))
    found = []
    for a, b in pairs:
        label = f"{a} {b}"
        found += [
            Case(f"add {label}", ops.add, (normal(*a), normal(*b, seed=1)), np.add),
            Case(f"sub {label}", ops.sub, (normal(*a), normal(*b, seed=1)), np.subtract),
            Case(f"mul {label}", ops.mul, (normal(*a), normal(*b, seed=1)), np.multiply),
            Case(f"div {label}", ops.div, (normal(*a), positive(*b)), np.divide),
            Case(f"pow {label}", ops.pow, (positive(*a), normal(*b)), np.power),
            Case(f"maximum {label}", ops.maximum, (apart(*a), apart(*b) + 0.06), np.maximum),
            Case(f"minimum {label}", ops.minimum, (apart(*a), apart(*b) + 0.06), np.minimum),
            Case(f"where {label}", ops.where, (mask(*b), normal(*a), normal(*b)), np.where),
        ]
    x = normal(3, 4)
    return [
        *found,
        Case("where broadcast condition", ops.where, (mask(4), normal(3, 1), normal(2, 1, 1)), np.where),
        Case("masked_fill", lambda m, x: ops.masked_fill(x, m, -3.0), (mask(3, 4), x), lambda m, x: np.where(m, -3, x)),
        Case("scalars", lambda x: 2 - x * 3 + 1 / (x + 9) - 0.5 * x, (x,), lambda x: 2 - x * 3 + 1 / (x + 9) - 0.5 * x),
        Case("square", lambda x: x**2, (x,), np.square),
        Case("square of 0", lambda x: x**2, (np.zeros(3),), np.square),
        Case("power 0", lambda x: x**0, (x,), np.ones_like),
        Case("power of a number", lambda x: 2**x, (x,), np.exp2),
        Case("cast", lambda x: x.cast("float32").cast(x.dtype), (x,), smooth=False),
    ]


def _reductions() -> list[Case]:
    found = []
    for shape, axis, keep in (
        ((3, 5), None, False),
        ((3, 5), 0, False),
        ((3, 5), -1, True),
        ((2, 3, 4), (0, 2), False),
        ((2, 3, 4), (0, 2), True),
        ((1,), 0, False),
        ((), None, False),
    ):
        numpy: dict[str, Any] = {"axis": axis, "keepdims": keep}
        for name, draw in (("sum", normal), ("mean", normal), ("var", normal), ("max", apart), ("min", apart)):

            def function(x: Tensor, name: str = name, axis: Any = axis, keep: bool = keep) -> Tensor:
                return getattr(ops, name)(x, axis, keepdims=keep)

            def expected(x: Host, name: str = name, numpy: dict[str, Any] = numpy) -> Host:
                return getattr(np, name)(x, **numpy)

            found.append(Case(f"{name} {shape} {axis} {keep}", function, (draw(*shape),), expected))
    for shape, axis in (((3, 5), -1), ((3, 5), 0), ((1, 1), 1), ((2, 3, 4), 1), ((7,), 0), ((0, 3), 1)):

        def softmax(x: Host, axis: int = axis) -> Host:
            e = np.exp(x - x.max(axis, keepdims=True))
            return e / e.sum(axis, keepdims=True)

        x, of = normal(*shape), f"{shape} {axis}"
        found += [
            Case(f"softmax {of}", lambda x, a=axis: ops.softmax(x, a), (x,), softmax),
            Case(f"log_softmax {of}", lambda x, a=axis: ops.log_softmax(x, a), (x,), lambda x, f=softmax: np.log(f(x))),
            Case(
                f"logsumexp {of}",
                lambda x, a=axis: ops.logsumexp(x, a),
                (x,),
                lambda x, a=axis: np.log(np.exp(x).sum(a)),
            ),
            Case(f"cumsum {of}", lambda x, a=axis: ops.cumsum(x, a), (x,), lambda x, a=axis: np.cumsum(x, a)),
        ]
    return [
        *found,
        Case("sum empty", lambda x: x.sum(0), (normal(0, 3),), lambda x: x.sum(0)),
        Case("var unbiased", lambda x: ops.var(x, -1, correction=1), (normal(3, 4),), lambda x: np.var(x, -1, ddof=1)),
        Case("logsumexp keepdims", lambda x: ops.logsumexp(x, 0, keepdims=True), (normal(3, 4),)),
        Case("mse_loss", ops.mse_loss, (normal(3, 4), normal(3, 4, seed=1)), lambda x, y: np.mean((x - y) ** 2)),
    ]


def _shapes() -> list[Case]:
    x = normal(2, 3, 4)
    rows = np.array([2, 0, 2, 1])
    keys: dict[str, Any] = {
        "integer": 1,
        "negative": (0, -1),
        "slice": slice(0, 1),
        "steps": (slice(None), slice(None, None, 2), slice(1, None, 2)),
        "backwards": (slice(None), slice(None, None, -1)),
        "ellipsis": (..., 2),
        "new axis": (slice(None), None, 1),
        "empty": (slice(None), slice(2, 1)),
        "mixed": (1, ..., None, slice(3, 0, -2)),
        "list": [1, 0, 1],
        "list on axis 1": (slice(None), [2, 0, 2]),
        "list and slice": (slice(1, None), [2, 0, 2], 3),
        "no list": (slice(None), []),
    }
    return [
        *(
            Case(f"getitem {name}", lambda x, k=k: x[k], (x,), lambda x, k=k: x[_numpy_key(k)])
            for name, k in keys.items()
        ),
        Case("getitem tensor", lambda x, i: x[i], (x, np.array([[1, 0], [1, 1]])), lambda x, i: x[i]),
        Case("getitem tensor on axis 2", lambda x, i: x[..., i], (x, rows), lambda x, i: x[..., i]),
        Case("reshape", lambda x: x.reshape(6, -1), (x,), lambda x: x.reshape(6, 4)),
        Case("reshape empty", lambda x: x.reshape(3, 0), (normal(0, 3),), lambda x: x.reshape(3, 0)),
        Case("reshape a transposed view", lambda x: x.transpose(0, 2).reshape(12, 2), (x,)),
        Case("flatten", lambda x: x.flatten(1), (x,), lambda x: x.reshape(2, 12)),
        Case("flatten a number", lambda x: x.flatten(), (normal(),), lambda x: x.reshape(1)),
        Case("permute", lambda x: x.permute(2, 0, 1), (x,), lambda x: x.transpose(2, 0, 1)),
        Case("transpose", lambda x: x.transpose(0, 1), (x,), lambda x: x.swapaxes(0, 1)),
        Case("T", lambda x: x.T, (x,), lambda x: x.T),
        Case("expand", lambda x: x.expand(5, 2, 3), (normal(2, 1),), lambda x: np.broadcast_to(x, (5, 2, 3))),
        Case("expand a number", lambda x: x.expand(2, 3), (normal(),), lambda x: np.broadcast_to(x, (2, 3))),
        Case("unsqueeze squeeze", lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1), (x,), lambda x: x[..., None]),
        Case("squeeze all", lambda x: x.squeeze(), (normal(1, 3, 1),), np.squeeze),
        Case("contiguous", lambda x: x.transpose(0, 2).contiguous(), (x,), lambda x: x.swapaxes(0, 2)),
        Case(
            "concatenate",
            lambda *p: ops.concatenate(p, 1),
            (normal(2, 3), normal(2, 0), normal(2, 1)),
            lambda *p: np.concatenate(p, 1),
        ),
        Case("concatenate one twice", lambda x: ops.concatenate([x, x]), (x,), lambda x: np.concatenate([x, x])),
        Case("stack", lambda *p: ops.stack(p, -1), (normal(2, 3), normal(2, 3, seed=1)), lambda *p: np.stack(p, -1)),
        Case("split", lambda x: ops.split(x, [1, 3], 2)[1] * 2, (x,), lambda x: x[..., 1:] * 2),
        Case("split joined", lambda x: ops.concatenate(ops.split(x, 2, 2)[::-1], 2), (x,)),
        Case("embedding", ops.embedding, (normal(5, 3), ids(2, 4, below=5)), lambda w, i: w[i]),
        Case("embedding of rows", ops.embedding, (normal(4, 2, 3), ids(3, below=4)), lambda w, i: w[i]),
        Case("embedding of nothing", ops.embedding, (normal(5, 3), np.zeros((0, 2), np.int64)), lambda w, i: w[i]),
        Case("embedding int32", ops.embedding, (normal(5, 3), ids(4, below=5).astype(np.int32)), lambda w, i: w[i]),
        Case(
            "pick",
            ops.pick,
            (normal(2, 3, 5), ids(2, 3, below=5)),
            lambda x, i: np.take_along_axis(x, i[..., None], -1)[..., 0],
        ),
    ]


def _numpy_key(key: Any) -> Any:
    keys = key if isinstance(key, tuple) else (key,)
    return tuple(np.array(k, np.int64) if isinstance(k, list) else k for k in keys)


def _products() -> list[Case]:
    pairs = (
        ((3, 5), (5, 2)),
        ((1, 1), (1, 1)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (3, 4, 2)),
        ((4,), (4, 3)),
        ((2, 3, 4), (4,)),
        ((4,), (4,)),
        ((0, 4), (4, 2)),
        ((3, 0), (0, 2)),
    )
    w, b, x, residual = normal(4, 5), normal(4), normal(2, 3, 5), normal(2, 3, 4, seed=2)
    bf16 = dtypes.bfloat16

    def add(x: Tensor, w: Tensor, b: Tensor | None, residual: Tensor) -> Tensor:
        return ops.linear(x, w, b, residual=residual)

    return [
        *(Case(f"matmul {a} {b}", ops.matmul, (normal(*a), normal(*b, seed=1)), np.matmul) for a, b in pairs),
        Case("linear", ops.linear, (x, w, b), lambda x, w, b: x @ w.T + b),
        Case("linear residual", add, (x, w, b, residual), lambda x, w, b, r: x @ w.T + b + r),
        Case("linear residual alone", add, (x, w, None, residual), lambda x, w, b, r: x @ w.T + r),
        Case("linear no bias", ops.linear, (x, w, None), lambda x, w, b: x @ w.T),
        Case("linear vector", ops.linear, (normal(5), w, b), lambda x, w, b: x @ w.T + b),
        Case("linear no rows", ops.linear, (normal(0, 5), w, b), lambda x, w, b: x @ w.T + b),
        Case("linear bf16", lambda x, w: ops.linear(x, w, operand_dtype=bf16), (x, w), smooth=False),
        Case("matmul bf16", lambda x, w: ops.matmul(x, w.T, operand_dtype=bf16), (x, w), smooth=False),
    ]


def _fused() -> list[Case]:
    x, w, b = normal(2, 3, 7), positive(7), normal(7)
    angles = np.arange(9)[:, None] * np.array([1.0, 0.3, 0.05])

    def rope(x: Tensor, offset: int = 0, interleaved: bool = False) -> Tensor:
        cos, sin = constant(x, np.cos(angles)), constant(x, np.sin(angles))
        return ops.rope(x, cos, sin, offset=offset, interleaved=interleaved)

    def placed(x: Tensor) -> Tensor:
        cos, sin = constant(x, np.cos(angles)), constant(x, np.sin(angles))
        return ops.rope(x, cos, sin, positions=places(x, [[0, 1, 0, 8], [5, 5, 0, 1]]))

    def places(x: Tensor, numbers: Any) -> Tensor:
        return ops.tensor(np.asarray(numbers, np.int32), device=x.device)

    def attention(q: Tensor, k: Tensor, v: Tensor, starts: Any = None, **how: Any) -> Tensor:
        how["starts"] = None if starts is None else places(q, starts)
        return ops.attention(q, k, v, generator=Generator(3), **how)

    def whole(x: Tensor, *parts: Tensor, turned: bool = False, packed: bool = False, **how: Any) -> Tensor:
        if packed:
            how["starts"] = places(x, [[0, 0, 2, 2], [0, 1, 1, 1]])
            how["positions"] = places(x, [[0, 1, 0, 1], [0, 0, 1, 2]])
        angles = np.arange(5)[:, None] * [0.3]
        rotary = (constant(x, np.cos(angles)), constant(x, np.sin(angles))) if turned else None
        biases = parts[3:] or None
        return ops.self_attention(
            x,
            parts[:3],
            biases,
            heads=4,
            kv_heads=2,
            rotary=rotary,
            generator=Generator(5),
            **how,  # type: ignore[arg-type]
        )

    def changed(x: Tensor, *parts: Tensor, **how: Any) -> Tensor:
        """Self-attention with a low-rank change: low and change are the last two."""
        return whole(x, *parts[:-2], low_rank=(parts[-2], parts[-1]), turned=True, **how)

    def side_by_side(a: Tensor, b: Tensor) -> Tensor:
        return low_rank.placed([a, b], starts=[0, 3], rows=5, scale=0.5)

    def side_by_side_numpy(a: Host, b: Host) -> Host:
        y = np.zeros((5, 5))
        y[:2, :3], y[3:4, 3:] = a / 2, b / 2
        return y

    def held(x: Tensor, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
        """Through an int8 matrix with a scale a row."""
        wide = x.dtype if x.dtype.name == "float64" else dtypes.float32
        values = ops.tensor(np.arange(-12, 12).reshape(3, 8) * 5, dtype=dtypes.int8, device=x.device)
        scale = ops.tensor(np.array([0.01, 0.02, 0.005]), dtype=wide, device=x.device)
        given = [None if t is None else ops.cast(t, wide) for t in (bias, residual)]
        return held_linear(ops.cast(x, wide), values.array, scale.array, *given)

    def held_numpy(x: Host, bias: Host | None, residual: Host | None = None) -> Host:
        y = x @ (np.arange(-12, 12).reshape(3, 8) * 5 * np.array([[0.01], [0.02], [0.005]])).T
        return y + (0 if bias is None else bias) + (0 if residual is None else residual)

    def gated_changed(x: Tensor, gate: Tensor, up: Tensor, low: Tensor, change: Tensor, **how: Any) -> Tensor:
        return ops.gated_linear(x, (gate, up), low_rank=(low, change), **how)

    def hidden_changed(x: Host, gate: Host, up: Host, low: Host, change: Host) -> Host:
        both = x @ np.concatenate([gate, up]).T + low @ change.T
        g, u = both[:, :4], both[:, 4:]
        return g / (1 + np.exp(-g)) * u

    def gated(x: Tensor, gate: Tensor, up: Tensor, *biases: Tensor, **how: Any) -> Tensor:
        return ops.gated_linear(x, (gate, up), biases or None, **how)  # type: ignore[arg-type]

    def hidden(x: Host, gate: Host, up: Host, gate_bias: Any = 0, up_bias: Any = 0) -> Host:
        g = x @ gate.T + gate_bias
        return g / (1 + np.exp(-g)) * (x @ up.T + up_bias)

    bf16 = dtypes.bfloat16
    gates = (normal(4, 7, seed=1), normal(4, 7, seed=2))
    projections = (normal(2, 4, 3), normal(8, 3, seed=1), normal(4, 3, seed=2), normal(4, 3, seed=3))
    change = (normal(2, 4, 2, seed=7), normal(16, 2, seed=8))
    gate_change = (normal(3, 2, seed=7), normal(8, 2, seed=8))
    offsets = (normal(8, seed=4), normal(4, seed=5), normal(4, seed=6))

    def preference(chosen: Tensor, rejected: Tensor, **how: Any) -> Tensor:
        return ops.preference_loss(chosen, rejected, constant(chosen, [0.1, -0.2, 0.3, 2.0]), beta=0.7, **how)

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(x, targets, weights=constant(x, [0.5, 0.0, 1.0, 0.25]))

    def head(x: Tensor, w: Tensor, targets: Tensor, **how: Any) -> Tensor:
        return ops.lm_head_loss(x, w, targets, weights=constant(x, [0.5, 0.0, 1.0, 0.25]), **how)

    def heads(tq: int, tk: int, h: int, kv: int, d: int) -> tuple[Host, Host, Host]:
        return normal(2, tq, h, d), normal(2, tk, kv, d, seed=1), normal(2, tk, kv, d, seed=2)

    def block(x: Tensor, w: Tensor) -> Tensor:
        generator = Generator(8)
        return ops.activation_checkpoint(
            lambda x: ops.dropout(ops.tanh(x @ w), p=0.3, generator=generator) + x, x, generators=(generator,)
        )

    targets = ids(4, below=5)
    return [
        Case("rmsnorm", ops.rmsnorm, (x, w), lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w),
        Case("rmsnorm one", ops.rmsnorm, (normal(1), positive(1))),
        Case("rmsnorm no rows", ops.rmsnorm, (normal(0, 7), w)),
        Case(
            "layernorm",
            ops.layernorm,
            (x, w, b),
            lambda x, w, b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,
        ),
        Case("layernorm no bias", ops.layernorm, (x, w, None)),
        Case("layernorm large eps", lambda x, w: ops.layernorm(x, w, eps=0.5), (normal(3, 7), w)),
        Case("swiglu", ops.swiglu, (normal(3, 5), normal(3, 5, seed=1)), lambda g, u: g / (1 + np.exp(-g)) * u),
        Case("gated_linear", gated, (x, *gates, normal(4), normal(4, seed=1)), hidden),
        Case("gated_linear no bias", gated, (x, *gates), hidden),
        Case("gated_linear no rows", gated, (normal(0, 7), *gates), hidden),
        Case("gated_linear bf16", lambda *a: gated(*a, operand_dtype=bf16), (x, *gates), smooth=False),
        Case("gated_linear changed", gated_changed, (normal(3, 7), *gates, *gate_change), hidden_changed),
        Case(
            "gated_linear changed bf16",
            lambda *a: gated_changed(*a, operand_dtype=bf16),
            (normal(3, 7), *gates, *gate_change),
            smooth=False,
        ),
        Case("swiglu empty", ops.swiglu, (normal(0, 5), normal(0, 5))),
        Case("rope", rope, (normal(2, 4, 3, 6),)),
        Case("rope later", lambda x: rope(x, offset=5), (normal(1, 4, 1, 6),)),
        Case("rope interleaved", lambda x: rope(x, interleaved=True), (normal(2, 4, 3, 6),)),
        Case("rope placed", placed, (normal(2, 4, 3, 6),)),
        Case(
            "attention starts",
            lambda *a: attention(*a, starts=[[0, 0, 2, 2, 3], [0, 1, 1, 1, 1]]),
            heads(5, 5, 4, 2, 3),
        ),
        Case("attention window", lambda *a: attention(*a, starts=[[1, 2], [2, 3]], dropout=0.3), heads(2, 4, 2, 1, 3)),
        Case("self_attention packed", lambda *a: whole(*a, turned=True, packed=True), projections),
        Case("attention", attention, heads(4, 4, 2, 2, 3)),
        Case("attention one", attention, heads(1, 1, 1, 1, 1)),
        Case("attention grouped", attention, heads(5, 5, 4, 2, 2)),
        Case("attention continued", attention, heads(2, 5, 2, 1, 3)),
        Case("attention open", lambda q, k, v: attention(q, k, v, causal=False), heads(3, 5, 2, 2, 4)),
        Case("attention scaled", lambda q, k, v: attention(q, k, v, scale=0.7), heads(3, 3, 1, 1, 4)),
        Case("attention dropout", lambda q, k, v: attention(q, k, v, dropout=0.3), heads(5, 5, 4, 2, 3)),
        Case("self_attention", whole, projections),
        Case("self_attention biased", whole, (*projections, *offsets)),
        Case("self_attention turned", lambda *a: whole(*a, turned=True), projections),
        Case(
            "self_attention interleaved", lambda *a: whole(*a, turned=True, interleaved=True, dropout=0.3), projections
        ),
        Case("preference_loss", preference, (normal(4), normal(4, seed=1)), _preference),
        Case(
            "preference_loss smoothed",
            lambda a, b: preference(a, b, smoothing=0.1),
            (normal(4), normal(4, seed=1)),
            lambda a, b: 0.9 * _preference(a, b) + 0.1 * _preference(a, b, -1),
        ),
        Case("self_attention changed", changed, (*projections, *change)),
        Case("self_attention biased and changed", changed, (*projections, *offsets, *change)),
        Case("held_linear", held, (normal(2, 5, 8), normal(3)), held_numpy),
        Case("held_linear no bias", held, (normal(5, 8), None), held_numpy),
        Case("held_linear residual", held, (normal(2, 5, 8), normal(3), normal(2, 5, 3, seed=1)), held_numpy),
        Case("placed", side_by_side, (normal(2, 3), normal(1, 2)), side_by_side_numpy),
        Case("cross_entropy", ops.cross_entropy, (normal(4, 5), targets), _mean_loss),
        Case("cross_entropy weights", loss, (normal(4, 5), targets)),
        Case("cross_entropy one class", ops.cross_entropy, (normal(3, 1), np.zeros(3, np.int64)), _mean_loss),
        Case(
            "lm_head_loss",
            ops.lm_head_loss,
            (normal(4, 3), normal(5, 3), targets),
            lambda x, w, t: _mean_loss(x @ w.T, t),
        ),
        Case("lm_head_loss weights", head, (normal(4, 3), normal(5, 3), targets)),
        Case("lm_head_loss scaled", lambda x, w, t: head(x, w, t) * 3.0, (normal(4, 3), normal(5, 3), targets)),
        Case(
            "lm_head_loss bf16",
            lambda x, w, t: head(x, w, t, operand_dtype=dtypes.bfloat16),
            (normal(4, 3), normal(5, 3), targets),
            smooth=False,
        ),
        Case("activation_checkpoint", block, (normal(3, 4), normal(4, 4))),
        Case(
            "activation_checkpoint of one input used twice",
            lambda x: ops.activation_checkpoint(lambda a, b: a * b, x, x),
            (normal(3),),
        ),
    ]


def _preference(chosen: Host, rejected: Host, sign: int = 1) -> Host:
    z = sign * 0.7 * (chosen - rejected - [0.1, -0.2, 0.3, 2.0])
    return np.log1p(np.exp(-z)).mean()


def _mean_loss(z: Host, targets: Host) -> Host:
    lse = np.log(np.exp(z).sum(1))
    return np.mean(lse - z[np.arange(len(z)), targets])


def _experts() -> list[Case]:
    def mixture(x: Tensor, logits: Tensor, chosen: Tensor, *weights: Tensor, **how: Any) -> Tensor:
        """Weights stand expert by expert: gate, up, down."""
        experts = list(zip(weights[::3], weights[1::3], weights[2::3], strict=True))
        return ops.mixture_of_experts(x, ops.expert_gates(logits, chosen), chosen, experts, **how)

    def weights(experts: int, width: int, hidden: int) -> list[Host]:
        shapes = ((hidden, width), (hidden, width), (width, hidden))
        return [normal(*s, seed=3 * e + i) for e in range(experts) for i, s in enumerate(shapes)]

    def adapted(x: Tensor, logits: Tensor, chosen: Tensor, *given: Tensor, **how: Any) -> Tensor:
        """After the weights of three experts: A and C of [gate; up] of each, A and C of down of each."""
        inner, outer = (list(zip(given[i : i + 6 : 2], given[i + 1 : i + 6 : 2], strict=True)) for i in (9, 15))
        return mixture(x, logits, chosen, *given[:9], inner_changes=inner, outer_changes=outer, **how)

    def adapted_numpy(x: Host, logits: Host, chosen: Host, *given: Host) -> Any:
        weights = list(given[:9])
        for e in range(3):
            both = given[9 + 2 * e + 1] @ given[9 + 2 * e]
            half = len(both) // 2
            weights[3 * e] = weights[3 * e] + both[:half]
            weights[3 * e + 1] = weights[3 * e + 1] + both[half:]
            weights[3 * e + 2] = weights[3 * e + 2] + given[15 + 2 * e + 1] @ given[15 + 2 * e]
        return experts_numpy.mixture(x, logits, chosen, *weights)

    def pairs(width: int, hidden: int) -> list[Host]:
        shapes = [*((1, width), (2 * hidden, 1)) * 3, *((2, hidden), (width, 2)) * 3]
        return [normal(*s, seed=20 + i) for i, s in enumerate(shapes)]

    logits = normal(5, 3)
    few = np.array([[2, 0], [0, 2], [3, 3], [0, 2], [2, 0]])  # nobody goes to expert 1, and one token nowhere
    every = np.argsort(-normal(4, 3), axis=1)
    alone = np.zeros((4, 1), np.int64)
    nobody = np.full((2, 1), 3)
    return [
        Case("expert_gates", ops.expert_gates, (logits, few), experts_numpy.gates),
        Case("expert_gates of every expert", ops.expert_gates, (normal(4, 3), every), experts_numpy.gates),
        Case("router_statistics", ops.router_statistics, (logits, few), experts_numpy.statistics),
        Case(
            "router_statistics of every expert", ops.router_statistics, (normal(4, 3), every), experts_numpy.statistics
        ),
        Case("router_statistics of nobody", ops.router_statistics, (normal(2, 3), nobody), lambda z, c: np.zeros(5)),
        Case("mixture_of_experts", mixture, (normal(5, 4), logits, few, *weights(3, 4, 2)), experts_numpy.mixture),
        Case(
            "mixture_of_experts all of them",
            mixture,
            (normal(4, 3), normal(4, 3), every, *weights(3, 3, 4)),
            experts_numpy.mixture,
        ),
        Case(
            "mixture_of_experts one",
            mixture,
            (normal(4, 2), normal(4, 1), alone, *weights(1, 2, 3)),
            experts_numpy.mixture,
        ),
        Case(
            "mixture_of_experts for nobody",
            mixture,
            (normal(2, 2), normal(2, 3), nobody, *weights(3, 2, 2)),
            experts_numpy.mixture,
        ),
        Case(
            "mixture_of_experts of no tokens",
            mixture,
            (normal(0, 2), normal(0, 3), np.zeros((0, 1), np.int64), *weights(3, 2, 2)),
        ),
        Case(
            "mixture_of_experts adapted",
            adapted,
            (normal(5, 4), logits, few, *weights(3, 4, 2), *pairs(4, 2)),
            adapted_numpy,
        ),
        Case(
            "mixture_of_experts down adapted",
            lambda x, z, c, *w: mixture(x, z, c, *w[:9], outer_changes=list(zip(w[9::2], w[10::2], strict=True))),
            (normal(5, 4), logits, few, *weights(3, 4, 2), *pairs(4, 2)[6:]),
        ),
        Case(
            "mixture_of_experts bf16",
            lambda *a: mixture(*a, operand_dtype=dtypes.bfloat16),
            (normal(5, 4), logits, few, *weights(3, 4, 2)),
            smooth=False,
        ),
    ]


CASES = (*_unary(), *_binary(), *_reductions(), *_shapes(), *_products(), *_fused(), *_experts())
