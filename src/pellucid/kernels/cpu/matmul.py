"""Matrix products on the CPU: checks, the memory of plans, and the launches that carry a plan out.

The work is planned in `gemm_plan.py` and done by the code that `gemm_ir.py` generates. A plan depends on shapes,
strides and dtypes only and is remembered, so a repeated product costs a look into a dict and one call of native code,
which fills in addresses and launches the plan's steps one after another.
"""

from __future__ import annotations

from typing import Any

from ...base import dtypes, shapes
from ...base.dtypes import DType
from ...base.errors import DTypeError, ShapeError
from ...device import Array, pool
from . import gemm_plan, isa
from .gemm_ir import PROGRAM
from .gemm_plan import Plan
from .launch import Program
from .memory import cast, copy
from .reduce import sum as sum_of
from .small_matmul import SmallPlan, gradient_plan, small_plan
from .vectors_ir import Format

_PLANS = 4096  # remembered
_pool_run = pool.native_run()
_program = Program("matmul", len(PROGRAM), gemm_plan.program)
_Key = tuple[object, object, object, object, object, object, object, DType | None, DType | None]
_plans: dict[tuple[_Key, str, int], Plan] = {}
_small: dict[_Key, SmallPlan] = {}


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    operand_dtype: DType | None = None,
    result_dtype: DType | None = None,
) -> Array:
    """y = a @ b + bias.   a: (..., M, K), b: (..., K, N), batch axes broadcast, any strides; bias: (N,), or
    (M, N) where that is the shape of y. b may be int8, which is whole numbers: weights that are held.

    The result has the dtype in which a and b are computed together; narrow floats are accumulated in float32.
    operand_dtype: bfloat16 rounds a and b to it while packing (mixed precision); sums stay float32.
    result_dtype: rounds the sums to it instead.

    Raises:
        ShapeError: axes that do not fit.
        DTypeError: other dtypes that are no floats, an operand_dtype other than bfloat16, float64 sums rounded to less.
    """
    about_bias = None
    if bias is not None:
        if len(bias.shape) == 2:
            bias = _as_sums(bias, a, b)
        about_bias = (bias.shape, bias.strides, bias.dtype)
    key = (a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, about_bias, operand_dtype, result_dtype)
    small = _small.get(key)
    if small is not None:
        return small.run(a, b, bias)
    plan = _plans.get((key, isa.current().name, pool.threads())) or _plan(key, a, b, bias)
    if isinstance(plan, SmallPlan):
        return plan.run(a, b, bias)
    y = a.buffer.device.empty(plan.shape, plan.dtype)
    _run(plan, a, b, bias, y)
    return y


def matmul_into(y: Array, a: Array, b: Array, *, operand_dtype: DType | None = None) -> None:
    """y = a @ b in memory that is there: contiguous, of the shape and a dtype `matmul` would give."""
    key = (a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, None, operand_dtype, y.dtype)
    plan = _small.get(key) or _plans.get((key, isa.current().name, pool.threads())) or _plan(key, a, b, None)
    assert y.shape == plan.shape
    assert y.is_contiguous
    if isinstance(plan, SmallPlan):
        plan.run_into(y, a, b, None)
    else:
        _run(plan, a, b, None, y)


def _as_sums(bias: Array, a: Array, b: Array) -> Array:
    """A matrix to start the sums from: it is read as they are, in place, if it is laid out like them."""
    sums = dtypes.float64 if dtypes.promote(a.dtype, b.dtype) is dtypes.float64 else dtypes.float32
    if bias.dtype is not sums:
        return cast(bias, dtype=sums)
    return bias if bias.is_contiguous else copy(bias)


def _plan(key: _Key, a: Array, b: Array, bias: Array | None) -> Plan | SmallPlan:
    """The plan of a product that was not asked for yet."""
    path = isa.current()
    plan = _checked_plan(a, b, bias, *key[-2:], path)
    if isinstance(plan, SmallPlan):  # which depends on neither the path nor the threads
        _keep(_small, key, plan)
    else:
        _keep(_plans, (key, path.name, pool.threads()), plan)
    return plan


