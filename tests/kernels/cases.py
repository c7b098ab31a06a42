"""Parity cases: calls of every kernel in the table, over shapes with odd lengths, no length and one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pellucid.base import dtypes
from pellucid.base.dtypes import DType
from pellucid.device import reference
from pellucid.kernels import spec
from pellucid.kernels.llama import Llama

from .parity import LAYOUTS, Case, Data, Value, numbers, place

Shape = tuple[int, ...]
Call = tuple[list[Any], dict[str, Any]]

ANY = ((), (1,), (63,), (100,), (1000,), (0,), (3, 0, 2), (5, 7), (2, 1, 33), (2, 3, 4, 5), (2, 1, 3, 2, 4), (70, 1000))
RANKED = tuple(s for s in ANY if s and 0 not in s)
ROWS = ((1, 1), (63,), (100,), (5, 63), (2, 3, 100), (3, 1000), (0, 7), (257, 65))
TESTED = (*dtypes.FLOATS, dtypes.int64, dtypes.uint8, dtypes.bool_)

CASES: list[Case] = []


def case(
    kernel: str,
    label: str = "",
    *,
    shapes: tuple[Shape, ...] = ANY,
    tolerance: str | None = None,
    layouts: tuple[str, ...] = LAYOUTS,
    kinds: tuple[DType, ...] | None = None,
) -> Callable[[Callable[[Data, Shape], Call]], Callable[[Data, Shape], Call]]:
    """Registers a function that makes the arguments of a call for a shape."""
    row = spec.KERNELS[kernel]

    def register(make: Callable[[Data, Shape], Call]) -> Callable[[Data, Shape], Call]:
        chosen = tuple(d for d in kinds or TESTED if d in row.dtypes)
        CASES.append(Case(kernel, label, make, shapes, tolerance or row.tolerance, layouts, chosen))
        return make

    return register


def simple(*kernels: str, shapes: tuple[Shape, ...] = ANY, positive: bool = False, **keyword: Any) -> None:
    """Kernels of one array."""
    label = "-".join(f"{k}-{v}" for k, v in keyword.items())
    for kernel in kernels:
        case(kernel, label, shapes=shapes)(lambda d, s: ([d.positive(*s) if positive else d.normal(*s)], dict(keyword)))


def pair(*kernels: str, **keyword: Any) -> None:
    """Kernels of two arrays: of one shape, with a row, with a column, and with a number."""
    label = "-".join(f"{k}-{v}" for k, v in keyword.items())
    for kernel in kernels:
        case(kernel, label)(lambda d, s: ([d.normal(*s), d.normal(*s)], dict(keyword)))


def broadcast(*kernels: str) -> None:
    for kernel in kernels:
        case(kernel, "row", shapes=RANKED)(lambda d, s: ([d.normal(*s), d.normal(s[-1])], {}))
        case(kernel, "column", shapes=RANKED)(lambda d, s: ([d.normal(s[0], *(1 for _ in s[1:])), d.normal(*s)], {}))
        case(kernel, "number", shapes=RANKED)(lambda d, s: ([d.normal(*s), d.normal()], {}))


# --- element by element -----------------------------------------------------------------------------------------------

simple("copy", "neg", "abs", "sign", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "silu", "all_finite")
simple("log", "sqrt", positive=True)
simple("gelu", "gelu_with_slope", approximate=True)
simple("gelu", "gelu_with_slope", approximate=False)
pair("add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
pair("tanh_backward", "sigmoid_backward", "relu_backward", "silu_backward")
broadcast("add", "sub", "maximum", "lt", "ge")


@case("div")
def _div(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.positive(*s)], {}


@case("pow")
def _pow(d: Data, s: Shape) -> Call:
    return [d.positive(*s), d.normal(*s)], {}


@case("pow", "square")
def _square(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.value(2)], {}


for _to in (*dtypes.FLOATS, dtypes.int32, dtypes.uint8, dtypes.bool_):

    @case("cast", _to.name)
    def _cast(d: Data, s: Shape, to: DType = _to) -> Call:
        return [d.normal(*s) if to.is_float else d.positive(*s)], {"dtype": to}

    @case("assign_", _to.name)
    def _assign(d: Data, s: Shape, to: DType = _to) -> Call:
        return [d.plain(d.normal(*s).numbers, to), d.positive(*s)], {}


@case("assign_", "row", shapes=RANKED)
def _assign_row(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[-1])], {}


@case("fill_", layouts=LAYOUTS[:-1])
def _fill(d: Data, s: Shape) -> Call:
    return [
        d.normal(*s),
    ], {"value": 1}


@case("where")
def _where(d: Data, s: Shape) -> Call:
    wide = Data(dtypes.float32, d.layout)
    return [d.mask(*s), wide.normal(*s), wide.normal(*s)], {}


@case("where", "number")
def _where_number(d: Data, s: Shape) -> Call:
    wide = Data(dtypes.bfloat16, d.layout)
    return [d.mask(*s), wide.normal(), wide.normal(*s)], {}


@case("normal_", layouts=("plain",))
def _normal(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {"std": 0.5, "seed": 2**63 + 99, "counter": 2**34 + 8}


@case("dropout")
def _dropout(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {"p": 0.3, "seed": 2**63 + 12345, "counter": 2**34 + 8}


@case("dropout", "unaligned")
def _dropout_unaligned(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {"p": 0.5, "seed": 7, "counter": 3}


@case("concatenate", "first", shapes=tuple(s for s in ANY if s))
def _concatenate(d: Data, s: Shape) -> Call:
    return [[d.normal(*s), d.normal(2, *s[1:]), d.normal(0, *s[1:])]], {"axis": 0}


@case("concatenate", "last", shapes=tuple(s for s in ANY if s))
def _concatenate_last(d: Data, s: Shape) -> Call:
    return [[d.normal(*s), d.normal(*s[:-1], 3)]], {"axis": len(s) - 1}


# --- along axes -------------------------------------------------------------------------------------------------------


def _axes(which: str, rank: int) -> tuple[int, ...]:
    every = tuple(range(rank))
    return {"all": every, "first": every[:1], "last": every[-1:], "outer": every[::2], "none": ()}[which]


for _which in ("all", "first", "last", "outer", "none"):
    for _kernel in ("sum", "max", "min"):
        _shapes = ANY if _kernel == "sum" else tuple(s for s in ANY if 0 not in s)
        case(_kernel, _which, shapes=_shapes)(
            lambda d, s, w=_which: ([d.normal(*s)], {"axes": _axes(w, len(s)), "keepdims": w == "last"})
        )
for _kernel, _shapes in (("sum", ((200_000,), (3, 70_000), (5000, 3), (700, 40), (40, 3000), (2, 500, 30))),):
    case(_kernel, "large", shapes=_shapes)(lambda d, s: ([d.normal(*s)], {"axes": (len(s) - 1,), "keepdims": False}))
    case(_kernel, "large-first", shapes=_shapes)(lambda d, s: ([d.normal(*s)], {"axes": (0,), "keepdims": False}))


@case("argmax", "last", shapes=RANKED)
def _argmax(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {"axis": len(s) - 1}


@case("argmax", "first", shapes=RANKED)
def _argmax_first(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {"axis": 0}


@case("cumsum", shapes=tuple(s for s in ANY if s))
def _cumsum(d: Data, s: Shape) -> Call:
    return [d.value(d.normal(*s).numbers % 2)], {"axis": len(s) - 1, "reverse": False}


@case("cumsum", "reverse", shapes=tuple(s for s in ANY if s))
def _cumsum_reverse(d: Data, s: Shape) -> Call:
    return [d.value(d.normal(*s).numbers % 2)], {"axis": 0, "reverse": True}


simple("softmax", "log_softmax", shapes=ROWS)


@case("softmax_backward", shapes=ROWS)
def _softmax_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.rows(*s)], {}


@case("log_softmax_backward", shapes=ROWS)
def _log_softmax_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.value(-3 * d.positive(*s).numbers)], {}


@case("global_norm", shapes=(*ANY, (100_000,)))
def _global_norm(d: Data, s: Shape) -> Call:
    return [[d.normal(*s), d.normal(17), d.normal(0)]], {}


for _norm in (0.5, 1.0, 3.0, float("nan"), float("inf"), 0.0):

    @case("clip_scale", str(_norm), shapes=((),))
    def _clip_scale(d: Data, s: Shape, norm: float = _norm) -> Call:
        return [d.plain(norm, dtypes.float32)], {"max_norm": 1.0}


# --- rows -------------------------------------------------------------------------------------------------------------


@case("rmsnorm", shapes=ROWS)
def _rmsnorm(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[-1])], {"eps": 1e-5, "result_dtype": None}


@case("rmsnorm_backward", shapes=ROWS)
def _rmsnorm_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(*s), d.normal(s[-1]), d.statistic(*s[:-1])], {}


@case("layernorm", shapes=ROWS)
def _layernorm(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[-1]), d.normal(s[-1])], {"eps": 1e-5, "result_dtype": None}


@case("layernorm", "no-bias", shapes=ROWS)
def _layernorm_no_bias(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[-1]), None], {"eps": 1e-5, "result_dtype": None}


@case("layernorm_backward", shapes=ROWS)
def _layernorm_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(*s), d.normal(s[-1]), d.statistic(*s[:-1]), d.statistic(*s[:-1])], {}


pair("swiglu")


@case("swiglu_backward")
def _swiglu_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(*s), d.normal(*s)], {}


@case("swiglu_joint_backward", shapes=((1, 1), (5, 7), (63, 100), (0, 4), (3, 1000)), layouts=("plain",))
def _swiglu_joint_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[0], 2 * s[1])], {}


# --- mixture of experts -----------------------------------------------------------------------------------------------

TOKENS = ((1, 1, 1), (5, 3, 2), (63, 8, 2), (100, 8, 8), (0, 4, 2), (257, 33, 4))  # tokens, experts, chosen


def _chosen(d: Data, s: Shape, *, some: float = 0.8) -> Any:
    """Experts of tokens, a share of which goes somewhere."""
    n, experts, active = s
    order = np.argsort(d.random.random((n, experts)), axis=1)[:, :active]
    return d.plain(np.where(d.random.random((n, 1)) < some, order, experts), dtypes.int64)


@case("top_experts", shapes=TOKENS)
def _top_experts(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[1]), None], {"active": s[2]}


@case("top_experts", "counted", shapes=TOKENS)
def _top_experts_counted(d: Data, s: Shape) -> Call:
    logits = d.normal(s[0], s[1]).numbers.round()  # many equal ones, and some that are no numbers
    return [d.value(np.where(logits == 1, np.nan, logits)), d.mask(s[0])], {"active": s[2]}


@case("expert_gates", shapes=TOKENS)
def _expert_gates(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[1]), _chosen(d, s)], {}


@case("expert_gates_backward", shapes=TOKENS)
def _expert_gates_backward(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[2]), d.rows(s[0], s[2]), _chosen(d, s)], {"experts": s[1]}


@case("router_statistics", shapes=TOKENS)
def _router_statistics(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[1]), _chosen(d, s)], {}


@case("router_statistics", "nobody", shapes=((5, 3, 2),))
def _router_statistics_of_nobody(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[1]), _chosen(d, s, some=0)], {}


@case("router_statistics_backward", shapes=TOKENS)
def _router_statistics_backward(d: Data, s: Shape) -> Call:
    return [d.normal(2 + s[1]), d.normal(s[0], s[1]), _chosen(d, s), d.rows(2 + s[1])], {}


@case("group_by_expert", shapes=TOKENS, layouts=("plain", "gaps"))
def _group_by_expert(d: Data, s: Shape) -> Call:
    return [d.value(_chosen(d, s).numbers)], {"experts": s[1]}


@case("gather_rows", shapes=((5, 8), (63, 1), (0, 4), (257, 33)))
def _gather_rows(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(2 * s[0] + 1, 100)], {"share": 2}


@case("sum_rows", shapes=((5, 8), (63, 1), (0, 4), (257, 33)))
def _sum_rows(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(s[0] + 1, 100, 3)], {}


@case("scaled_swiglu", shapes=((5, 8), (63, 2), (0, 4), (257, 66)))
def _scaled_swiglu(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(s[0], 1)], {}


@case("scaled_swiglu_backward", shapes=((5, 8), (63, 2), (0, 4), (257, 66)))
def _scaled_swiglu_backward(d: Data, s: Shape) -> Call:
    return [d.normal(s[0], s[1] // 2), d.normal(*s), d.normal(s[0], 1)], {}


def _bounds(d: Data, rows: int) -> Any:
    """Five experts, the second without rows, and a few rows of nobody's."""
    cuts = np.sort(d.random.integers(0, rows + 1, 4))
    return d.plain([0, cuts[0], cuts[0], *cuts[1:]], dtypes.int64)


