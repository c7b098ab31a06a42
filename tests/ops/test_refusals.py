"""What the operations refuse, each message read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pellucid import ops
from pellucid.base import errors
from pellucid.base.rng import Generator
from pellucid.ops.held import held_linear
from pellucid.tape import Tensor

_ON = {"device": "reference"}


def _f(*shape: int) -> Tensor:
    return ops.ones(shape, **_ON)


def _i(*shape: int) -> Tensor:
    return ops.zeros(shape, dtype="int64", **_ON)


def _places(*shape: int) -> Tensor:
    return ops.zeros(shape, dtype="int32", **_ON)


_MASK_HINT = "use where() or masked_fill() instead of a mask"
_NO_EXPERTS = "mixture_of_experts: no experts; expected at least one"
_REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    # shapes
    (lambda: ops.zeros((2.5,)), "ShapeError", "shape: a length that is no whole number; got (2.5,), expected ints"),
    (lambda: ops.ones("ab"), "ShapeError", "shape: a length that is no whole number; got ('a', 'b'), expected ints"),
    (
        lambda: _f(3).reshape(1.9, 3),
        "ShapeError",
        "reshape: a length that is no whole number; got (1.9, 3), expected ints",
    ),
    # pointwise
    (lambda: _f(2, 3) + _f(2), "ShapeError", "add: shapes do not broadcast; got (2, 3) and (2,)"),
    (
        lambda: (_f(2) > 0) - (_f(2) > 0),
        "DTypeError",
        "sub: bools can't be subtracted. hint: cast to an integer type, or compare with !=",
    ),
    (
        lambda: ops.mul(2, 3),
        "DTypeError",
        "mul: no tensor among the operands; got int and int",
    ),
    (
        lambda: ops.exp(2.0),  # type: ignore[arg-type]
        "DTypeError",
        "exp: not a tensor; got float. hint: make it one with tensor()",
    ),
    (lambda: ops.clip(_f(2), 2, 1), "ConfigError", "clip: the bounds are the wrong way round; got 2 and 1"),
    (lambda: ops.where(_f(2), 1.0, _f(2)), "DTypeError", "where: the condition is not a tensor of bools; got float32"),
    (
        lambda: ops.where(_f(3) > 0, _f(2), _f(2)),
        "ShapeError",
        "where: shapes do not broadcast; got (3,) and (2,) and (2,)",
    ),
    (
        lambda: ops.dropout(_f(2), p=1.0, generator=Generator(0)),
        "ConfigError",
        "dropout: not a probability; got 1.0, expected 0 <= p < 1",
    ),
    (
        lambda: ~_f(2),
        "DTypeError",
        "~: not a tensor of bools; got float32. hint: compare first: (x > 0) & (y > 0)",
    ),
    # reductions
    (lambda: _f(2, 3).sum(2), "ShapeError", "sum: axis out of range; got 2, expected -2 to 1"),
    (lambda: _f(2, 3).sum((0, -2)), "ShapeError", "sum: the same axis twice; got (0, -2)"),
    (
        lambda: _f(0, 3).max(0),
        "ShapeError",
        "max: nothing to reduce; got (0, 3), expected no empty axis among (0,)",
    ),
    (
        lambda: ops.var(_f(1, 2), 0, correction=1),
        "ShapeError",
        "var: too few elements for the correction; got 1, expected more than 1",
    ),
    # shapes
    (
        lambda: _f(2, 3).reshape(4, -1),
        "ShapeError",
        "reshape: the new shape does not hold the same number of elements; got (4, -1), expected 6 elements",
    ),
    (
        lambda: _f(2, 3).permute(0, 0),
        "ShapeError",
        "permute: not a permutation of the axes; got (0, 0), expected each of 2 axes once",
    ),
    (
        lambda: _f(2, 3).expand(2, 4),
        "ShapeError",
        "expand: shapes do not broadcast; got (2, 3) and (2, 4)",
    ),
    (
        lambda: _f(2, 3).squeeze(0),
        "ShapeError",
        "squeeze: the axis has more than one element; got 2, expected 1",
    ),
    (lambda: _f(2, 3).flatten(1, 0), "ShapeError", "flatten: the first axis comes after the last; got 1 and 0"),
    (lambda: ops.concatenate([]), "ShapeError", "concatenate: no tensors"),
    (
        lambda: ops.concatenate([_f(), _f()]),
        "ShapeError",
        "concatenate: tensors of shape () have no axis to join along. hint: use stack",
    ),
    (
        lambda: ops.concatenate([_f(2, 3), _f(2, 4)]),
        "ShapeError",
        "concatenate: shapes differ beside the axis; got (2, 3) and (2, 4)",
    ),
    (lambda: ops.stack([_f(2), _f(3)]), "ShapeError", "stack: shapes differ; got (2,) and (3,)"),
    (lambda: ops.split(_f(5), 2), "ShapeError", "split: the axis is not a multiple of the parts; got 5 and 2"),
    (
        lambda: ops.split(_f(5), [2, 2]),
        "ShapeError",
        "split: the lengths do not add up to the axis; got [2, 2], expected a sum of 5",
    ),
    # indices
    (lambda: _f(2, 3)[2], "ShapeError", "getitem: index out of range; got 2, expected -2 to 1"),
    (lambda: _f(2, 3)[0, 0, 0], "ShapeError", "getitem: too many indices; got 3, expected at most 2"),
    (lambda: _f(2, 3)[..., ...], "ShapeError", "getitem: more than one Ellipsis in an index"),
    (
        lambda: _f(2)[0.5],
        "DTypeError",
        f"getitem: not an index; got float, expected integer, slice, None or .... hint: {_MASK_HINT}",
    ),
    (lambda: _f(2)[[0, 5]], "ShapeError", "getitem: index out of range; got 5, expected -2 to 1"),
    (
        lambda: _f(2)[_f(2) > 0],
        "DTypeError",
        f"getitem: an index must be integers; got bool. hint: {_MASK_HINT}",
    ),
    (
        lambda: _f(2)[np.array([True, False])],
        "DTypeError",
        f"getitem: an index of this type; got bool, expected integers. hint: {_MASK_HINT}",
    ),
    (
        lambda: _f(2, 2)[[0], [1]],
        "ShapeError",
        "getitem: more than one tensor in an index; got 2. hint: index one axis at a time",
    ),
    (
        lambda: ops.embedding(_f(3, 2), _f(2)),
        "DTypeError",
        "embedding: an index must be integers; got float32. hint: cast it first",
    ),
    (lambda: ops.pick(_f(2, 3), _i(3)), "ShapeError", "pick: the index does not fit; got (3,), expected (2,)"),
    # products and fused operations
    (lambda: _f(2, 3) @ _f(2, 3), "ShapeError", "matmul: inner lengths differ; got (2, 3) @ (2, 3)"),
    (
        lambda: _f(2, 3) @ _f(),
        "ShapeError",
        "matmul: not a matrix or vector; got (2, 3) @ (). hint: multiply by a number with *",
    ),
    (
        lambda: _f(2, 2, 3) @ _f(3, 3, 2),
        "ShapeError",
        "matmul: shapes do not broadcast; got (2,) and (3,)",
    ),
    (
        lambda: ops.linear(_f(2, 3), _f(4, 2)),
        "ShapeError",
        "linear: weight does not fit the input; got x (2, 3), weight (4, 2)",
    ),
    (
        lambda: ops.linear(_f(2, 3), _f(4, 3), _f(3)),
        "ShapeError",
        "linear: bias does not fit the weight; got (3,), expected (4,)",
    ),
    (
        lambda: ops.linear(_f(2, 3), _f(4, 3), residual=_f(4)),
        "ShapeError",
        "linear: residual does not fit the result; got (4,), expected (2, 4)",
    ),
    (
        lambda: held_linear(_f(2, 3), _f(4, 3).array, None, None, _f(4)),
        "ShapeError",
        "held_linear: residual does not fit the result; got (4,), expected (2, 4)",
    ),
    (
        lambda: ops.rmsnorm(_f(2, 3), _f(2)),
        "ShapeError",
        "rmsnorm: weight does not fit the last axis; got x (2, 3), weight (2,)",
    ),
    (
        lambda: ops.top_experts(_f(2, 3), active=4),
        "ConfigError",
        "top_experts: no such number of experts can be active; got 4, expected 1 to 3",
    ),
    (
        lambda: ops.top_experts(_f(3), active=1),
        "ShapeError",
        "top_experts: not the logits of a router; got (3,), expected (tokens, experts)",
    ),
    (
        lambda: ops.top_experts(_f(2, 3), active=1, counted=_f(3) > 0),
        "ShapeError",
        "top_experts: counted does not fit the tokens; got (3,), expected (2,)",
    ),
    (
        lambda: ops.top_experts(_f(2, 3), active=1, counted=_f(2)),
        "DTypeError",
        "top_experts: counted is not bool; got float32",
    ),
    (
        lambda: ops.expert_gates(_f(2, 3), _i(2, 4)),
        "ShapeError",
        "expert_gates: the choice does not fit the logits; got logits (2, 3), chosen (2, 4), "
        "expected (N, E) and (N, k)",
    ),
    (
        lambda: ops.expert_gates(_f(1, 3), _i(1, 1) + 4),
        "ShapeError",
        "expert_gates: index out of range; got 4 at position 0, 0, expected 0 to 3",
    ),
    (lambda: ops.mixture_of_experts(_f(2, 3), _f(2, 1), _i(2, 1), []), "ConfigError", _NO_EXPERTS),
    (
        lambda: ops.mixture_of_experts(_f(2, 3), _f(2, 2), _i(2, 1), [(_f(4, 3), _f(4, 3), _f(3, 4))]),
        "ShapeError",
        "mixture_of_experts: tokens, gates and choice do not fit; got x (2, 3), gates (2, 2), chosen (2, 1), "
        "expected (N, D), (N, k), (N, k)",
    ),
    (
        lambda: ops.mixture_of_experts(_f(2, 3), _f(2, 1), _i(2, 1), [(_f(4, 3), _f(4, 3), _f(4, 3))]),
        "ShapeError",
        "mixture_of_experts: weights of expert 0 do not fit; got (4, 3), (4, 3), (4, 3), "
        "expected (4, 3) twice and (3, 4)",
    ),
    (lambda: ops.swiglu(_f(2), _f(3)), "ShapeError", "swiglu: gate and up differ in shape; got (2,) and (3,)"),
    (
        lambda: ops.rope(_f(1, 4, 1, 6), _f(3, 3), _f(3, 3)),
        "ShapeError",
        "rope: position outside the tables; got 3, expected 0 to 2",
    ),
    (
        lambda: ops.attention(_f(1, 2, 3, 4), _f(1, 2, 2, 4), _f(1, 2, 2, 4)),
        "ShapeError",
        "attention: query heads are no multiple of key heads; got 3 and 2",
    ),
    (
        lambda: ops.attention(_f(1, 3, 2, 4), _f(1, 2, 2, 4), _f(1, 2, 2, 4)),
        "ShapeError",
        "attention: more queries than keys in causal attention; got 3 and 2",
    ),
    (
        lambda: ops.attention(_f(1, 2, 2, 4), _f(1, 2, 2, 4), _f(1, 2, 2, 4), dropout=0.5),
        "ConfigError",
        "attention: dropout without a generator. hint: pass generator=",
    ),
    (
        lambda: ops.attention(*[_f(1, 2, 2, 4)] * 3, starts=_i(1, 2)),
        "DTypeError",
        "attention: starts have the wrong type; got int64, expected int32",
    ),
    (
        lambda: ops.attention(*[_f(1, 2, 2, 4)] * 3, starts=_places(1, 3)),
        "ShapeError",
        "attention: starts do not fit; got (1, 3), expected (1, 2), (batch, time)",
    ),
    (
        lambda: ops.attention(*[_f(1, 2, 2, 4)] * 3, starts=_places(1, 2), causal=False),
        "ConfigError",
        "attention: starts in attention that is not causal. hint: pass causal=True",
    ),
    (
        lambda: ops.rope(_f(1, 2, 1, 6), _f(3, 3), _f(3, 3), positions=_places(1, 2), offset=1),
        "ConfigError",
        "rope: an offset beside positions; got 1. hint: add it to the positions",
    ),
    (
        lambda: ops.cross_entropy(_f(2, 3), _i(3)),
        "ShapeError",
        "cross_entropy: targets do not fit the rows; got (3,), expected (2,)",
    ),
    (lambda: ops.cross_entropy(_f(0, 3), _i(0)), "ShapeError", "cross_entropy: no rows; got (0, 3)"),
    (
        lambda: ops.lm_head_loss(_f(2, 3), _f(4, 2), _i(2)),
        "ShapeError",
        "lm_head_loss: head does not fit the states; got x (2, 3), weight (4, 2)",
    ),
    # makers
    (
        lambda: ops.tensor([[1], [2, 3]], **_ON),
        "ShapeError",
        "tensor: the lists are ragged. hint: rows of one length each, or pad them",
    ),
    (lambda: ops.tensor("text", **_ON), "DTypeError", "tensor: not numbers; got str"),
    (
        lambda: ops.tensor([1, 2], requires_grad=True, **_ON),
        "DTypeError",
        "requires_grad: only floats have gradients; got int64",
    ),
    (lambda: ops.zeros((2, -1), **_ON), "ShapeError", "shape: negative length; got (2, -1)"),
]


@pytest.mark.parametrize(("call", "kind", "message"), _REFUSED, ids=[m for _, _, m in _REFUSED])
def test_refusal(call: Callable[[], Any], kind: str, message: str) -> None:
    with pytest.raises(getattr(errors, kind)) as caught:
        call()
    assert str(caught.value) == message
    assert type(caught.value).__name__ == kind
