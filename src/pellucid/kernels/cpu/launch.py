"""From a Python function to a parallel native kernel: compile it for the types of a call, pack the call, run the pool.

    @kernel
    def _scale_rows(lo, hi, x, y, factor):
        for i in range(lo, hi): ...

    _scale_rows(rows, grain, x, y, 0.5)

The function works on items lo to hi-1; a call splits range(rows) into chunks of `grain` items for the worker pool.
An Array reaches it as a pointer to its first element, whatever its shape and strides: a Numba array of one axis and
length 1, to be read and written through `formats.load` and `formats.store`. Numba compiles it once for each combination
of element types. A launch is native code (`launch_ir`) that finds the combination, reads the addresses out of the
Arrays and enters the function through a trampoline, so it creates no object and takes a tenth of a microsecond.
"""

from __future__ import annotations

import operator
from array import array as int64_words
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, overload

import numba
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

from ...base import dtypes
from ...base.errors import KernelError
from ...device import Array, Buffer, HostDevice, pool
from ...device.objects import builtin
from . import cache, formats, pipeline
from .launch_ir import HEAD, MOST_ARGUMENTS, MOST_LISTED, allow, native_launch
from .trampoline import trampoline

_HALVES: dict[dtypes.DType, types.Type] = {dtypes.float16: formats.float16, dtypes.bfloat16: formats.bfloat16}
_ELEMENTS: dict[dtypes.DType, types.Type] = {d: _HALVES.get(d) or numba.from_dtype(d.numpy) for d in dtypes.ALL}
_SCALARS: dict[type, types.Type] = {bool: types.boolean, int: types.int64, float: types.float64}
_FASTMATH = frozenset({"contract", "nsz"})
_all: list[Launch] = []
_recorder: Callable[[Launch], Callable[..., None]] | None = None


def _tag(argument: Any) -> int:
    """What a launch tells arguments apart by."""
    if isinstance(argument, list):
        return id(argument[0].dtype) + 1
    return id(argument.dtype if isinstance(argument, Array) else type(argument))


def _kind(argument: Any) -> str:
    return "array" if isinstance(argument, Array | list) else type(argument).__name__


def _numba_type(argument: Any) -> types.Type:
    if isinstance(argument, list):
        return types.Array(types.int64, 1, "C")
    return types.Array(_ELEMENTS[argument.dtype], 1, "C") if isinstance(argument, Array) else _SCALARS[type(argument)]


def _is_whole(array: Array) -> bool:
    """Whether native code can read every slot of an Array and its Buffer, as far as they are in host memory."""
    if any(not hasattr(array, name) for name in ("buffer", "dtype", "offset")) or array.dtype not in _ELEMENTS:
        return False
    if any(not hasattr(array.buffer, name) for name in ("address", "device")):
        return False
    if not isinstance(array.buffer.device, HostDevice):
        return True
    places = array.offset, array.buffer.address
    numbers = [operator.index(n) for n in places if hasattr(n, "__index__")]
    return type(array.buffer) is Buffer and len(numbers) == 2 and all(0 <= n < 2**63 for n in numbers)