for _operand in (None, dtypes.bfloat16):
    _more = {"shapes": ((1, 1, 1), (63, 33, 100), (200, 7, 3), (0, 5, 4)), "tolerance": "mixed" if _operand else None}

    for _transposed in (False, True):
        _label = ("-transposed" if _transposed else "") + (f"-{_operand.name}" if _operand else "")

        @case("grouped_matmul", _label[1:], **_more)
        def _grouped_matmul(
            d: Data, s: Shape, operand: DType | None = _operand, transposed: bool = _transposed
        ) -> Call:
            rows, k, m = s
            weights = [d.normal(*((m, k) if transposed else (k, m))) for _ in range(5)]
            options = {"transposed": transposed, "operand_dtype": operand}
            return [d.normal(rows, k), weights, _bounds(d, rows)], options

    @case("grouped_outer", _operand.name if _operand else "", **_more)
    def _grouped_outer(d: Data, s: Shape, operand: DType | None = _operand) -> Call:
        rows, k, m = s
        return [d.normal(rows, k), d.normal(rows, m), _bounds(d, rows)], {"operand_dtype": operand}


# --- by index ---------------------------------------------------------------------------------------------------------


@case("embedding", shapes=((5, 8), (63, 1), (1, 100), (1000, 33), (7, 2, 3)))
def _embedding(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(s[0], 3, 50, dtype=dtypes.int32)], {}


