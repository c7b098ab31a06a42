"""Generator of the matrix-vector product, the matrix product of a decode step: its cost is reading the matrix once.

Used by `gemm_plan.py` where one operand is a single row or column. Nothing is packed: the matrix is read where it
lies, along whichever of its axes is contiguous, converted in registers and multiplied with a vector that is already
in the dtype of the sums. Tasks are blocks of lines (results); each result is summed over k in one order.
"""

from __future__ import annotations

from . import ir
from .gemm_ir import finish, pointers, words
from .ir import Function, Variable
from .pack_ir import element
from .vectors_ir import SIZE, STORAGE, Format, Vectors, splat, suffix

#: Most lines in a task: their sums lie on the stack.
LINES = 1024
_TOGETHER = 4  # lines summed at once where k is contiguous
_ROWS = 8  # steps of k added at once where lines are contiguous


def _along_k(v: Vectors, f: Function, form: Format, source: str, matrix: str, count: str, sums: str) -> None:
    """Lines contiguous along k: each a dot product, two vectors of sums a line, added up at the end."""
    line_step, k = words(f, "b_line_step", "k")
    kind, n, size = form.accumulator, form.lanes, SIZE[STORAGE[source]]
    vector, stored = f"<{n} x {kind}>", STORAGE[source]
    (x,) = pointers(f, "a_packed")
    last = f.sub(count, 1)
    whole = f.let(f"and i64 {k}, {-2 * n}")
    v.declared.add(f"declare {kind} @llvm.vector.reduce.fadd.v{n}{suffix(kind)}({kind}, {vector})")
    with f.loop(0, count, _TOGETHER) as j:
        lines = [f.at(matrix, f.mul(f.least(f.add(j, i), last), line_step)) for i in range(_TOGETHER)]
        total = [[Variable(f, vector, "zeroinitializer") for _ in range(2)] for _ in lines]
        with f.loop(0, whole, 2 * n) as at:
            for half in range(2):
                here = f.add(at, half * n)
                value = f.load(vector, f.at(x, f.mul(here, SIZE[kind])), SIZE[kind])
                for i, line in enumerate(lines):
                    raw = f.load(f"<{n} x {stored}>", f.at(line, f.mul(here, size)), size)
                    factor = element(v, f, form, source, n, raw)
                    total[i][half].set(v.multiply_add(f, kind, n, value, factor, total[i][half].get()))
        with f.loop(whole, k, n) as here:
            mask = v.mask(f, n, f.sub(k, here))
            value = v.load_masked(f, kind, n, f.at(x, f.mul(here, SIZE[kind])), mask)
            for i, line in enumerate(lines):
                raw = v.load_masked(f, stored, n, f.at(line, f.mul(here, size)), mask)
                factor = element(v, f, form, source, n, raw)
                total[i][0].set(v.multiply_add(f, kind, n, value, factor, total[i][0].get()))
        for i, (left, right) in enumerate(total):
            both = f.let(f"fadd {vector} {left.get()}, {right.get()}")
            name = f"llvm.vector.reduce.fadd.v{n}{suffix(kind)}"
            result = f.let(f"call reassoc {kind} @{name}({kind} 0.0, {vector} {both})")
            f.store(kind, result, f.at(sums, f.mul(f.add(j, i), SIZE[kind])), SIZE[kind])


def _along_lines(v: Vectors, f: Function, form: Format, source: str, matrix: str, count: str, sums: str) -> None:
    """Steps of k contiguous along lines: `_ROWS` of them are added to the sums in each sweep."""
    k_step, k = words(f, "b_k_step", "k")
    kind, n, size = form.accumulator, form.lanes, SIZE[STORAGE[source]]
    vector, stored = f"<{n} x {kind}>", STORAGE[source]
    (x,) = pointers(f, "a_packed")
    whole_k = f.let(f"and i64 {k}, {-_ROWS}")
    whole = f.let(f"and i64 {count}, {-n}")
    with f.loop(0, count, n) as j:
        f.store(vector, "zeroinitializer", f.at(sums, f.mul(j, SIZE[kind])), form.isa.vector)
    for start, stop, rows in (("0", whole_k, _ROWS), (whole_k, k, 1)):
        with f.loop(start, stop, rows) as first:
            values, lines = [], []
            for r in range(rows):
                step = f.add(first, r)
                value = f.load(kind, f.at(x, f.mul(step, SIZE[kind])), SIZE[kind])
                values.append(splat(f, kind, value, n))
                lines.append(f.at(matrix, f.mul(step, k_step)))
            for begin, end, part in (("0", whole, False), (whole, count, True)):
                with f.loop(begin, end, n) as j:
                    at = f.at(sums, f.mul(j, SIZE[kind]))
                    total = f.load(vector, at, form.isa.vector)
                    mask = v.mask(f, n, f.sub(count, j)) if part else ""
                    for value, line in zip(values, lines, strict=True):
                        here = f.at(line, f.mul(j, size))
                        raw = (
                            v.load_masked(f, stored, n, here, mask) if part else f.load(f"<{n} x {stored}>", here, size)
                        )
                        total = v.multiply_add(f, kind, n, value, element(v, f, form, source, n, raw), total)
                    f.store(vector, total, at, form.isa.vector)


def _vector_pass(v: Vectors, form: Format, source: str) -> Function:
    """Items are blocks of `b_per_task` lines of the matrix "b": c = init + matrix[lines, k] @ a_packed[k]."""
    f = Function("vector_pass", "ptr %block, i64 %lo, i64 %hi")
    per_task, lines, line_step, k_step, result = words(f, "b_per_task", "b_lines", "b_line_step", "b_k_step", "result")
    c_column, init_column, init = words(f, "c_column", "init_column", "init")
    matrix, c = pointers(f, "b_source", "c")
    sums = f.slot(form.accumulator, count=LINES + _TOGETHER)
    has_init = f.is_("ne", init, 0)
    contiguous_k = f.is_("eq", k_step, SIZE[STORAGE[source]])
    with f.loop("%lo", "%hi") as task:
        first = f.mul(task, per_task)
        count = f.least(per_task, f.sub(lines, first))
        here = f.at(matrix, f.mul(first, line_step))
        with f.when(contiguous_k):
            _along_k(v, f, form, source, here, count, sums)
        with f.when(f.let(f"xor i1 {contiguous_k}, true")):
            _along_lines(v, f, form, source, here, count, sums)
        init_here = f.let(f"inttoptr i64 {f.add(init, f.mul(first, init_column))} to ptr")
        init_here = f.let(f"select i1 {has_init}, ptr {init_here}, ptr null")
        c_here = f.at(c, f.mul(first, c_column))
        f.do(
            f"call void @finish(ptr {sums}, i64 0, i64 1, i64 {count}, ptr {c_here}, i64 0, "
            f"ptr {init_here}, i64 0, i64 {result})"
        )
    return f


def vector_text(form: Format, source: str) -> str:
    """IR of `vector_pass` for a matrix of one dtype; `form` says how its elements are converted, "pairs" excepted."""
    v = Vectors(form.isa)
    functions = [finish(v, form), _vector_pass(v, form, source)]
    return ir.module_text(functions, sorted(v.declared))
