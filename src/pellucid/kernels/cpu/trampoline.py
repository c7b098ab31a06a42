"""Entry points: how a launch hands the arguments it packed to a function that Numba compiled.

A block of int64 words describes the arguments of one launch (`launch_ir` writes it). `trampoline` makes the native
function that every thread of the pool calls with it: a few instructions of LLVM IR that unfold the block into what
Numba's calling convention wants. It depends on the kinds of the arguments only and serves every kernel with the same
kinds.

Block: function, status, then two words for each argument: an array's address and element size, or a number and nothing.
"""

from __future__ import annotations

from ...device import pool

Kinds = tuple[str, ...]
"""Per argument: "array", "int", "float" or "bool"."""

_HEAD = 2  # words before the arguments: function and status
_NATIVE = {"int": "i64", "float": "double", "bool": "i8"}

_trampolines: dict[Kinds, int] = {}


def trampoline(kinds: Kinds) -> int:
    """Address of `void(i64* block, i64 lo, i64 hi)` that calls block[0] with the arguments the block describes.

    Numba passes the place of the result, the place of an exception, then the arguments; an array is owner, parent,
    number of elements, element size, address, length, step in bytes. All arrays are given a length of 1, because a
    kernel addresses elements from the first one (`formats.load`). A status other than 0 goes to block[1].
    """
    if kinds in _trampolines:
        return _trampolines[kinds]
    lines: list[str] = []
    passed = ["ptr %result", "ptr %error", "i64 %lo", "i64 %hi"]

    def word(slot: int, kind: str = "i64") -> str:
        lines.append(f"%p{slot} = getelementptr i64, ptr %block, i64 {slot}")
        lines.append(f"%w{slot} = load {kind}, ptr %p{slot}")
        return f"{kind} %w{slot}"

    for position, kind in enumerate(kinds):
        slot = _HEAD + 2 * position
        if kind == "array":
            address, size = word(slot, "ptr"), word(slot + 1)
            passed += ["ptr null", "ptr null", "i64 1", size, address, "i64 1", size]
        else:
            passed.append(word(slot, _NATIVE[kind]))
    body = "\n  ".join(lines)
    name = f"enter_{len(_trampolines)}"
    text = f"""
define void @{name}(ptr %block, i64 %lo, i64 %hi) {{
  %result = alloca ptr
  %error = alloca ptr
  %function = load ptr, ptr %block
  {body}
  %status = call i32 %function({", ".join(passed)})
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