@case("embedding", "no-ids", shapes=((5, 8),))
def _embedding_empty(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(s[0], 0)], {}


@case("embedding_backward", shapes=((5, 8), (63, 1), (1, 100), (300, 33), (7, 2, 3)))
def _embedding_backward(d: Data, s: Shape) -> Call:
    return [d.normal(3, 50, *s[1:]), d.index(s[0], 3, 50)], {"rows": s[0]}


@case("add_rows_", shapes=((5, 8), (63, 1), (1, 100), (300, 33), (7, 2, 3)), layouts=LAYOUTS[:1])
def _add_rows(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(3, 50, *s[1:]), d.index(s[0], 3, 50)], {}


@case("pick", shapes=ROWS)
def _pick(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(s[-1], *s[:-1])], {}


@case("pick_backward", shapes=ROWS)
def _pick_backward(d: Data, s: Shape) -> Call:
    return [d.normal(*s[:-1]), d.index(s[-1], *s[:-1], dtype=dtypes.int32)], {"size": s[-1]}


# --- losses -----------------------------------------------------------------------------------------------------------

LOGITS = ((1, 1), (5, 63), (100, 10), (3, 1000), (0, 7), (257, 65))


def _weights(d: Data, n: int) -> Any:
    """A quarter of them 0."""
    return d.plain((d.random.random(n) + 0.5) * (d.random.random(n) > 0.25) / max(n, 1), dtypes.float32)