def _keep(plans: dict[Any, Any], key: object, plan: Plan | SmallPlan) -> None:
    if len(plans) >= _PLANS:
        plans.clear()
    plans[key] = plan


def linear_backward(
    dy: Array,
    x: Array,
    weight: Array,
    *,
    operand_dtype: DType | None,
    for_x: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[Array | None, Array | None, Array | None]:
    """dx = dy weight, dweight = dy^T x, dbias = sum dy over rows: those wanted, None for the others. dx has the dtype
    of x, dweight and dbias that of weight.

    dy: (M, N), x: (M, K), weight: (N, K); operand_dtype as in `matmul`.
    """
    if operand_dtype is None:
        small = gradient_plan(dy, x, weight, for_x, for_weight, for_bias)
        if small is not None:
            return small.run(dy, x, weight)
    dx = dweight = dbias = None
    if for_x:
        dx = matmul(dy, weight, operand_dtype=operand_dtype, result_dtype=x.dtype)
    if for_weight:
        dweight = matmul(dy.transpose(), x, operand_dtype=operand_dtype, result_dtype=weight.dtype)
    if for_bias:
        wide = dy if dy.dtype is weight.dtype else cast(dy, dtype=weight.dtype)
        dbias = sum_of(wide, axes=(0,), keepdims=False)
    return dx, dweight, dbias


def _run(plan: Plan, a: Array, b: Array, bias: Array | None, y: Array) -> None:
    scratch = a.buffer.device.allocate(plan.scratch_bytes)
    if plan.parallel:
        pool.ready()
    _program.launch(1, 1, a, b, a if bias is None else bias, y, scratch.address, plan.steps, _pool_run)


def _checked_plan(
    a: Array, b: Array, bias: Array | None, operand: DType | None, result: DType | None, path: isa.Isa
) -> Plan | SmallPlan:
    if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        got, expected = f"{a.shape} @ {b.shape}", "(..., M, K) @ (..., K, N)"
        raise ShapeError("matmul", "shapes do not multiply", got=got, expected=expected)
    batch = shapes.broadcast(a.shape[:-2], b.shape[:-2], where="matmul")
    shape = (*batch, a.shape[-2], b.shape[-1])
    fitting = (shape[-1:], shape) if len(shape) == 2 else (shape[-1:],)
    if bias is not None and bias.shape not in fitting:
        expected = " or ".join(map(str, fitting))
        raise ShapeError("matmul", "the bias does not fit", got=bias.shape, expected=expected)
    form = _format(a.dtype, b.dtype, operand, path)
    dtype = dtypes.promote(a.dtype, b.dtype) if result is None else result
    if not dtype.is_float or (dtype is dtypes.float64) != (form.accumulator == "double"):
        expected = "float64" if form.accumulator == "double" else "float32, bfloat16 or float16"
        raise DTypeError("matmul", "sums can't be rounded to this", got=dtype.name, expected=expected)
    small = small_plan(a, b, bias, operand, dtype)
    if small is not None:
        return small
    a, b = a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:]))
    return gemm_plan.make(a, b, bias, form, dtype, shape)


def _format(a: DType, b: DType, operand: DType | None, path: isa.Isa) -> Format:
    """The packed format in which operands are multiplied."""
    for dtype in (a, dtypes.float32 if b is dtypes.int8 else b):
        if not dtype.is_float:
            expected = ", ".join(d.name for d in dtypes.FLOATS)
            raise DTypeError(
                "matmul", "not a number format of matrix products", got=dtype.name, expected=f"one of {expected}"
            )
    if operand not in (None, dtypes.bfloat16):
        raise DTypeError("matmul", "operands can't be rounded to this", got=operand, expected="bfloat16 or None")
    together = dtypes.promote(a, b)
    if together is dtypes.float64:
        return Format("rounded64" if operand is dtypes.bfloat16 else "float64", path)
    if dtypes.bfloat16 in (operand, together):
        return Format("tiles" if path.tiles else "pairs" if path.pairs else "rounded", path)
    return Format("float32", path)
