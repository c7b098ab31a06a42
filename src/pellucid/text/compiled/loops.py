"""Kernels over whole arrays: `kernels.cpu.launch.kernel`, whose arrays know their shapes.

A kernel of numbers gets pointers and addresses its elements by strides; one that walks through text wants `len(x)`.
`@loops` makes a kernel out of a function `(lo, hi, *arguments)` whose arrays are contiguous: each is handed over with
the lengths of its axes, and they become an array again on the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.np import arrayobj

from ...device import Array
from ...kernels.cpu.functions import intrinsic
from ...kernels.cpu.launch import kernel

_njit: Any = njit


@intrinsic
def shaped(typing_context, x, lengths):
    """The contiguous array with those lengths of axes from the first element of x on."""
    kind = types.Array(x.dtype, lengths.count, "C")

    def generate(context, builder, signature, arguments):
        pointer = cgutils.create_struct_proxy(x)(context, builder, arguments[0])
        axes = cgutils.unpack_tuple(builder, arguments[1], kind.ndim)
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(x.dtype)))
        steps, step = [], size
        for length in reversed(axes):
            steps.insert(0, step)
            step = builder.mul(step, length)
        array = arrayobj.make_array(kind)(context, builder)
        arrayobj.populate_array(array, pointer.data, axes, steps, size, None)
        return array._getvalue()

    return kind(x, lengths), generate


class Loops:
    """A kernel `(n_items, grain, *arguments)`; see the abstract."""

    def __init__(self, function: FunctionType) -> None:
        self.py_func = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._kernels: dict[tuple[int, ...], Callable[..., None]] = {}
        self._body = _njit(nogil=True, error_model="numpy", boundscheck=False, forceinline=True)(function)

    def __call__(self, n_items: int, grain: int, *arguments: Array | int | float | bool) -> None:
        ranks = tuple(a.rank if isinstance(a, Array) else 0 for a in arguments)
        if ranks not in self._kernels:
            self._kernels[ranks] = self._entry(ranks)
        flat: list[Any] = []
        for argument in arguments:
            flat.append(argument)
            if isinstance(argument, Array):
                assert argument.is_contiguous
                flat += argument.shape
        self._kernels[ranks](n_items, grain, *flat)

    def _entry(self, ranks: tuple[int, ...]) -> Callable[..., None]:
        """The kernel for arguments of these ranks, 0 for a number."""
        taken, passed = ["lo", "hi"], ["lo", "hi"]
        for i, rank in enumerate(ranks):
            lengths = [f"x{i}_{axis}" for axis in range(rank)]
            taken += [f"x{i}", *lengths]
            passed.append(f"shaped(x{i}, ({', '.join(lengths)},))" if rank else f"x{i}")
        name = self.__name__
        source = f"def {name}({', '.join(taken)}):\n    body({', '.join(passed)})\n"
        scope: dict[str, Any] = {"body": self._body, "shaped": shaped, "__name__": self.py_func.__module__}
        exec(compile(source, f"<loops {name}>", "exec"), scope)
        return kernel(scope[name])


def loops(function: Callable[..., None]) -> Loops:
    """Makes a function `(lo, hi, *arguments)` a kernel whose arrays have shapes."""
    assert isinstance(function, FunctionType)
    return Loops(function)