@case("cross_entropy", shapes=LOGITS)
def _cross_entropy(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.index(s[1], s[0]), _weights(d, s[0])], {}


@case("mse", shapes=((1,), (63,), (100, 1000), (7, 5, 3)))
def _mse(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.normal(*s)], {}


@case("mse_backward", shapes=((1,), (63,), (100, 1000), (7, 5, 3)))
def _mse_backward(d: Data, s: Shape) -> Call:
    return [d.plain(0.7, d.dtype), d.normal(*s)], {}


@case("cross_entropy_backward", shapes=LOGITS)
def _cross_entropy_backward(d: Data, s: Shape) -> Call:
    lse = d.plain(d.random.random(s[0]) + 5, d.statistics)
    return [d.plain(0.7, d.statistics), d.normal(*s), d.index(s[1], s[0]), _weights(d, s[0]), lse], {}


for _gradients in ("all", "of x", ""):
    for _operand in (None, dtypes.bfloat16):

        @case(
            "lm_head_loss",
            f"{f'gradients {_gradients}' if _gradients else 'loss'}-{_operand.name if _operand else 'plain'}",
            shapes=((1, 1, 1), (5, 8, 63), (63, 33, 100), (100, 16, 1000), (0, 4, 7)),
            tolerance="mixed" if _operand else None,
        )
        def _lm_head(d: Data, s: Shape, operand: DType | None = _operand, gradients: str = _gradients) -> Call:
            n, width, vocabulary = s
            arrays = [d.normal(n, width), d.normal(vocabulary, width), d.index(vocabulary, n), _weights(d, n)]
            wanted = {"gradients": gradients != "", "for_weight": gradients == "all"}
            return arrays, {"operand_dtype": operand, **wanted}


# --- products and attention: the cases that belong to every kernel; their own tests go further ------------------------


@case("matmul", shapes=((1, 1, 1), (5, 7, 3), (63, 33, 100)))
def _matmul(d: Data, s: Shape) -> Call:
    m, k, n = s
    return [d.normal(2, m, k), d.normal(k, n), d.normal(n)], {"operand_dtype": None, "result_dtype": None}


for _wanted in ((True, True, True), (False, True, True), (True, False, False)):

    @case(
        "linear_backward",
        "-".join(n for n, w in zip(("x", "weight", "bias"), _wanted, strict=True) if w),
        shapes=((1, 1, 1), (4, 2, 8), (5, 7, 3), (63, 33, 100)),
    )
    def _linear_backward(d: Data, s: Shape, wanted: tuple[bool, ...] = _wanted) -> Call:
        m, k, n = s
        options = dict(zip(("for_x", "for_weight", "for_bias"), wanted, strict=True))
        return [d.normal(m, n), d.normal(m, k), d.normal(n, k)], {"operand_dtype": None, **options}


@case("matmul", "narrow", shapes=((5, 7, 3), (63, 33, 100)), tolerance="mixed", kinds=(dtypes.float32,))
def _matmul_narrow(d: Data, s: Shape) -> Call:
    m, k, n = s
    return [d.normal(m, k), d.normal(k, n), d.normal(m, n)], {"operand_dtype": None, "result_dtype": dtypes.bfloat16}


HEADS = {"causal": True, "scale": 0.3, "dropout": 0.0, "seed": 0, "counter": 0, "operand_dtype": None}
ATTENTION = ((1, 1, 1, 1, 1, 2), (2, 7, 7, 4, 2, 8), (1, 63, 63, 2, 1, 6))


@case("attention", shapes=ATTENTION, tolerance="mixed", layouts=("plain", "transposed"))
def _attention(d: Data, s: Shape) -> Call:
    b, rows, keys, heads, kv_heads, width = s
    arrays = [d.normal(b, rows, heads, width), d.normal(b, keys, kv_heads, width), d.normal(b, keys, kv_heads, width)]
    return arrays, HEADS


@case("attention_backward", shapes=ATTENTION, tolerance="mixed", layouts=("plain", "transposed"))
def _attention_backward(d: Data, s: Shape) -> Call:
    b, rows, keys, heads, kv_heads, width = s
    q, k, v = d.normal(b, rows, heads, width), d.normal(b, keys, kv_heads, width), d.normal(b, keys, kv_heads, width)
    forward = [place(x, reference, "plain", wide=True) for x in (q, k, v)]
    o, lse = (numbers(r) for r in reference.kernels.attention(*forward, **HEADS))
    return [d.normal(b, rows, heads, width), q, k, v, d.value(o), d.plain(lse, d.statistics)], HEADS


