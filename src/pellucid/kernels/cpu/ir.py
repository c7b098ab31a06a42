"""Functions written as LLVM IR text by Python: a small builder, and the compiler with its cache on disk.

Used where a kernel needs exact vector instructions and registers (matrix product, packing). A `Function` emits IR
line by line; loops and branches are `with` blocks; variables live in stack slots, which LLVM's optimiser turns into
registers, so nobody writes a phi node. Machine code is kept on disk by a hash of the IR, the processor and the LLVM
version, so a warm start runs no compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import llvmlite
import llvmlite.binding as llvm

from ...base.errors import KernelError
from . import cache
from .isa import Isa


class Function:
    """One function under construction. Values are IR operands as text: "%t3", "12", "ptr"-typed names."""

    def __init__(self, name: str, params: str, *, internal: bool = False, attributes: str = "nounwind") -> None:
        """`params` as in IR: "ptr %a, i64 %n". An internal function can only be called from its own module."""
        self._head = f"define {'internal ' if internal else ''}void @{name}({params}) {attributes}"
        self.name = name
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def do(self, code: str) -> None:
        """An instruction without a result."""
        self._lines.append("  " + code)

    def let(self, code: str) -> str:
        """An instruction with a result; returns its name."""
        name = f"%t{self._fresh()}"
        self._lines.append(f"  {name} = {code}")
        return name

    def _fresh(self) -> int:
        self._count += 1
        return self._count

    def _label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def slot(self, kind: str, *, count: int = 1, align: int = 64) -> str:
        """Stack memory for `count` values of a type, made once at entry."""
        name = f"%s{self._fresh()}"
        self._slots.append(f"  {name} = alloca {kind}, i64 {count}, align {align}")
        return name

    # integers -------------------------------------------------------------------------------------------------------
    def add(self, a: str | int, b: str | int) -> str:
        return str(a) if b in (0, "0") else self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: str | int, b: str | int) -> str:
        return self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str:
        if b in (0, "0"):
            return "0"
        return str(a) if b in (1, "1") else self.let(f"mul nsw i64 {a}, {b}")

    def div(self, a: str | int, b: str | int) -> str:
        return self.let(f"sdiv i64 {a}, {b}")

    def rem(self, a: str | int, b: str | int) -> str:
        return self.let(f"srem i64 {a}, {b}")

    def least(self, a: str | int, b: str | int) -> str:
        return self.let(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def is_(self, relation: str, a: str | int, b: str | int) -> str:
        """A comparison of integers: "slt", "sge", "eq", "ne"."""
        return self.let(f"icmp {relation} i64 {a}, {b}")

    # memory ---------------------------------------------------------------------------------------------------------
    def at(self, base: str, offset: str | int) -> str:
        """The pointer `offset` bytes past `base`."""
        return base if offset in (0, "0") else self.let(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, kind: str, address: str, align: int) -> str:
        return self.let(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: str, address: str, align: int) -> None:
        self.do(f"store {kind} {value}, ptr {address}, align {align}")

    # control --------------------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, start: str | int, stop: str | int, step: str | int = 1) -> Iterator[str]:
        """for i in range(start, stop, step), step positive."""
        n = self._fresh()
        index = self.slot("i64", align=8)
        self.store("i64", str(start), index, 8)
        self.do(f"br label %head{n}")
        self._label(f"head{n}")
        i = self.load("i64", index, 8)
        more = self.is_("slt", i, stop)
        self.do(f"br i1 {more}, label %body{n}, label %done{n}")
        self._label(f"body{n}")
        yield i
        following = self.add(self.load("i64", index, 8), step)
        self.store("i64", following, index, 8)
        self.do(f"br label %head{n}")
        self._label(f"done{n}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """if condition."""
        n = self._fresh()
        self.do(f"br i1 {condition}, label %then{n}, label %after{n}")
        self._label(f"then{n}")
        yield
        self.do(f"br label %after{n}")
        self._label(f"after{n}")

    def leave(self) -> None:
        """return, from inside a `when`."""
        self.do("ret void")
        self._label(f"unreached{self._fresh()}")

    def text(self) -> str:
        return "\n".join([self._head + " {", *self._slots, *self._lines, "  ret void", "}"])


class Variable:
    """A value that changes, in a stack slot that the optimiser keeps in a register."""

    def __init__(self, function: Function, kind: str, value: str) -> None:
        self._function, self._kind, self._slot = function, kind, function.slot(kind)
        self.set(value)

    def get(self) -> str:
        return self._function.let(f"load {self._kind}, ptr {self._slot}")

    def set(self, value: str) -> None:
        self._function.do(f"store {self._kind} {value}, ptr {self._slot}")


def module_text(functions: Sequence[Function], declarations: Sequence[str] = ()) -> str:
    """The IR of a module; intrinsics used by `Function` itself are declared here."""
    declared = ["declare i64 @llvm.smin.i64(i64, i64)", *declarations]
    return "\n\n".join([*declared, *(f.text() for f in functions)]) + "\n"


# --- compilation ------------------------------------------------------------------------------------------------------


def target_machine(isa: Isa) -> llvm.TargetMachine:
    """LLVM's target for a path the host can run: the path's baseline processor, not the host's."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, reloc="pic", codemodel="default", jit=True
    )


def optimise(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parses and optimises IR. Raises KernelError where LLVM refuses it."""
    try:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise KernelError("compile", f"LLVM refuses the generated code: {error}") from None
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_rotate_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def compile_functions(text: str, isa: Isa) -> llvm.ExecutionEngine:
    """Machine code of a module, from the cache on disk if it is there. It stays mapped until the process ends."""
    compiler = (llvmlite.__version__, str(llvm.llvm_version_info), llvm.get_default_triple())
    key = hashlib.sha256("\0".join((text, isa.cpu, isa.features, *compiler)).encode()).hexdigest()
    machine = target_machine(isa)
    code = cache.read(f"{key}.o")
    if code is None:
        code = machine.emit_object(optimise(text, machine))
        cache.write(f"{key}.o", code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # a worker may be inside the code when Python shuts down
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine
