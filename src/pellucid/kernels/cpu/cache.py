"""Compiled kernels on disk: one file a specialisation, named by a hash of everything its machine code depends on.

The hash covers the bytecode of the kernel and of every function it calls, the constants it reads from its module, the
source files of hand-written code generators (`formats`), the argument types and options, the versions of Python, Numba
and LLVM, and the host CPU. So nothing is ever out of date: a change gives another name. A file appears by a
rename and carries a checksum, so that processes that write at the same time, and a full disk, do no harm.

A folder that can't be written means compiling in every process; `cache_state` says so, and why.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

from ...base.settings import settings


@dataclass(frozen=True)
class CacheState:
    """What `pellucid doctor` shows. `problem` is None, or why nothing is kept on disk."""

    folder: Path
    problem: str | None
    hits: int
    misses: int


_hits = _misses = 0
_problem: str | None = None


def cache_state() -> CacheState:
    """The cache of this process: where, whether it works, how many specialisations it had and lacked."""
    return CacheState(_folder(), _problem, _hits, _misses)


def read(key: str) -> Any:
    """What `write` kept under that key, or None."""
    global _hits, _misses
    try:
        blob = (_folder() / key).read_bytes()
    except OSError:
        blob = b""
    if hashlib.sha256(blob[32:]).digest() != blob[:32]:
        _misses += 1
        return None
    _hits += 1
    return pickle.loads(blob[32:])


def write(key: str, value: Any) -> None:
    """Keeps a value for later processes. Failing to do so is recorded, not raised."""
    global _problem
    body = pickle.dumps(value)
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix="new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(name, folder / key)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        _problem = str(error)


def key_of(function: FunctionType, *facts: object) -> str:
    """File name for a function compiled under these facts (anything with a stable `repr`)."""
    digest = hashlib.sha256()
    for part in (*_host(), *facts):
        digest.update(repr(part).encode() + b"\0")
    for part in _function_parts(function, set()):
        digest.update(part + b"\0")
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}-{digest.hexdigest()[:32]}"


@cache
def _host() -> tuple[object, ...]:
    features = llvm.get_host_cpu_features().flatten()
    versions = (sys.version, numba.__version__, np.__version__, llvm.llvm_version_info)
    return (*versions, llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def _folder() -> Path:
    return settings().cache / "kernels"


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Everything that shapes the code generated for a value a kernel mentions."""
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic) or value is None:
        yield repr(value).encode()
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape)).encode() + value.tobytes()
    elif isinstance(value, Dispatcher):
        options = {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in value.targetoptions.items()}
        yield repr(sorted(options.items(), key=str)).encode()
        yield from _function_parts(value.py_func, seen)
    else:
        yield from _source_parts(value)


def _function_parts(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    """A function that Numba compiles: its bytecode, and what it mentions."""
    yield from _code_parts(function.__code__)
    yield repr(function.__defaults__).encode()
    for cell in function.__closure__ or ():
        yield from _parts(cell.cell_contents, seen)
    for found in _mentioned(function):
        yield from _parts(found, seen)


def _code_parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(constant).encode()


def _mentioned(function: FunctionType) -> Iterator[object]:
    """Values of the global names in a function; of a module, the values of the attributes it may take from it."""
    names: list[str] = []
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    for name in sorted(set(names)):
        if name in function.__globals__:
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                if not _is_library(value.__name__):
                    yield from (vars(value)[inner] for inner in sorted(set(names)) if inner in vars(value))
            else:
                yield value


def _source_parts(value: Any) -> Iterator[bytes]:
    """What is not compiled from bytecode (an intrinsic, an overload, a class): its name, and the source of its module
    and of those modules beside it that it takes something from."""
    definition = getattr(value, "_defn", value)
    name = getattr(definition, "__module__", None) or type(value).__module__
    yield f"{name}.{getattr(definition, '__qualname__', type(value).__qualname__)}".encode()
    found, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in found or module is None or _is_library(name):
            continue
        found.add(name)
        for inner in list(vars(module).values()):
            other = inner.__name__ if isinstance(inner, ModuleType) else getattr(inner, "__module__", None)
            if isinstance(other, str) and other.rpartition(".")[0] == name.rpartition(".")[0] != "":
                waiting.append(other)
    yield from (source_hash(getattr(sys.modules[name], "__file__", None) or "") for name in sorted(found))


def _is_library(module: str) -> bool:
    """Code whose version is part of every key."""
    return module.partition(".")[0] in ("numba", "numpy", "math", "cmath", "builtins")


@cache
def source_hash(path: str) -> bytes:
    """Hash of a source file; the same for one that can't be read."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).digest()
    return b"unreadable"
