"""How Numba compiles a kernel: its own passes, and one of ours that bounds the items a kernel works on.

Part of the key of every compiled kernel on disk (see `cache`), so what a launch does stands elsewhere.
"""

from __future__ import annotations

import operator
from typing import Any

import numba.core.ir as numba_ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions
from numba.core.untyped_passes import IRProcessing

_ITEMS = (1 << 61) - 1


@register_pass(mutates_CFG=False, analysis_only=False)
class _BoundItems(FunctionPass):
    """Replaces `lo` and `hi` at the top of a kernel by `lo & _ITEMS` and `hi & _ITEMS`, which are the same numbers.

    It tells LLVM that range(lo, hi) holds no negative index. Without it every `x[i]` would test i for an index that
    wraps round, and a loop with such tests reads and writes its vectors element by element.
    """

    _name = "pellucid_bound_items"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> Any:
        block = state.func_ir.blocks[min(state.func_ir.blocks)]
        body: list[Any] = []
        for statement in block.body:
            value, loc = getattr(statement, "value", None), statement.loc
            if isinstance(value, numba_ir.Arg) and value.index < 2:
                scope = statement.target.scope
                raw, bound = scope.redefine(f"{value.name}.raw", loc), scope.redefine(f"{value.name}.bound", loc)
                body.append(numba_ir.Assign(value, raw, loc))
                body.append(numba_ir.Assign(numba_ir.Const(_ITEMS, loc), bound, loc))
                body.append(numba_ir.Assign(numba_ir.Expr.binop(operator.and_, raw, bound, loc), statement.target, loc))
            else:
                body.append(statement)
        block.body = body
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True  # it changed the function


class Pipeline(CompilerBase):
    """The compiler of kernels."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_BoundItems, IRProcessing)
        passes.finalize()
        return [passes]
