"""From a Python function to a parallel native kernel: compile it for the types of a call, pack the call, run the pool.

    @kernel
    def _scale_rows(lo, hi, x, y, factor):
        for i in range(lo, hi): ...

    _scale_rows(rows, grain, x, y, 0.5)

The function works on items lo to hi-1; a call splits range(rows) into chunks of `grain` items for the worker pool.
Numba compiles it once for each combination of element types and ranks. It is entered through a trampoline, a few
instructions of LLVM IR that unfold a block of int64 words into the arguments Numba expects, so that a launch creates
no NumPy object and takes about a microsecond. Everything a launch needs is looked up by the shapes and element types
of its arrays and then only addresses and numbers are packed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, overload

import numba
import numba.core.ir as numba_ir
from numba import types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import NumbaError
from numba.core.ir_utils import build_definitions
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.untyped_passes import IRProcessing

from ...base import dtypes
from ...base.errors import KernelError
from ...device import Array, HostDevice, pool
from . import cache, formats
from .trampoline import Ready, launcher

_HALVES: dict[dtypes.DType, types.Type] = {dtypes.float16: formats.float16, dtypes.bfloat16: formats.bfloat16}
_ELEMENTS: dict[dtypes.DType, types.Type] = {d: _HALVES.get(d) or numba.from_dtype(d.numpy) for d in dtypes.ALL}
_SCALARS: dict[type, types.Type] = {bool: types.boolean, int: types.int64, float: types.float64}
_FASTMATH = frozenset({"contract", "nsz"})
_REMEMBERED = 4096  # combinations of shapes a kernel keeps ready


def flat(array: Array) -> Array:
    """The memory from the first element of a strided array on, as one axis: element i lies i steps behind the first.

    Its length reaches the last element in that direction. Elements before the first one (negative strides) have
    negative indices: read and write through `formats.load` and `formats.store`, which do not wrap them.
    """
    reach = 1 + sum(max(0, (n - 1) * s) for n, s in zip(array.shape, array.strides, strict=True)) if array.size else 0
    return Array(array.buffer, (reach,), array.dtype, None, array.offset)


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


class _Pipeline(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_BoundItems, IRProcessing)
        passes.finalize()
        return [passes]


class Kernel:
    """A compiled-on-demand function of items lo to hi-1. `kernel(n_items, grain, *arguments)` launches it.

    Arguments are contiguous Arrays in host memory, ints, floats and bools (int64, float64 and boolean inside).
    Raises KernelError for anything else, for a function that does not compile, and for one that raised.
    """

    def __init__(self, function: FunctionType, fastmath: Collection[str]) -> None:
        self.py_func = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.fastmath = frozenset(fastmath)
        jit: Any = numba.njit
        self._jit = jit(
            nogil=True,
            error_model="numpy",
            boundscheck=False,
            fastmath=set(fastmath),
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            pipeline_class=_Pipeline,
        )(function)
        self._functions: dict[tuple[types.Type, ...], int] = {}
        self._ready: dict[tuple[object, ...], Ready] = {}
        self._libraries: list[Any] = []  # keeps the machine code
        self._launch: Callable[..., None] = self._prepare_and_launch

    def __call__(self, n_items: int, grain: int, *arguments: Array | int | float | bool) -> None:
        try:
            self._launch(n_items, grain, *arguments)
        except TypeError:
            self._check(n_items, grain, arguments)
            raise

    def _check(self, n_items: int, grain: int, arguments: tuple[Any, ...]) -> None:
        """Raises KernelError for a call that can't be made."""
        if not isinstance(n_items, int) or not isinstance(grain, int) or grain < 1:
            raise self._error(
                "not a number of items and a chunk size", (n_items, grain), "two ints, the second positive"
            )
        if len(arguments) != self.py_func.__code__.co_argcount - 2:
            raise self._error("wrong number of arguments", len(arguments), self.py_func.__code__.co_argcount - 2)
        for position, argument in enumerate(arguments):
            if isinstance(argument, Array):
                if not argument.is_contiguous:
                    found = f"argument {position} of shape {argument.shape} and strides {argument.strides}"
                    raise self._error(
                        "an array that is not contiguous", found, hint="copy it, or pass flat(array) and its strides"
                    )
                if not isinstance(argument.device, HostDevice):
                    raise self._error(
                        "an array that is not in host memory", f"argument {position} on {argument.device}"
                    )
            elif type(argument) not in _SCALARS:
                raise self._error(
                    "not an argument of a kernel",
                    f"argument {position}, {type(argument).__name__}",
                    "Array, int, float or bool",
                )

    def _prepare_and_launch(self, n_items: int, grain: int, *arguments: Any) -> None:
        """A call with types or shapes not seen before."""
        self._check(n_items, grain, arguments)
        pattern = "".join("a" if isinstance(a, Array) else "s" for a in arguments)
        with global_compiler_lock:
            if len(self._ready) >= _REMEMBERED:
                self._ready.clear()
            launch = launcher(pattern)(self._ready, self._prepare_and_launch, self._failed, pool)
            self._ready[launch.key(*arguments)] = self._make_ready(arguments)
            self._launch = launch
        launch(n_items, grain, *arguments)

    def _make_ready(self, arguments: tuple[Any, ...]) -> Ready:
        numba_types = tuple(
            types.Array(_ELEMENTS[a.dtype], a.rank, "C") if isinstance(a, Array) else _SCALARS[type(a)]
            for a in arguments
        )
        if numba_types not in self._functions:
            self._functions[numba_types] = self._compile(numba_types)
        kinds = tuple(a.rank if isinstance(a, Array) else type(a).__name__ for a in arguments)
        layout = [n for a in arguments if isinstance(a, Array) for n in (a.dtype.itemsize, *a.shape)]
        return Ready(self._functions[numba_types], kinds, layout)

    def _compile(self, kinds: tuple[types.Type, ...]) -> int:
        """Address of the function for these argument types, from the disk or compiled now."""
        arguments = (types.int64, types.int64, *kinds)
        key = cache.key_of(self.py_func, arguments, sorted(self.fastmath), cache.source_hash(__file__))
        context: Any = cpu_target.target_context
        stored = cache.read(key)
        if stored is not None:
            rtsys.initialize(context)  # symbols of the memory that a kernel may ask for
            code, name = stored
            library = context.codegen().unserialize_library(code)
        else:
            try:
                self._jit.compile(arguments)
            except NumbaError as error:
                raise self._error("does not compile", ", ".join(map(str, kinds)), hint=str(error)) from error
            result = self._jit.overloads[arguments]
            library, name = result.library, result.fndesc.llvm_func_name
            cache.write(key, (library.serialize_using_object_code(), name))
        self._libraries.append(library)
        return library.get_pointer_to_function(name)

    def _error(self, what: str, got: object, expected: object = None, hint: str | None = None) -> KernelError:
        return KernelError(self.__name__, what, got=got, expected=expected, hint=hint)

    def _failed(self, error: Exception | None) -> KernelError:
        if error is not None:
            return self._error("a number that does not fit", error, "ints of 64 bits")
        return self._error("raised an exception in compiled code", None, hint="kernels must not raise")


@overload
def kernel(function: Callable[..., None]) -> Kernel: ...
@overload
def kernel(*, fastmath: Collection[str]) -> Callable[[Callable[..., None]], Kernel]: ...


def kernel(
    function: Callable[..., None] | None = None, *, fastmath: Collection[str] = _FASTMATH
) -> Kernel | Callable[[Callable[..., None]], Kernel]:
    """Makes a function `(lo, hi, *arguments)` a Kernel.

    `fastmath` names LLVM's licences for floats: by default a multiply and an add may become one ("contract") and the
    sign of zero is free ("nsz"). Reductions add "reassoc" to vectorise: sums in another order, still the same order
    in every run. Raises KernelError for "nnan" and "ninf", which would make non-finite numbers undefined.
    """

    def make(f: Callable[..., None]) -> Kernel:
        assert isinstance(f, FunctionType)
        bad = set(fastmath) - {"contract", "nsz", "reassoc", "arcp", "afn"}
        if bad:
            raise KernelError(
                f.__name__,
                "fast-math flags that are not allowed",
                got=sorted(bad),
                expected="contract, nsz, reassoc, arcp, afn",
            )
        return Kernel(f, fastmath)

    return make if function is None else make(function)
