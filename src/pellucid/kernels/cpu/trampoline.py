"""Native entry points and packed blocks: how a launch hands its arguments to a function that Numba compiled.

A block of int64 words describes the arguments of one launch. `trampoline` makes the native function that every thread
of the pool calls with it: a few instructions of LLVM IR that unfold the block into what Numba's calling convention
wants. `launcher` makes the Python function that fills the block. Both depend on the kinds of the arguments only and
serve every kernel with the same kinds.

Block: function, status, then per argument (array: address of its buffer, offset in elements; scalar: its value), then
per array its element size in bytes and its lengths. Only the middle part changes between launches with the same shapes.
"""

from __future__ import annotations

import struct
from array import array as int64_words
from collections.abc import Callable
from typing import Any

from ...device import pool

Kinds = tuple[int | str, ...]
"""Per argument: the rank of an array, or "int", "float", "bool"."""

_HEAD = 2  # words before the arguments: function and status


class Ready:
    """What a launch with known element types and shapes needs.

    Attributes:
        trampoline: address of the entry point.
        pack: writes the variable part of a block.
        free: blocks (words, address) not in use; a launch takes one and gives it back.
    """

    __slots__ = ("free", "pack", "template", "trampoline")

    def __init__(self, function: int, kinds: Kinds, layout: list[int]) -> None:
        """`layout`: the last part of the block."""
        words = ["qq" if isinstance(kind, int) else "d" if kind == "float" else "q" for kind in kinds]
        form = struct.Struct("=" + "".join(words))
        self.trampoline = trampoline(kinds)
        self.pack = form.pack_into
        self.template = int64_words("q", [function, 0, *[0] * (form.size // 8), *layout])
        self.free: list[tuple[int64_words[int], int]] = []

    def block(self) -> tuple[int64_words[int], int]:
        """A new block and its address."""
        words = self.template[:]
        return words, words.buffer_info()[0]


_launchers: dict[str, Callable[..., Any]] = {}


def launcher(pattern: str) -> Callable[..., Any]:
    """The launch function for arguments of these kinds ("a" an Array, "s" a scalar), written out.

    It is generated, because a loop over the arguments would take longer than the rest of a launch.
    """
    if pattern in _launchers:
        return _launchers[pattern]
    names = [f"x{i}" for i in range(len(pattern))]
    looks = [
        f"{x}.dtype, {x}.shape, {x}.strides" if p == "a" else f"{x}.__class__"
        for x, p in zip(names, pattern, strict=True)
    ]
    packs = [f"{x}.buffer.address, {x}.offset" if p == "a" else x for x, p in zip(names, pattern, strict=True)]
    arguments = "".join(f", {x}" for x in names)
    source = f"""
def make(ready, prepare, failed, pool):
    def launch(n, grain{arguments}):
        try:
            found = ready[({"".join(f"{x}, " for x in looks)})]
        except (KeyError, AttributeError):
            return prepare(n, grain{arguments})
        if grain < 1:
            return prepare(n, grain{arguments})
        try:
            words, address = block = found.free.pop()
        except IndexError:
            words, address = block = found.block()
        try:
            found.pack(words, {8 * _HEAD}, {", ".join(packs)})
        except error as e:
            raise failed(e) from None
        pool.run(found.trampoline, address, n, grain)
        if words[1]:
            raise failed(None)
        found.free.append(block)
    launch.key = lambda {", ".join(names)}: ({"".join(f"{x}, " for x in looks)})
    return launch
"""
    scope: dict[str, Any] = {"error": struct.error}
    exec(compile(source, f"<launch {pattern}>", "exec"), scope)
    _launchers[pattern] = scope["make"]
    return scope["make"]


_trampolines: dict[Kinds, int] = {}


def trampoline(kinds: Kinds) -> int:
    """Address of `void(i64* block, i64 lo, i64 hi)` that calls block[0] with the arguments the block describes.

    Numba passes the place of the result, the place of an exception, then the arguments; an array is owner, parent,
    number of elements, element size, address, lengths, steps in bytes. A status other than 0 goes to block[1].
    """
    if kinds in _trampolines:
        return _trampolines[kinds]
    lines: list[str] = []
    passed = ["ptr %result", "ptr %error", "i64 %lo", "i64 %hi"]

    def emit(expression: str) -> str:
        lines.append(f"%t{len(lines)} = {expression}")
        return f"%t{len(lines) - 1}"

    def word(slot: int, kind: str = "i64") -> str:
        return emit(f"load {kind}, ptr {emit(f'getelementptr i64, ptr %block, i64 {slot}')}")

    slot = _HEAD
    layout = slot + sum(2 if isinstance(kind, int) else 1 for kind in kinds)
    for kind in kinds:
        if isinstance(kind, int):
            itemsize = word(layout)
            offset = emit(f"mul i64 {word(slot + 1)}, {itemsize}")
            data = emit(f"getelementptr i8, ptr {word(slot, 'ptr')}, i64 {offset}")
            lengths = [word(layout + 1 + axis) for axis in range(kind)]
            count, steps = "1", [itemsize]
            for length in reversed(lengths):
                count = emit(f"mul i64 {count}, {length}")
                steps.insert(0, emit(f"mul i64 {count}, {itemsize}"))
            passed += ["ptr null", "ptr null", f"i64 {count}", f"i64 {itemsize}", f"ptr {data}"]
            passed += [f"i64 {value}" for value in (*lengths, *steps[1:])]
            slot, layout = slot + 2, layout + 1 + kind
        else:
            native = {"int": "i64", "float": "double", "bool": "i8"}[kind]
            passed.append(f"{native} {word(slot, native)}")
            slot += 1
    function = word(0, "ptr")
    body = "\n  ".join(lines)
    name = f"enter_{len(_trampolines)}"
    text = f"""
define void @{name}(ptr %block, i64 %lo, i64 %hi) {{
  %result = alloca ptr
  %error = alloca ptr
  {body}
  %status = call i32 {function}({", ".join(passed)})
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %record, label %out
record:
  %wide = sext i32 %status to i64
  %place = getelementptr i64, ptr %block, i64 1
  store i64 %wide, ptr %place
  br label %out
out:
  ret void
}}
"""
    (_trampolines[kinds],) = pool.compile_native(text, name, opt=0)
    return _trampolines[kinds]