class Launch:
    """A native function of items lo to hi-1. `launch(n_items, grain, *arguments)` has the worker pool run it.

    Arguments are Arrays in host memory, lists of them (int64 addresses inside, see `formats.array_at`), ints, floats
    and bools (int64, float64 and boolean inside). Raises KernelError for anything else.
    """

    def __init__(self, name: str, count: int) -> None:
        assert count <= MOST_ARGUMENTS
        self.__name__, self._count = name, count
        self._rows: dict[tuple[int, ...], list[int]] = {}
        self._callbacks = (self._prepare, self._failed)  # the tables hold their addresses
        self._tables: list[int64_words[int]] = []  # a launch may still run with one that was replaced
        self.native: Callable[..., None] = self._prepare
        self.launch = self.native  # or what `record_by` put in its place
        _all.append(self)
        if _recorder is not None:
            self.launch = _recorder(self)

    def entry(self, arguments: tuple[Any, ...]) -> tuple[int, int]:
        """Addresses, for arguments of these types: a function of a block (see `launch_ir`), and what it finds in it."""
        raise NotImplementedError

    def _check(self, n_items: int, grain: int, arguments: tuple[Any, ...]) -> None:
        """Raises KernelError for a call that can't be made."""
        if type(n_items) is not int or type(grain) is not int or grain < 1:
            raise self._error(
                "not a number of items and a chunk size", (n_items, grain), "two ints, the second positive"
            )
        if len(arguments) != self._count:
            raise self._error("wrong number of arguments", len(arguments), self._count)
        for position, argument in enumerate(arguments):
            arrays = argument if type(argument) is list else [argument] if type(argument) is Array else []
            for array in arrays:
                if type(array) is Array and not _is_whole(array):
                    raise self._error(
                        "an array that holds no place in memory",
                        f"argument {position}",
                        hint="nobody changes an Array or its Buffer: make another",
                    )
                if type(array) is not Array or array.dtype is not arrays[0].dtype:
                    raise self._error("a list of different things", f"argument {position}", "Arrays of one dtype")
                if not isinstance(array.device, HostDevice):
                    raise self._error("an array that is not in host memory", f"argument {position} on {array.device}")
                allow(type(array.device))
            if not arrays and type(argument) not in _SCALARS:
                raise self._error(
                    "not an argument of a kernel",
                    f"argument {position}, {type(argument).__name__}",
                    "Array, list of Arrays that is not empty, int, float or bool",
                )
            if len(arrays) > MOST_LISTED:
                raise self._error("too many arrays in a list", len(arrays), f"at most {MOST_LISTED}")
        for number in (n_items, grain, *(a for a in arguments if type(a) is int)):
            if not -(2**63) <= number < 2**63:
                raise self._error("a number that does not fit", number, "ints of 64 bits")

    def _prepare(self, n_items: int, grain: int, *arguments: Any) -> None:
        """A call that native code can't make: element types not seen before, workers that don't run yet, a mistake."""
        self._check(n_items, grain, arguments)
        if n_items <= 0:
            return
        if grain < n_items:
            pool.start()
        tags = tuple(_tag(a) for a in arguments)
        with global_compiler_lock:
            if tags not in self._rows:
                self._rows[tags] = self._row(arguments, tags)
                words = [self._count, len(self._rows), *map(id, self._callbacks), pool.running_flag()]
                assert len(words) == HEAD
                table = int64_words("q", [*words, *(word for row in self._rows.values() for word in row)])
                self._tables.append(table)
                before, self.native = self.native, builtin(self.__name__, native_launch(), table.buffer_info()[0])
                if self.launch == before:
                    self.launch = self.native
        self.native(n_items, grain, *arguments)

    def _row(self, arguments: tuple[Any, ...], tags: tuple[int, ...]) -> list[int]:
        """One combination of element types in the table: see `launch_ir`."""
        row = [*self.entry(arguments)]
        for argument, tag in zip(arguments, tags, strict=True):
            array = argument[0] if isinstance(argument, list) else argument
            row += [tag, array.dtype.itemsize if isinstance(array, Array) else 0]
        return row

    def _error(self, what: str, got: object, expected: object = None, hint: str | None = None) -> KernelError:
        return KernelError(self.__name__, what, got=got, expected=expected, hint=hint)

    def _failed(self) -> None:
        raise self._error("raised an exception in compiled code", None, hint="kernels must not raise")


def record_by(recorder: Callable[[Launch], Callable[..., None]] | None) -> None:
    """Has every launch of every thread go through what `recorder` makes of it, which calls its `native`; None: straight
    to native code again."""
    global _recorder
    _recorder = recorder
    for one in list(_all):
        one.launch = one.native if recorder is None else recorder(one)


class Program(Launch):
    """Generated code that reads the block of a launch itself; the types of the arguments make no difference to it."""

    def __init__(self, name: str, count: int, address: Callable[[], int]) -> None:
        super().__init__(name, count)
        self._address = address

    def entry(self, arguments: tuple[Any, ...]) -> tuple[int, int]:
        return self._address(), 0


class Kernel(Launch):
    """A compiled-on-demand function of items lo to hi-1. `kernel(n_items, grain, *arguments)` launches it.

    `launch` is the same call without the step through this class.
    Raises KernelError for a function that does not compile, and for one that raised.
    """

    def __init__(self, function: FunctionType, fastmath: Collection[str]) -> None:
        super().__init__(function.__name__, function.__code__.co_argcount - 2)
        self.py_func, self.__doc__ = function, function.__doc__
        self.fastmath = frozenset(fastmath)
        jit: Any = numba.njit
        self._jit = jit(
            nogil=True,
            error_model="numpy",
            boundscheck=False,
            fastmath=set(fastmath),
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            pipeline_class=pipeline.Pipeline,
        )(function)
        self._libraries: list[Any] = []  # keeps the machine code

    def __call__(self, n_items: int, grain: int, *arguments: Array | list[Array] | int | float | bool) -> None:
        self.launch(n_items, grain, *arguments)

    def entry(self, arguments: tuple[Any, ...]) -> tuple[int, int]:
        return trampoline(tuple(map(_kind, arguments))), self._compile(tuple(map(_numba_type, arguments)))

    def _compile(self, kinds: tuple[types.Type, ...]) -> int:
        """Address of the function for these argument types, from the disk or compiled now."""
        arguments = (types.int64, types.int64, *kinds)
        context: Any = cpu_target.target_context
        key = cache.key_of(self.py_func, arguments, sorted(self.fastmath), cache.source_hash(pipeline.__file__))
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