@case("attention", "starts", shapes=ATTENTION, tolerance="mixed", layouts=("plain", "transposed"))
def _attention_starts(d: Data, s: Shape) -> Call:
    arrays, how = _attention(d, s)
    return [*arrays, _starts(d, s)], how


@case("attention_backward", "starts", shapes=ATTENTION, tolerance="mixed", layouts=("plain", "transposed"))
def _attention_backward_starts(d: Data, s: Shape) -> Call:
    (do, q, k, v, _, _), how = _attention_backward(d, s)
    starts = _starts(d, s)
    forward = [place(x, reference, "plain", wide=True) for x in (q, k, v, starts)]
    o, lse = (numbers(r) for r in reference.kernels.attention(*forward, **how))
    return [do, q, k, v, d.value(o), d.plain(lse, d.statistics), starts], how


def _starts(d: Data, s: Shape) -> Value:
    """Documents of 5 tokens in the first sequence, of 6 in the next, ..."""
    time = np.arange(s[1])
    return d.plain([time // (5 + b) * (5 + b) for b in range(s[0])], dtypes.int32)


@case("rope", "positions", shapes=((1, 1, 1, 2), (2, 7, 3, 8), (1, 63, 2, 6)))
def _rope_positions(d: Data, s: Shape) -> Call:
    table = d.statistic(s[1] + 3, s[3] // 2)
    positions = d.index(s[1], s[0], s[1], dtype=dtypes.int32)
    return [d.normal(*s), table, table, positions], {"offset": 2, "interleaved": False, "inverse": False}


@case("rope", shapes=((1, 1, 1, 2), (2, 7, 3, 8), (1, 63, 2, 6)))
def _rope(d: Data, s: Shape) -> Call:
    table = d.statistic(s[1] + 3, s[3] // 2)
    return [d.normal(*s), table, table], {"offset": 2, "interleaved": False, "inverse": False}


# --- inference: matrices held in int8 or bfloat16 ---------------------------------------------------------------------

MATRICES = ((1, 1), (5, 63), (3, 100), (257, 65), (0, 7), (70, 1000))


@case("quantize", shapes=MATRICES)
def _quantize(d: Data, s: Shape) -> Call:
    return [d.normal(*s)], {}


@case("dequantize", shapes=MATRICES, kinds=(dtypes.int8,))
def _dequantize(d: Data, s: Shape) -> Call:
    return [d.normal(*s), d.plain(d.random.random(s[0]), dtypes.float32)], {"dtype": dtypes.float32}


HELD = (dtypes.int8, dtypes.bfloat16, dtypes.float32)


def _held(d: Data, weight: DType, *shape: int) -> tuple[Any, Any]:
    """A matrix and its scales, None where it has none."""
    size = max(1, shape[1]) ** -0.5
    if weight is not dtypes.int8:
        return d.plain(d.random.normal(size=shape) * size, weight), None
    scale = (d.random.random(shape[0]) + 0.5) / 60 * size
    return d.plain(d.random.integers(-127, 128, shape), weight), d.plain(scale, dtypes.float32)


for _weight in HELD:
    for _operand in (None, dtypes.bfloat16):

        @case(
            "held_linear",
            f"{_weight.name}-{_operand.name if _operand else 'plain'}",
            shapes=(
                (1, 1, 1),
                (1, 63, 5),
                (2, 64, 7),
                (3, 1000, 300),
                (4, 576, 66),
                (4, 99, 66),
                (33, 100, 65),
                (33, 70, 65),
                (20, 70, 66),
                (21, 1000, 66),
                (0, 5, 3),
                (2, 0, 3),
            ),
            tolerance="mixed" if _operand else None,
        )
        def _held_linear(d: Data, s: Shape, weight: DType = _weight, operand: DType | None = _operand) -> Call:
            m, k, n = s
            matrix, scale = _held(d, weight, n, k)
            bias = d.plain(d.random.normal(size=n), dtypes.float32) if m % 2 else None
            residual = d.normal(m, n) if k % 4 else None
            x = d.normal(m, k)
            if operand is not None and n % 3 == 0:  # handed over as products want it
                x = d.plain(d.random.normal(size=(m, k)), operand)
            return [x, matrix, scale, bias, residual], {"operand_dtype": operand}


for _weight in HELD:
    for _operand in (None, dtypes.bfloat16):

        @case(
            "held_linear_backward",
            f"{_weight.name}-{_operand.name if _operand else 'plain'}",
            shapes=((1, 1, 1), (2, 7, 64), (33, 65, 100), (100, 1000, 63), (0, 3, 5), (2, 3, 0)),
            tolerance="mixed" if _operand else None,
        )
        def _held_backward(d: Data, s: Shape, weight: DType = _weight, operand: DType | None = _operand) -> Call:
            m, n, k = s
            return [d.normal(m, n), *_held(d, weight, n, k)], {"operand_dtype": operand}


for _weight in HELD:
    for _position in (0, 5, 300, 770):

        @case(
            "decode_token",
            f"{_weight.name}-{_position}",
            shapes=((8, 2, 1, 4, 12), (100, 3, 3, 6, 63), (64, 6, 2, 32, 160), (64, 2, 1, 80, 96), (40, 7, 1, 10, 24)),
            layouts=("plain",),
        )
        def _decode_token(d: Data, s: Shape, weight: DType = _weight, position: int = _position) -> Call:
            width, heads, kv_heads, size, hidden = s
            q, kv, room, count, tokens = heads * size, kv_heads * size, position + 3, 2, 37
            shapes = ((q, width), (kv, width), (kv, width), (width, q), *[(hidden, width)] * 2, (width, hidden))
            held = [_held(d, weight, *shape) for shape in (*shapes * count, (tokens, width))]
            own = HELD[(HELD.index(weight) + position) % 3]  # a table may be held in something else
            table, table_scale = held[-1] if own is weight else _held(d, own, tokens, width)
            caches = [[d.normal(room, kv_heads, size) for _ in range(count)] for _ in "kv"]
            angles = d.random.random((room, size // 2)) * 6
            tables = [d.plain(turn(angles), dtypes.float32) for turn in (np.cos, np.sin)]
            llama = Llama(
                table=table,
                table_scale=table_scale,
                norms=[d.statistic(width) for _ in range(2 * count + 1)],
                weights=[w for w, _ in held],
                scales=[scale for _, scale in held if scale is not None],
                keys=caches[0],
                values=caches[1],
                cos=tables[0],
                sin=tables[1],
                eps=1e-5,
                interleaved=position == 5,
                operand_dtype=None,
            )
            return [llama], {"token": position % tokens, "position": position}


# --- optimizers: contiguous arguments of one shape --------------------------------------------------------------------

FLAT = ("plain",)
PARAMETERS = ((1,), (63,), (100,), (1000,), (0,), (5, 7), (70, 1000))


def _state(d: Data, s: Shape, count: int) -> list[Any]:
    """Two parameters, their gradients, and `count` more lists of what belongs to them; the scale."""
    both = (s, (17,))
    signed = [[d.normal(*shape) for shape in both] for _ in range(2)]
    return [*signed, *[[d.positive(*shape) for shape in both] for _ in range(count)], d.plain(0.5, dtypes.float32)]


@case("adamw_", shapes=PARAMETERS, layouts=FLAT)
def _adamw(d: Data, s: Shape) -> Call:
    settings = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
    return _state(d, s, 2), settings


@case("lion_", shapes=PARAMETERS, layouts=FLAT)
def _lion(d: Data, s: Shape) -> Call:
    return _state(d, s, 1), {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}


@case("sgd_", shapes=PARAMETERS, layouts=FLAT)
def _sgd(d: Data, s: Shape) -> Call:
    weights, grads, scale = _state(d, s, 0)
    return [weights, grads, None, scale], {"lr": 1e-2, "momentum": 0.9, "nesterov": False, "weight_decay": 0.1}


for _nesterov in (True, False):

    @case("sgd_", "nesterov" if _nesterov else "momentum", shapes=PARAMETERS, layouts=FLAT)
    def _sgd_momentum(d: Data, s: Shape, nesterov: bool = _nesterov) -> Call:
        return _state(d, s, 1), {"lr": 1e-2, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.1}
