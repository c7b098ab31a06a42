"""The table of kernels: one row each, the contract every backend fulfils.

A row names the arguments, the element types, what the work is (FLOPs, bytes) and how closely a backend must agree
with the reference computed in float64. Tests compare the signatures of all backends with it and check parity within
its tolerances; benchmarks and traces take the work from it. The mathematics is in `reference`, nowhere else.

Adding a kernel: write its definition in `reference`, add its row here, write it for each backend, add its parity case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from ..base.errors import KernelError
from ..device import Array
from .llama import MATRICES, Llama

# --- tolerances -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """|got - want| <= relative |want| + absolute max(1, largest |want|), element by element; both finite."""

    relative: float
    absolute: float


#: Unit roundoff: the largest relative error of one rounding to nearest.
ROUNDOFF = {dtypes.float64: 2.0**-53, dtypes.float32: 2.0**-24, dtypes.float16: 2.0**-11, dtypes.bfloat16: 2.0**-8}

#: Smallest positive number: what a result may differ by when it is rounded among the denormals.
TINY = {dtypes.float64: 2.0**-1074, dtypes.float32: 2.0**-149, dtypes.float16: 2.0**-24, dtypes.bfloat16: 2.0**-133}

#: Class -> (roundings of the result, relative error before the last rounding, absolute error), the last two in
#: roundoffs of the type computed in: float32 for the 16-bit formats, else the type itself.
CLASSES = {
    "exact": (0.0, 0.0, 0.0),  # moved, compared, chosen, counted
    "rounding": (1.0, 4.0, 1.0),  # a few correctly rounded operations
    "transcendental": (1.0, 16.0, 4.0),  # exp, tanh, ... and short formulas of them
    "accumulate": (1.0, 64.0, 64.0),  # sums of many terms, each rounded
    "mixed": (1.0, 2.0**17, 2.0**17),  # operands or intermediate values rounded to 16 bits on the way
}


def tolerance(kind: str, dtype: DType) -> Tolerance:
    """The bounds of a class for results of a dtype; exact for integers and bool."""
    if not dtype.is_float:
        return Tolerance(0.0, 0.0)
    roundings, relative, absolute = CLASSES[kind]
    inside = ROUNDOFF[dtypes.float64 if dtype is dtypes.float64 else dtypes.float32]
    if kind == "exact":
        return Tolerance(0.0, 0.0)
    return Tolerance(roundings * ROUNDOFF[dtype] * 1.01 + relative * inside, absolute * inside + TINY[dtype])


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """kind: "array" or "arrays" (a list), with "?" where None may stand, "llama" (`Llama`), "int", "float",
    "bool", "dtype", "dtype?" or "axes"."""

    name: str
    kind: str
    keyword: bool


@dataclass(frozen=True)
class Kernel:
    """One row.

    arguments: in order; those after `*` keyword-only.
    family: the module of `reference` with the definition.
    dtypes: element types the first array may have.
    writes: the names of arguments written in place.
    """

    name: str
    family: str
    arguments: tuple[Argument, ...]
    dtypes: tuple[DType, ...]
    tolerance: str
    writes: tuple[str, ...]
    _flops: Callable[[Any], int]

    def bind(self, *positional: Any, **keyword: Any) -> dict[str, Any]:
        """Arguments by name. Raises KernelError where they do not fit the row."""
        names = [a.name for a in self.arguments if not a.keyword]
        bound = dict(zip(names, positional, strict=False)) | keyword
        if len(positional) > len(names) or bound.keys() != {a.name for a in self.arguments}:
            got, expected = ", ".join(bound), ", ".join(a.name for a in self.arguments)
            raise KernelError(self.name, "arguments do not fit", got=got, expected=expected)
        return bound

    def flops(self, bound: Mapping[str, Any]) -> int:
        """Floating-point operations: a multiply-add counts two, an elementary function one."""
        return self._flops(SimpleNamespace(**bound))

    def bytes(self, bound: Mapping[str, Any], result: Any) -> int:
        """Bytes that must move: every argument read once, every result written once."""
        moved = _nbytes(result) + sum(_nbytes(value) for value in bound.values())
        return moved + sum(_nbytes(bound[name]) for name in self.writes)


def _nbytes(value: Any) -> int:
    if isinstance(value, Array | Llama):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_nbytes(v) for v in value)
    return 0


def _arguments(text: str) -> tuple[Argument, ...]:
    """From "x, w, bias: array?, *, eps: float"; an array where no kind is given."""
    found, keyword = [], False
    for part in text.split(", "):
        if part == "*":
            keyword = True
            continue
        name, _, kind = part.partition(": ")
        found.append(Argument(name, kind or "array", keyword))
    return tuple(found)


_NUMBERS = tuple(d for d in dtypes.ALL if d is not dtypes.bool_)
_ALL, _FLOATS = dtypes.ALL, dtypes.FLOATS
_WIDE = (dtypes.float32, dtypes.float64)

KERNELS: dict[str, Kernel] = {}


def _row(
    name: str,
    family: str,
    arguments: str,
    kinds: Sequence[DType],
    tolerance: str,
    flops: Callable[[Any], int] = lambda a: 0,
    writes: str = "",
) -> None:
    KERNELS[name] = Kernel(name, family, _arguments(arguments), tuple(kinds), tolerance, tuple(writes.split()), flops)


def _each(count: int, *names: str) -> Callable[[Any], int]:
    """`count` operations for each element of the largest of the named arguments, broadcast together."""
    return lambda a: count * max(getattr(a, name).size for name in names)


def _products(a: Any) -> int:
    """2 M K N for every batch."""
    left, right = a.a.shape, a.b.shape
    batch = max(prod(left[:-2]), prod(right[:-2]))
    return 2 * batch * left[-2] * left[-1] * right[-1]


def _pairs(a: Any) -> int:
    """(query, key) pairs that are computed, times batch, heads and head size; as if `starts` hid none: it stands in
    memory that the host may not see."""
    (b, rows, heads, width), keys = a.q.shape, a.k.shape[1]
    seen = rows * keys - (rows * (rows - 1) // 2 if a.causal else 0)
    return b * heads * width * seen


def _head(a: Any) -> int:
    """One product for the loss, one more for each gradient."""
    return 2 * (1 + a.gradients + (a.gradients and a.for_weight)) * a.x.size * a.weight.shape[0]


_row("copy", "pointwise", "x", _ALL, "exact")
_row("cast", "pointwise", "x, *, dtype: dtype", _ALL, "rounding")
_row("assign_", "pointwise", "target, source", _ALL, "rounding", writes="target")
_row("fill_", "pointwise", "target, *, value: float", _ALL, "rounding", writes="target")
_row("where", "pointwise", "condition, a, b", (dtypes.bool_,), "exact")
_row("concatenate", "pointwise", "parts: arrays, *, axis: int", _ALL, "exact")
_row("all_finite", "pointwise", "x", _ALL, "exact")
_row(
    "normal_", "pointwise", "target, *, std: float, seed: int, counter: int", _FLOATS, "transcendental", writes="target"
)
_row("dropout", "pointwise", "x, *, p: float, seed: int, counter: int", _FLOATS, "rounding", _each(1, "x"))

for _name, _kinds, _class in (
    ("neg", _NUMBERS, "exact"),
    ("abs", _NUMBERS, "exact"),
    ("sign", _NUMBERS, "exact"),
    ("relu", _NUMBERS, "exact"),
    ("sqrt", _FLOATS, "rounding"),
    ("exp", _FLOATS, "transcendental"),
    ("log", _FLOATS, "transcendental"),
    ("sin", _FLOATS, "transcendental"),
    ("cos", _FLOATS, "transcendental"),
    ("tanh", _FLOATS, "transcendental"),
    ("sigmoid", _FLOATS, "transcendental"),
    ("silu", _FLOATS, "transcendental"),
):
    _row(_name, "pointwise", "x", _kinds, _class, _each(1, "x"))
_row("gelu", "pointwise", "x, *, approximate: bool", _FLOATS, "transcendental", _each(4, "x"))
# the slope is a difference of two terms around its zero
_row("gelu_with_slope", "pointwise", "x, *, approximate: bool", _FLOATS, "accumulate", _each(6, "x"))

_row("tanh_backward", "pointwise", "dy, y", _FLOATS, "rounding", _each(3, "dy"))
_row("sigmoid_backward", "pointwise", "dy, y", _FLOATS, "rounding", _each(3, "dy"))
_row("relu_backward", "pointwise", "dy, x", _FLOATS, "exact", _each(1, "dy"))
_row("silu_backward", "pointwise", "dy, x", _FLOATS, "transcendental", _each(6, "dy"))

for _name, _kinds, _class in (
    ("add", _NUMBERS, "rounding"),
    ("sub", _NUMBERS, "rounding"),
    ("mul", _NUMBERS, "rounding"),
    ("div", _FLOATS, "rounding"),
    ("pow", _FLOATS, "transcendental"),
    ("maximum", _ALL, "exact"),
    ("minimum", _ALL, "exact"),
    ("eq", _ALL, "exact"),
    ("ne", _ALL, "exact"),
    ("lt", _ALL, "exact"),
    ("le", _ALL, "exact"),
    ("gt", _ALL, "exact"),
    ("ge", _ALL, "exact"),
):
    _row(_name, "pointwise", "a, b", _kinds, _class, _each(1, "a", "b"))

_row("sum", "reduce", "x, *, axes: axes, keepdims: bool", _ALL, "accumulate", _each(1, "x"))
_row("max", "reduce", "x, *, axes: axes, keepdims: bool", _ALL, "exact", _each(1, "x"))
_row("min", "reduce", "x, *, axes: axes, keepdims: bool", _ALL, "exact", _each(1, "x"))
_row("argmax", "reduce", "x, *, axis: int", _ALL, "exact", _each(1, "x"))
_row("cumsum", "reduce", "x, *, axis: int, reverse: bool", _NUMBERS, "accumulate", _each(1, "x"))
_row("softmax", "reduce", "x", _FLOATS, "transcendental", _each(5, "x"))
_row("softmax_backward", "reduce", "dy, y", _FLOATS, "accumulate", _each(4, "dy"))
_row("log_softmax", "reduce", "x", _FLOATS, "transcendental", _each(5, "x"))
_row("log_softmax_backward", "reduce", "dy, y", _FLOATS, "accumulate", _each(4, "dy"))
_row("global_norm", "reduce", "parts: arrays", _FLOATS, "accumulate", lambda a: 2 * sum(part.size for part in a.parts))
_row("clip_scale", "reduce", "norm, *, max_norm: float", (dtypes.float32,), "rounding", lambda a: 1)

_row(
    "matmul",
    "matmul",
    "a, b, bias: array?, *, operand_dtype: dtype?, result_dtype: dtype?",
    _FLOATS,
    "accumulate",
    _products,
)
_row(
    "linear_backward",
    "matmul",
    "dy, x, weight, *, operand_dtype: dtype?, for_x: bool, for_weight: bool, for_bias: bool",
    _FLOATS,
    "accumulate",
    lambda a: 2 * a.x.size * a.dy.shape[1] * (a.for_x + a.for_weight) + a.dy.size * a.for_bias,
)

_row("rmsnorm", "norm", "x, weight, *, eps: float, result_dtype: dtype?", _FLOATS, "accumulate", _each(4, "x"))
_row("rmsnorm_backward", "norm", "dy, x, weight, rstd", _FLOATS, "accumulate", _each(10, "x"))
_row(
    "layernorm",
    "norm",
    "x, weight, bias: array?, *, eps: float, result_dtype: dtype?",
    _FLOATS,
    "accumulate",
    _each(7, "x"),
)
_row("layernorm_backward", "norm", "dy, x, weight, mean, rstd", _FLOATS, "accumulate", _each(14, "x"))

_row(
    "attention",
    "attention",
    "q, k, v, starts: array?, *, causal: bool, scale: float, dropout: float, seed: int, counter: int, "
    "operand_dtype: dtype?",
    _FLOATS,
    "accumulate",
    lambda a: 4 * _pairs(a),
)
_row(
    "attention_backward",
    "attention",
    "do, q, k, v, o, lse, starts: array?, *, causal: bool, scale: float, dropout: float, seed: int, counter: int, "
    "operand_dtype: dtype?",
    _FLOATS,
    "accumulate",
    lambda a: 10 * _pairs(a),
)
_row(
    "rope",
    "attention",
    "x, cos, sin, positions: array?, *, offset: int, interleaved: bool, inverse: bool",
    _FLOATS,
    "rounding",
    _each(3, "x"),
)

_row("swiglu", "feedforward", "gate, up", _FLOATS, "transcendental", _each(5, "gate"))
_row("swiglu_backward", "feedforward", "dy, gate, up", _FLOATS, "transcendental", _each(10, "gate"))
_row("swiglu_joint_backward", "feedforward", "dy, both", _FLOATS, "transcendental", _each(10, "dy"))

_row("top_experts", "experts", "logits, counted: array?, *, active: int", _WIDE, "exact", _each(1, "logits"))
_row("expert_gates", "experts", "logits, chosen", _WIDE, "transcendental", _each(5, "chosen"))
_row(
    "expert_gates_backward", "experts", "dgates, gates, chosen, *, experts: int", _WIDE, "accumulate", _each(4, "gates")
)
_row("router_statistics", "experts", "logits, chosen", _WIDE, "accumulate", _each(8, "logits"))
_row(
    "router_statistics_backward", "experts", "dy, logits, chosen, statistics", _WIDE, "accumulate", _each(12, "logits")
)
_row("group_by_expert", "experts", "chosen, *, experts: int", (dtypes.int64,), "exact")
_row("gather_rows", "experts", "x, source, *, share: int", _WIDE, "exact")
_row("sum_rows", "experts", "x, place", _WIDE, "rounding", lambda a: a.place.size * a.x.shape[1])
_row("scaled_swiglu", "experts", "x, scale", _WIDE, "transcendental", _each(3, "x"))
_row("scaled_swiglu_backward", "experts", "dy, x, scale", _WIDE, "accumulate", _each(14, "dy"))
_row(
    "grouped_matmul",
    "experts",
    "x, weights: arrays, bounds, *, transposed: bool, operand_dtype: dtype?",
    _WIDE,
    "accumulate",
    lambda a: 2 * a.x.size * a.weights[0].shape[0 if a.transposed else 1],  # as if every row belonged to somebody
)
_row(
    "grouped_outer",
    "experts",
    "a, b, bounds, *, operand_dtype: dtype?",
    _WIDE,
    "accumulate",
    lambda a: 2 * a.a.size * a.b.shape[1],
)

_row("quantize", "inference", "x", _FLOATS, "exact", _each(3, "x"))
_row("dequantize", "inference", "values, scale, *, dtype: dtype", (dtypes.int8,), "rounding", _each(1, "values"))
_row(
    "held_linear",
    "inference",
    "x, weight, scale: array?, bias: array?, residual: array?, *, operand_dtype: dtype?",
    (dtypes.float32,),
    "accumulate",
    lambda a: 2 * a.x.size * a.weight.shape[0],
)
_row(
    "held_linear_backward",
    "inference",
    "dy, weight, scale: array?, *, operand_dtype: dtype?",
    (dtypes.float32,),
    "accumulate",
    lambda a: 2 * a.dy.size * a.weight.shape[1],
)
_row(
    "decode_token",
    "inference",
    "llama: llama, *, token: int, position: int",
    (dtypes.float32,),
    "accumulate",
    lambda a: (
        sum(2 * w.size for w in a.llama.weights)
        + 4 * (a.position + 1) * sum(w.shape[0] for w in a.llama.weights[:-1:MATRICES])
    ),
)

_row("embedding", "embedding", "weight, ids", _ALL, "exact")
_row("embedding_backward", "embedding", "dy, ids, *, rows: int", _FLOATS, "accumulate", _each(1, "dy"))
_row(
    "add_rows_",
    "embedding",
    "target, dy, ids",
    _WIDE,
    "accumulate",
    _each(1, "dy"),
    writes="target",
)
_row("pick", "embedding", "x, index", _ALL, "exact")
_row("pick_backward", "embedding", "dy, index, *, size: int", _ALL, "exact")

_row("mse", "loss", "x, target", _FLOATS, "accumulate", _each(3, "x"))
_row("mse_backward", "loss", "dy, difference", _FLOATS, "rounding", _each(1, "difference"))
_row("cross_entropy", "loss", "logits, targets, weights", _FLOATS, "accumulate", _each(3, "logits"))
_row(
    "cross_entropy_backward",
    "loss",
    "dloss, logits, targets, weights, lse",
    _FLOATS,
    "transcendental",
    _each(3, "logits"),
)
_row(
    "lm_head_loss",
    "loss",
    "x, weight, targets, weights, *, operand_dtype: dtype?, gradients: bool, for_weight: bool",
    _FLOATS,
    "accumulate",
    _head,
)

_row(
    "sgd_",
    "optimizer",
    "weights: arrays, grads: arrays, velocities: arrays?, scale, "
    "*, lr: float, momentum: float, nesterov: bool, weight_decay: float",
    _WIDE,
    "rounding",
    lambda a: 8 * sum(w.size for w in a.weights),
    "weights velocities",
)
_row(
    "adamw_",
    "optimizer",
    "weights: arrays, grads: arrays, firsts: arrays, seconds: arrays, scale, "
    "*, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int",
    _WIDE,
    "transcendental",
    lambda a: 16 * sum(w.size for w in a.weights),
    "weights firsts seconds",
)
_row(
    "lion_",
    "optimizer",
    "weights: arrays, grads: arrays, momenta: arrays, scale, "
    "*, lr: float, beta1: float, beta2: float, weight_decay: float",
    _WIDE,
    "rounding",
    lambda a: 12 * sum(w.size for w in a.weights),
    "weights momenta",
)
